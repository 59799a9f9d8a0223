"""`nestor eval`: the same numbers as the run wrote, no trace of evaluation in a run, and its refusals."""
import json
import math

import pytest
from measured import MEASURED

SETTINGS = ["--set", "deterministic=true", "--set", "iterations=2", "--set", "warm_start.steps=60", "--set",
            "warm_start.lr=1e-2", "--set", "env.config.held_out=24", "--set", "eval.tasks=24", "--set", "checkpoint.keep=9"]
EVALUATED = ("eval/success", "eval/return", "eval/length")


def train(run, root, run_dir, *more):
    done = run("train", root / "recipes/smoke/gigpo.yaml", *SETTINGS, *more, "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    return run_dir


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def finished(request, run, root, tmp_path_factory):
    """A run that evaluates after every iteration, in each compute type."""
    return train(run, root, tmp_path_factory.mktemp(request.param) / "run", "--set", f"dtype={request.param}")


def test_a_checkpoint_gets_the_number_that_its_run_wrote(finished, run_json):
    rows = rows_of(finished)
    assert len({row["eval/return"] for row in rows}) > 1, "all models play alike: the comparison would show nothing"
    for row in rows:
        checkpoint = finished / f"checkpoints/iteration-{row['iteration']:06}"
        got = run_json("eval", finished / "recipe.yaml", "--model", checkpoint, "--json")
        assert [got["success"], got["return"], got["length"]] == [row[name] for name in EVALUATED]
        assert (got["episodes"], got["split"], got["temperature"]) == (24, "eval", 1.0)
    newest = run_json("eval", finished / "recipe.yaml", "--model", finished, "--json")
    assert newest == got and newest["model"].endswith("iteration-000002")


def test_evaluation_leaves_no_trace_in_a_run(finished, run, root, tmp_path):
    dtype = "bfloat16" if "dtype: bfloat16" in (finished / "recipe.yaml").read_text() else "float32"
    without = train(run, root, tmp_path / "run", "--set", f"dtype={dtype}", "--set", "eval.every=0")
    for mine, other in zip(rows_of(finished), rows_of(without), strict=True):
        evaluated = mine["iteration"] in (0, 2)
        assert ("eval/success" in mine, "eval/success" in other) == (True, evaluated)
        kept = MEASURED if evaluated else (*MEASURED, "eval/")
        assert {k: v for k, v in mine.items() if not k.startswith(kept)} == \
               {k: v for k, v in other.items() if not k.startswith(kept)}
    for name in ("policy.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors"):
        mine, other = (folder / "checkpoints/iteration-000002" / name for folder in (finished, without))
        assert mine.read_bytes() == other.read_bytes(), name
    mine, other = (json.loads((folder / "checkpoints/iteration-000002/state.json").read_text()) for folder in (finished, without))
    # The best evaluation so far is one of those that the other run did not make.
    assert {k: v for k, v in mine.items() if k != "best"} == {k: v for k, v in other.items() if k != "best"}


def wilson(won, n):
    z = 1.959963984540054
    p = won / n
    center, spread = p + z * z / 2 / n, z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    return [(center - spread) / (1 + z * z / n), (center + spread) / (1 + z * z / n)]


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
def test_by_type_with_intervals(finished, root, run, run_json, tmp_path):
    """The scripted environment has three kinds of tasks, in turn, and reports each win. A Hugging Face folder and a
    model that the recipe names are evaluated too."""
    plugin, log = root / "target/release/examples/libscripted.so", tmp_path / "log"
    sets = ["--set", f"env={{plugin: {plugin}, config: {{log: {log}}}}}", "--set", "rollout.template=null"]
    command = ["eval", root / "recipes/smoke/gigpo.yaml", *sets, "--episodes", 30]
    got = run_json(*command, "--model", finished / "model", "--json")
    played = [json.loads(line) for line in log.read_text().splitlines()]
    tasks = {p["task"] for p in played}  # a panel of the 60 tasks, each once
    assert len(played) == len(tasks) == 30 and max(tasks) >= 30 and {p["split"] for p in played} == {"eval"}
    kinds = {kind: [p["return"] for p in played if p["task"] % 3 == i] for i, kind in enumerate(("same", "coin", "rare"))}
    assert got["by_type"].keys() == kinds.keys()
    for counts, returns in [(got, [p["return"] for p in played]), *((got["by_type"][k], v) for k, v in kinds.items())]:
        won = sum(outcome >= 1 for outcome in returns)
        assert (counts["won"], counts["episodes"], counts["success"]) == (won, len(returns), won / len(returns))
        assert counts["interval"] == pytest.approx(wilson(won, len(returns)), abs=1e-12)
    assert got["return"] == pytest.approx(sum(p["return"] for p in played) / 30) and got["length"] == 1

    named = run(*command, "--set", f"model={{path: {finished / 'model'}}}")
    assert named.returncode == 0, named.stderr
    low, high = got["interval"]
    assert named.stdout.startswith(f"success {got['success']:.3f} (95 % interval {low:.3f} to {high:.3f}, ")
    assert "\n  coin " in named.stdout and str(finished / "model") in named.stdout


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
def test_refusals(finished, run, root, tmp_path):
    def refused(*args):
        done = run("eval", root / "recipes/smoke/gigpo.yaml", *args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        return done.stderr

    message = refused()
    assert "`model.new`" in message and "--model" in message
    message = refused("--model", tmp_path)
    assert str(tmp_path) in message and "run directory" in message and "config.json" in message
    message = refused("--model", finished, "--set", "eval.split=evla")
    assert "recipe key `eval.split`" in message and "did you mean `eval`?" in message
    message = refused("--model", finished, "--episodes", 11)  # of ten tasks
    assert "--episodes 11" in message and "has 10 tasks, not 11" in message and "no new evidence" in message
    assert run("eval", root / "recipes/smoke/gigpo.yaml", "--episodes", 0).returncode == 2
