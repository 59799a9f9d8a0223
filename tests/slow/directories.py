#!/usr/bin/env python3
"""Starts runs at once, and again in a directory that a run uses. Nothing may mix.

First, rounds of four starts of one recipe at the same moment, with seeds 1 to 4 and default names: each round leaves four
directories, and each run has the weights and metrics of its seed's run alone. Then rounds of a run beside which further
processes are started in its directory, new and resumed, at random moments: they end with exit code 2 and name its process,
and the run ends as if alone.

    tests/slow/directories.py [--rounds 50] [--seed 0]
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from measured import MEASURED  # noqa: E402

QUIET = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
SETTINGS = ["deterministic=true", "warm_start.steps=4", "eval.tasks=4"]


def command(*options, iterations=1, seed=1):
    nestor = os.environ.get("NESTOR", ROOT / "target/release/nestor")
    sets = [word for s in (*SETTINGS, f"iterations={iterations}", f"seed={seed}") for word in ("--set", s)]
    return [str(nestor), "train", str(ROOT / "recipes/smoke/gigpo.yaml"), *sets, *map(str, options)]


def outcome(run_dir):
    """The seed, the newest weights, and the metrics without times."""
    last = sorted((run_dir / "checkpoints").glob("iteration-*"))[-1]
    seed = next(line for line in (run_dir / "recipe.yaml").read_text().splitlines() if line.startswith("seed:"))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]
    return seed, last.name, (last / "policy.safetensors").read_bytes(), rows


def alone(folder, seeds, iterations=1):
    """The outcome of each seed's run alone."""
    found = {}
    for seed in seeds:
        run_dir = folder / f"alone-{seed}-{iterations}"
        subprocess.run(command("--run-dir", run_dir, iterations=iterations, seed=seed), check=True, **QUIET)
        found[seed] = outcome(run_dir)
    return found


def at_once(folder, want):
    """One round: a run of every seed, all started at once with the default name."""
    folder.mkdir()
    runs = [subprocess.Popen(command(seed=seed), cwd=folder, **QUIET) for seed in want]
    errors = [run.communicate(timeout=900)[1] for run in runs]
    assert [run.returncode for run in runs] == [0] * len(runs), errors
    dirs = sorted((folder / "runs").iterdir())
    assert len(dirs) == len(runs), dirs
    found = sorted(outcome(run_dir) for run_dir in dirs)
    assert found == sorted(want.values()), [seed for seed, *_ in found]


def second_process(folder, want, numbers, iterations, attempts=3):
    """One round: a run, and further processes in its directory at random moments, while it is stopped so that it cannot end
    before they do. Returns their number."""
    run_dir = folder / "run"
    first = subprocess.Popen(command("--run-dir", run_dir, iterations=iterations), **QUIET)
    while not (run_dir / "run.lock").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    refused = 0
    for _ in range(attempts):
        time.sleep(numbers.uniform(0, 0.5))
        if first.poll() is not None:
            break
        os.kill(first.pid, signal.SIGSTOP)
        options = numbers.choice([[], ["--resume"], ["--resume", "--set", "update.lr=1"]])
        second = subprocess.run(command("--run-dir", run_dir, *options, iterations=iterations + 1), **QUIET)
        # Only the very last moment of a run is without its lock.
        ended = not (run_dir / "run.lock").exists()
        os.kill(first.pid, signal.SIGCONT)
        if ended:
            break
        assert second.returncode == 2, second.stderr
        # Before there is a recipe there is no run to resume.
        assert f"is in use by process {first.pid} on " in second.stderr or "holds no run" in second.stderr, second.stderr
        refused += 1
    _, errors = first.communicate(timeout=900)
    assert first.returncode == 0, errors
    assert outcome(run_dir) == want, "the first run was disturbed"
    return refused


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    numbers = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        want = alone(folder, range(1, 5))
        for number in range(args.rounds):
            at_once(folder / f"round-{number}", want)
        print(f"{args.rounds} rounds of four starts at once: each run equals its seed's run alone", flush=True)
        iterations = 40
        want = alone(folder, [1], iterations)[1]
        refused = 0
        for number in range(args.rounds):
            refused += second_process(folder / f"live-{number}", want, numbers, iterations)
        print(f"{args.rounds} rounds of a live run: {refused} further processes refused, every run equals the one alone")


if __name__ == "__main__":
    sys.exit(main())
