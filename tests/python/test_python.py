"""Environments in Python through the program: the example of docs/python.md trains, and so does a reward function."""
import json

import pytest
from transformers import AutoTokenizer

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


def test_the_page_shows_the_example(root):
    _, _, code = (root / "plugins/python/examples/guess.py").read_text().split('"""', 2)
    assert f"```python\n{code.lstrip()}```" in (root / "docs/python.md").read_text()


def test_the_example_trains(guessed, root, run, tmp_path):
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


def test_several_reward_functions_add_up_and_each_is_a_metric(guessed, root, run, tmp_path):
    (tmp_path / "rewards.py").write_text("async def brief(prompt, completion, most):\n    return 1.0 if len(completion) <= most else 0.0\n"
                                         "def two(prompts, completions, **row):\n    return [2.0 for _ in completions]\n"
                                         "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
                                         "    return {'score': float(ground_truth == '8'), 'seen': 3}\n")
    rows_of = [{"question": f"from {n} to 8", "most": n, "answer": "8"} for n in range(1, 9)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of))
    functions = [{"fn": "rewards:brief"}, {"fn": "rewards:two", "weight": 0.25, "name": "constant"}, {"fn": "rewards:compute_score"}]
    config = {"rewards": functions, "data": f"{tmp_path}/prompts.jsonl", "path": [str(tmp_path)], "workers": 1,
              "columns": {"prompt": "question", "ground_truth": "answer"}}

    def train(name, **changes):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(json.dumps({
            "extends": f"{root}/recipes/smoke/gigpo.yaml", "iterations": 1, "model": {"new": None, "path": f"{guessed}/model"},
            "env": {"plugin": "python", "config": config | changes}, "warm_start": None, "eval": {"tasks": 1}}))
        return run("train", recipe, "--run-dir", tmp_path / name, cwd=root)

    done = train("run")
    assert done.returncode == 0, done.stderr
    last = rows(tmp_path / "run")[-1]
    assert last["env/constant"] == 2 and last["env/compute_score"] == 1 and last["env/seen"] == 3
    assert last["episode/return"] == pytest.approx(last["env/brief"] + 0.5 + 1)
    for changes, message in [
        ({"reward": "rewards:two"}, "`reward` and `rewards` exclude each other"),
        ({"rewards": [{"fn": "rewards:two"}] * 2}, "several reward functions are called two; give them a `name`"),
        ({"columns": {"prompt": "text"}}, "config key `columns` names text, and the row has question, most, answer"),
        ({"rewards": [{"fn": "rewards:three"}]}, "three"),
        ({"columns": {"prompt": "question"}}, "`rewards:compute_score` needs the argument ground_truth"),
    ]:
        done = train("refused", **changes)
        assert done.returncode == 2 and message in done.stderr, done.stderr


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


def user(text):
    return {"role": "user", "content": text}


SYSTEM = {"role": "system", "content": "Be brief.\r\n<b>é</b>"}
ASKED = [
    [SYSTEM, user("from 1 to 8")],
    [user("from 1 to 8"), {"role": "assistant", "content": "4"}, user(" from 5 to 8\n")],
    [SYSTEM, user("a"), {"role": "assistant", "content": "b"}, {"role": "tool", "content": "c", "name": "f"}],
    [user([{"type": "text", "text": "from 1"}, {"type": "text", "text": " to 4"}])],
]


def test_messages_of_a_prompt_keep_their_roles(root, run, driver, tmp_path):
    """The prompts in rollouts/ are those of transformers. The column is `prompt`, or else `messages`; a text stays one message."""
    small, model = tmp_path / "small", tmp_path / "model"
    small.mkdir()
    (tmp_path / "corpus.json").write_text(json.dumps([row[-1]["content"] for row in ASKED[:3]] + ["You are Qwen, created by"] * 9))
    driver("tokens", "--train", small, tmp_path / "corpus.json", 300)
    assert run("model", "new", model, "--shape", "tiny", "--tokenizer", small / "tokenizer.json").returncode == 0
    tokenizer = AutoTokenizer.from_pretrained(model)
    (tmp_path / "rewards.py").write_text("def said(prompts, completions, **row):\n"
                                         "    assert isinstance(completions[0], str) == isinstance(prompts[0], str)\n    return [1.0]\n")
    rows_of = [{"prompt": ASKED[0]}, {"prompt": ASKED[1]}, {"messages": ASKED[2]}, {"messages": ASKED[3]}, {"prompt": "plain"}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"""
extends: {root}/recipes/smoke/gigpo.yaml
iterations: 1
model: {{new: null, path: {model}}}
env:
  plugin: python
  config: {{reward: "rewards:said", data: {{train: {tmp_path}/prompts.jsonl, eval: {tmp_path}/prompts.jsonl}}, path: [{tmp_path}]}}
warm_start: null
eval: {{tasks: 1}}
rollout: {{tasks: 5, group_size: 2, max_prompt_tokens: 400}}
""")
    done = run("train", recipe, "--run-dir", tmp_path / "run", cwd=root)
    assert done.returncode == 0, done.stderr
    prompts = {}
    for line in (tmp_path / "run/rollouts/iteration-000001.jsonl").read_text().splitlines():
        episode = json.loads(line)
        prompts[episode["task"]] = episode["steps"][0]
    chats = [*ASKED[:3], [user("from 1 to 4")], [user("plain")]]
    for task, chat in enumerate(chats):
        assert prompts[task]["prompt"] == tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert prompts[task].get("messages") == (chat if task < 4 else None)
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    assert rows(tmp_path / "run")[-1]["prompt/length_max"] == max(map(len, ids))

    # A recipe's own system message comes before messages without one, and never beside another.
    done = run("train", recipe, "--check", "--set", "rollout.system=Be kind.", cwd=root)
    assert done.returncode == 2 and "rollout.system is another one; remove one of them" in done.stderr, done.stderr
    (tmp_path / "prompts.jsonl").write_text((json.dumps({"prompt": ASKED[1]}) + "\n") * 5)
    done = run("train", recipe, "--check", "--set", "rollout.system=Be kind.", cwd=root)
    chat = [{"role": "system", "content": "Be kind."}, *ASKED[1]]
    assert done.returncode == 0 and tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) in done.stdout


@pytest.mark.parametrize(("prompt", "why"), [
    ([user("a"), "b"], "message 2 of 2 in the prompt: a message is an object"),
    ([], "the prompt is an empty list"),
    ([user("a"), {"role": "assistant", "content": "b"}], "the last of 2 messages in the prompt is the assistant's"),
    ([{"from": "human", "value": "a"}], "write `from` and `value` as `role` and `content`"),
    ([{"role": "human", "content": "a"}], 'the role "human" is unknown'),
    ([{"role": "user"}], "role `user` has no `content`"),
    ([{"role": "user", "content": 3}], "the content is a number"),
    ([user([{"type": "image", "image": "x.png"}])], "a part of type `image`"),
    ([user("a"), SYSTEM, user("b")], "a second system message or a late one"),
    (json.dumps([user("a")]), "is the JSON text of a list of messages"),
    (7, "must be a text or a list of messages, not a number"),
])
def test_a_prompt_of_another_form_is_refused_with_its_line(prompt, why, root, run, tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ({"prompt": "a"}, {"prompt": prompt})))
    (tmp_path / "config.json").write_text(json.dumps({"reward": "math:sqrt", "data": str(tmp_path / "p.jsonl"), "workers": 1}))
    done = run("play", "python", "--config", tmp_path / "config.json", cwd=root)
    assert done.returncode == 2 and "p.jsonl, line 2: " in done.stderr and why in done.stderr, done.stderr


def test_an_environment_shows_messages(root, run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"class": "cases:Chat", "path": [CASES], "workers": 1}))
    (tmp_path / "said.jsonl").write_text('"ok"\n"bad"\n')
    play = ["play", "python", "--config", tmp_path / "config.json", "--actions", tmp_path / "said.jsonl"]
    done = run(*play, "--json", cwd=root)
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["messages"] == [{"role": "system", "content": "s"}, user("task 0")] and first["observation"] == "task 0"
    assert second["messages"] == [{"role": "tool", "content": "ok", "name": "echo"}] and first["anchor"] != second["anchor"]
    assert done.returncode == 1 and 'message 1 of 1: the role "nobody" is unknown' in done.stderr, done.stderr
    assert "system: s\n\nuser: task 0\n" in run(*play, cwd=root).stdout
