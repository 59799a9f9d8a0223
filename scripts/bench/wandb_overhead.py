#!/usr/bin/env python3
"""Measures the cost of live tracking: seconds of an iteration while W&B's server answers, is dead, takes 30 s for every
answer, or answers 500.

On a shared machine two runs differ by more than this cost. So the script stops and resumes the uploading child of one run
every few seconds, and compares adjacent intervals. It prints the median ratio over all such pairs, and the quartiles. The
ratio excludes the run's own tracking: writing a row, some 40 us (tests/slow/wandb_many_rows.py), and a sample of the machine
every 15 s. Takes some 10 minutes; not in CI.

    .venv/bin/python scripts/bench/wandb_overhead.py [--seconds 120]
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

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from wandb_server import KEY, serve  # noqa: E402

STRETCH = 3.0
# The weights hardly change, so all iterations have the same work.
SETS = ["iterations=1000000", "checkpoint.every=0", "eval.every=0", "update.lr=1e-9", "wandb={mode: live}"]


def descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in [child, *descendants(child)]]


def cpu_seconds(pids):
    ticks = sum(sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) for pid in pids)
    return ticks / os.sysconf("SC_CLK_TCK")


def ratios(mode, seconds):
    """Returns the ratio of iteration time with and without the uploader for each pair of intervals, the uploader's share of a
    core, and the number of iterations."""
    with tempfile.TemporaryDirectory() as folder, serve(mode) as server, open(Path(folder) / "out", "w") as out:
        run_dir = Path(folder) / "run"
        env = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        command = [ROOT / "target/release/nestor", "train", ROOT / "recipes/smoke/gigpo.yaml", "--run-dir", run_dir]
        command += [part for key in SETS for part in ("--set", key)]
        run = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        rows = run_dir / "metrics.jsonl"
        count = lambda: rows.read_bytes().count(b"\n") if rows.exists() else 0  # noqa: E731
        while count() < 10:
            assert run.poll() is None, (Path(folder) / "out").read_text()
            time.sleep(0.1)
        time.sleep(15)  # the uploader has started
        stretches = []
        begin, cpu = time.monotonic(), cpu_seconds(descendants(run.pid))
        while time.monotonic() < begin + seconds:
            on = len(stretches) % 2 == 0
            for pid in descendants(run.pid):
                os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
            first = count() + 1  # the current iteration belongs to both intervals
            time.sleep(STRETCH)
            stretches.append((first, count()))
        pids = descendants(run.pid)
        share = (cpu_seconds(pids) - cpu) / (time.monotonic() - begin)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        run.send_signal(signal.SIGTERM)
        run.wait()
        took = [json.loads(line)["time/iteration_s"] for line in rows.read_text().splitlines()]
        medians = [statistics.median(took[first:last]) for first, last in stretches]
        # Each interval against the mean of its two neighbours, which cancels a drift of the machine.
        pairs = []
        for i in range(1, len(medians) - 1):
            ratio = medians[i] / ((medians[i - 1] + medians[i + 1]) / 2)
            pairs.append(ratio if i % 2 == 0 else 1 / ratio)
        return pairs, share, len(took)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    for mode in ["ok", "dead", "slow", "500"]:
        pairs, share, iterations = ratios(mode, args.seconds)
        low, middle, high = statistics.quantiles(pairs, n=4)
        print(f"{mode}: {middle:.4f} x (quartiles {low:.4f} to {high:.4f}, {len(pairs)} pairs, {iterations} iterations); "
              f"the uploader took {100 * share:.1f} % of a core", flush=True)


if __name__ == "__main__":
    main()
