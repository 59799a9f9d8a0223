"""A file that is not regular is refused wherever a file is named: a pipe would block the program, a device would fill its memory."""
import os

import pytest
from conftest import PATIENCE
from view_runs import write_run


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def refused(run, *args):
    done = run(*args, timeout=PATIENCE)
    assert done.returncode == 2 and "not a regular file" in done.stderr, (args, done.stderr)


def test_a_pipe_is_refused(run, root, pipe, tmp_path):
    recipe = root / "recipes/smoke/gigpo.yaml"
    extending = tmp_path / "extending.yaml"
    extending.write_text(f"extends: {pipe}\n")
    for args in (
        ["train", extending, "--check"],
        ["train", recipe, "--check", "--set", f"rollout.template={{file: {pipe}}}"],
        ["play", "numberline", "--actions", pipe],
        ["advantage", "gigpo", "--rows", pipe],
        ["embed", root / "docs/examples/encoder", pipe, "--out", tmp_path / "vectors"],
    ):
        refused(run, *args)


def test_files_of_a_run_are_no_devices(run, tmp_path):
    for name in ("metrics.jsonl", "rollouts/iteration-000001.jsonl"):
        folder = write_run(tmp_path / name.partition(".")[0])
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        refused(run, "view", folder)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").touch()
    # Sparse: an endless line.
    os.truncate(folder / "metrics.jsonl", 100 << 30)
    done = run("view", folder, timeout=PATIENCE)
    assert done.returncode == 2 and "at most" in done.stderr, done.stderr
