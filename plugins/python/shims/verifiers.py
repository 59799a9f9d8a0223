"""An environment of the package `verifiers` with the interface of MultiTurnEnv: env_response, is_completed, dataset, rubric."""
import math

from nestor_shims import common
from nestor_worker import load


class Environment:
    """`env` names the class, or a function such as `wordle:load_environment`; `args` are its arguments."""

    template = "{{ observation }}"

    def __init__(self, env, args=None):
        self.env = load(env)(**(args or {}))
        held_out = getattr(self.env, "get_eval_dataset", self.env.get_dataset)
        self.tasks = {"train": self.env.get_dataset(), "eval": held_out()}

    def reset(self, split, task):
        row = {"example_id": task, **self.tasks[split][task]}
        started = hasattr(self.env, "init_state")
        self.state = common.wait(self.env.init_state(row, no_client(), "")) if started else {**row, "trajectory": []}
        self.state = common.wait(self.env.setup_state(self.state)) or self.state
        self.messages = list(self.state["prompt"])
        return common.plain(self.messages)

    def parse(self, response):
        return response

    def step(self, response):
        said = messages([{"role": "assistant", "content": response}])
        unknown = dict.fromkeys(("response", "tokens", "reward", "advantage"))
        turn = {"prompt": self.messages, "completion": said, "is_truncated": False, "extras": {}, **unknown}
        self.state["trajectory"].append(turn | {"trajectory_id": self.state.get("trajectory_id")})
        self.messages = self.messages + said
        over = common.wait(self.env.is_completed(self.state))
        new = [] if over else messages(common.wait(self.env.env_response(self.messages, self.state)))
        # As in verifiers' own loop: this ends an episode at once, another condition after the policy's next turn.
        if final := self.state.get("final_env_response"):
            new, over = messages(final), True
        self.messages = self.messages + new
        return common.plain(new), self.score() if over else 0.0, over, False, self.info if over else {}

    def score(self):
        self.state["completion"] = self.messages[len(self.state["prompt"]):]
        common.wait(self.env.rubric.score_rollout(self.state))
        self.info = {name: value for name, value in (self.state.get("metrics") or {}).items() if math.isfinite(value)}
        return float(self.state["reward"])


def messages(new):
    try:
        from verifiers.utils.message_utils import normalize_messages
    except ImportError:
        return list(new)
    return normalize_messages(new)


def no_client():  # the state wants one; Nestor asks the policy
    from verifiers.clients import Client
    return object.__new__(type("Nestor", (Client,), {name: None for name in Client.__abstractmethods__}))
