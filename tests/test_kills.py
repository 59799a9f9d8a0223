"""Runs that lose ranks by SIGKILL go on to the same end (`scripts/kills.py` does it 200 times)."""
import sys

sys.path.insert(0, str(__import__("pathlib").Path(__file__).resolve().parent.parent / "scripts"))
import kills


def test_twenty_ranks_are_killed_and_nothing_is_lost(nestor, tmp_path):
    kills.kills(20, 2, "full", 1, tmp_path, iterations=8, longest=2.5)
