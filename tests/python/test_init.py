"""`nestor init` writes a recipe that passes `nestor train --check` and trains (core/tools/tests/all/init.rs has all pairs)."""
import json

import pytest
import yaml


@pytest.mark.parametrize("env, estimator", [("numberline", "ppo"), ("alfworld", "gigpo")])
def test_the_recipe_passes_its_check(env, estimator, run, run_json, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    done = run("init", "--env", env, "--estimator", estimator, "--out", recipe)
    assert done.returncode == 0 and "passes its checks" in done.stdout, done
    verdict = run_json("train", recipe, "--check", "--json")
    assert verdict["passes"] and not verdict["problems"]
    if env == "numberline":
        small = [part for value in ("iterations=1", "warm_start.steps=2", "eval.tasks=2") for part in ("--set", value)]
        done = run("train", recipe, "--run-dir", tmp_path / "run", *small)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def model(root, run, tmp_path_factory):
    """A tiny random model in the form of a published one, with the tokenizer of a run."""
    folder = tmp_path_factory.mktemp("model")
    sets = [word for one in ("iterations=0", "warm_start.steps=1") for word in ("--set", one)]
    done = run("train", root / "recipes/smoke/grpo.yaml", *sets, "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    done = run("model", "new", folder / "tiny", "--shape", "tiny", "--tokenizer", folder / "run/model/tokenizer.json")
    assert done.returncode == 0, done.stderr
    return folder / "tiny"


@pytest.mark.parametrize("env, published", [
    ("alfworld", {"max_steps": 50, "tasks": 16, "group_size": 8, "mini_batch": 256}),
    ("webshop", {"max_steps": 15, "tasks": 16, "group_size": 8, "mini_batch": 64}),
    ("search", {"max_steps": 4, "tasks": 256, "group_size": 5, "mini_batch": 512, "warmup": 20, "entropy": 0.0}),
])
def test_a_pretrained_model_gets_published_settings(env, published, model, run, run_json, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    done = run("init", "--env", env, "--estimator", "gigpo", "--model", model, "--out", recipe, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load(recipe.read_text())
    assert {key: (written["rollout"] | written["update"])[key] for key in published} == published
    # At least the published 2,048 or 4,096: the tokenizer reads bytes, so that prompts may need more.
    assert written["rollout"]["max_prompt_tokens"] >= 2048
    config = written["env"]["config"]
    assert not config.get("raw_commands") and config.get("generate", {}).get("size", "real") == "real", config
    assert config["max_steps"] == published["max_steps"] and written["update"]["old_logprobs"] == "recompute"
    assert run_json("train", recipe, "--check", "--json", cwd=tmp_path)["passes"]


def test_a_reward_function_has_one_step(model, run, run_json, tmp_path):
    (tmp_path / "score.py").write_text("def reward(completions, **_):\n    return [float('4' in text) for text in completions]\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{n} + 2"}) + "\n" for n in range(40)))
    config = json.dumps({"reward": "score:reward", "path": [str(tmp_path)], "data": str(tmp_path / "rows.jsonl"), "held_out": 8})
    recipe = tmp_path / "recipe.yaml"
    done = run("init", "--env", "python", "--config", config, "--estimator", "grpo", "--model", model, "--out", recipe)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(recipe.read_text())["rollout"]["max_steps"] == 1
    assert run_json("train", recipe, "--check", "--json")["passes"]
    # The short form, here of two functions.
    short = tmp_path / "short.yaml"
    (tmp_path / "score.py").open("a").write("def brief(completion, **_):\n    return -float(len(completion))\n")
    done = run("init", "--reward", "score:reward", "--reward", "score:brief", "--data", "rows.jsonl", "--estimator", "grpo", "--model", model,
               "--out", short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    functions = yaml.safe_load(short.read_text())["env"]["config"]["rewards"]
    assert [one["fn"] for one in functions] == ["score:reward", "score:brief"]
    assert run_json("train", short, "--check", "--json", cwd=tmp_path)["passes"]


def test_an_own_environment_is_found(run, run_json, root, tmp_path):
    (tmp_path / "walk.py").write_text((root / "core/scaffold/templates/env/python/my_plugin.py").read_text())
    config = json.dumps({"class": "walk:Walk", "path": [str(tmp_path)]})
    recipe = tmp_path / "recipe.yaml"
    done = run("init", "--env", "python", "--config", config, "--estimator", "grpo", "--out", recipe)
    assert done.returncode == 0, done.stderr
    assert run_json("train", recipe, "--check", "--json")["passes"]


@pytest.mark.parametrize("args, part", [
    ([], "--env is missing; known: alfworld, "),
    (["--env", "numberline"], "--estimator is missing; known: adastep, "),
    (["--env", "numberlin", "--estimator", "gigpo"], "did you mean `numberline`?"),
    (["--env", "numberline", "--estimator", "gigpo", "--config", "{maxx: 3}"], "did you mean `max`?"),
    (["--env", "numberline", "--estimator", "gigpo", "--model", "no/such"], "no/such"),
])
def test_a_wrong_choice_is_one_message(args, part, run, tmp_path):
    done = run("init", *args, "--out", tmp_path / "recipe.yaml", stdin=-3)
    assert done.returncode == 2 and part in done.stderr and len(done.stderr.splitlines()) == 1, done
    assert not (tmp_path / "recipe.yaml").exists()
