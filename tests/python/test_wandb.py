"""Run files of wandb-rs, uploaded by W&B's own program to a server on loopback (wandb_server.py).

The driver `wandb_script` writes the runs; it takes commands on its standard input.
"""
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from conftest import PATIENCE
from google.protobuf import unknown_fields
from wandb.proto import wandb_internal_pb2
from wandb_server import KEY, SLOW, serve

WANDB = Path(sys.executable).parent / "wandb"


def environment(server=None, **more):
    """The environment of a child: with this server and key, or without either and without a login."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")} | {"NETRC": "/nonexistent"}
    if server:
        env |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}
    return env | more


class Writer:
    """A program that tracks a run."""

    def __init__(self, program, env, **settings):
        command = [program, json.dumps({"wandb": str(WANDB)} | settings)]
        # Signals as Python has them: a file that grows over its limit is an error, not a signal that kills.
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, restore_signals=False
        )
        self.started = json.loads(self.process.stdout.readline())
        self.id, self.dir = self.started.get("id"), Path(self.started.get("dir") or ".")

    def tell(self, *command):
        """Sends a command to the program and returns its answer."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def finish(self, code=0):
        done = self.tell("finish", code)
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0
        return done

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def writer(root, tmp_path):
    """Starts programs that track a run in a directory of the test."""
    program = Path(os.environ.get("NESTOR_DRIVERS", root / "target/release")) / "wandb_script"
    assert program.exists(), "build first: cargo build --release --workspace"
    assert WANDB.exists(), "install first: the group run of pyproject.toml"
    started = []

    def start(server=None, env=None, **settings):
        env = environment() if env is None else env
        new = Writer(program, environment(server) if server else env, **{"dir": str(tmp_path / "wandb")} | settings)
        started.append(new)
        return new

    yield start
    for one in started:
        one.process.kill()


def sync(server, run_dir):
    """Calls `wandb sync` as a user does and returns its output."""
    env = environment(server, WANDB_DIR=str(run_dir.parent))
    done = subprocess.run([WANDB, "sync", run_dir], env=env, cwd=run_dir, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def uploaders(run_dir):
    """Command lines of the processes that upload a run live, including W&B's own children."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"WANDB_DIR={run_dir}/logs".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ")[:200])
        except OSError:
            pass
    return found


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def assert_key_nowhere(directory, server):
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []
    assert not any(KEY.encode() in body for body in server.bodies)


def test_everything_arrives_and_the_key_nowhere(writer, tmp_path):
    recipe, secret = tmp_path / "recipe.yaml", tmp_path / "secret.txt"
    recipe.write_text("lr: 1\n")
    secret.write_text(f"key: {KEY}")
    with serve() as server:
        run = writer(server, name="ein Läufer", notes=f"with {KEY}", system_interval=0.2)
        run.tell("config", {"lr": 1e-6, "model": {"layers": [1, 2], "bias": None}, "ü": "€", "token": KEY})
        run.tell("metric", "train/*", "train/step", [])
        run.tell("metric", "success", None, ["max", "mean"])
        odd = {"nan": "NaN", "inf": "Infinity", "neg": "-Infinity", "text": f"Grüße 🦀 {KEY}", "flag": True, "list": [1, 2]}
        run.tell("log", 0, odd | {"success": 0.5, "deep": {"er": {"x": 1}, "y": 2.5}})
        run.tell("log", 7, {"success": 0.25, "train/step": 7, "big": 2**63})
        run.tell("table", 8, "rollouts/all", ["prompt", "won"], [["a", True], [KEY, None]])
        run.tell("output", f"a line with {KEY}")
        run.tell("alert", "look", f"here {KEY}")
        run.tell("summary", {"best": 3, "of": {"it": "all"}})
        assert run.tell("file", str(recipe), "configs/recipe.yaml") is None
        assert "holds the API key" in run.tell("file", str(secret), "secret.txt")["error"]
        assert "relative path" in run.tell("file", str(recipe), "../up.yaml")["error"]
        assert "steps must rise" in run.tell("log", 8, {})["error"]
        file = run.dir / f"run-{run.id}.wandb"
        wait_for(lambda: b"proc.memory.rssMB" in file.read_bytes(), "no numbers of the machine")
        done = run.finish(3)
        assert done["says"] == f"wandb: upload with: wandb sync {run.dir}"
        sync(server, run.dir)

        first, second, third = server.rows(run.id)
        assert math.isnan(first["nan"]) and first["inf"] == math.inf and first["neg"] == -math.inf
        assert first["text"] == "Grüße 🦀 ***" and first["flag"] is True and first["list"] == [1, 2]
        assert first["deep"] == {"er": {"x": 1}, "y": 2.5}
        assert [row["_step"] for row in (first, second, third)] == [0, 7, 8] and second["big"] == 2**63
        assert abs(first["_timestamp"] - time.time()) < 60 and 0 <= first["_runtime"] < 60
        summary = server.summary(run.id)
        assert summary["success"] == {"max": 0.5, "mean": 0.375} and summary["best"] == 3 and summary["train/step"] == 7
        assert summary["of"] == {"it": "all"} and summary["deep"] == {"er": {"x": 1}, "y": 2.5} and summary["_step"] == 8
        assert server.exit_code(run.id) == 3

        config = server.config()
        assert config["lr"]["value"] == 1e-6 and config["model"]["value"] == {"layers": [1, 2], "bias": None}
        assert config["ü"]["value"] == "€" and config["token"]["value"] == "***"
        metrics = config["_wandb"]["value"]["m"]
        step = 1 + next(i for i, metric in enumerate(metrics) if metric.get("1") == "train/step")
        assert any(metric.get("2") == "train/*" and metric["5"] == step for metric in metrics)
        named = [variables for variables in server.variables("upsertBucket") if variables.get("displayName")]
        assert named[-1]["displayName"] == "ein Läufer" and named[-1]["tags"] == ["tag"]
        assert server.variables("Alert")[0]["text"] == "here ***"

        table = third["rollouts/all"]
        assert table["_type"] == "table-file" and (table["nrows"], table["ncols"]) == (2, 2)
        assert json.loads(server.files[table["path"]]) == {"columns": ["prompt", "won"], "data": [["a", True], ["***", None]]}
        assert len(server.files[table["path"]]) == table["size"] and server.files["configs/recipe.yaml"] == b"lr: 1\n"
        assert server.files["output.log"] == b"a line with ***\n"
        stats = json.loads(server.lines(run.id, "wandb-events.jsonl")[-1])
        names = {"system.cpu", "system.memory_percent", "system.proc.memory.rssMB", "system.network.sent"}
        assert names <= set(stats) and 0 < stats["system.memory_percent"] < 100
        assert_key_nowhere(tmp_path / "wandb", server)


def payloads(data):
    """The records of a run file, by its published framing: LevelDB's log with CRC-32."""
    assert data[:7] == b":W&B\xe1\xbe\x00"
    at, record, found = 7, b"", []
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        assert crc == zlib.crc32(data[at + 6 : at + 7 + length])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found, record = [*found, record], b""
    assert not record
    return found


def test_the_golden_file_is_what_wandb_itself_reads(root):
    """The fixture of the crate's byte-level test, decoded with the message classes of the Python package."""
    data = (root / "core/wandb-rs/tests/fixtures/golden.wandb").read_bytes()
    records = [wandb_internal_pb2.Record.FromString(payload) for payload in payloads(data)]
    assert [record.num for record in records] == list(range(1, len(records) + 1))
    assert not any(field for record in records for field in unknown_fields.UnknownFieldSet(record))
    said = [(record.WhichOneof("record_type"), record) for record in records]
    order = "header run environment config metric metric metric output_raw alert history summary files files history"
    assert [kind for kind, _ in said] == [*order.split(), "history", "summary", "exit"]
    by_kind = {}
    for kind, record in said:
        by_kind.setdefault(kind, []).append(getattr(record, kind))

    def items(entries):
        return {item.key or tuple(item.nested_key): json.loads(item.value_json) for item in entries}

    assert by_kind["header"][0].version_info.min_consumer == "0.70.0"
    run = by_kind["run"][0]
    assert (run.run_id, run.entity, run.project, run.run_group) == ("abcd1234", "team", "golden", "group")
    assert (run.job_type, run.display_name, run.notes, list(run.tags)) == ("train", "first", "a note", ["a", "b"])
    assert (run.host, run.git.remote_url, run.git.commit) == ("machine", "https://example.org/x.git", "0123abc")
    assert run.start_time.ToMilliseconds() == 1_700_000_000_250
    machine = by_kind["environment"][0]
    assert (machine.os, list(machine.args), machine.writer_id) == ("Linux", ["train"], "abcd1234")
    assert items(by_kind["config"][0].update) == {"lr": 1e-6, "model": {"layers": [1, 2], "bias": None}}
    step, family, success = by_kind["metric"]
    assert step.name == "train/step" and (family.glob_name, family.step_metric) == ("train/*", "train/step")
    assert success.name == "success" and success.summary.min and success.summary.mean and not success.summary.max
    line, alert = by_kind["output_raw"][0], by_kind["alert"][0]
    assert (line.line, line.output_type) == ("a line\n", line.STDOUT)
    assert (alert.title, alert.text, alert.level) == ("title", "text", "WARN")
    first, second, third = [items(row.item) for row in by_kind["history"]]
    assert [row.step.num for row in by_kind["history"]] == [1, 2, 3]
    assert first["success"] == 0.5 and math.isnan(first["nan"]) and first["on"] is True
    assert first["deep", "er"] == -math.inf and first["deep", "s"] == "Grüße 🦀"
    assert (first["_step"], first["_runtime"], first["_timestamp"]) == (1, 0, 1_700_000_000.25)
    assert second["n"] == -7 and second["success"] == 1e300 and second["table"]["_type"] == "table-file"
    assert third["long"] == "0123456789abcdef" * 2100
    text, table = [files.files[0] for files in by_kind["files"]]
    assert text.path == "some/text" and (table.path, table.type) == (second["table"]["path"], table.MEDIA)
    last = items(by_kind["summary"][1].update)
    assert last["success", "mean"] == 5e299 and last["n"] == -7 and ("success", "min") not in last
    assert items(by_kind["summary"][0].update)["success", "min"] == 0.5
    assert by_kind["exit"][0].exit_code == 3


def test_a_killed_writer_keeps_all_whole_rows(writer):
    with serve() as server:
        run = writer(server)
        for step in range(50):
            run.tell("log", step, {"x": step})
        run.process.stdin.write(json.dumps(["rows", 50, 10**7, 60]) + "\n")
        run.process.stdin.flush()
        file = run.dir / f"run-{run.id}.wandb"
        wait_for(lambda: file.stat().st_size > 10**6, "no rows")
        run.kill()
        sync(server, run.dir)
        rows = server.rows(run.id)
        assert len(rows) > 100 and [row["_step"] for row in rows] == list(range(len(rows)))
        assert all(len(row) == 63 for row in rows[50:]) and server.exit_code(run.id) == 1


def test_resume_delivers_every_row_once(writer):
    """Rows after the step to resume from, a torn record and an exit record are cut off, on the server too."""
    with serve() as server:
        run = writer(server, id="again")
        for step in range(2000):
            run.tell("log", step, {"life": 1, "x": -step})
        run.kill()
        file = run.dir / "run-again.wandb"
        with file.open("ab") as torn:
            torn.write(b"\1\2\3\4\xff\x00\1half a record")
        sync(server, run.dir)
        assert server.exit_code("again") == 1 and len(server.rows("again")) == 2000

        again = writer(server, resume=["again", 1500])
        assert (again.id, again.dir) == ("again", run.dir)
        assert "after step 1500" in again.tell("log", 1500, {})["error"]
        for step in range(1501, 1601):
            again.tell("log", step, {"life": 2})
        again.finish()
        sync(server, run.dir)
        third = writer(server, resume=["again", 10**6])
        third.tell("log", 1601, {"life": 3})
        third.finish(0)
        sync(server, run.dir)
        # The server keeps lines after the new end until new rows replace them.
        rows = server.rows("again")[:1602]
        assert [row["_step"] for row in rows] == list(range(1602))
        assert [row["life"] for row in rows] == [1] * 1501 + [2] * 100 + [3]
        assert server.summary("again")["life"] == 3 and server.summary("again")["x"] == -1500
        assert rows[1601]["_runtime"] >= rows[1500]["_runtime"] and server.exit_code("again") == 0


def test_live_rows_arrive_while_the_run_is_open(writer, tmp_path):
    with serve() as server:
        run = writer(server, mode="live", id="live")
        for step in range(3):
            run.tell("log", step, {"x": step, "text": KEY})
        wait_for(lambda: "live" in server.streams, "no row arrived")
        assert server.exit_code("live") is None and len(uploaders(run.dir)) >= 2
        niceness = [int(Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[16])
                    for pid in children(run.process.pid)]
        assert niceness and set(niceness) == {19}
        run.tell("log", 3, {"x": 3})
        assert run.finish(0)["finish"] == "Uploaded"
        assert [row["x"] for row in server.rows("live")] == [0, 1, 2, 3] and server.exit_code("live") == 0
        wait_for(lambda: not uploaders(run.dir), "an uploader outlives its run")

        again = writer(server, mode="live", resume=["live", 2])
        again.tell("log", 3, {"x": 30})
        assert again.finish(0)["finish"] == "Uploaded"
        assert [row["x"] for row in server.rows("live")] == [0, 1, 2, 30]
        assert_key_nowhere(tmp_path / "wandb", server)


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("mode", ["ok", "slow"])
def test_the_uploader_ends_with_a_killed_writer(writer, mode):
    with serve(mode) as server:
        run = writer(server, mode="live")
        run.tell("log", 0, {"x": 0})
        wait_for(lambda: server.streams or mode == "slow" and server.requests, "nothing arrived")
        assert len(uploaders(run.dir)) >= 2
        run.kill()
        wait_for(lambda: not uploaders(run.dir), "the uploader lives on")


@pytest.mark.parametrize("mode", ["dead", "500", "slow"])
def test_a_broken_server_stalls_nobody(writer, mode):
    with serve(mode) as server:
        run = writer(server, mode="live", finish_timeout=2)
        wait_for(lambda: server.requests or mode == "dead" and len(uploaders(run.dir)) >= 2, "nothing was tried")
        # A row takes as long as without an upload, and the end does not wait for an answer, which takes SLOW seconds.
        assert run.tell("rows", 0, 999, 60)["median_us"] < 10 * writer().tell("rows", 0, 999, 60)["median_us"]
        start = time.monotonic()
        done = run.finish(0)
        assert time.monotonic() - start < SLOW / 2
        assert done["finish"].startswith("Left") and done["command"] == f"wandb sync {run.dir}"
        wait_for(lambda: not uploaders(run.dir), "an uploader outlives its run")
    with serve() as server:
        sync(server, run.dir)
        assert len(server.rows(run.id)) == 1000 and server.exit_code(run.id) == 0


def test_the_run_continues_when_the_uploader_dies(writer):
    with serve() as server:
        run = writer(server, mode="live")
        os.kill(int(children(run.process.pid)[0]), signal.SIGKILL)
        run.tell("log", 0, {"x": 0})
        done = run.finish(0)
        assert "ended early" in done["says"] and "wandb sync" in done["says"]
        wait_for(lambda: not uploaders(run.dir), "its children live on")
        sync(server, run.dir)
        assert len(server.rows(run.id)) == 1


def test_live_refuses_before_it_writes(writer, tmp_path):
    none = writer(mode="live")
    assert "run `wandb login` or set WANDB_API_KEY" in none.started["error"]
    key = environment(WANDB_API_KEY=KEY)
    assert "not found" in writer(env=key, mode="live", wandb=str(tmp_path / "wandb-none")).started["error"]
    assert "not found" in writer(env=key | {"PATH": "/nowhere"}, mode="live", wandb=None).started["error"]
    assert "no run file" in writer(resume=["gone", 1]).started["error"]
    assert writer(mode="disabled").finish()["finish"] == "Disabled"
    assert not (tmp_path / "wandb").exists()


def test_a_full_disk_is_an_error_not_a_crash(writer, tmp_path):
    run = writer()
    run.tell("log", 0, {"x": 0})
    size = (run.dir / f"run-{run.id}.wandb").stat().st_size
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (size + 5, unlimited))
    assert "cannot append" in run.tell("log", 1, {"x": 1})["error"]
    assert "cannot append" in run.tell("log", 1, {"x": 1})["error"]
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    assert run.tell("log", 1, {"x": 1}) is None
    run.finish(0)
    with serve() as server:
        sync(server, run.dir)
        assert [row["x"] for row in server.rows(run.id)] == [0, 1]
