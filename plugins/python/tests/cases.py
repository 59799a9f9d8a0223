"""Environments that the tests of the plugin play (src/tests.rs)."""
import os
import time


class Walk:
    """Everything that a class may have. The policy walks from 0 to a target, which is the task's number plus one."""

    template = "{{ observation }} of {{ task }}"
    num_tasks = {"train": 4, "eval": 2}

    def __init__(self, start=0):
        self.start = start

    def reset(self, *, seed=None, options=None):
        self.at, self.target, self.seed = self.start, options["task"] + 1, seed
        return {"text": self.text(), "task": f"reach {self.target}"}

    def text(self):
        return f"at {self.at}, seed {self.seed}"

    def step(self, action):
        print("a line on standard output")
        if action == "exit":
            os._exit(3)
        self.at += {"up": 1, "down": -1}.get(action, 0)
        info = {"success": self.at == self.target, "task_type": "walk", "metrics": {"at": self.at}, "ratio": float("nan")}
        return self.text(), 0.5, self.at == self.target, False, info

    def parse(self, response):
        return response.strip(), response.strip() in ("up", "down")

    def anchor(self):
        return f"{self.at}/{self.target}"

    def admissible(self):
        return ["up", "down"]

    def expert(self):
        return "up"

    def response(self, action):
        return f" {action}\n"

    def save(self):
        return {"at": self.at, "target": self.target, "seed": self.seed}

    def load(self, state):
        self.__dict__.update(state)


class Echo:
    """As little as a class may have, in gym's older form. Some actions misbehave."""

    made = closed = 0

    def reset(self, seed):
        Echo.made += 1
        self.steps, self.seed = 0, seed
        return f"seed {seed}"

    def step(self, action):
        self.steps += 1
        if action == "raise":
            raise ValueError("two\nlines")
        if action == "exit":
            os._exit(7)
        if action == "hang":
            time.sleep(1000)
        text = {"huge": "x" * (17 << 20), "surrogate": "\ud800", "number": 5, "process": str(os.getpid()),
                "other": f"made {Echo.made}", "closed": f"closed {Echo.closed}"}.get(action, f"step {self.steps}: {action}")
        reward = {"nan": float("nan")}.get(action, 1)
        return text, reward, action == "end", {"TimeLimit.truncated": action == "end", "admissible_commands": ["a"]}

    def close(self):
        Echo.closed += 1


def short(prompt, completion, limit):
    """A plain reward function."""
    return 1.0 if len(completion) <= limit else -1.0


def scored(prompts, completions, limit, **kwargs):
    """A reward function as TRL calls it."""
    texts = [c if isinstance(c, str) else c[0]["content"] + "!" for c in completions]
    return [None if text == "pass" else len(text) / n for text, n in zip(texts, limit)]


class Counter:
    """For TRL's environment_factory."""

    def reset(self, **row):
        self.value = row["first"]
        return f" Start at {self.value}."

    def add(self, by: int) -> str:
        """Adds a number."""
        self.value += by
        return str(self.value)

    def get_reward(self) -> float:
        return float(self.value)

    def _hidden(self):
        pass


class Turns:
    """For `verifiers`: the names of its MultiTurnEnv that the shim uses."""

    def __init__(self, turns):
        self.turns, self.rubric = turns, self

    def get_dataset(self):
        return [{"prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": "one"}], "answer": "two"}]

    async def setup_state(self, state):
        state["seen"] = []

    async def is_completed(self, state):
        return len(state["trajectory"]) >= self.turns

    async def env_response(self, messages, state):
        state["seen"].append(messages[-1]["content"])
        return [{"role": "user", "content": f"after {state['seen'][-1]}"}]

    async def score_rollout(self, state):
        said = [m["content"] for m in state["completion"] if m["role"] == "assistant"]
        state["reward"], state["metrics"] = float(state["answer"] in said), {"turns": len(said)}


def nothing():
    """Returns no environment."""
