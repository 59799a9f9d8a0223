"""The study's page says what its records say."""
import json
import subprocess
import sys

import pytest

RECORDS = ["alfworld", "alfworld_rest", "alfworld_cause", "webshop", "textworld_smollm2", "textworld_qwen2.5-coder-0.5b"]


def test_tables_and_curves_of_the_page_come_from_the_records(root):
    done = subprocess.run([sys.executable, "scripts/study/tables.py", "--check"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", RECORDS)
def test_every_run_started_alike_and_finished(name, root):
    """One line for each run, from one policy and on one panel, with the outcome of every task."""
    path = root / f"docs/study/{name}.jsonl"
    if not path.exists():
        pytest.skip("this sweep has not been run")
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({run["name"] for run in runs}) == len(runs)
    assert len({(run["panel"]["sha256"], run["facts"]["start_weights"]) for run in runs}) == 1
    for run in runs:
        assert run["facts"]["state"] == "done" and run["metrics"]["iterations"][-1] == run["recipe"]["iterations"], run["name"]
        assert len(run["outcomes"]) == 1 + run["recipe"]["iterations"] // run["recipe"]["eval"]["every"], run["name"]
