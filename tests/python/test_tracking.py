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
    return json_lines(run_dir / "metrics.jsonl")


def json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def wandb_dir(run_dir):
    [only] = (run_dir / "wandb").glob("offline-run-*")
    return only


def run_id(run_dir):
    return wandb_dir(run_dir).name.split("-", 3)[3]


def assert_rows_arrived(server, run_dir):
    """Every number of every row of metrics.jsonl has arrived; null there means a number that is not finite."""
    everything = server.rows(run_id(run_dir))
    assert [row["_step"] for row in everything] == list(range(len(everything)))
    written, got = rows_of(run_dir), [row for row in everything if "iteration" in row and "step" not in row]
    assert [row["iteration"] for row in got] == [row["iteration"] for row in written]
    for row, arrived in zip(written, got):
        assert all(arrived[name] == value if value is not None else not math.isfinite(arrived[name])
                   for name, value in row.items())
    for row, arrived in zip(json_lines(run_dir / "histograms.jsonl"), got[1:]):
        assert row.pop("iteration") == arrived["iteration"] and set(row) == {"advantage", "return", "length"}
        assert all(arrived[f"histogram/{name}"] == {"_type": "histogram", "values": value["counts"], "bins": value["edges"]}
                   for name, value in row.items())
    steps = [row for row in everything if "step" in row]
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    for row, arrived in zip(json_lines(run_dir / "steps.jsonl"), steps, strict=True):
        assert row.pop("iteration") == arrived["iteration"]
        assert all(arrived[f"step/{name}"] == value for name, value in row.items())
    warm = [(row["warm_start/step"], row["warm_start/loss"]) for row in everything if "warm_start/step" in row]
    assert warm == [(row["step"], row["loss"]) for row in json_lines(run_dir / "warm_start.jsonl")] and warm
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
        assert all(summary[name] == value for name, value in rows_of(run_dir)[-1].items() if name != "eval/success")
        success = [row["eval/success"] for row in rows]
        assert summary["eval/success"] == {"last": success[-1], "max": max(success)}
        config = server.config()
        facts = config["run"]["value"]
        assert facts["parameters"] > 0 and facts["ranks"] == 1 and facts["device"] == "cpu" and config["nestor_version"]["value"]
        assert config["env"]["value"]["config"]["max"] == 5 and config["plugins"]["value"][0]["id"] == "numberline"
        axes = config["_wandb"]["value"]["m"]
        axis_of = {axis.get("1") or axis["2"]: axes[axis["5"] - 1]["1"] for axis in axes if "5" in axis}
        assert axis_of["warm_start/*"] == "warm_start/step" and axis_of["step/*"] == "step"
        assert axis_of["episode/*"] == axis_of["eval/success"] == axis_of["histogram/*"] == axis_of["lr"] == "iteration"
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
        got = server.rows(run_id(run_dir))
        killed = [row["iteration"] for row in got if "iteration" in row and "step" not in row]
        # The row is in W&B's file before it is in metrics.jsonl or after it, and both are written whole.
        assert killed == list(range(len(killed))) and abs(len(killed) - len(rows_of(run_dir))) <= 1
    with serve() as server:
        ended = start(environment(server), "wandb={mode: offline}", *tracked[1:], resume=True)
        said, _ = ended.communicate(timeout=PATIENCE)
        assert ended.returncode == 0, said
        sync(server, wandb_dir(run_dir))
        assert len(assert_rows_arrived(server, run_dir)) == 13 and server.exit_code(run_id(run_dir)) == 0


def test_wandbs_variables_and_login_count(start, tmp_path):
    """As with W&B's own client: a key of the recipe, then the variable, then the default. The key of `wandb login` uploads."""
    run_dir = tmp_path / "run"
    with serve() as server:
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine other.example.org\n  login user\n  password other\n"
                         f"machine {server.url.removeprefix('http://')}\n  login user\n  password {KEY}\n")
        variables = {
            "WANDB_PROJECT": "lab", "WANDB_ENTITY": "team", "WANDB_NAME": "seed 3", "WANDB_TAGS": "a, b",
            "WANDB_RUN_GROUP": "seeds", "WANDB_JOB_TYPE": "sweep", "WANDB_NOTES": f"a note with {KEY}", "WANDB_MODE": "online",
            "WANDB_DIR": str(tmp_path / "elsewhere"), "WANDB_RUN_ID": "run-7", "WANDB_BASE_URL": server.url,
            "NETRC": str(netrc), "WANDB_ERROR_REPORTING": "false",
        }
        run = start(environment(**variables), "wandb={group: own}", "warm_start.steps=3")
        said, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0 and "wandb: uploaded" in said, said
        [target] = (tmp_path / "elsewhere/wandb").iterdir()
        assert wandb_dir(run_dir).resolve() == target and target.name.endswith("-run-7")
        assert len(assert_rows_arrived(server, run_dir)) == 3
        named = [found for found in server.variables("upsertBucket") if found.get("displayName")][-1]
        found = [named[key] for key in ("displayName", "project", "entity", "tags", "groupName", "jobType", "notes")]
        assert found == ["seed 3", "lab", "team", ["a", "b"], "own", "sweep", "a note with ***"]
        assert_key_nowhere(run_dir, server)
        assert_key_nowhere(target, server)

        # A resumed run finds its file through the link.
        env = environment(**variables | {"WANDB_MODE": "offline", "WANDB_RUN_ID": "other"})
        run = start(env, "wandb={group: own}", "warm_start.steps=3", "iterations=3", resume=True)
        said, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0, said
        sync(server, target)
        assert len(assert_rows_arrived(server, run_dir)) == 4


def test_a_run_without_a_section_says_how_to_be_tracked(start, tmp_path):
    run = start(environment(WANDB_PROJECT="lab"), "warm_start.steps=1", "iterations=1")
    said, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0 and "WANDB_PROJECT is \"lab\"" in said and "--set 'wandb={}'" in said, said
    assert not (tmp_path / "run/wandb").exists()


def test_a_live_run_needs_the_key_before_anything_else(start, tmp_path):
    run = start(environment(), "wandb={mode: live}")
    said, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2 and said.count("\n") == 1, said
    assert "error: recipe key `wandb.mode`: " in said and "WANDB_API_KEY" in said and "offline" in said
    assert not (tmp_path / "run").exists()


def test_a_failed_run_says_why(start, root, tmp_path):
    plugin = root / "target/release/examples/libfaulty.so"
    with serve() as server:
        run = start(environment(), "wandb={}", f"estimator={{plugin: {plugin}#faulty, config: {{fault: error}}}}")
        said, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 1 and "asked to fail" in said, said
        sync(server, wandb_dir(tmp_path / "run"))
        assert server.exit_code(run_id(tmp_path / "run")) == 1
        [alert] = server.variables("Alert")
        assert alert["title"] == "run failed" and "asked to fail" in alert["text"]
        assert_rows_arrived(server, tmp_path / "run")
