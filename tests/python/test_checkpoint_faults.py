"""Every n-th write of a save fails: the previous checkpoint remains intact, and one line names file and cause.

A small library (fixtures/failing_disk.c), loaded by LD_PRELOAD, counts the calls that change the folder `checkpoints/` and
fails the n-th. By default each n gets one kind of failure, in turn; with NESTOR_ALL_FAULTS=1 all.
"""
import json
import os
import subprocess

import pytest
from conftest import PATIENCE
from test_resume import has_checkpoint

KINDS = {"enospc": "No space left on device", "eio": "Input/output error", "short": "No space left on device"}


@pytest.fixture(scope="module")
def disk(root, tmp_path_factory):
    library = tmp_path_factory.mktemp("disk") / "failing_disk.so"
    source = root / "tests/fixtures/failing_disk.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    def environment(**more):
        return dict(os.environ, LD_PRELOAD=str(library), FAILING_DISK_UNDER="/checkpoints", **more)
    return environment


def names_its_place(error, run_dir, kind):
    assert "\n" not in error and KINDS[kind] in error and f"{run_dir}/checkpoints" in error, error
    # The file itself, not only the new checkpoint.
    assert error.count(f"{run_dir}/checkpoints") > 1 or error.startswith("making"), error
    if kind != "eio":
        assert "the disk is full" in error, error


@pytest.mark.parametrize("world", [1, 2])
def test_every_write_of_a_save_fails(world, disk, run, root, tmp_path):
    model = tmp_path / "model"
    assert run("model", "new", model, "--shape", "tiny", "--dtype", "float32").returncode == 0
    (model / "tokenizer.json").write_text("{}")
    program = root / "target/release/failing_saves"
    kinds = KINDS if os.environ.get("NESTOR_ALL_FAULTS") else [",".join(KINDS)]
    done = subprocess.run([program, tmp_path, str(world), *kinds], capture_output=True, text=True, timeout=PATIENCE, env=disk())
    assert done.returncode == 0, done.stderr
    attempts = [json.loads(line) for line in done.stdout.splitlines()]
    *failed, last = attempts
    assert last["error"] is None and last["newest"] == "iteration-000003"
    assert len(failed) > 100 * len(kinds), len(failed)
    saved = 0
    for attempt in attempts:
        assert attempt["sound"] and not attempt["warnings"], attempt
        error, left, newest = attempt["error"], attempt["left"], attempt["newest"]
        if error is None:
            # A call that only tidies up may fail silently; one that writes may not.
            assert newest == "iteration-000003" and "iteration-000002" in left, attempt
            saved += 1
            continue
        names_its_place(error, tmp_path, attempt["kind"])
        whole = {"iteration-000001", "iteration-000002", newest}
        assert newest in ("iteration-000002", "iteration-000003"), attempt
        # A folder whose removal failed keeps another name.
        assert whole - {"iteration-000001"} <= set(left), attempt
        assert all(name in whole | {"latest"} or name.endswith(".tmp") for name in left), attempt
        # The remains of a killed run may be there only if the save ended before they were removed.
        assert "iteration-000003.tmp" not in left or "removing" in error or "making" in error, attempt
    # One call removes; two link the newest checkpoint, whose failure is a warning.
    assert saved <= 3 * len(kinds), saved


@pytest.mark.parametrize("n, kind", [(3, "eio"), (170, "enospc")])
def test_a_run_ends_with_one_line_and_resumes(n, kind, disk, run, root, tmp_path):
    recipe, run_dir = root / "recipes/smoke/gigpo.yaml", tmp_path / "run"
    sets = ["--set", "device=cpu", "--set", "iterations=2", "--set", "checkpoint.every=1", "--set", "eval.tasks=2",
            "--run-dir", run_dir]
    failed = run("train", recipe, *sets, env=disk(FAILING_DISK=f"{n}:{kind}"))
    assert failed.returncode == 1, failed.stderr
    lines = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, failed.stderr
    names_its_place(lines[0].removeprefix("error: "), run_dir, kind)
    assert not list((run_dir / "checkpoints").glob("*.tmp"))
    again = run("train", recipe, *sets, "--resume")
    if not has_checkpoint(run_dir):
        assert again.returncode == 2 and "no checkpoint" in again.stderr, again.stderr
        return
    assert again.returncode == 0 and "skipping checkpoint" not in again.stderr, again.stderr
