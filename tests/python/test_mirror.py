"""A run with `checkpoint.mirror` outlives its directory: fetched from the mirror it ends as an undisturbed one does."""
import json
import shutil
import signal

import pytest
from test_resume import SETTINGS, outcome, train

RECIPE = "recipes/smoke/gigpo.yaml"


@pytest.fixture(scope="module")
def whole(run, root, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    done = train(run, root / RECIPE, run_dir)
    assert done.returncode == 0, done.stderr
    return outcome(run_dir)


def mirrored(folder):
    return [*SETTINGS, f"checkpoint.mirror=file://{folder}"]


def files(folder):
    """The files of a run or its mirror, but those that belong to a machine or to the mirror alone."""
    own = {"run.lock", "mirror.json", "latest", "files.json"}
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    named = {str(path.relative_to(folder)): path for path in found}
    return {name: path.read_bytes() for name, path in named.items()
            if name not in own and not name.startswith(("checkpoints/latest", "checkpoints/best"))}


def same(one, other):
    """True if the log's last lines, which tell of the mirror, are all that differs."""
    return {**one, "log.txt": b""} == {**other, "log.txt": b""}


@pytest.mark.parametrize("failpoint", ["mid-mini-batch:5=term", "mid-rollout:70=term", "mid-rollout:70", "mid-checkpoint:4"])
def test_its_directory_is_deleted(failpoint, whole, run, root, tmp_path):
    """A stopped run waits for its mirror; a killed one leaves what was uploaded, or nothing, and then begins anew."""
    run_dir, mirror = tmp_path / "run", tmp_path / "mirror"
    ended = train(run, root / RECIPE, run_dir, failpoint=failpoint, settings=mirrored(mirror))
    stopped = failpoint.endswith("term")
    assert ended.returncode == (130 if stopped else -signal.SIGKILL), ended.stderr
    has_copy = (mirror / "latest").exists()
    if stopped:
        assert same(files(run_dir), files(mirror))
        assert (mirror / "latest").read_text() == (run_dir / "checkpoints/latest").readlink().name
    shutil.rmtree(run_dir)
    resumed = train(run, root / RECIPE, run_dir, "--resume", "auto", settings=mirrored(mirror))
    assert resumed.returncode == 0, resumed.stderr
    assert ("fetched " in resumed.stderr) == has_copy or not stopped, resumed.stderr
    assert outcome(run_dir) == whole
    assert same(files(run_dir), files(mirror))


def test_damage_in_the_mirror_is_passed_over(whole, run, root, tmp_path):
    run_dir, mirror = tmp_path / "run", tmp_path / "mirror"
    assert train(run, root / RECIPE, run_dir, settings=[*mirrored(mirror), "iterations=3"]).returncode == 0
    newest = mirror / "checkpoints" / (mirror / "latest").read_text()
    weights = (newest / "policy.safetensors").read_bytes()
    (newest / "policy.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    shutil.rmtree(run_dir)
    resumed = train(run, root / RECIPE, run_dir, "--resume", "auto", settings=mirrored(mirror))
    assert resumed.returncode == 0, resumed.stderr
    assert f"damage in the mirror: {newest.name}" in resumed.stderr and "checksum" in resumed.stderr, resumed.stderr
    assert outcome(run_dir) == whole
    for folder in (mirror / "checkpoints").glob("iteration-*"):
        (folder / "manifest.json").unlink()
    shutil.rmtree(run_dir)
    lost = train(run, root / RECIPE, run_dir, "--resume", "auto", settings=mirrored(mirror))
    assert lost.returncode == 1 and "no whole one" in lost.stderr and not run_dir.exists(), lost.stderr


def test_a_start_that_does_not_fit_its_mirror(run, root, tmp_path):
    run_dir, mirror, old = tmp_path / "run", tmp_path / "mirror", tmp_path / "old"
    short = [*mirrored(mirror), "iterations=1"]
    assert train(run, root / RECIPE, run_dir, settings=short).returncode == 0
    shutil.copytree(run_dir, old, symlinks=True)
    assert train(run, root / RECIPE, run_dir, "--resume", settings=[*short, "iterations=2"]).returncode == 0
    before = files(mirror)
    refused = train(run, root / RECIPE, tmp_path / "new", settings=[*short, "iterations=2"])
    assert refused.returncode == 2 and "already holds a run (iteration-000002)" in refused.stderr, refused.stderr
    assert files(mirror) == before and not (tmp_path / "new").exists()
    resumed = train(run, root / RECIPE, old, "--resume", "auto", settings=[*short, "iterations=2"])
    assert resumed.returncode == 0 and "which is newer than all checkpoints of" in resumed.stderr, resumed.stderr
    assert (old / "checkpoints/latest").readlink().name == "iteration-000002"
    assert (old / "before-fetch-1/checkpoints/latest").readlink().name == "iteration-000001"
    for url, why in [("https://example.org/x", "name a folder of a store as s3://"), ("runs", "relative URL without a base"),
                     ("s3://key:secret@bucket/x", "a recipe holds no credentials")]:
        checked = run("train", root / RECIPE, "--set", f"checkpoint.mirror={url}", "--check")
        assert checked.returncode == 2 and why in checked.stderr, checked.stderr


def test_a_mirror_that_cannot_be_written_stops_no_training(whole, run, root, tmp_path):
    """A file has the name of its folder of checkpoints. One warning describes it, and the last line that the mirror lacks the run."""
    run_dir, mirror = tmp_path / "run", tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "checkpoints").write_text("")
    done = train(run, root / RECIPE, run_dir, settings=mirrored(mirror))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the mirror could not be brought up to date") == 1, done.stderr
    assert "lacks what this run saved last; its directory is whole" in done.stderr, done.stderr
    assert outcome(run_dir) == whole
