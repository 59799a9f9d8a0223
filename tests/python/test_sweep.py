"""`nestor sweep`: a grid of runs that share a warm start, is continued after a kill, and survives a run that fails."""
import json
import shutil
import signal
import subprocess
import time

import pytest
from conftest import PATIENCE

FILE = """
recipe: {root}/recipes/smoke/gigpo.yaml
dir: {dir}
seeds: [1, 2]
parallel: 2
warm_start_seed: 7
variants:
  first: {{deterministic: true, iterations: 3}}
  second: {{deterministic: true, iterations: 3, update.lr: 1.0e-4}}
"""
RUNS = {"first/seed-1", "first/seed-2", "second/seed-1", "second/seed-2"}


@pytest.fixture(scope="module")
def write(root):
    def call(folder, extra=""):
        file = folder / "sweep.yaml"
        file.write_text(FILE.format(root=root, dir=folder / "runs") + extra)
        return file
    return call


def policies(folder):
    """The final weights of every run."""
    last = {run: sorted((folder / "runs" / run / "checkpoints").glob("iteration-000003"))[-1] for run in RUNS}
    return {run: (path / "policy.safetensors").read_bytes() for run, path in last.items()}


def facts(folder, name, key):
    return {json.loads((folder / "runs" / run / name).read_text())[key] for run in RUNS}


@pytest.fixture(scope="module")
def whole(run, write, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    done = run("sweep", write(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 runs: 4 done" in done.stdout and f"next: nestor compare {folder / 'runs'}" in done.stdout, done.stdout
    return folder


def test_runs_share_a_warm_start_and_a_finished_sweep_starts_nothing(whole, run, run_json, write):
    assert len(facts(whole, "run.json", "start_weights")) == 1
    # Without `eval.seed` every seed draws a panel of its own.
    assert len(facts(whole, "panel.json", "sha256")) == 2
    assert len(set(policies(whole).values())) == 4
    before = policies(whole)
    again = run("sweep", whole / "sweep.yaml")
    assert again.returncode == 0 and "started" not in again.stdout, again.stdout
    assert policies(whole) == before
    listed = run_json("sweep", whole / "sweep.yaml", "--list", "--json")["runs"]
    assert {row["name"] for row in listed} == RUNS
    assert all(row["state"] == "done" and row["iteration"] == 3 for row in listed), listed


def test_checkpoints_of_finished_runs_may_be_deleted(whole, run, write, tmp_path):
    """The sweep names this where the disk has no room for the runs left."""
    shutil.copytree(whole / "runs", tmp_path / "runs", ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))
    again = run("sweep", write(tmp_path))
    assert again.returncode == 0 and "started" not in again.stdout and "4 runs: 4 done" in again.stdout, again.stdout + again.stderr
    compared = run("compare", *(tmp_path / "runs" / name for name in ["first/seed-1", "second/seed-1"]))  # of one panel
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_ended_early_continues_where_its_runs_are(how, whole, nestor, run, write, tmp_path):
    file = write(tmp_path)
    sweep = subprocess.Popen([nestor, "sweep", file], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    rows = lambda: [path.read_text().count("\n") for path in (tmp_path / "runs").glob("*/*/metrics.jsonl")]
    begin = time.monotonic()
    while not any(count >= 2 for count in rows()) and time.monotonic() - begin < PATIENCE:
        time.sleep(0.02)
    sweep.send_signal(how)
    assert sweep.wait(PATIENCE) == (130 if how == signal.SIGTERM else -signal.SIGKILL), sweep.stderr.read()
    done = run("sweep", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert policies(tmp_path) == policies(whole)


def test_a_run_that_appears_after_the_list_is_continued(whole, nestor, write, tmp_path):
    """A process of a killed sweep may make its directory after the next sweep has looked at it. A copy of a run stands for it, put
    there while the sweep makes the warm start."""
    sweep = subprocess.Popen([nestor, "sweep", write(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begin = time.monotonic()
    while not list(tmp_path.glob("runs/.warm_starts/*/*")) and time.monotonic() - begin < PATIENCE:
        time.sleep(0.02)
    late = tmp_path / "runs/second/seed-2"
    shutil.copytree(whole / "runs/second/seed-2", late, symlinks=True)
    recipe = late / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(whole), str(tmp_path)))
    output, _ = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0 and "4 runs: 4 done" in output, output
    assert policies(tmp_path) == policies(whole)


def test_a_run_that_fails_is_named_and_the_others_finish(run, write, tmp_path):
    done = run("sweep", write(tmp_path, "  third: {env.config: {max: -1}, warm_start: null, iterations: 3}\n"))
    assert done.returncode == 1, done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2 and all("third/seed-" in line and "env" in line for line in failed), done.stdout
    assert "6 runs: 4 done, 2 waiting" in done.stdout, done.stdout


def test_a_bad_file_is_refused(run, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("recipe: nothing.yaml\n")
    missing = run("sweep", file)
    assert missing.returncode == 2 and "nothing.yaml" in missing.stderr, missing.stderr
    file.write_text("recipes: nothing.yaml\n")
    unknown = run("sweep", file)
    assert unknown.returncode == 2 and "recipes" in unknown.stderr and "recipe" in unknown.stderr, unknown.stderr
