"""Plays an environment of the real package `verifiers` in its own loop and through the plugin `python` and its shim, with the
same responses, and compares: messages, end, reward and metrics.

usage: python3 tests/slow/python_verifiers.py          # makes .venv-verifiers once (some minutes)
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-verifiers"
# The last version whose environments have env_response and is_completed at the top of the package.
VERIFIERS = "verifiers==0.1.14"

# An environment as its author writes it: three hints to a number, and an early end.
MODULE = '''
import verifiers as vf
from datasets import Dataset


class Hints(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["tries"] = 0

    async def env_response(self, messages, state, **kwargs):
        state["tries"] += 1
        said = messages[-1].content.strip()
        if said == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
        return [{"role": "user", "content": f"{said} is wrong, try {state['tries']}"}]


def exact(completion, answer, **kwargs):
    return float(any(m.role == "assistant" and m.content.strip() == answer for m in completion))


def brief(completion, **kwargs):
    return 1.0 / len(completion)


def load_environment(max_turns=3):
    rows = [{"question": f"Which number? ({n})", "answer": str(n)} for n in range(4)]
    rubric = vf.Rubric(funcs=[exact, brief], weights=[1.0, 0.5])
    return Hints(dataset=Dataset.from_list(rows), system_prompt="Guess.", rubric=rubric, max_turns=max_turns)
'''

# Plays tasks in verifiers' own loop, with a client that answers from a script.
LOOP = '''
import asyncio, json, sys
import hints
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage


class Script(Client):
    def __init__(self, said):
        self.said, self.prompts = iter(said), []

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        self.prompts.append([m.content for m in prompt])
        message = ResponseMessage(content=next(self.said), finish_reason="stop", is_truncated=False)
        return Response(id="", created=0, model=model, message=message)


Script.__abstractmethods__ = frozenset()
env = hints.load_environment()
games = []
for task, said in json.load(sys.stdin):
    client = Script(said)
    row = {"example_id": task, **env.get_dataset()[task]}
    state = asyncio.run(env.rollout(row, client, "script"))
    asyncio.run(env.rubric.score_rollout(state))
    games.append({"prompts": client.prompts, "reward": state["reward"], "metrics": state["metrics"]})
print(json.dumps(games))
'''

GAMES = [(0, ["0"]), (1, ["5", "1"]), (2, ["5", "6", "7"]), (3, ["", "3 ", "3"])]


def run(*command, **more):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command[:4]))} ended with code {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def main():
    if not (VENV / "installed").exists():
        run(sys.executable, "-m", "venv", VENV)
        run(VENV / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", VERIFIERS)
        (VENV / "installed").touch()
    with tempfile.TemporaryDirectory() as place:
        Path(place, "hints.py").write_text(MODULE)
        theirs = json.loads(run(VENV / "bin/python", "-c", LOOP, input=json.dumps(GAMES), cwd=place).splitlines()[-1])
        config = {"class": "nestor_shims.verifiers:Environment", "kwargs": {"env": "hints:load_environment"},
                  "python": str(VENV), "path": [place], "won_at": 1.0}
        Path(place, "config.json").write_text(json.dumps(config))
        for (task, said), expected in zip(GAMES, theirs):
            Path(place, "said.jsonl").write_text("".join(json.dumps(text) + "\n" for text in said))
            played = run(ROOT / "target/release/nestor", "play", "python", "--config", Path(place, "config.json"), "--task", task,
                         "--actions", Path(place, "said.jsonl"), "--json")
            ours = [json.loads(line) for line in played.splitlines()]
            # The text before each response is what is new in verifiers' prompt.
            old, new = 0, []
            for prompt in expected["prompts"]:
                new.append("\n\n".join(prompt[old:]))
                old = len(prompt) + 1
            assert [record["observation"] for record in ours[:len(new)]] == new, (ours, new)
            last = ours[-1]
            assert len(ours) == len(new) + 1 and last["done"] and last["reward"] == expected["reward"], (last, expected)
            assert {name: last["info"][name] for name in expected["metrics"]} == expected["metrics"], (last, expected)
    print(f"{len(GAMES)} episodes are the same in {VERIFIERS} and through the plugin")


if __name__ == "__main__":
    main()
