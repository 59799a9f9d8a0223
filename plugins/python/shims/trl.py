"""An environment for TRL's `environment_factory`: reset(**row) gives a text, public methods are tools, get_reward() scores."""
import inspect
import json

from nestor_shims import common, reward
from nestor_worker import load

TEMPLATE = """{{ observation }}\n\nYou can call these functions:\n{% raw %}TOOLS{% endraw %}
To call one, answer with its name and arguments as JSON:
<tool_call>{"name": NAME, "arguments": {ARGUMENT: VALUE}}</tool_call>
An answer without a call ends the episode."""


class Environment:
    """`factory` names the class. `data` holds the rows, if it needs any; `reward` a function, if it has no get_reward."""

    def __init__(self, factory, data=None, held_out=None, reward=None, max_turns=10):
        self.env, self.max_turns = load(factory)(), max_turns
        self.rows = common.by_split(data, held_out) if data else None
        self.tasks = self.rows or {"train": 1000, "eval": 100}
        self.reward, self.reward_name = load(reward) if reward else None, reward
        if not self.reward and not hasattr(self.env, "get_reward"):
            raise TypeError(f"`{factory}` has no get_reward: name a function by `reward`")
        public = inspect.getmembers(type(self.env), inspect.isfunction)
        self.methods = {n: getattr(self.env, n) for n, _ in public if n[0] != "_" and n not in ("reset", "get_reward")}
        tools = (f"- {name}{inspect.signature(tool)}: {inspect.getdoc(tool) or ''}" for name, tool in self.methods.items())
        self.template = TEMPLATE.replace("TOOLS", "\n".join(tools))

    def reset(self, split, task):
        self.row = self.rows[split][task] if self.rows else {}
        self.turns, self.completion = 0, []
        text = common.wait(self.env.reset(**self.row))
        return common.with_text(common.prompt_of(self.row), text or "")

    def parse(self, response):
        self.completion.append({"role": "assistant", "content": response})
        _, self.called, call = response.partition("<tool_call>")
        return (call.partition("</tool_call>")[0] if self.called else response).strip()

    def step(self, action):
        self.turns += 1
        text = self.call(action) if self.called else ""
        self.completion.append({"role": "tool", "content": text})
        cut = bool(self.called) and self.turns >= self.max_turns
        return text, self.score() if cut or not self.called else 0.0, not self.called, cut, {}

    def call(self, action):
        try:  # as in TRL, the policy reads the error of a call that fails
            wanted = json.loads(action)
            return str(common.wait(self.methods[wanted["name"]](**wanted.get("arguments", {}))))
        except Exception as error:  # noqa: BLE001
            return json.dumps({"error": f"{type(error).__name__}: {error}"})

    def score(self):
        total = float(common.wait(self.env.get_reward())) if hasattr(self.env, "get_reward") else 0.0
        others = {name: value for name, value in self.row.items() if name != "prompt"}
        prompt, more = common.prompt_of(self.row), {"environments": self.env}
        return total + (reward.call(self.reward, self.reward_name, [(prompt, self.completion, others)], **more)[0][0] if self.reward else 0.0)
