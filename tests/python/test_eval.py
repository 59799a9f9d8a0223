"""`nestor eval`: the same numbers as the run wrote, samples and pass@k, no trace of evaluation in a run, and its refusals."""
import json
import math
import shutil

import numpy as np
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


def test_checkpoints_get_the_numbers_that_their_run_wrote(finished, run, run_json, tmp_path):
    """In one table as in single evaluations, and with the episodes that the run wrote."""
    rows = rows_of(finished)
    assert len({row["eval/return"] for row in rows}) > 1, "all models play alike: the comparison would show nothing"
    checkpoints = [finished / f"checkpoints/iteration-{row['iteration']:06}" for row in rows]
    got = run_json("eval", *checkpoints, "--out", tmp_path, "--json")
    assert (got["tasks"], got["samples"], got["split"], got["temperature"]) == (24, 1, "eval", 1.0)
    assert got == json.loads((tmp_path / "evaluation.json").read_text())
    for row, model, checkpoint in zip(rows, got["models"], checkpoints, strict=True):
        assert [model["success"], model["return"], model["length"]] == [row[name] for name in EVALUATED]
        assert model["interval"] == [row["eval/success_low"], row["eval/success_high"]]
        assert (model["episodes"], model["iteration"], model["model"]) == (24, row["iteration"], str(checkpoint))
        file = f"evaluations/iteration-{row['iteration']:06}.jsonl"
        assert (tmp_path / model["episodes_file"]).read_bytes() == (finished / file).read_bytes()
    assert got["best"] == max(got["models"], key=lambda model: model["success"])["model"]
    newest = run_json("eval", finished / "recipe.yaml", "--model", finished, "--json")  # the older form
    row = got["models"][-1] | {"episodes_file": None}
    assert newest["models"] == [row] and {k: newest[k] for k in row if k != "tasks"} == {k: row[k] for k in row if k != "tasks"}
    # `--all` also finds what the warm start left.
    table = run("eval", finished, "--all")
    assert table.returncode == 0, table.stderr
    lines = table.stdout.splitlines()
    assert [line.split()[-11] for line in lines[2:-1]] == ["-", "0", "1", "2"] and lines[-1].startswith("* highest success")


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


def wilson(p, n):
    z = 1.959963984540054
    center, spread = p + z * z / 2 / n, z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    return [(center - spread) / (1 + z * z / n), (center + spread) / (1 + z * z / n)]


def pass_at_k(n, c, k):
    """The code of arXiv 2107.03374, figure 3."""
    if n - c < k:
        return 1.0
    return 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))


def interval(wins, samples):
    """Wilson's interval of the effective number of episodes: that of equal binomial variance, from tasks to episodes."""
    rates = np.array(wins) / samples
    p, tasks = rates.mean(), len(wins)
    if p in (0, 1):
        return wilson(p, tasks)
    variance = rates.var(ddof=1) / tasks
    return wilson(p, np.clip(p * (1 - p) / variance, tasks, tasks * samples) if variance > 0 else tasks * samples)


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
@pytest.mark.parametrize("samples", [1, 3])
def test_by_type_with_intervals(finished, samples, root, run, run_json, tmp_path):
    """The scripted environment has three kinds of tasks, in turn, and reports each win. A Hugging Face folder and a
    model that the recipe names are evaluated too."""
    plugin, log = root / "target/release/examples/libwitness.so", tmp_path / "log"
    sets = ["--set", f"env={{plugin: {plugin}, config: {{log: {log}}}}}", "--set", "rollout.template=null"]
    command = ["eval", root / "recipes/smoke/gigpo.yaml", *sets, "--episodes", 30, "--samples", samples]
    got = run_json(*command, "--model", finished / "model", "--out", tmp_path / "out", "--json")
    played = [json.loads(line) for line in log.read_text().splitlines()]
    tasks = {p["task"] for p in played}  # a panel of the 60 tasks
    assert len(played) == 30 * samples and len(tasks) == 30 and max(tasks) >= 30 and {p["split"] for p in played} == {"eval"}
    wins = {task: sum(p["return"] >= 1 for p in played if p["task"] == task) for task in tasks}
    assert samples == 1 or {*wins.values()} - {0, samples}, "no task is won now and then: samples would show nothing"
    kinds = {kind: [won for task, won in wins.items() if task % 3 == i] for i, kind in enumerate(("same", "coin", "rare"))}
    assert got["by_type"].keys() == kinds.keys()
    for counts, won in [(got["models"][0], [*wins.values()]), *((got["by_type"][k], v) for k, v in kinds.items())]:
        n = len(won) * samples
        assert (counts["won"], counts["episodes"], counts["tasks"], counts["success"]) == (sum(won), n, len(won), sum(won) / n)
        assert counts["interval"] == pytest.approx(interval(won, samples), abs=1e-12)
        passed = {str(k): np.mean([pass_at_k(samples, c, k) for c in won]) for k in ([1, 2, 3] if samples == 3 else [1])}
        assert counts["pass_at"] == pytest.approx(passed, abs=1e-12)
    assert got["return"] == pytest.approx(sum(p["return"] for p in played) / len(played)) and got["length"] == 1

    # The page of `nestor view` reads the episodes.
    lines = [json.loads(line) for line in (tmp_path / "out" / got["episodes_file"]).read_text().splitlines()]
    assert [line["sample"] for line in lines] == [*range(samples)] * 30
    assert all(wins[line["task"]] == sum(o["won"] for o in lines if o["task"] == line["task"]) for line in lines)
    assert not any({"advantage", "parts"} & step.keys() for line in lines for step in line["steps"])
    shutil.copytree(finished / "rollouts", tmp_path / "shown/rollouts")
    shutil.copy(finished / "recipe.yaml", tmp_path / "shown")
    for file in (tmp_path / "shown/rollouts").iterdir():
        shutil.copy(tmp_path / "out" / got["episodes_file"], file)
    shown = run("view", tmp_path / "shown")
    assert f"turns of {60 * samples} of {60 * samples} episodes\n" in shown.stdout, shown.stdout

    named = run(*command, "--set", f"model={{path: {finished / 'model'}}}")
    assert named.returncode == 0, named.stderr
    low, high = got["interval"]
    assert named.stdout.startswith(f"success {got['success']:.3f} (95 % interval {low:.3f} to {high:.3f}, ")
    assert "\n  coin " in named.stdout and str(finished / "model") in named.stdout


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
def test_runs_play_by_the_first_ones_recipe(finished, run, root, tmp_path):
    """Another run is warned about if its model learned another game. Greedy samples are no new evidence."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoints").symlink_to(finished / "checkpoints")
    recipe = (finished / "recipe.yaml").read_text()
    (other / "recipe.yaml").write_text(recipe.replace("max_steps: 6", "max_steps: 7").replace("seed: 1", "seed: 2"))
    done = run("eval", finished, other, "--set", "eval.temperature=0", "--samples", 4)
    assert done.returncode == 0, done.stderr
    other_game, no_evidence = done.stderr.splitlines()
    assert "rollout.max_steps: 7 -> 6" in other_game and "seed" not in other_game
    assert "eval.temperature is 0 and eval.samples is 4" in no_evidence
    header, mine, same = (line.removeprefix("*").split() for line in done.stdout.splitlines()[1:4])
    assert mine[1:] == same[1:], "one model, one recipe"
    success, low, high = float(mine[2]), float(mine[3]), float(mine[5])
    assert [low, high] == [round(end, 3) for end in wilson(round(success * 24) / 24, 24)]


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
def test_refusals(finished, run, root, tmp_path):
    def refused(*args):
        done = run("eval", root / "recipes/smoke/gigpo.yaml", *args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        return done.stderr

    message = refused()
    assert "`model.new`" in message and "--model" in message
    message = refused("--all")
    assert "--all" in message and "run directory" in message
    for named, part in [(finished / "model", "nestor eval RECIPE"), (tmp_path / "missing", "no recipe, run or checkpoint")]:
        done = run("eval", named)
        assert (done.returncode, done.stdout) == (2, "") and part in done.stderr, done.stderr
    message = refused("--model", tmp_path)
    assert str(tmp_path) in message and "run directory" in message and "config.json" in message
    message = refused("--model", finished, "--set", "eval.split=evla")
    assert "recipe key `eval.split`" in message and "did you mean `eval`?" in message
    message = refused("--model", finished, "--episodes", 11)  # of ten tasks
    assert "--episodes 11" in message and "has 10 tasks, not 11" in message and "no new evidence" in message
    assert run("eval", root / "recipes/smoke/gigpo.yaml", "--episodes", 0).returncode == 2
