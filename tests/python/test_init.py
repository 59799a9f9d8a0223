"""`nestor init` writes a recipe that passes `nestor train --check` and trains (core/nestor/tests/init.rs has all pairs)."""
import json

import pytest


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
