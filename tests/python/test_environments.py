"""Several environments in one run: groups by their weights, metrics of each, resume, ranks, and what is refused."""
import collections
import json
import signal

import pytest
from measured import MEASURED
from rank_runs import TARGETS, apart, episodes, train, warm_start

NAMES = ["numberline", "ezpoints"]
SETTINGS = ["deterministic=true", "dtype=float32", "device=cpu"]


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


def rows(run_dir, file="metrics.jsonl"):
    return [json.loads(line) for line in (run_dir / file).read_text().splitlines()]


def played(run_dir, folder="rollouts"):
    return [rows(path.parent, path.name) for path in sorted((run_dir / folder).glob("*.jsonl"))]


@pytest.fixture(scope="module")
def recipe(root):
    return root / "recipes/smoke/environments.yaml"


@pytest.fixture(scope="module")
def whole(run, recipe, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    done = run("train", recipe, "--run-dir", run_dir, *words(SETTINGS))
    assert done.returncode == 0, done.stderr
    return run_dir


def test_groups_are_drawn_by_weight_and_never_mixed(whole):
    shares = collections.Counter()
    for iteration in played(whole):
        groups = collections.defaultdict(set)
        for episode in iteration:
            groups[episode["group"]].add((episode["environment"], episode["task"], episode["seed"]))
            assert all(("cards:" in step["prompt"]) == (episode["environment"] == "ezpoints") for step in episode["steps"])
        assert len(groups) == 4 and all(len(of) == 1 for of in groups.values()), groups
        shares.update(environment for of in groups.values() for environment, *_ in of)
    # 2 of 3 groups, of 8.
    assert shares == {"numberline": 5, "ezpoints": 3}, shares


def test_metrics_files_and_panel_name_the_environments(whole):
    for number, row in enumerate(rows(whole)):
        each = [row[f"eval/success/{name}"] for name in NAMES]
        assert row["eval/success"] == pytest.approx(sum(each) / 2)
        assert all(f"eval/return/{name}" in row for name in NAMES)
        if number > 0:
            assert all(f"episode/{what}/{name}" in row for what in ("success", "return") for name in NAMES), row
    for number, iteration in enumerate(played(whole), 1):
        for name in NAMES:
            returns = [episode["return"] for episode in iteration if episode["environment"] == name]
            assert rows(whole)[number][f"episode/return/{name}"] == pytest.approx(sum(returns) / len(returns))
    for evaluation in played(whole, "evaluations"):
        assert [episode["environment"] for episode in evaluation] == ["numberline"] * 10 + ["ezpoints"] * 10
    panel = json.loads((whole / "panel.json").read_text())
    assert panel["name"] == "numberline+cards/eval/20"
    assert {task["environment"] for task in panel["tasks"]} == set(NAMES)
    info = json.loads((whole / "run.json").read_text())
    assert info["environment"] == "numberline, ezpoints" and info["state"] == "done"
    state = json.loads((whole / "checkpoints/latest/state.json").read_text())
    assert [plugin["id"] for plugin in state["plugins"]] == ["numberline", "cards", "gigpo"]
    assert [cursor["position"] for cursor in state["tasks"]] == [5, 3]


def outcome(run_dir):
    last = run_dir / "checkpoints/iteration-000002"
    files = {path.name: path.read_bytes() for path in [*last.glob("*.safetensors"), last / "state.json"]}
    return files, [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows(run_dir)]


def test_a_run_killed_and_resumed_ends_as_an_undisturbed_one(whole, run, recipe, tmp_path):
    settings = [*SETTINGS, "rollout.curriculum={window: 2}"]
    undisturbed = tmp_path / "undisturbed"
    assert run("train", recipe, "--run-dir", undisturbed, *words(settings)).returncode == 0
    assert all(cursor["history"]["played"] for cursor in json.loads(outcome(undisturbed)[0]["state.json"])["tasks"])
    for failpoint, sets, want in [("mid-rollout:150", SETTINGS, whole), ("before-rename:3", SETTINGS, whole),
                                  ("mid-warm-start:7", SETTINGS, whole), ("mid-rollout:150", settings, undisturbed)]:
        run_dir = tmp_path / f"{failpoint.replace(':', '-')}-{len(sets)}"
        killed = run("train", recipe, "--run-dir", run_dir, *words([*sets, "checkpoint.every_minutes=1.0e-9"]), failpoint=failpoint)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        resumed = run("train", recipe, "--run-dir", run_dir, "--resume", *words(sets))
        assert resumed.returncode == 0, resumed.stderr
        assert outcome(run_dir) == outcome(want), failpoint


def test_two_ranks_play_as_one(recipe, tmp_path):
    start = warm_start(1, tmp_path / "start", recipe.name)
    settings = [*start, "rollout.curriculum={floor: 0.05}"]
    one, two = (train(world, "full", recipe.name, tmp_path / str(world), 4, *settings) for world in (1, 2))
    assert episodes(one) == episodes(two)
    figures = apart(one, two)
    assert all(figures[name] <= TARGETS[name] for name in TARGETS), figures


def test_eval_check_and_plan(whole, run, run_json, recipe):
    [model] = run_json("eval", whole, "--episodes", 4, "--json")["models"]
    assert model["episodes"] == 8 and set(model["by_type"]) == set(NAMES)
    assert model["success"] == pytest.approx(sum(model["by_type"][name]["success"] for name in NAMES) / 2)
    # Each environment has a template of its own.
    own = words(["rollout.template=null", "rollout.max_prompt_tokens=400"])
    check = run_json("train", recipe, "--check", "--json", *own)
    assert check["passes"] and "number line" in check["prompt"]["text"], check
    assert "card game" in check["further_prompts"]["ezpoints"]["text"], check
    text = run("train", recipe, "--check").stdout
    assert "environment ezpoints: " in text and "evaluation of numberline: 10 of the 10 tasks" in text, text
    plan = run("plan", recipe)
    assert plan.returncode == 0, plan.stderr


@pytest.mark.parametrize("settings, message", [
    (["env.1.eval_split=nowhere"], "nowhere"),
    (["env.1.config.game=chess"], "recipe key `env.1`"),
    (["env.1.plugin=sokobann"], "recipe key `env.1`"),
    (["eval.tasks=11"], "split `eval` of environment `numberline` has 10 tasks, not 11"),
    (["env.1.plugin=harness", "env.1.config={command: x, tasks: {train: 1, eval: 10}}"], "has no expert"),
])
def test_a_recipe_that_cannot_run_is_refused(settings, message, run, recipe, tmp_path):
    done = run("train", recipe, "--run-dir", tmp_path / "run", *words(settings))
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_its_environments(whole, run, recipe):
    for settings, key in [(["env.0.weight=1"], "env.0.weight"), (["env=[{plugin: numberline, config: {max: 5, held_out: 10}}]"], "env")]:
        done = run("train", recipe, "--run-dir", whole, "--resume", *words([*SETTINGS, "iterations=3", *settings]))
        assert done.returncode == 2 and f"--allow-change {key}" in done.stderr, done.stderr
