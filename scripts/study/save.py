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


def repeated(path):
    """The share of steps of an evaluation whose action the episode took before in the same state, as metric `eval/repeated_ratio`."""
    steps = again = 0
    for line in path.read_text().splitlines():
        taken = [(step["anchor"], step["action"]) for step in json.loads(line)["steps"]]
        steps, again = steps + len(taken), again + len(taken) - len(set(taken))
    return again / max(steps, 1)


def complete(record):
    """Adds metrics to runs that were made before Nestor had them, from the episodes that they saved."""
    runs = [json.loads(line) for line in record.read_text().splitlines()]
    for run in runs:
        iterations, columns = run["metrics"]["iterations"], run["metrics"]["columns"]
        files = [ROOT / run["name"] / f"evaluations/iteration-{iteration:06}.jsonl" for iteration in iterations]
        if any(file.exists() for file in files):
            columns.setdefault("eval/repeated_ratio", [round(repeated(file), 6) if file.exists() else None for file in files])
    record.write_text("".join(json.dumps(run, ensure_ascii=False, separators=(",", ":")) + "\n" for run in runs))


def main(sweep):
    folder, _, name = sweep.rpartition("/")
    file = f"recipes/{folder or 'study'}/sweeps/{name}.yaml"
    listed = subprocess.run([NESTOR, "sweep", file, "--list", "--json"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    done = [row["dir"] for row in json.loads(listed)["runs"] if row["state"] == "done"]
    if not done:
        sys.exit(f"no run of {file} is done")
    record = ROOT / f"docs/study/{sweep.replace('/', '_')}.jsonl"
    subprocess.run([NESTOR, "compare", *done, "--by-folder", "--save", record], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    complete(record)
    print(f"saved {len(done)} runs to {record.relative_to(ROOT)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
