"""Agents in programs of their own: the endpoint inside the trainer, and the environment `harness`."""
import json
import re
import sys

import pytest
from harness_workers import TASKS
from measured import MEASURED

# The settings of recipes/smoke/gigpo.yaml, without its warm start.
RECIPE = {
    "seed": 1, "device": "cpu", "dtype": "float32", "iterations": 2,
    "estimator": {"plugin": "gigpo", "config": {"norm": "std", "step_weight": 1.0, "gamma": 0.95}},
    "rollout": {"tasks": 4, "group_size": 4, "max_steps": 6, "max_prompt_tokens": 48, "max_response_tokens": 12, "slots": 16,
                "history": {"length": 0}, "env_threads": 8, "open_episodes": 8},
    "update": {"mini_batch": 32, "lr": 1.0e-3, "kl": {"coef": 0.01}},
    "eval": {"tasks": 10, "every": 1}, "checkpoint": {"every": 1},
}


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def episodes(folder, iteration=1):
    """The training episodes of an iteration."""
    file = next((folder / "rollouts").glob(f"*{iteration}.jsonl"))
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def native(run, root, tmp_path_factory):
    """A deterministic run on the number line."""
    folder = tmp_path_factory.mktemp("native") / "run"
    done = run("train", "recipes/smoke/gigpo.yaml", "--set", "deterministic=true", "--set", "rollout.max_prompt_tokens=148", "--run-dir", folder, cwd=root)
    assert done.returncode == 0, done.stderr
    return folder


def recipe(path, native, config, **changes):
    """A recipe of the harness with the model of another run."""
    base = json.loads(json.dumps(RECIPE))
    base["model"] = {"path": str(native)}
    base["env"] = {"plugin": "harness", "config": config}
    for section, keys in changes.items():
        base[section] = {**base[section], **keys} if isinstance(keys, dict) else keys
    path.write_text(json.dumps(base))
    return path


def test_faults_are_named_and_the_run_survives(run, root, native, tmp_path):
    faults = list(TASKS)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"fault": fault}) + "\n" for fault in faults))
    config = {"command": f"{sys.executable} {root}/tests/python/harness_workers.py", "tasks": {"train": str(tmp_path / "tasks.jsonl")},
              "timeout_s": 3, "start_timeout_s": 3}
    path = recipe(tmp_path / "recipe.json", native, config, iterations=1, eval={"tasks": "none"},
                  rollout={"env_errors": 999, "tasks": len(faults), "group_size": 1})
    done = run("train", path, "--run-dir", tmp_path / "run", cwd=root)
    assert done.returncode == 0, done.stderr
    ended = {faults[episode["task"]]: episode for episode in episodes(tmp_path / "run")}
    assert set(ended) == set(faults)
    for fault, (_, words) in TASKS.items():
        failure = ended[fault]["failure"]
        if words is None:
            assert failure is None and ended[fault]["return"] == 1.0, (fault, ended[fault])
        else:
            place = f"task {faults.index(fault)} of split train, seed {ended[fault]['seed']}, "
            assert words in failure and place in failure, (fault, failure)


def tasks_of(native, path, split, count):
    """The tasks of a number line by their numbers, as the episodes of a run show them."""
    files = sorted((native / {"train": "rollouts", "eval": "evaluations"}[split]).glob("*.jsonl"))
    rows = [{"target": 1, "current": 0, "max": 5, "steps": 6}] * count
    for episode in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        found = re.search(r"target: (\d+)\ncurrent: (\d+)", episode["steps"][0]["prompt"])
        rows[episode["task"]] = {"target": int(found[1]), "current": int(found[2]), "max": 5, "steps": 6}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def agent(root, native, tmp_path_factory):
    """A deterministic recipe of the example's agent with the tasks of the native environment, and one of that environment."""
    folder = tmp_path_factory.mktemp("agent")
    train, evaluation = tasks_of(native, folder / "train.jsonl", "train", 20), tasks_of(native, folder / "eval.jsonl", "eval", 10)
    own = folder / "native.yaml"
    own.write_text(f"""
extends: {root}/recipes/smoke/gigpo.yaml
deterministic: true
model: {{new: null, path: {native}}}
warm_start: null
""")
    config = {"command": f"{sys.executable} {root}/examples/harness/number_line.py", "reuse": True,
              "tasks": {"train": str(train), "eval": str(evaluation)}}
    other = recipe(folder / "agent.json", native, config, deterministic=True)
    return own, other


def test_an_agent_by_the_official_client_trains_as_the_native_environment(run, root, agent, tmp_path):
    for name, recipe in zip(("native", "agent"), agent):
        done = run("train", recipe, "--run-dir", tmp_path / name, cwd=root)
        assert done.returncode == 0, done.stderr
    native, agents = (rows(tmp_path / name) for name in ("native", "agent"))
    assert len(native) == len(agents) == 3
    for one, other in zip(native, agents):
        same = {key: value for key, value in one.items() if not key.startswith(MEASURED) and key != "env/replays"}
        assert {key: other.get(key) for key in same} == same
    last = agents[-1]
    assert 0 < last["episode/success"] < 1 and last["episode/valid_action_ratio"] > 0
    assert last["env/unequal_starts"] == 0 and last["env/conversations"] == last["episode/length"] and last["env/errors"] == 0


def test_a_killed_run_of_an_agent_ends_as_an_undisturbed_one(run, failpoints, root, agent, tmp_path):
    _, recipe = agent
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run("train", recipe, "--run-dir", whole, cwd=root).returncode == 0
    assert failpoints("mid-rollout:150", "train", recipe, "--run-dir", broken, cwd=root).returncode != 0
    done = run("train", recipe, "--resume", "--run-dir", broken, cwd=root)
    assert done.returncode == 0, done.stderr
    kept = [[{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows(folder)] for folder in (whole, broken)]
    assert kept[0] == kept[1]


def clients(run, root, native, tmp_path, names):
    """Plays each client's program in both modes of history; returns the episodes."""
    tasks = tmp_path / "clients.jsonl"
    tasks.write_text("".join(json.dumps({"client": name}) + "\n" for name in names))
    config = {"command": f"{sys.executable} {root}/tests/python/harness_clients.py", "tasks": {"train": str(tasks)}}
    played = []
    for mode in ("window", "transcript"):
        rollout = {"tasks": len(names), "group_size": 2, "history": {"mode": mode}, "max_prompt_tokens": 140}
        if mode == "transcript":
            rollout["max_sequence_tokens"] = 152
        path = recipe(tmp_path / f"{mode}.json", native, config, iterations=1, eval={"tasks": "none"}, rollout=rollout,
                      update={"mini_batch": min(32, 12 * len(names))})
        done = run("train", path, "--run-dir", tmp_path / mode, cwd=root)
        assert done.returncode == 0, done.stderr
        played += episodes(tmp_path / mode)
    return played


def test_the_official_client_runs_unchanged(run, root, native, tmp_path):
    played = clients(run, root, native, tmp_path, ["plain", "stream", "tools"])
    assert len(played) == 12 and all(episode["return"] == 1.0 and not episode["failure"] for episode in played)
    # Two requests of one conversation are one sequence in a transcript.
    continued = [[step.get("continues") for step in episode["steps"]] for episode in played]
    assert continued[:6] == [[None] * len(steps) for steps in continued[:6]] and [None, 0] in continued[6:]
