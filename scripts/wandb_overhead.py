#!/usr/bin/env python3
"""What tracking costs: seconds of an iteration with W&B live against a run without it, while its server answers, is dead,
takes 30 s for every answer, or answers 500. Runs alternate; printed are medians over iterations, and the ratio's spread over
rounds. Some 15 minutes, not in CI.

    .venv/bin/python scripts/wandb_overhead.py [--rounds 5] [--seconds 40]
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from wandb_server import KEY, serve  # noqa: E402

MODES = ["without", "ok", "dead", "slow", "500"]


def iterations(mode, seconds):
    """Seconds of each iteration of a run that lasts so long, its first iteration left out."""
    with tempfile.TemporaryDirectory() as folder, serve("ok" if mode == "without" else mode) as server:
        run_dir = Path(folder) / "run"
        env = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        sets = ["iterations=1000000", "checkpoint.every=0", "eval.every=0", "rollout.tasks=16", "rollout.group_size=8"]
        if mode != "without":
            sets.append("wandb={mode: live}")
        command = [ROOT / "target/release/nestor", "train", ROOT / "recipes/smoke/gigpo.yaml", "--run-dir", run_dir]
        command += [part for key in sets for part in ("--set", key)]
        with open(Path(folder) / "out", "w") as out:
            run = subprocess.Popen(command, env=env, stdout=out, stderr=out)
            time.sleep(seconds)
            assert run.poll() is None, (Path(folder) / "out").read_text()
            run.send_signal(signal.SIGTERM)
            run.wait()
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        if mode == "ok":
            assert server.streams, "nothing was uploaded"
        return [row["time/iteration_s"] for row in rows[2:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    medians = {mode: [] for mode in MODES}
    for number in range(args.rounds):
        # Every other round in reverse, so that a drift of the machine does not favour one mode.
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            seconds = iterations(mode, args.seconds)
            medians[mode].append(statistics.median(seconds))
            print(f"round {number + 1} {mode}: {len(seconds)} iterations, median {medians[mode][-1]:.4f} s", flush=True)
    base = medians["without"]
    for mode in MODES[1:]:
        ratios = [ours / plain for ours, plain in zip(medians[mode], base)]
        print(f"{mode}: {statistics.median(ratios):.4f} x ({min(ratios):.4f} to {max(ratios):.4f})")


if __name__ == "__main__":
    main()
