"""Runs many iterations of a smoke recipe and reports whether the process's memory grows (some minutes; not in CI).

usage: .venv/bin/python tests/slow/soak.py [RECIPE] [--iterations 3000] [--burn-in 1000] [--run-dir DIR]
Evaluation, rollouts and checkpoints are off, to measure the loop alone; the heap takes up to 900 iterations to settle.
Prints the slope of memory/rss_bytes by least squares over the iterations after the burn-in, in percent of its mean per 1,000
iterations; exit code 1 if it is not under the target, 0.1 %.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.1
OFF = ["eval.every=0", "eval.tasks=1", "checkpoint.every=0", "checkpoint.rollouts_every=0"]


def slope(rows):
    """Percent of the mean per 1,000 iterations, of (iteration, bytes)."""
    iterations, sizes = zip(*rows)
    return 1000 * 100 * statistics.linear_regression(iterations, sizes).slope / statistics.fmean(sizes)


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].replace("%", "%%"))
    p.add_argument("recipe", nargs="?", default=ROOT / "recipes/smoke/gigpo.yaml")
    p.add_argument("--iterations", type=int, default=3000)
    p.add_argument("--burn-in", type=int, default=1000)
    p.add_argument("--run-dir", type=Path)
    a = p.parse_args()
    if a.burn_in < 0 or a.iterations < a.burn_in + 2:
        p.error("--iterations must be at least two more than --burn-in")
    with tempfile.TemporaryDirectory() as scratch:
        folder = a.run_dir or Path(scratch) / "run"
        sets = [word for key in [f"iterations={a.iterations}", *OFF] for word in ("--set", key)]
        done = subprocess.run([ROOT / "target/release/nestor", "train", a.recipe, "--run-dir", folder, *sets],
                              stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"soak: nestor train ended with exit code {done.returncode}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [(line["iteration"], line["memory/rss_bytes"]) for line in lines if line["iteration"] > a.burn_in]
    grows = slope(rows)
    print(f"memory after {a.burn_in} iterations {rows[0][1] / 2**20:.1f} MiB, after {rows[-1][0]} {rows[-1][1] / 2**20:.1f} MiB; "
          f"slope {grows:+.3f} % per 1,000 iterations, target under {TARGET} %: {'met' if grows < TARGET else 'MISSED'}")
    sys.exit(grows >= TARGET)


if __name__ == "__main__":
    main()
