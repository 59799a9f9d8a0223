"""Times wandb-rs: a row of 60 numbers, and 100,000 odd rows through `wandb sync` to a server on loopback (about a minute).

    scripts/setup.sh --test && .venv/bin/python tests/slow/wandb_many_rows.py
"""
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from test_wandb import Writer, environment, sync  # noqa: E402
from wandb_server import serve  # noqa: E402

ROWS = 100_000
PROGRAM = Path(os.environ.get("NESTOR_DRIVERS", ROOT / "target/release")) / "wandb_script"

with tempfile.TemporaryDirectory() as directory, serve() as server:
    fast = Writer(PROGRAM, environment(), dir=directory)
    print("a row of 60 numbers:", fast.tell("rows", 0, 19_999, 60))
    fast.finish()

    run = Writer(PROGRAM, environment(), dir=directory)
    for step in range(ROWS):
        odd = {"nan": "NaN", "inf": "Infinity", "neg": "-Infinity", "text": "Grüße 🦀", "deep": {"er": {"x": step}}}
        assert run.tell("log", step, odd) is None
    run.finish()
    start = time.monotonic()
    sync(server, run.dir)
    seconds = time.monotonic() - start
    rows = server.rows(run.id)
    assert [row["_step"] for row in rows] == [row["deep"]["er"]["x"] for row in rows] == list(range(ROWS))
    assert all(row["nan"] != row["nan"] and row["inf"] == -row["neg"] == float("inf") for row in rows)
    assert all(row["text"] == "Grüße 🦀" for row in rows) and server.exit_code(run.id) == 0
    print(f"{ROWS} rows through wandb sync: {seconds:.1f} s")
