"""Golden curves: two short deterministic runs whose metrics are in git. A change that moves a number of training moves them.

The numbers are Nestor's own, so they say that something changed, not that it is wrong: numbers are compared with references in
the other tests. `NESTOR_WRITE_GOLDEN=1 pytest tests/python/test_golden.py` records them again; the commit then says why they moved.
"""
import json
import math
import os

import pytest
from measured import MEASURED

# One set of kernels on every x86-64 processor, so that sums have one order.
ONE_ORDER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
RUNS = {
    "numberline_gigpo": ["recipes/smoke/gigpo.yaml", "iterations=5", "eval.every=5"],
    "numberline_ppo": ["recipes/smoke/ppo.yaml", "iterations=5", "eval.every=5", "update.epochs=2", "update.shuffle=true"],
}
# Sums of another order may move the last digits; a change of a rule moves more.
CLOSE = 1e-3


@pytest.mark.parametrize("name", RUNS)
def test_a_deterministic_run_repeats_its_recorded_curve(name, run, root, tmp_path):
    recipe, *settings = RUNS[name]
    sets = [word for s in ["deterministic=true", "seed=3", *settings] for word in ("--set", s)]
    done = run("train", root / recipe, *sets, "--run-dir", tmp_path / "run", env=os.environ | ONE_ORDER)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows]
    golden = root / f"tests/fixtures/golden/{name}.jsonl"
    if os.environ.get("NESTOR_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    want = [json.loads(line) for line in golden.read_text().splitlines()]
    assert [sorted(row) for row in rows] == [sorted(row) for row in want], "metrics came or went"
    moved = [f"{key} of iteration {old['iteration']}: {old[key]} -> {new[key]}" for old, new in zip(want, rows) for key in old
             if not math.isclose(old[key], new[key], rel_tol=CLOSE, abs_tol=1e-6)]
    assert not moved, "\n".join(["the curve moved; if it should, record it with NESTOR_WRITE_GOLDEN=1 and say why", *moved[:20]])
