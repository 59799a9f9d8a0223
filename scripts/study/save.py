"""Saves the finished runs of a sweep of a study as the record docs/study/SWEEP.jsonl, or docs/study/NAME_SWEEP.jsonl for the sweeps in
recipes/NAME.

    .venv/bin/python scripts/study/save.py alfworld
    .venv/bin/python scripts/study/save.py textworld/smollm2
"""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NESTOR = ROOT / "target/release/nestor"


def main(sweep):
    folder, _, name = sweep.rpartition("/")
    file = f"recipes/{folder or 'study'}/sweeps/{name}.yaml"
    listed = subprocess.run([NESTOR, "sweep", file, "--list", "--json"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    done = [row["dir"] for row in json.loads(listed)["runs"] if row["state"] == "done"]
    if not done:
        sys.exit(f"no run of {file} is done")
    record = f"docs/study/{sweep.replace('/', '_')}.jsonl"
    subprocess.run([NESTOR, "compare", *done, "--by-folder", "--save", record], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    print(f"saved {len(done)} runs to {record}")


if __name__ == "__main__":
    main(*sys.argv[1:])
