"""Episodes that an environment fails in: they are shown as failed, count in no statistics, and no policy learns to cause them. A
run that ends by one keeps what it has finished."""
import json

import failing
import pytest
from measured import MEASURED


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return str(failing.library(tmp_path_factory.mktemp("failing")))


@pytest.fixture(scope="module")
def env(library):
    def call(fault, isolate="process", **config):
        return {"plugin": library, "isolate": isolate, "config": {"fault": fault, **config}}
    return call


@pytest.fixture(scope="module")
def model(env, run, tmp_path_factory):
    """A small random model."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "recipe.yaml").write_text(failing.recipe(env("none"), iterations=0))
    done = run("train", folder / "recipe.yaml", "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    return json.dumps({"path": f"{folder}/run/model"})


@pytest.fixture
def train(model, run, tmp_path):
    def call(name, env, *options, code=0, **settings):
        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(failing.recipe(env, settings.pop("model", model), **settings))
        done = run("train", recipe, "--run-dir", tmp_path / name, *options)
        assert done.returncode == code, done.stderr
        return tmp_path / name, done
    return call


def test_a_policy_does_not_learn_to_crash_its_environment(train, env):
    """The policy is punished for each step, and a crash ends the punishment. tests/slow/failing_responses.py has all faults."""
    folder, done = train("crash", env("abort"), "--json", "--set", "eval.tasks=32", estimator="gigpo")
    first, last = failing.first_and_last(failing.shares(folder))
    assert last < first / 2, (first, last)

    failed = [[episode for episode in episodes if episode["failure"]] for episodes in failing.episodes(folder)]
    lines = rows(folder)
    assert len(failed[0]) > 0 and [len(episodes) for episodes in failed] == [row["episode/failed"] for row in lines[1:]]
    for episodes in failed:
        for episode in episodes:
            *steps, step = episode["steps"]
            assert "`step` died by SIGABRT" in episode["failure"] and "plugin failing: task" in episode["failure"]
            assert episode["return"] is None and not episode["won"] and failing.fails(step["response"])
            assert step["reward"] is step["valid"] is None and not step["truncated"]
            assert all(before["advantage"] >= step["advantage"] <= 0 for before in steps)
    # The means are those of the other episodes.
    played = [[episode for episode in episodes if not episode["failure"]] for episodes in failing.episodes(folder)]
    for row, episodes in zip(lines[1:], played):
        assert row["episode/return"] == pytest.approx(sum(episode["return"] for episode in episodes) / len(episodes))
    # An evaluation counts them as not won.
    evaluated = [json.loads(line) for line in (folder / "evaluations/iteration-000000.jsonl").open()]
    assert lines[0]["eval/success"] == sum(episode["won"] for episode in evaluated) / 32
    assert lines[0]["eval/failed"] == sum(episode["failure"] is not None for episode in evaluated)

    # Equal faults are one line for each iteration, on standard error and as an event.
    warnings = [line for line in done.stderr.splitlines() if "died by SIGABRT" in line]
    assert len(warnings) <= sum(row["env/errors"] > 0 for row in lines), done.stderr
    assert f"the first of {len(failed[0])} such failures)" in done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert len([1 for event in events if event["event"] == "warning" and "SIGABRT" in event["message"]]) == len(warnings)


def test_an_iteration_without_a_survivor_updates_nothing(train, env):
    # All responses fail at the first step.
    folder, done = train("none", env("error", isolate="none", all=1), iterations=2)
    assert done.stdout.count("the environment failed in all episodes (64), so the update was skipped") == 1, done.stdout
    last = rows(folder)[-1]
    assert last["episode/failed"] == 64 and "loss/total" not in last and "episode/return" not in last
    assert all(episode["failure"] for episodes in failing.episodes(folder) for episode in episodes)


@pytest.mark.parametrize("settings", [
    ["estimator.plugin=remax"],
    ["rollout.dynamic_sampling={rounds: 3}", "update.old_logprobs=recompute", "update.kl={coef: 0.1}"],
    ["rollout.history={mode: transcript}", "rollout.max_sequence_tokens=123", "rollout.max_steps=3"],
    ["estimator.plugin=ppo", "critic={lr: 1e-3}", "update.reweight={method: pow}", "update.kl_in_reward={coef: 0.01}"],
])
def test_failed_episodes_fit_all_parts_of_a_run(settings, train, env):
    sets = [word for one in settings for word in ("--set", one)]
    folder, _ = train("parts", env("error", isolate="none"), *sets, iterations=2)
    assert sum(row.get("episode/failed", 0) for row in rows(folder)) > 0


def test_a_run_that_fails_keeps_what_it_has_finished(train, env, run, tmp_path):
    options = ["--set", "deterministic=true", "--set", "rollout.tasks=4"]
    whole, _ = train("whole", env("none", isolate="none"), *options, iterations=3)
    options += ["--set", "rollout.env_errors=0"]
    # The fault comes in the third iteration, and only as many steps after a resume again.
    folder, done = train("fails", env("error", isolate="none", after=400), *options, code=1, iterations=3)
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: ") and "`rollout.env_errors` (0)" in error and "plugin failing: task" in error, error
    finished = rows(folder)[-1]["iteration"]
    assert finished >= 1 and f"saved {folder}/checkpoints/iteration-{finished:06}; resume with --resume" in done.stdout
    done = run("train", tmp_path / "fails.yaml", *options, "--resume", "--run-dir", folder)
    assert done.returncode == 0, done.stderr
    kept = [[{name: row[name] for name in row if not name.startswith(MEASURED)} for row in rows(one)] for one in (whole, folder)]
    for row in kept[0]:  # recipe keys differ in the number of failures allowed
        for name in ("episode/failed", "eval/failed"):
            row.pop(name, None)
    assert kept[0] == kept[1]
    weights = [(one / "checkpoints/iteration-000003/policy.safetensors").read_bytes() for one in (whole, folder)]
    assert weights[0] == weights[1]


def test_a_task_that_cannot_be_reset_is_given_up(train, env):
    """It costs three failures, whatever the size of its group, and also before a new model has a tokenizer."""
    folder, done = train("levels", env("none", bad_tasks=6), "--set", "rollout.env_errors=40", "--set", "rollout.tasks=64",
                         "--set", "eval.tasks=64", model=failing.NEW_MODEL, iterations=1)
    evaluation, iteration = rows(folder)
    assert evaluation["env/errors"] == 3 * 6 and evaluation["eval/failed"] == 6
    assert iteration["episode/failed"] == 6 * 8
    given_up = [line for line in done.stderr.splitlines() if "6 tasks were given up after 3 failed resets each" in line]
    named = [line for line in done.stderr.splitlines() if "there is no such level" in line]
    assert len(given_up) == len(named) == 4, done.stderr  # the tokenizer, both evaluations, the iteration

    _, done = train("none", env("none", bad_tasks=64), "--set", "rollout.env_errors=30", model=failing.NEW_MODEL, code=1)
    error = done.stderr.splitlines()[-1]
    assert "`model.new`" in error and "`rollout.env_errors` allows (30)" in error and "there is no such level" in error, error
