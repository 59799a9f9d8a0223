"""ALFWorld through the program: recorded games of the Python engine (tests/fixtures/alfworld), the published recipes, and
the tool that makes games."""
import json
import math
import subprocess

import pytest
from conftest import PATIENCE

PUBLISHED = ["gigpo_qwen2.5_1.5b", "grpo_qwen2.5_1.5b", "rloo_qwen2.5_1.5b", "ppo_qwen2.5_1.5b", "dapo_qwen2.5_1.5b", "gspo_qwen2.5_1.5b",
             "gigpo_dynamic_qwen2.5_1.5b", "gigpo_qwen2.5_7b"]


@pytest.fixture(scope="module")
def texts(root):
    """Domain and grammar of the installed package."""
    data = root / ".venv/alfworld/data"
    assert data.is_dir(), "the package alfworld is missing: scripts/setup.sh"
    return (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()


@pytest.fixture(scope="module")
def tool(root):
    def call(*args):
        command = [root / "target/release/nestor-alfworld", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=PATIENCE)
    return call


@pytest.fixture(scope="module")
def games(tool, tmp_path_factory):
    """Two small games of each type to train on and one to evaluate on, in the real data's layout."""
    folder = tmp_path_factory.mktemp("games")
    for split, count, seed in [("train", 2, 0), ("eval_in_distribution", 1, 100)]:
        done = tool("games", folder / "json_2.1.1", "--split", split, "--per-type", count, "--size", "small",
                    "--seed", seed)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 6 * count
    return folder


@pytest.fixture
def play(run, tmp_path):
    """`nestor play alfworld`: one object per step, or the error."""
    def call(config, commands, *args):
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "commands.jsonl").write_text("".join(json.dumps(c) + "\n" for c in commands))
        return run("play", "alfworld", "--config", tmp_path / "config.json", "--actions", tmp_path / "commands.jsonl",
                   "--json", *args)
    return call


@pytest.mark.parametrize("name", ["pick_cool_then_place_in_recep-Lettuce-None-Fridge-big2",
                                  "pick_heat_then_place_in_recep-Apple-None-SinkBasin-s0"])
def test_recorded_games_through_the_program(name, root, texts, play, tmp_path):
    record = json.loads((root / f"tests/fixtures/alfworld/{name}.json").read_text())
    game = {"pddl_domain": texts[0], "grammar": texts[1].replace("UNKNOWN GOAL", record["sentence"]),
            "pddl_problem": record["problem"], "solvable": True}
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(game))
    for episode in record["episodes"]:
        steps = episode["steps"]
        end = next((i for i, step in enumerate(steps) if step[3]), len(steps) - 1)
        done = play({"games": str(path), "raw_commands": True}, [step[0] for step in steps[1:]])
        assert done.returncode == 0, done.stderr
        seen = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(seen) == end + 1
        admissible = None
        for got, (_, text, numbers, won) in zip(seen, steps):
            admissible = admissible if numbers is None else [record["commands"][n] for n in numbers]
            assert (got["observation"], got["admissible"], got["anchor"]) == (text, admissible, text)
            # The engine's own reward is 1.
            assert (got["won"], got["done"], got["reward"]) == (won, won, 10.0 * won)


def test_splits_and_walkthroughs_of_made_games(games, play):
    for split, count in [("train", 12), ("eval_in_distribution", 6)]:
        for task in range(count):
            first = json.loads(play({"games": str(games)}, [], "--split", split, "--task", task).stdout)
            files = list(games.rglob(f"{first['info']['game']}/game.tw-pddl"))
            commands = json.loads(files[0].read_text())["walkthrough"]
            done = play({"games": str(games), "raw_commands": True}, commands, "--split", split, "--task", task)
            last = json.loads(done.stdout.splitlines()[-1])
            assert last["won"] and last["reward"] == 10 and last["step"] == len(commands)
    done = play({"games": str(games)}, [], "--split", "eval_out_of_distribution")
    assert done.returncode == 2 and "valid_unseen" in done.stderr


@pytest.mark.parametrize("config, parts", [
    ({"games": "nowhere"}, ["nowhere", "No such file"]),
    ({"games": ".", "task_types": ["pick"]}, ["`pick` is unknown", "pick_and_place_simple"]),
    ({"generate": {"size": "small", "package": "nowhere"}}, ["nowhere/data/alfred.pddl", "setup.sh"]),
])
def test_refusals(config, parts, play):
    done = play(config, [])
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


def test_a_damaged_game_is_one_message(games, play, tmp_path):
    text = next(games.rglob("game.tw-pddl")).read_text()
    path = tmp_path / "game.tw-pddl"
    for content, parts in [(text[:-9], ["EOF"]), (text.replace("(:init", "(:ini", 1), ["pddl_problem: line"])]:
        path.write_text(content)
        done = play({"games": str(path)}, [])
        assert done.returncode == 2 and done.stderr.count("error: ") == 1, done.stderr
        assert all(part in done.stderr for part in [str(path), "line", *parts]), done.stderr


def test_the_tool_refuses(tool, tmp_path):
    for args, part in [(["--package", tmp_path], "setup.sh"), (["--split", "test"], "eval_in_distribution"),
                       (["--task-type", "pick"], "pick_two_obj_and_place")]:
        done = tool("games", tmp_path / "games", *args)
        assert done.returncode == 2 and part in done.stderr, done.stderr
    assert not (tmp_path / "games").exists()


@pytest.fixture(scope="module")
def random_model(root, run, games, tmp_path_factory):
    """A tiny random model with a tokenizer of ALFWorld's texts, in the form of a published one."""
    folder = tmp_path_factory.mktemp("model")
    model = "{hidden_size: 32, intermediate_size: 64, layers: 1, heads: 4, kv_heads: 2, vocab_size: 512}"
    sets = {"model.path": "null", "model.new": model, "env.config.games": games, "device": "cpu", "iterations": 0, "eval.tasks": 1,
            "rollout.max_steps": 1}
    sets = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    done = run("train", root / "recipes/alfworld/gigpo_qwen2.5_1.5b.yaml", *sets, "--set", "update.mini_batch=4", "--run-dir",
               folder / "run")
    assert done.returncode == 0, done.stderr
    done = run("model", "new", folder / "tiny", "--shape", "tiny", "--layers", 2, "--tokenizer", folder / "run/model/tokenizer.json")
    assert done.returncode == 0, done.stderr
    return folder / "tiny"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_pass_the_check(name, root, run_json, games, random_model, tmp_path):
    """As published, but for the place of the games and the model."""
    verdict = run_json("train", root / f"recipes/alfworld/{name}.yaml", "--set", f"model.path={random_model}", "--set",
                       f"env.config.games={games}", "--check", "--json", "--run-dir", tmp_path / "run")
    assert verdict["passes"] and verdict["eval_tasks"] == 6 and 0 < verdict["prompt"]["tokens"] <= 2048
    # The first observation of a game contains the task.
    assert "Your task is to: " in verdict["prompt"]["text"] and not (tmp_path / "run").exists()


def test_the_package_is_found_from_any_directory(root, run_json, tmp_path):
    verdict = run_json("train", root / "recipes/alfworld/cpu.yaml", "--check", "--json", cwd=tmp_path)
    assert verdict["passes"] and verdict["eval_tasks"] == 120


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_start(name, root, run, games, tmp_path):
    """One iteration of each, with a tiny random model in place of the real one and fewer, shorter episodes."""
    model = "{hidden_size: 32, intermediate_size: 64, layers: 2, heads: 4, kv_heads: 2, vocab_size: 512}"
    tasks = {"rollout.tasks": 4, "rollout.group_size": 1} if "ppo" in name else {"rollout.tasks": 2, "rollout.group_size": 2}
    sets = {"model.path": "null", "model.new": model, "env.config.games": games, "device": "cpu", "iterations": 1, "eval.tasks": 2,
            "rollout.max_steps": 2, "rollout.max_response_tokens": 8, "update.mini_batch": 4, **tasks}
    sets = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    done = run("train", root / f"recipes/alfworld/{name}.yaml", *sets, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["iteration"] == 1 and "loss/policy" in metrics[-1]
    assert sum(key.startswith("eval/success/") for key in metrics[0]) == 2


FAMILY = [("hgpo", {"base_group": True}), ("g2po", {"anchor": "g2po"}), ("graphgpo", {"anchor": "observation_commands"}),
          ("adastep", {"similarity": 0.9}), ("gagpo", {"anchor": "rewardflow"}), ("proxmo", {}), ("empg", {}), ("remax", {}), ("tigpo", {}),
          ("grpo", {"pass_at_k": "episode"}), ("gigpo", {"anchor": "g2po", "similarity": 0.9})]


def cpu_recipe(run, root, run_dir, **sets):
    """Trains recipes/alfworld/cpu.yaml on two games of one kind, with fewer and shorter episodes."""
    sets = {"rollout.tasks": 2, "rollout.group_size": 4, "rollout.max_steps": 10, "rollout.max_prompt_tokens": 512, "update.mini_batch": 32,
            "env.config.generate": "{size: small, train: 2, eval: 2}", "env.config.task_types": "[pick_and_place_simple]", "eval.tasks": 2,
            "eval.every": 2, **sets}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    done = run("train", root / "recipes/alfworld/cpu.yaml", *words, "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def taught(run, root, tmp_path_factory):
    """A small policy that solves some of the two games."""
    run_dir = tmp_path_factory.mktemp("taught") / "run"
    model = "{hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, kv_heads: 1, vocab_size: 300}"
    cpu_recipe(run, root, run_dir, **{"model.new": model, "iterations": 0, "warm_start.steps": 400, "warm_start.batch": 32,
                                      "warm_start.lr": 5e-3})
    done = run("export", run_dir, run_dir.parent / "exported")
    assert done.returncode == 0, done.stderr
    return run_dir.parent / "exported"


@pytest.mark.parametrize("plugin, config", FAMILY, ids=[plugin for plugin, _ in FAMILY])
def test_estimators_train_the_cpu_recipe(plugin, config, taught, root, run, tmp_path):
    estimator = json.dumps({"plugin": plugin, "config": config})
    cpu_recipe(run, root, tmp_path / "run", **{"model.new": "null", "model.path": taught, "warm_start": "null", "iterations": 2,
                                              "estimator": estimator})
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert all(math.isfinite(row["loss/policy"]) for row in rows[1:])
    assert any(row["advantage/max"] > 0 for row in rows[1:]), "the run teaches nothing, so it shows nothing"
    files = sorted((tmp_path / "run/rollouts").glob("*.jsonl"))
    assert len(files) == 2
    for row, file in zip(rows[1:], files):
        steps = [step for line in file.read_text().splitlines() for step in json.loads(line)["steps"]]
        shares = {key.removeprefix("estimator/").removesuffix("_share"): value for key, value in row.items()
                  if key.startswith("estimator/") and key.endswith("_share")}
        assert shares, "no part of the advantage is counted"
        for part, share in shares.items():
            assert share == pytest.approx(sum(step["parts"][part] != 0 for step in steps) / len(steps)), part
