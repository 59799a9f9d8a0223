"""Saves the finished runs of a sweep of the study as the record docs/study/SWEEP.jsonl.

    .venv/bin/python scripts/study/save.py alfworld
"""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NESTOR = ROOT / "target/release/nestor"


def main(sweep):
    file = f"recipes/study/sweeps/{sweep}.yaml"
    listed = subprocess.run([NESTOR, "sweep", file, "--list", "--json"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    done = [row["dir"] for row in json.loads(listed)["runs"] if row["state"] == "done"]
    if not done:
        sys.exit(f"no run of {file} is done")
    record = f"docs/study/{sweep}.jsonl"
    subprocess.run([NESTOR, "compare", *done, "--by-folder", "--save", record], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    print(f"saved {len(done)} runs to {record}")


if __name__ == "__main__":
    main(*sys.argv[1:])
