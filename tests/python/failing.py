"""Runs in which some responses make the environment fail: the recipe, the game as a plugin in C, as a class in Python and as an
OpenEnv server, and the share of such responses in each iteration.

    python failing.py PORT FAULT      (the server)
"""
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 30
RECIPE = """\
iterations: {iterations}
seed: {seed}
device: cpu
dtype: float32
model: {model}
env: {env}
estimator: {{plugin: {estimator}}}
rollout: {{tasks: 8, group_size: 8, max_steps: 10, max_prompt_tokens: 120, max_response_tokens: 3, env_errors: 5000, env_threads: 8, template: "{{{{ observation }}}}"}}
update: {{mini_batch: 128, lr: 1e-2}}
eval: {{tasks: 1, every: 0}}
checkpoint: {{every: 0}}
"""
NEW_MODEL = "{new: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, kv_heads: 1, vocab_size: 290}}"


def library(folder):
    """Compiles tests/fixtures/failing_response.c."""
    path = Path(folder) / "libfailing.so"
    source, header = ROOT / "tests/fixtures/failing_response.c", ROOT / "plugins/sdk"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-I", header, source, "-o", path], check=True)
    return path


def recipe(env, model=NEW_MODEL, estimator="grpo", iterations=ITERATIONS, seed=0):
    return RECIPE.format(env=json.dumps(env), model=model, estimator=estimator, iterations=iterations, seed=seed)


def fails(response):
    return "A" <= response[:1] <= "H"


def episodes(run_dir):
    """The episodes of each iteration."""
    files = sorted((Path(run_dir) / "rollouts").glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text().split("\n") if line] for file in files]


def shares(run_dir):
    """The share of responses that make the environment fail, by iteration."""
    steps = [[step for episode in iteration for step in episode["steps"]] for iteration in episodes(run_dir)]
    return [sum(fails(step["response"]) for step in iteration) / len(iteration) for iteration in steps]


def first_and_last(values, count=5):
    return sum(values[:count]) / count, sum(values[-count:]) / count


def ends(task, seed, steps, response):
    """True by chance, for one response in six."""
    return zlib.crc32(f"{task} {seed} {steps} {response}".encode()) % 6 == 0


class Game:
    """A step costs 1. The episode ends by chance, and fails as `fault` says at a response that begins with a letter from A to H."""

    template = "{{ observation }}"
    num_tasks = {"train": 64, "eval": 64}

    def __init__(self, fault="none"):
        self.fault = fault

    def reset(self, split, task, seed):
        self.task, self.seed, self.steps = task, seed, 0
        return "step 0"

    def parse(self, response):
        return response

    def step(self, action):
        self.steps += 1
        if fails(action):
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "error":
                raise ValueError(f"cannot bear {action!r}")
            if self.fault == "hang":
                time.sleep(1000)
        won = ends(self.task, self.seed, self.steps, action)
        bad = fails(action)
        text = "\udcff" if bad and self.fault == "not_utf8" else f"step {self.steps}"
        reward = float("nan") if bad and self.fault == "nan_reward" else -1.0
        return text, reward, won, False, {"won": won}


def serve(port, fault):
    """The game under OpenEnv's protocol. The fault `close` ends the session, `error` is the server's own error."""
    from websockets.sync.server import serve as listen

    def session(socket):
        task = steps = 0
        for message in socket:
            message = json.loads(message)
            if message["type"] == "reset":
                task, steps = message["data"].get("seed", 0), 0
                seen = {"observation": {"text": "step 0"}, "reward": None, "done": False}
            elif message["type"] == "step":
                response, steps = message["data"]["text"], steps + 1
                if fails(response) and fault == "close":
                    return
                if fails(response) and fault == "error":
                    failure = {"code": "EXECUTION_ERROR", "message": "cannot bear it"}
                    socket.send(json.dumps({"type": "error", "data": failure}))
                    continue
                reward = float("nan") if fails(response) and fault == "nan_reward" else -1.0
                seen = {"observation": {"text": f"step {steps}"}, "reward": reward, "done": ends(task, 0, steps, response)}
            else:
                return
            socket.send(json.dumps({"type": "observation", "data": seen}))

    def page(connection, request):
        fields = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
        pages = {"/health": {"status": "healthy"}, "/schema": {"action": fields}}
        return connection.respond(200, json.dumps(pages[request.path])) if request.path in pages else None

    with listen(session, "127.0.0.1", port, process_request=page) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
