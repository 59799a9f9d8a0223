"""Environments that the tests of the plugin play (src/tests.rs)."""
import os
import signal
import subprocess
import sys
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


class Helpers:
    """Starts processes that nothing ends, and closes in many ways."""

    def __init__(self, log, mode="well"):
        self.log, self.mode = log, mode
        self.note(f"made {subprocess.Popen(['sleep', '1000'], start_new_session=True).pid}")

    def note(self, line):
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(line + "\n")

    def daemon(self):
        """Starts a process that is an orphan in a session of its own."""
        if os.fork() == 0:
            os.setsid()
            if (process := os.fork()) == 0:
                os.execvp("sleep", ["sleep", "1000"])
            self.note(f"daemon {process}")
            os._exit(0)
        os.wait()

    def reset(self, seed):
        self.daemon()
        return "ready"

    def step(self, action):
        keeper = os.getppid()
        actions = {"exit": lambda: os._exit(7), "hang": lambda: time.sleep(1000), "fork": os.fork,
                   "closed": lambda: (os.closerange(0, 100), time.sleep(1000))}
        if action in actions:
            actions[action]()
        for name in action.split()[1:]:
            for target in (lambda n: os.kill(keeper, n), lambda n: os.killpg(os.getpgid(keeper), n), lambda n: os.killpg(0, n)):
                target(getattr(signal, name.upper()))
        return "done", 0, False, {}

    def close(self):
        self.note("closed")
        if self.mode == "raise":
            raise ValueError("a fault of close")
        if self.mode == "leave":
            sys.exit(3)
        if self.mode == "exit":
            os._exit(5)
        if self.mode == "hang":
            time.sleep(1000)


class Typed:
    """Gives values of other types. Each action is the place of one and a Python expression."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def reset(self, seed):
        return "begin"

    def parse(self, response):
        place, _, text = response.partition(" ")
        value = eval(text)  # noqa: S307: the tests' own
        return value if place == "parse" else ((place, value), True)

    def step(self, action):
        place, value = action if isinstance(action, tuple) else ("", None)
        fields = {"seen": "text", "reward": 0.0, "terminated": False, "truncated": False, "info": {}}
        if place == "step":
            return value
        if place in fields:
            fields[place] = value
        elif place:
            fields["info"] = {place: value}
        return tuple(fields.values())


class Array:
    """As much of numpy's interface as the worker uses."""

    def __init__(self, pixels, *shape, dtype="uint8"):
        self.pixels, self.shape, self.dtype = bytes(pixels), shape, dtype

    def tobytes(self):
        return self.pixels


class Pil:
    """As much of PIL's interface as the worker uses."""

    def __init__(self, pixels, *size, mode="P"):
        self.pixels, self.size, self.mode = bytes(pixels), size, mode

    def convert(self, mode):
        return Pil(self.pixels, *self.size, mode=mode)

    def tobytes(self):
        assert self.mode == "RGB"
        return self.pixels


class Picture:
    """Observations with images. An observation that is an array alone is what many environments of gymnasium have."""

    made = 0

    def reset(self, seed):
        Picture.made += 1
        self.image = Array([seed, 0, 0] * 2, 1, 2, 3)
        return self.image

    def step(self, action):
        if action == "exit":
            os._exit(7)
        pil, pixel = Pil(range(1, 7), 1, 2), Array([0] * 3, 1, 1, 3)
        side = bytes(3 << 24)
        seen = {
            "pil": {"text": "a text", "image": pil}, "both": {"image": pil, "images": [pil, self.image]},
            "anchored": {"image": pil, "anchor": "mine"}, "made": {"image": Array([Picture.made] * 3, 1, 1, 3), "anchor": ""},
            "large": Array(side, 4096, 4096, 3), "huge": {"images": [Array(side, 4096, 4096, 3), pixel]},
            "grey": Array([0] * 2, 1, 2), "rgba": Array([0] * 8, 1, 2, 4), "floats": Array([0] * 24, 1, 2, 3, dtype="float32"),
            "path": {"image": "picture.png"}, "empty": Array([], 2, 0, 3), "many": {"images": [pixel] * 65},
        }
        return seen[action], 0, False, {}


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


class Chat:
    """Shows messages; a response other than `ok` gets a role that does not exist."""

    def reset(self, task):
        return {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": f"task {task}"}]}

    def parse(self, response):
        return response

    def step(self, action):
        role = "tool" if action == "ok" else "nobody"
        return [{"role": role, "content": action, "name": "echo"}], 0.0, False, False, {}


def verl(prompt, completion, reward_model):
    """A row as verl writes it."""
    assert prompt[0]["content"].startswith("Question: ")
    return float(completion in reward_model["ground_truth"]["target"])


class Sums:
    """Adds by a tool: a response with calls gets their results, one without is the answer."""

    tools = [{"name": "add", "description": "Adds numbers.",
              "parameters": {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "number"}}}}}]

    def reset(self, seed, task):
        self.answer = str(task + 2)
        return [{"role": "user", "content": f"{task} + 2?"}]

    def step(self, message):
        calls = message["tool_calls"]
        if not calls:
            won = self.answer in message["content"]
            return "", float(won), True, False, {"won": won}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": str(sum(call["arguments"]["numbers"]))} for call in calls]
        return results, 0.0, False, False, {}
