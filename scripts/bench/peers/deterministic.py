"""Runs of a recipe with `deterministic: true`: two that differ only in the threads of the environment pool, and the price of the mode."""
import json
import sys
import tempfile
from pathlib import Path

from .program import NESTOR, ROOT, run

sys.path.insert(0, str(ROOT / "tests/python"))
from measured import MEASURED  # noqa: E402

RECIPE = "recipes/smoke/gigpo.yaml"


# The parts of an iteration whose price is measured.
PARTS = ("rollout", "update", "iteration")


def train(folder, sets, recipe=RECIPE, **environment):
    run([NESTOR, "train", recipe, "--run-dir", folder, *(word for key in sets for word in ("--set", key))], **environment)
    return folder


def metrics(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith(MEASURED)} for row in rows]


def files(folder):
    """Returns every file of the rollouts and of the newest checkpoint, by name."""
    newest = max((path for path in (folder / "checkpoints").iterdir() if path.is_dir()), key=lambda path: path.name)
    paths = [*(folder / "rollouts").rglob("*"), *newest.rglob("*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def compare(*sets):
    """Makes two runs with further settings of the recipe. Returns whether they agree in everything but MEASURED, a description
    of the comparison, and the names that differ."""
    with tempfile.TemporaryDirectory() as scratch:
        one, other = (train(Path(scratch) / f"{threads}", ["deterministic=true", f"rollout.env_threads={threads}", *sets])
                      for threads in (1, 4))
        rows, (a, b) = metrics(one), (files(one), files(other))
        differs = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
        if not rows or rows != metrics(other):
            differs.append("metrics.jsonl")
    size = sum(map(len, a.values())) / 2**20
    what = f"{len(rows)} rows of metrics, {len(a)} files of rollouts and the last checkpoint ({size:.1f} MiB)"
    return not differs, what, differs


def price(recipe, sets, repeat):
    """Returns the seconds of each part of an iteration in each of `repeat` runs: with the mode, without it, and without it on one
    thread, which is one of the mode's rules."""
    cases = {"deterministic": ("true", {}), "plain": ("false", {}), "one thread": ("false", {"OMP_NUM_THREADS": "1"})}
    seconds = {case: {part: [] for part in PARTS} for case in cases}
    for _ in range(repeat):
        for case, (mode, environment) in cases.items():
            with tempfile.TemporaryDirectory() as scratch:
                folder = train(Path(scratch) / "run", [f"deterministic={mode}", *sets], recipe, **environment)
                last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            for part in PARTS:
                seconds[case][part].append(last[f"time/{part}_s"])
    return seconds
