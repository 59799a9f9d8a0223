"""The published WebShop recipes, on a generated catalogue and with random networks."""
import json
import subprocess

import pytest
from conftest import PATIENCE

# The recipes, with the number of goals that each evaluates on.
SMALL = {"gigpo_std": 256, "gigpo": 256, "grpo": 128, "rloo": 128, "ppo": 128, "dapo": 128, "gigpo_dynamic": 128, "gspo": 128}
LARGE = {"gigpo_std": 256, "gigpo": 256, "grpo": 128, "rloo": 128, "ppo": 128}
SIZES = {"1.5b": SMALL, "7b": LARGE}
EVAL_TASKS = {f"{name}_qwen2.5_{size}": goals for size, recipes in SIZES.items() for name, goals in recipes.items()}
# The 7B recipes repeat those of 1.5B with another model; one adds adapters.
STARTED = [*(name for name in EVAL_TASKS if name.endswith("1.5b")), "gigpo_qwen2.5_7b"]


@pytest.fixture(scope="module")
def catalogue(root, tmp_path_factory):
    """Files of 1,000 products, of the real files' names and form."""
    folder = tmp_path_factory.mktemp("webshop")
    command = [root / "target/release/nestor-webshop", "catalogue", folder, "--products", "1000", "--seed", "0"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return folder


def as_arguments(sets):
    return [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]


def tiny(layers):
    model = f"{{hidden_size: 32, intermediate_size: 64, layers: {layers}, heads: 4, kv_heads: 2, vocab_size: 512}}"
    return {"model.path": "null", "model.new": model, "device": "cpu", "rollout.max_steps": 2, "update.mini_batch": 4}


@pytest.fixture(scope="module")
def random_model(root, run, catalogue, tmp_path_factory):
    """A tiny random model with a tokenizer of WebShop's texts, in the form of a published one."""
    folder = tmp_path_factory.mktemp("model")
    sets = {**tiny(1), "env.config.data": catalogue, "iterations": 0, "eval.tasks": 1}
    done = run("train", root / "recipes/webshop/gigpo_qwen2.5_1.5b.yaml", *as_arguments(sets), "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    tokenizer = folder / "run/model/tokenizer.json"
    done = run("model", "new", folder / "tiny", "--shape", "tiny", "--layers", 2, "--tokenizer", tokenizer)
    assert done.returncode == 0, done.stderr
    return folder / "tiny"


@pytest.fixture
def check(root, run_json, catalogue, random_model, tmp_path):
    """`nestor train --check` of a recipe as published, but for the places of model and catalogue."""
    def call(name, **sets):
        sets = {"model.path": random_model, "env.config.data": catalogue, **sets}
        verdict = run_json("train", root / f"recipes/webshop/{name}.yaml", *as_arguments(sets), "--check", "--json", "--run-dir",
                           tmp_path / "run")
        assert verdict["passes"] and not (tmp_path / "run").exists()
        return verdict
    return call


@pytest.mark.parametrize("name", EVAL_TASKS)
def test_published_recipes_pass_the_check(name, root, check):
    assert (root / f"recipes/webshop/{name}.yaml").read_text().count(f"recipes/webshop/{name}.yaml") == 1  # its own command
    verdict = check(name)
    assert verdict["eval_tasks"] == EVAL_TASKS[name] and 0 < verdict["prompt"]["tokens"] <= 4096
    assert "search[<your query>]" in verdict["prompt"]["text"] and "<action>" in verdict["prompt"]["text"]


def test_imported_prompts_see_the_page_and_the_actions(root, run, check, tmp_path):
    example = root / "docs/examples/prompts"
    done = run("import-prompts", example, "--sums", example / "sums.json", "--out", tmp_path / "prompts")
    assert done.returncode == 0, done.stderr
    text = check("gigpo_qwen2.5_1.5b", **{"rollout.template.file": tmp_path / "prompts/webshop.jinja"})["prompt"]["text"]
    assert "\nYou shop for: " in text and "You can do: [\n'search[<your query>]',\n" in text


@pytest.mark.parametrize("name", STARTED)
def test_published_recipes_start(name, root, run, catalogue, tmp_path):
    """One iteration of each, with a tiny random model in place of the real one and fewer, shorter episodes."""
    tasks = {"rollout.tasks": 4, "rollout.group_size": 1} if "ppo" in name else {"rollout.tasks": 2, "rollout.group_size": 2}
    sets = {**tiny(2), "env.config.data": catalogue, "iterations": 1, "eval.tasks": 2, "rollout.max_response_tokens": 8, **tasks}
    done = run("train", root / f"recipes/webshop/{name}.yaml", *as_arguments(sets), "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["iteration"] == 1 and "loss/policy" in metrics[-1] and "eval/success" in metrics[0]
