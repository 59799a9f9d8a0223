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
    assert done.returncode == 1 and "critic.lr" in done.stderr and "plugin" not in done.stderr, done.stderr
    done = train(run, root, tmp_path / "returns", "rollout.invalid_action_penalty=1e30", "warm_start=null")
    assert done.returncode == 2 and "rollout.invalid_action_penalty" in done.stderr and "plugin" not in done.stderr, done.stderr


def test_utilization_is_a_share(run, root, tmp_path):
    done = train(run, root, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][1:]
    assert done.returncode == 0 and all(0 < row[name] <= 1 for row in rows for name in ("perf/mfu", "update/mfu"))
