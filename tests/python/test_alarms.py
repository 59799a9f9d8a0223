"""A run that learns nothing says so, once, in every place that a user may look at; a run that learns does not."""
import json

import pytest

RECIPE = "recipes/smoke/gigpo.yaml"
QUIET = ["checkpoint.every=0", "eval.every=0", "eval.tasks=1", "checkpoint.rollouts_every=0"]


def train(run, root, run_dir, *sets):
    sets = [word for value in (*QUIET, *sets) for word in ("--set", value)]
    return run("train", root / RECIPE, *sets, "--json", "--run-dir", run_dir)


def warnings_of(done):
    events = map(json.loads, done.stdout.splitlines())
    return [event["message"] for event in events if event["event"] == "warning"]


def test_a_run_that_learns_nothing_warns_once_in_ten_iterations(run, root, tmp_path):
    """A random model without a warm start: its responses are cut and cannot be read."""
    done = train(run, root, tmp_path / "run", "warm_start=null", "iterations=12", "update.lr=1e-9", "rollout.max_response_tokens=2",
                 "rollout.group_size=1", "update.mini_batch=8", "wandb={}")
    assert done.returncode == 0, done.stderr
    warned = warnings_of(done)
    for words in ("every response was cut at rollout.max_response_tokens (2)", "could read none of the responses",
                  "every advantage was 0"):
        found = [line.split(":")[0] for line in warned if words in line]
        assert found == ["iteration 1", "iteration 11"], (words, warned)
    # GiGPO compares, which is known before the first iteration.
    assert len(warned) == 7 and warned[0].startswith("rollout.group_size is 1, and estimator `gigpo` compares"), warned
    log = (tmp_path / "run/log.txt").read_text()
    assert all(f"warning: {line}" in log for line in warned)
    [file] = (tmp_path / "run/wandb").rglob("*.wandb")
    assert file.read_bytes().count(b"nothing readable") == 2


@pytest.mark.parametrize("estimator", ["ppo", "rloo", "grpo"])
def test_estimators_that_learn_from_groups_of_one_do_not_warn(estimator, run, root, tmp_path):
    critic = ["critic={lr: 1e-3}"] if estimator == "ppo" else []
    # Episodes of one step: GRPO's advantage is then the return itself.
    done = train(run, root, tmp_path / "run", f"estimator.plugin={estimator}", *critic, "rollout.group_size=1", "rollout.tasks=32",
                 "env.config.max_steps=1", "rollout.max_steps=1")
    assert done.returncode == 0, done.stderr
    assert warnings_of(done) == []


def test_a_diverged_critic_is_named_and_not_the_plugin(run, root, tmp_path):
    done = train(run, root, tmp_path / "critic", "estimator.plugin=ppo", "critic={lr: 1e30}", "iterations=5")
    assert done.returncode == 1 and "critic.lr (1e30)" in done.stderr and "plugin" not in done.stderr, done.stderr
    assert any("critic.lr" in line for line in warnings_of(done)), done.stdout
    done = train(run, root, tmp_path / "returns", "rollout.invalid_action_penalty=1e30", "warm_start=null")
    assert done.returncode == 2 and "rollout.invalid_action_penalty" in done.stderr and "plugin" not in done.stderr, done.stderr


@pytest.mark.parametrize("key, sets, words", [
    ("update.lr (1e3)", ["update.lr=1e3", "iterations=6"], ["optimizer steps were skipped", "mini-batches was not finite"]),
    # A short run has no max_skipped steps, and yet its last iteration learned nothing.
    ("update.lr (1e3)", ["update.lr=1e3", "iterations=2"], ["the last iteration made no optimizer step"]),
    ("update.entropy (1e38)", ["update.entropy=1e38", "update.max_skipped=4"], ["update.max_skipped is 4"]),
    ("warm_start.lr (1e30)", ["warm_start.lr=1e30"], ["warm start, step 2"]),
    ("update.lr (1e30)", ["update.lr=1e30"], ["the policy's logits are not finite"]),
], ids=lambda value: value if isinstance(value, str) else "")
def test_divergence_names_the_key_and_ends_the_run(key, sets, words, run, root, tmp_path):
    done = train(run, root, tmp_path / "run", "checkpoint.every=1", "checkpoint.keep=1", *sets)
    assert done.returncode == 1 and key in done.stderr, done.stderr
    said = warnings_of(done) + [done.stderr]
    assert all(any(word in line for line in said) for word in words), said
    assert any(key in line for line in said[:-1]) and not any("prompt" in line for line in said), said
    # With entropy nothing was ever learned, and a warm start that diverges has no checkpoint.
    good = tmp_path / "run/checkpoints/iteration-000000"
    assert (f"the last good checkpoint is {good}" in done.stderr) == ("update.lr" in key), done.stderr
    assert good.exists() or "update.lr" not in key


@pytest.mark.parametrize("key, sets", [
    ("update.lr (1e0)", ["update.lr=1"]), ("update.kl.coef (1e6)", ["update.kl.coef=1e6"]), ("update.entropy (1e6)", ["update.entropy=1e6"]),
], ids=lambda value: value if isinstance(value, str) else "")
def test_divergence_without_a_skipped_step_is_a_warning(key, sets, run, root, tmp_path):
    done = train(run, root, tmp_path / "run", "wandb={}", *sets)
    assert done.returncode == 0, done.stderr
    first = warnings_of(done)[0]
    assert first.startswith("iteration 1") and key in first, warnings_of(done)
    [file] = (tmp_path / "run/wandb").rglob("*.wandb")
    assert first.encode()[-20:] in file.read_bytes()


def test_utilization_is_a_share(run, root, tmp_path):
    done = train(run, root, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][1:]
    assert done.returncode == 0 and all(0 < row[name] <= 1 for row in rows for name in ("perf/mfu", "update/mfu"))
