"""A plugin that breaks the border's rules ends a run with one message: which plugin, what, and exit code 1 or 2."""
import json
import re
import subprocess

import pytest

RECIPE = """\
iterations: 1
device: cpu
dtype: float32
model:
  new: {{hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 300}}
env: {env}
estimator: {estimator}
rollout: {{tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 900, max_response_tokens: 4}}
update: {{mini_batch: 4, lr: 1e-3}}
eval: {{tasks: 1}}
"""
# A description without components, of a border that this program does not know.
FOREIGN = """\
#include "nestor_plugin.h"
static nestor_plugin description = {NESTOR_HEAD, 0, 0};
const nestor_plugin *nestor_plugin_entry(void) { description.abi_major = 9; return &description; }
"""


@pytest.fixture
def faulty(root):
    path = root / "target/release/examples/libfaulty.so"
    assert path.exists(), "build first: cargo build --release --examples --workspace"
    return path


def failure(run, tmp_path, env="{plugin: numberline}", estimator="{plugin: gigpo}"):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(env=env, estimator=estimator))
    done = run("train", recipe, "--run-dir", tmp_path / "run")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return done.returncode, lines[0]


@pytest.mark.parametrize("fault, code, words", [
    ("panic", 1, ["faulty", "panic", "asked to panic"]),
    ("error", 1, ["faulty", "asked to fail"]),
    ("unwritten", 1, ["faulty", "row", "token"]),
    ("infinite_return", 1, ["faulty", "row", "token"]),
    ("nothing", 2, ["faulty", "fault", "nothing"]),
])
def test_an_estimator_that_fails(fault, code, words, faulty, run, tmp_path):
    got, message = failure(run, tmp_path, estimator=f"{{plugin: {faulty}#faulty, config: {{fault: {fault}}}}}")
    assert got == code, message
    for word in words:
        assert word in message


def test_an_environment_that_panics_while_it_opens(faulty, run, tmp_path):
    code, message = failure(run, tmp_path, env=f"{{plugin: {faulty}#faulty, config: {{fault: panic_open}}}}")
    assert code == 1 and "asked to panic while opening" in message, message


@pytest.mark.parametrize("fault, words", [
    ("panic", ["panicked", "asked to panic"]),
    ("error", ["asked to fail"]),
    ("nan_reward", ["NaN", "not finite"]),
])
def test_an_environment_that_fails_in_a_step(fault, words, faulty, run, tmp_path):
    config, actions = tmp_path / "config.json", tmp_path / "actions.jsonl"
    config.write_text(f'{{"fault": "{fault}"}}')
    actions.write_text('"now"\n')
    done = run("play", f"{faulty}#faulty", "--config", config, "--task", 3, "--seed", 7, "--actions", actions)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    for word in ["error: ", "faulty", "task 3 of split train", "seed 7", "step 0", *words]:
        assert word in done.stderr


def test_an_environment_that_fails_now_and_then(faulty, root, run, tmp_path):
    """A run survives failing resets and steps as often as the recipe allows, counts them and names them."""
    made = run("train", root / "recipes/smoke/gigpo.yaml", "--set", "iterations=0", "--set", "rollout.max_prompt_tokens=900",
               "--set", "update.micro_batch_tokens=16384", "--run-dir", tmp_path / "made")
    assert made.returncode == 0, made.stderr
    recipe = tmp_path / "recipe.yaml"
    text = RECIPE.format(env=f"{{plugin: {faulty}#faulty, config: {{fault: flaky}}, isolate: none}}", estimator="{plugin: gigpo}")
    text = re.sub("  new: .*", f"  path: {tmp_path}/made/model", text)
    recipe.write_text(text.replace("max_steps: 2", "max_steps: 3, env_errors: 9"))
    done = run("train", recipe, "--run-dir", tmp_path / "survives")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "survives/metrics.jsonl").read_text().splitlines()]
    warnings = [line for line in done.stderr.splitlines() if "fails (failure" in line]
    assert sum(row["env/errors"] for row in rows) == len(warnings) > 0, done.stderr
    assert all(line.startswith("warning: plugin faulty: ") and " of 9)" in line for line in warnings)
    episodes = [json.loads(line) for line in (tmp_path / "survives/rollouts/iteration-000001.jsonl").open()]
    assert len(episodes) == 2 and all(1 <= len(e["steps"]) <= 3 and (e["failure"] or e["steps"][-1]["truncated"]) for e in episodes)

    recipe.write_text(text)
    done = run("train", recipe, "--run-dir", tmp_path / "fails")
    assert done.returncode == 1 and "call 4 fails" in done.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "fails/run.json").read_text())["state"] == "failed"


def test_a_plugin_of_another_border(faulty, root, run, tmp_path):
    library = tmp_path / "libother.so"
    data = bytearray(faulty.read_bytes())
    library.write_bytes(data[: len(data) // 3])
    code, message = failure(run, tmp_path, estimator=f"{{plugin: {library}}}")
    assert code == 2 and "libother.so is cut short" in message

    source = tmp_path / "foreign.c"
    source.write_text(FOREIGN)
    subprocess.run(["cc", "-shared", "-fPIC", "-I", root / "plugins/sdk", source, "-o", library], check=True)
    code, message = failure(run, tmp_path, estimator=f"{{plugin: {library}}}")
    assert code == 2 and "libother.so" in message and "version 9.0" in message
