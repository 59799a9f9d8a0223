"""One command that a scheduler starts again and again: `--resume auto`, and what torchrun and Slurm say of restarts (test_kills.py has
torchrun's own restarts)."""
import json
import os
import subprocess

import pytest
from conftest import PATIENCE
from measured import MEASURED

AUTO = ["--resume", "auto"]


@pytest.fixture(scope="module")
def recipe(root, tmp_path_factory):
    """The smoke recipe, made shorter."""
    path = tmp_path_factory.mktemp("recipes") / "short.yaml"
    path.write_text(f"extends: {root}/recipes/smoke/gigpo.yaml\niterations: 2\ndeterministic: true\n"
                    "warm_start: {steps: 4}\neval: {tasks: 4}\ncheckpoint: {every: 1}\n")
    return path


def rows(run_dir):
    """The metrics that are not times."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(MEASURED)} for line in lines]


def refused(done, *parts):
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1 and all(part in errors[0] for part in parts), done.stderr


def test_the_same_command_begins_continues_and_is_done(run, recipe, tmp_path):
    run_dir = tmp_path / "run"
    command = ["train", recipe, "--run-dir", run_dir]
    assert run(*command, *AUTO).returncode == 0
    begun = rows(run_dir)
    again = run(*command, *AUTO)
    assert again.returncode == 0 and "all 2 iterations are done" in again.stdout and rows(run_dir) == begun
    longer = run(*command, "--set", "iterations=3", "--set", "checkpoint.resume=auto")
    assert longer.returncode == 0 and [row["iteration"] for row in rows(run_dir)] == [0, 1, 2, 3], longer.stderr
    # Without a word about resuming the run is safe.
    refused(run(*command), "already holds a run")
    assert run("train", *AUTO, "--run-dir", run_dir, "--set", "iterations=3").returncode == 0


def test_auto_takes_no_strange_directory_and_needs_a_recipe_to_begin(run, recipe, tmp_path):
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("mine")
    refused(run("train", recipe, *AUTO, "--run-dir", strange), "is not empty")
    refused(run("train", *AUTO, "--run-dir", tmp_path / "none"), "holds no run yet", "recipe")
    # A first start that died before its first checkpoint left these.
    early = tmp_path / "early"
    (early / "model.partial").mkdir(parents=True)
    assert run("train", recipe, *AUTO, "--run-dir", early).returncode == 0


def test_a_restart_count_implies_it(nestor, recipe, tmp_path):
    def train(variables, *args):
        command = [nestor, "train", recipe, "--set", "iterations=1", *args]
        return subprocess.run(list(map(str, command)), env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True,
                              timeout=PATIENCE)
    requeued = {"SLURM_RESTART_COUNT": "1"}
    refused(train(requeued), "SLURM_RESTART_COUNT is 1", "--run-dir")
    refused(train({"TORCHELASTIC_MAX_RESTARTS": "3"}), "TORCHELASTIC_MAX_RESTARTS is 3", "--run-dir")
    assert train({}, "--run-dir", "run").returncode == 0
    again = train(requeued, "--run-dir", "run")
    assert again.returncode == 0 and "all 1 iterations are done" in again.stdout, again.stderr
