"""Runs that lose ranks by SIGKILL reach the same end (`tests/slow/kills.py` kills 200 ranks)."""
import subprocess

import kills
import pytest
from test_resume import has_checkpoint

# Everywhere inside a save, at either rank, in an update, in the warm start and in an evaluation.
FAILPOINTS = ["mid-checkpoint:2@1", "between-files:3@0", "before-manifest:2", "before-rename:3", "after-rename:2",
              "removing-old:1", "mid-mini-batch:3@1", "mid-mini-batch:3@1=term", "mid-warm-start:5@1=term",
              "mid-rollout:9@1=term"]  # the last one in the first evaluation


@pytest.mark.parametrize("launcher, number", [("nestor", 8), ("torchrun", 3)])
def test_ranks_are_killed_at_random_and_nothing_is_lost(launcher, number, tmp_path):
    kills.kills(number, launcher, 2, "full", 1, tmp_path, iterations=number, longest=2.5)


def test_ranks_are_killed_inside_a_save(failpoints, tmp_path):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "timeout": 120}

    def launch(run_dir, failpoint=None, resume=()):
        command = [*kills.command(run_dir, "nestor", 2, "full", 4, 0), *resume]
        return failpoints(failpoint, *command[1:]) if failpoint else subprocess.run(command, **quiet)

    assert launch(tmp_path / "whole").returncode == 0
    want = kills.outcome(tmp_path / "whole")
    for failpoint in FAILPOINTS:
        run_dir = tmp_path / failpoint
        done = launch(run_dir, failpoint)
        assert done.returncode == (130 if failpoint.endswith("term") else 1), (failpoint, done.stderr)
        done = launch(run_dir, resume=["--resume"])
        if not has_checkpoint(run_dir):
            assert done.returncode == 2 and "no checkpoint" in done.stderr, (failpoint, done.stderr)
            continue
        assert done.returncode == 0, (failpoint, done.stderr)
        assert kills.outcome(run_dir) == want, failpoint
