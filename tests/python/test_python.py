"""Environments in Python through the program: the example of docs/python.md trains, and so does a reward function."""
import json

import pytest

CASES = "plugins/python/tests"


@pytest.fixture(scope="module")
def guessed(run, root, tmp_path_factory):
    """A run of the example."""
    folder = tmp_path_factory.mktemp("guess") / "run"
    done = run("train", "plugins/python/examples/guess.yaml", "--run-dir", folder, cwd=root)
    assert done.returncode == 0, done.stderr
    return folder


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_example_trains_and_its_expert_wins(guessed, root, run, tmp_path):
    iterations = rows(guessed)[-3:]
    assert len(iterations) == 3 and all(0 < row["episode/success"] < 1 for row in iterations)
    assert all(row["env/errors"] == 0 for row in iterations)
    (tmp_path / "config.json").write_text(json.dumps({"class": "guess:Guess", "path": ["plugins/python/examples"]}))
    (tmp_path / "said.jsonl").write_text('"4"\n"none"\n' + "".join(f'"{number}"\n' for number in (8, 7, 6, 5)))
    done = run("play", "python", "--config", tmp_path / "config.json", "--actions", tmp_path / "said.jsonl", "--task", 3,
               "--json", cwd=root)
    played = [json.loads(line) for line in done.stdout.splitlines()]
    assert played[0]["observation"] == played[0]["anchor"] == "from 1 to 8" and len(played[0]["admissible"]) == 8
    assert [record["valid"] for record in played[1:3]] == [True, False] and played[-1]["done"]


def test_a_reward_function_trains_without_an_expert(guessed, root, run, tmp_path):
    (tmp_path / "rewards.py").write_text("def brief(prompt, completion, most):\n    return 1.0 if len(completion) <= most else 0.0\n")
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"from {n} to 8", "most": n}) + "\n" for n in range(1, 9)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"""
extends: {root}/recipes/smoke/gigpo.yaml
iterations: 1
model: {{new: null, path: {guessed}/model}}
env:
  plugin: python
  config: {{reward: "rewards:brief", data: {tmp_path}/prompts.jsonl, held_out: 2, path: [{tmp_path}]}}
warm_start: null
eval: {{tasks: 2}}
""")
    done = run("train", recipe, "--run-dir", tmp_path / "run", cwd=root)
    assert done.returncode == 0, done.stderr
    last = rows(tmp_path / "run")[-1]
    assert last["episode/length"] == 1 and last["episode/success"] == last["episode/return"]
    # The class has no expert although the plugin has the extension.
    done = run("train", recipe, "--set", "warm_start={steps: 1, batch: 1, lr: 1e-3}", "--run-dir", tmp_path / "other", cwd=root)
    assert done.returncode == 2 and "environment `python` has no expert" in done.stderr, done.stderr


def test_faults_are_one_message(root, run, tmp_path):
    def play(config, *responses):
        (tmp_path / "config.json").write_text(json.dumps({"path": [CASES], "workers": 1, **config}))
        (tmp_path / "said.jsonl").write_text("".join(json.dumps(response) + "\n" for response in responses))
        return run("play", "python", "--config", tmp_path / "config.json", "--actions", tmp_path / "said.jsonl", "--task", 2,
                   "--seed", 7, cwd=root)

    done = play({"class": "cases:Wlak"})
    assert done.returncode == 2 and "error: plugin python: `cases:Wlak`: " in done.stderr and "Walk" in done.stderr
    done = play({"class": "cases:Echo"}, "<action>exit</action>")
    assert done.returncode == 1 and "task 2" in done.stderr and "seed 7" in done.stderr, done.stderr
    assert "the worker ended with exit code 7 during `step`" in done.stderr, done.stderr
