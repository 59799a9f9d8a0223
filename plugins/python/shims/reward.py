"""A reward function as an environment of one step. Part of Nestor's plugin `python`."""
import inspect

from nestor_shims import common
from nestor_worker import load


def call(function, prompt, completion, others, **more):
    """The reward. A function with a parameter `completions` gets lists of one, as in TRL; any other gets the values."""
    accepted = inspect.signature(function).parameters
    if "completions" in accepted:
        if isinstance(prompt, list) and isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        given = {"prompts": [prompt], "completions": [completion]} | {name: [value] for name, value in (others | more).items()}
    else:
        given = {"prompt": prompt, "completion": completion, **others, **more}
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        given = {name: value for name, value in given.items() if name in accepted}
    reward = common.wait(function(**given))
    if "completions" in accepted:
        if len(reward) != 1:
            raise ValueError(f"the reward function returned {len(reward)} rewards for one completion")
        reward = reward[0]
    return 0.0 if reward is None else float(reward)


class Environment:
    """The prompt of a row is the observation, a text or messages; the whole response is the completion."""

    template = "{{ observation }}"

    def __init__(self, reward, data, held_out=None):
        self.reward = load(reward)
        self.tasks = common.by_split(data, held_out)

    def reset(self, split, task):
        self.row = self.tasks[split][task]
        self.prompt = common.prompt_of(self.row)
        if self.prompt is None:
            raise KeyError(f"row {task} of split {split} has no `prompt` and no `messages`; it has {', '.join(self.row)}")
        return self.prompt

    def parse(self, response):
        return response

    def step(self, completion):
        others = {name: value for name, value in self.row.items() if name not in ("prompt", "completion")}
        return "", call(self.reward, self.prompt, completion, others), True, False, {}
