"""A run that receives signals at random moments reaches the same end (`tests/slow/signals.py` sends 200)."""
import signals

SHORT = {**signals.SETTINGS, "iterations": 2, "warm_start.steps": 30, "eval": "{tasks: 60, every: 1}"}


def test_stopped_at_random_moments_and_resumed(nestor, tmp_path):
    signals.stop(3, 1, 3, tmp_path, settings=SHORT, longest=1.0)
