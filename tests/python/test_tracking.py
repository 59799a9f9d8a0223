"""Whole training runs in W&B: its own program uploads them to a server on loopback (wandb_server.py)."""
import json
import math
import signal
import subprocess

import pytest
from conftest import PATIENCE
from test_wandb import assert_key_nowhere, environment, sync, uploaders, wait_for
from wandb_server import KEY, serve


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def wandb_dir(run_dir):
    [only] = (run_dir / "wandb").glob("offline-run-*")
    return only


def run_id(run_dir):
    return wandb_dir(run_dir).name.rsplit("-", 1)[1]


def assert_rows_arrived(server, run_dir):
    """Every number of every row of metrics.jsonl has arrived; null there means a number that is not finite."""
    written, got = rows_of(run_dir), server.rows(run_id(run_dir))
    assert [row["_step"] for row in got] == [row["iteration"] for row in written]
    for row, arrived in zip(written, got):
        assert all(arrived[name] == value if value is not None else not math.isfinite(arrived[name])
                   for name, value in row.items() if name != "iteration")
    return got


@pytest.fixture
def start(nestor, root, tmp_path):
    """Starts a tracked run of the smoke recipe in `tmp_path/run`."""
    started = []

    def call(env, *sets, resume=False):
        command = [nestor, "train", root / "recipes/smoke/gigpo.yaml", "--run-dir", tmp_path / "run"]
        command += ["--resume"] * resume + [part for key in sets for part in ("--set", key)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()


def test_an_offline_run_is_uploaded_later(start, tmp_path):
    run_dir = tmp_path / "run"
    with serve() as server:
        env = environment(server)  # the key is there, and must not be kept
        keys = "{project: walks, tags: [smoke], table_every: 1, table_episodes: 2}"
        run = start(env, f"wandb={keys}")
        said, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0 and f"wandb: upload with: wandb sync {wandb_dir(run_dir)}" in said, said
        assert server.requests == 0
        sync(server, wandb_dir(run_dir))

        rows = assert_rows_arrived(server, run_dir)
        assert len(rows) == 3 and server.exit_code(run_id(run_dir)) == 0
        summary = server.summary(run_id(run_dir))
        assert all(summary[name] == value for name, value in rows[-1].items() if not name.startswith(("_", "rollouts")))
        config = server.config()
        assert config["estimator"]["value"]["plugin"] == "gigpo" and config["wandb"]["value"]["tags"] == ["smoke"]
        named = [variables for variables in server.variables("upsertBucket") if variables.get("displayName")]
        assert (named[-1]["displayName"], named[-1]["project"]) == ("run", "walks")
        assert server.files["recipe.yaml"] == (run_dir / "recipe.yaml").read_bytes()
        log = server.files["output.log"].decode().splitlines()
        assert log == said.split("wandb: upload")[0].splitlines()

        table = json.loads(server.files[rows[1]["rollouts"]["path"]])
        episodes = [json.loads(line) for line in (run_dir / "rollouts/iteration-000001.jsonl").open()][:2]
        steps = [(e["episode"], n, s["prompt"], s["advantage"]) for e in episodes for n, s in enumerate(e["steps"])]
        at = [table["columns"].index(name) for name in ("episode", "step", "prompt", "advantage")]
        assert [tuple(row[i] for i in at) for row in table["data"]] == steps
        assert_key_nowhere(run_dir, server)
        assert KEY not in said


def test_a_live_run_is_uploaded_while_it_trains(start, tmp_path):
    run_dir = tmp_path / "run"
    with serve() as server:
        run = start(environment(server), "wandb={mode: live}", "iterations=100000", "checkpoint.every=0")
        wait_for(lambda: (run_dir / "wandb").exists() and server.streams, "nothing arrived")
        name = run_id(run_dir)
        wait_for(lambda: len(server.streams.get(name, {}).get("wandb-history.jsonl", {})) > 2, "no rows")
        assert run.poll() is None and server.exit_code(name) is None
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 130 and "wandb: uploaded" in said, said
        assert_rows_arrived(server, run_dir)
        assert server.exit_code(name) == 130 and uploaders(wandb_dir(run_dir)) == []
        assert_key_nowhere(run_dir, server)


def test_a_killed_run_keeps_its_rows_and_resumes(start, tmp_path):
    run_dir = tmp_path / "run"
    tracked = ["wandb={mode: live}", "iterations=12", "checkpoint.every=4"]
    with serve("500") as server:
        run = start(environment(server), *tracked)
        rows = run_dir / "metrics.jsonl"
        wait_for(lambda: rows.exists() and rows.read_text().count("\n") > 6, "the run does not continue")
        run.kill()
        run.wait()
        wait_for(lambda: not uploaders(wandb_dir(run_dir)), "the upload outlives the run")
    with serve() as server:
        sync(server, wandb_dir(run_dir))
        killed = [row["_step"] for row in server.rows(run_id(run_dir))]
        # The row is in W&B's file before it is in metrics.jsonl or after it, and both are written whole.
        assert killed == list(range(len(killed))) and abs(len(killed) - len(rows_of(run_dir))) <= 1
    with serve() as server:
        ended = start(environment(server), "wandb={mode: offline}", *tracked[1:], resume=True)
        said, _ = ended.communicate(timeout=PATIENCE)
        assert ended.returncode == 0, said
        sync(server, wandb_dir(run_dir))
        assert len(assert_rows_arrived(server, run_dir)) == 13 and server.exit_code(run_id(run_dir)) == 0


def test_a_live_run_needs_the_key_before_anything_else(start, tmp_path):
    run = start(environment(), "wandb={mode: live}")
    said, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2 and said.count("\n") == 1, said
    assert "error: recipe key `wandb.mode`: " in said and "WANDB_API_KEY" in said and "offline" in said
    assert not (tmp_path / "run").exists()


def test_a_failed_run_says_why(start, root, tmp_path):
    plugin = root / "target/release/examples/libfaulty.so"
    with serve() as server:
        run = start(environment(), "wandb={}", f"estimator={{plugin: {plugin}, config: {{fault: error}}}}")
        said, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 1 and "asked to fail" in said, said
        sync(server, wandb_dir(tmp_path / "run"))
        assert server.exit_code(run_id(tmp_path / "run")) == 1
        [alert] = server.variables("Alert")
        assert alert["title"] == "run failed" and "asked to fail" in alert["text"]
        assert_rows_arrived(server, tmp_path / "run")
