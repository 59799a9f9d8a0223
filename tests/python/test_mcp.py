"""Training with the tools of a real MCP server (the official package of PyPI), over pipes and over HTTP, and through its faults."""
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import PATIENCE, free_port

SERVER = Path(__file__).with_name("mcp_server.py")
ADD = {"type": "function", "function": {"name": "add", "description": "Adds two numbers.", "parameters": {
    "properties": {"a": {"title": "A", "type": "number"}, "b": {"title": "B", "type": "number"}},
    "required": ["a", "b"], "title": "addArguments", "type": "object"}}}
# Optimizer steps after which the model has the call by heart.
STEPS = 120
PROMPT, CALL = "Add 2 and 3.", {"name": "add", "arguments": {"a": 2, "b": 3}}
RECIPE = """\
extends: {root}/recipes/smoke/grpo.yaml
model: {{new: null, path: {model}}}
dtype: float32
env:
  plugin: mcp
  config: {config}
rollout:
  tasks: 2
  group_size: 2
  slots: 4
  max_steps: 3
  max_prompt_tokens: 2048
  max_response_tokens: 96
  temperature: 0.1
  template: null
  history: {history}
  max_sequence_tokens: {longest}
update: {{mini_batch: 4, lr: 1.0e-5}}
warm_start: null
eval: {{tasks: none}}
checkpoint: {{every: 0}}
"""


def sets(values):
    return [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def model(run, root, tmp_path_factory):
    """A small model that has learned one call by heart, with the chat template of Qwen2.5, which shows tools."""
    folder = tmp_path_factory.mktemp("model")
    smoke, quiet = root / "recipes/smoke/gigpo.yaml", {"iterations": 0, "eval.tasks": "none", "rollout.max_prompt_tokens": 4096}
    done = run("train", smoke, "--run-dir", folder / "random", *sets({**quiet, "warm_start": None}))
    assert done.returncode == 0, done.stderr
    template = (root / "core/model/src/tokenizer/qwen2.5_chat_template.jinja").read_text()
    (folder / "random/model/chat_template.jinja").write_text(template)
    call = {"type": "function", "function": {"name": CALL["name"], "arguments": CALL["arguments"]}}
    chat = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": chat, "tools": [ADD]}) + "\n")
    learn = {"data": str(folder / "chats.jsonl"), "steps": STEPS, "batch": 1, "lr": 1e-2, "max_tokens": 2048}
    done = run("train", smoke, "--run-dir", folder / "run", *sets(
        {**quiet, "model": {"path": f"{folder}/random/model"}, "warm_start": learn}))
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def train(run, root, model, tmp_path):
    """Trains two iterations, and returns the metrics, the steps of all episodes and the program's messages."""
    def call(config, history="{length: 0}", longest=None, **settings):
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text(json.dumps({"prompt": PROMPT, "answer": 5}) + "\n")
        config = {"tasks": {"train": str(tasks)}, "reward": {"answer": "number"}, "tools": ["add"], "max_calls": 2, **config}
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE.format(root=root, model=model, config=json.dumps(config), history=history,
                                        longest=json.dumps(longest)))
        done = run("train", recipe, "--run-dir", tmp_path / "run", *sets(settings))
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
        files = sorted((tmp_path / "run/rollouts").glob("*.jsonl"))
        return rows, [json.loads(line) for file in files for line in file.open()], done.stderr
    return call


@pytest.fixture
def http():
    """The address of a server over HTTP."""
    port = free_port()
    with subprocess.Popen([sys.executable, SERVER, "http", str(port)]) as server:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        server.kill()


def check(rows, episodes):
    """The policy sees the tool and calls it, and its prompts continue by the results."""
    assert [row["iteration"] for row in rows][-2:] == [1, 2]
    assert all(row["env/calls"] > 0 for row in rows if row["iteration"])
    first = [episode["steps"][0] for episode in episodes]
    assert all(json.dumps(ADD) in step["prompt"] for step in first)
    called = [episode for episode in episodes if episode["steps"][0]["action"] == 'add({"a":2,"b":3})']
    assert called and all("<tool_response>\n5.0\n</tool_response>" in episode["steps"][1]["prompt"] for episode in called)


def test_two_iterations_with_servers_over_pipes(train):
    rows, episodes, _ = train({"command": f"{sys.executable} {SERVER} stdio"})
    check(rows, episodes)


def test_two_iterations_as_transcripts_with_a_server_over_http(train, http):
    rows, episodes, _ = train({"url": http, "reset_tool": "begin"}, "{mode: transcript}", 4096)
    check(rows, episodes)


def test_a_run_survives_a_server_that_dies(train):
    """Each server ends in its second call, and the next episode gets another one."""
    rows, episodes, messages = train({"command": f"{sys.executable} {SERVER} stdio", "variables": {"DIES_AFTER": "2"}},
                                     **{"rollout.env_errors": 100})
    assert [row["iteration"] for row in rows][-2:] == [1, 2] and any(row.get("episode/failed") for row in rows)
    failed = [episode["failure"] for episode in episodes if episode["failure"]]
    assert failed and all("ended with code 3 before it answered the call of `add`" in failure for failure in failed)
    assert "no more numbers" in messages
