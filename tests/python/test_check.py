"""The checks before a run: `nestor train --check` finds what a run would stumble over, all of it at once, and passes what a
run can start with. Several broken values share a process, since each must be reported."""
import json
import math
import os
import shutil

import pytest

# Values out of range, each in a section of its own: key, value, and words of the message.
RANGES = [
    [("model.new.hidden_size", 31, "multiple of twice"), ("rollout.tasks", 0, "at least 1"), ("update.lr", 0, "greater than 0"),
     ("warm_start.batch", 0, "at least 1"), ("eval.tasks", 0, "at least 1"), ("checkpoint.keep", 0, "at least 1"),
     ("dist.silence_s", 1, "from 5 to 50"), ("env.config", 5, "must be a map"), ("estimator.config", [], "must be a map"),
     ("critic", {"lr": 0}, "greater than 0"), ("rollout.thinking", True, "thinking switch")],
    [("model.lora", {"rank": 0, "alpha": 1}, "from 1"), ("rollout.group_size", 0, "at least 1"), ("update.epochs", 0, "at least 1"),
     ("warm_start.steps", 0, "leave the section out"), ("eval.temperature", -1, "greedy"), ("env.plugin", "", "name a plugin"),
     ("estimator.plugin", "", "name a plugin"), ("dist.timeout_s", 0, "a week"), ("critic", {"clip": 0}, "greater than 0")],
    [("model.new.vocab_size", 100, "at least 259"), ("rollout.temperature", 0, "greater than 0"), ("update.clip_low", 1, "between"),
     ("warm_start.expert_noise", 2, "from 0 to 1"), ("eval.split", "", "name a split")],
    [("model.new.kv_heads", 3, "divide"), ("rollout.top_p", 0, "at most 1"), ("update.optimizer.betas", [1, 0.9], "below 1"),
     ("warm_start.lr", 0, "greater than 0")],
    [("update.mini_batch", 1000, "the most steps of an iteration")],
    [("update.micro_batch_tokens", 8, "max_prompt_tokens")],
    [("rollout.cache_tokens", 10, "max_prompt_tokens")],
    [("rollout.history", {"mode": "transcript"}, "max_sequence_tokens")],
    [("rollout.dynamic_sampling", {"rounds": 1}, "at least 2")],
]
# Keys and values that no recipe has.
FORMS = [
    [("rollout.taks", 4, "did you mean `rollout.tasks`?"), ("update.lr", "fast", "must be a number"),
     ("eval.tasks", "every", "`all`, `none` or a whole number"), ("device", "gpu", "`auto`, `cpu` or `cuda`, but is the text \"gpu\"; did you mean `cuda`?"), ("num_tasks", 4, "unknown key"),
     ("sharding", "half", "grad_op"), ("wandb.mode", "ofline", "did you mean `offline`?"), ("dtype", "float8", "`bfloat16`"), ("update.optimizer.betas", [1, "x"], "item update.optimizer.betas.1"),
     ("env.plugin", None, "must be text")],
    [("update.mini_batch", None, "mini_batch")],
]
# Faults that only plugins and a first prompt show.
PLUGINS = [
    [("env.plugin", "numberlin", "did you mean `numberline`?"), ("estimator.plugin", "gigp", "did you mean `gigpo`?")],
    [("env.config.maximum", 5, "`maximum` is unknown"), ("estimator.config.gamm", 1, "did you mean `gamma`?")],
    [("env.config.max", 1, "held_out"), ("estimator.config.gamma", 7, "between 0 and 1")],
    [("estimator.plugin", "ppo", "critic"), ("rollout.split", "trian", "did you mean `train`?"),
     ("eval.split", "evla", "did you mean `eval`?"), ("wandb", {"mode": "live"}, "WANDB_API_KEY"), ("sharding", "none", "grad_op")],
    [("critic", {}, "does not ask for values"), ("eval.tasks", 11, "has 10 tasks, not 11"),
     ("rollout.template", "{{ observatoin }}", "rollout.template"), ("wandb", {"project": "a/b"}, "wandb.project")],
    [("rollout.template", "{{ observation }}{% if steps_taken %}{{ reward }}{% endif %}", "undefined")],
    [("rollout.template", "{% if %}", "rollout.template")],
    [("rollout.max_prompt_tokens", 8, "rollout.max_prompt_tokens is 8")],
    [("rollout.max_response_tokens", 2, "the expert's response")],
    [("rollout.template", "{{ observation }}" * 9, "rollout.max_prompt_tokens is 48")],
]


def arguments(sets):
    return [word for key, value in sets for word in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def check(run, root, tmp_path_factory):
    """Checks a recipe with changed values. Returns the exit code, the messages on standard error, and the verdict in JSON."""
    def call(recipe, sets, *more, run_dir=None, **environment):
        run_dir = run_dir or tmp_path_factory.mktemp("check") / "run"
        before = sorted(run_dir.parent.rglob("*"))
        env = {key: value for key, value in os.environ.items() if key != "WANDB_API_KEY"} | environment
        done = run("train", root / recipe, *arguments(sets), "--check", "--json", "--run-dir", run_dir, *more, env=env, cwd=root)
        assert sorted(run_dir.parent.rglob("*")) == before, "a check wrote something"
        verdict = json.loads(done.stdout) if done.stdout else {"passes": False, "event": "error"}
        assert verdict.get("event") or verdict["passes"] == (done.returncode == 0)
        assert done.returncode in (0, 2), done.stderr
        return done.returncode, done.stderr, verdict
    return call


@pytest.mark.parametrize("broken", RANGES + FORMS, ids=lambda broken: broken[0][0])
def test_broken_values_are_all_reported(broken, check):
    code, errors, _ = check("recipes/smoke/gigpo.yaml", [(key, value) for key, value, _ in broken])
    lines = errors.splitlines()
    assert code == 2 and len(lines) == (len(broken) + 1 if len(broken) > 1 else 1), errors
    for key, _, words in broken:
        assert key in errors and words in errors, (key, words, errors)
    assert len(broken) == 1 or errors.startswith(f"error: {len(broken)} problems:\n  (1) "), errors


@pytest.mark.parametrize("broken", PLUGINS, ids=lambda broken: broken[0][0])
def test_plugins_and_prompts_are_tried(broken, check):
    ranks = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} if ("sharding", "none") in \
        [pair[:2] for pair in broken] else {}
    code, errors, verdict = check("recipes/smoke/gigpo.yaml", [(key, value) for key, value, _ in broken], **ranks)
    assert code == 2 and len(errors.splitlines()) == len(broken) == len(verdict["problems"]), errors
    for _, _, words in broken:
        assert words in errors, (words, errors)


def test_train_refuses_the_same_and_leaves_nothing_behind(run, root, tmp_path):
    broken = [("rollout.template", "{{ observatoin }}"), ("eval.tasks", 11), ("critic", {})]
    done = run("train", root / "recipes/smoke/gigpo.yaml", *arguments(broken), "--run-dir", tmp_path / "run")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert done.stderr.startswith("error: 3 problems:\n  (1) ") and len(done.stderr.splitlines()) == 4, done.stderr
    done = run("plan", root / "recipes/smoke/gigpo.yaml", *arguments(broken), "--gpu", "cpu")
    assert done.returncode == 2 and done.stderr.startswith("error: 3 problems:\n  (1) "), done.stderr


def test_the_directory_is_checked(check, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    code, errors, _ = check("recipes/smoke/gigpo.yaml", [("critic", {})], run_dir=tmp_path / "full")
    assert code == 2 and "is not empty" in errors and "does not ask for values" in errors
    code, errors, _ = check("recipes/smoke/gigpo.yaml", [], "--resume", run_dir=tmp_path / "none")
    assert code == 2 and "holds no run" in errors


@pytest.fixture(scope="module")
def model(run, root, tmp_path_factory):
    """A whole model folder with few positions, made by a run without iterations."""
    run_dir = tmp_path_factory.mktemp("model") / "run"
    sets = [("iterations", 0), ("warm_start", None), ("eval.tasks", 1)]
    done = run("train", root / "recipes/smoke/gigpo.yaml", *arguments(sets), "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    return run_dir / "model"


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def no_end_token(folder):
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)


APPENDS_NOT = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
FOLDERS = {
    "no configuration": (lambda f: (f / "config.json").unlink(), [], ["config.json: no such file"]),
    "no tokenizer, weights cut short": (lambda f: ((f / "tokenizer.json").unlink(),
                                                   os.truncate(f / "model.safetensors", 100)), [],
                                        ["needs the model's tokenizer.json", "truncated or damaged"]),
    "a smaller vocabulary": (lambda f: edit(f / "config.json", vocab_size=270), [], ["vocab_size is 270", "embed_tokens"]),
    "an end token beyond": (lambda f: edit(f / "generation_config.json", eos_token_id=99999), [], ["beyond the model's"]),
    "no end token for a demonstration": (no_end_token, [], ["names no end-of-sequence token"]),
    "few positions": (lambda f: edit(f / "config.json", max_position_embeddings=8), [], ["max_position_embeddings is 8"]),
    "few positions for a conversation": (
        lambda f: edit(f / "config.json", max_position_embeddings=99),
        [("rollout.history", {"mode": "transcript"}), ("rollout.max_sequence_tokens", 100)],
        ["rollout.max_sequence_tokens` is 100"]),
    "no thinking switch": (lambda f: None, [("rollout.thinking", True)], ["rollout.thinking"]),
    "a broken template": (lambda f: (f / "chat_template.jinja").write_text("{% if %}"), [], ["chat template"]),
    "a template that refuses": (
        lambda f: (f / "chat_template.jinja").write_text("{{ raise_exception('no users here') }}"), [], ["no users here"]),
    "a template that does not append": (
        lambda f: (f / "chat_template.jinja").write_text(APPENDS_NOT),
        [("rollout.history", {"mode": "transcript"}), ("rollout.max_sequence_tokens", 60)], ["omits an earlier response"]),
}


def of_folder(folder):
    return [("model.new", None), ("model.path", str(folder))]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_broken_model_folder(name, check, model, tmp_path):
    damage, sets, words = FOLDERS[name]
    folder = shutil.copytree(model, tmp_path / "model")
    damage(folder)
    code, errors, verdict = check("recipes/smoke/gigpo.yaml", of_folder(folder) + sets)
    assert code == 2 and len(verdict["problems"]) == len(words), errors
    assert all(word in errors for word in words), errors


def test_a_missing_model_folder(check, run, root):
    code, errors, _ = check("recipes/alfworld/cpu.yaml", of_folder("no/such/model") + [("critic", {})])
    assert code == 2 and "no/such/model/config.json" in errors and "does not ask for values" in errors
    # A plan for another machine needs neither the model nor the games.
    done = run("plan", root / "recipes/alfworld/gigpo_qwen2.5_1.5b.yaml", "--shape", "1.5b", "--set", "env.config.games=nowhere")
    assert done.returncode == 0 and "warning: not checked" in done.stdout and "nowhere" in done.stdout, done.stderr


def test_a_model_without_a_chat_template(check, run, run_json, model, root, tmp_path):
    """The warning says which format is used, and an export carries it."""
    folder = shutil.copytree(model, tmp_path / "model")
    edit(folder / "tokenizer_config.json", chat_template=None)
    code, _, verdict = check("recipes/smoke/gigpo.yaml", of_folder(folder))
    assert code == 0 and any("no chat template" in line and "ChatML" in line for line in verdict["warnings"])
    sets = of_folder(folder) + [("iterations", 1), ("warm_start.steps", 1), ("eval.every", 0)]
    done = run("train", root / "recipes/smoke/gigpo.yaml", *arguments(sets), "--run-dir", tmp_path / "run")
    assert done.returncode == 0 and "no chat template" in (tmp_path / "run/log.txt").read_text(), done.stderr
    done = run("export", tmp_path / "run/checkpoints/iteration-000001", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    from transformers import AutoTokenizer
    chat = [{"role": "user", "content": "hello"}]
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    ids = run_json("tokenize", folder, "--chat", tmp_path / "chat.json", "--json")["ids"]
    exported = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert list(exported.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) == ids


RECIPES = ["smoke/gigpo", "smoke/grpo", "smoke/rloo", "smoke/ppo", "smoke/reinforce_pp", "quickstart", "quickstart_ppo",
           "quickstart_reinforce_pp", "quickstart_transcript", "sokoban", "alfworld/cpu", "cards/cpu"]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_with_a_model_of_their_own_pass(name, check):
    """test_alfworld.py checks the others, which need a model and games."""
    code, errors, verdict = check(f"recipes/{name}.yaml", [])
    assert (code, errors) == (0, "") and verdict["prompt"]["tokens"] > 0, errors
    assert verdict["prompt"]["text"].startswith("<|im_start|>user\n") and verdict["tasks"] > 0 and verdict["eval_tasks"] > 0
    assert math.isfinite(verdict["step"]["reward"]) and verdict["step"]["task"] == verdict["prompt"]["task"]


SHORT = [("iterations", 1), ("warm_start.steps", 1), ("eval.every", 0), ("eval.tasks", 2), ("checkpoint.every", 0)]
GOOD = {
    "adapters": [("model.lora", {"rank": 2, "alpha": 4})],
    "KL in the reward and dynamic sampling": [("update.kl", None), ("update.kl_in_reward", {"coef": 0.01}),
                                              ("rollout.dynamic_sampling", {"rounds": 2})],
    "a conversation": [("rollout.history", {"mode": "transcript"}), ("rollout.max_sequence_tokens", 300)],
    "cut prompts": [("rollout.max_prompt_tokens", 8), ("rollout.truncation", "left")],
    "groups of one": [("rollout.group_size", 1), ("rollout.tasks", 16), ("estimator.plugin", "rloo")],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_passes_runs(name, check, run, root, tmp_path):
    sets = GOOD[name] + SHORT
    code, errors, _ = check("recipes/smoke/gigpo.yaml", sets)
    assert (code, errors) == (0, "")
    done = run("train", root / "recipes/smoke/gigpo.yaml", *arguments(sets), "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr


def test_for_people(run, root, tmp_path):
    done = run("launch", "--nproc", 8, "train", root / "recipes/smoke/gigpo.yaml", "--check", "--run-dir", tmp_path / "run")
    assert done.returncode == 0 and done.stdout.endswith("passed: the run would start\n"), done.stderr
    assert "4 of 8 ranks play nothing" in done.stdout and "first prompt (task " in done.stdout
    assert not (tmp_path / "run").exists()


REWARDS = """
def values(prompt, completion, most): return float(len(completion) <= most)
def trl(completions, most, **columns): return [1.0] * len(completions)
def compute_score(data_source, solution_str, ground_truth, extra_info=None): return {"score": float(ground_truth in solution_str), "acc": 1}
def batch(data_sources, solution_strs, ground_truths, extra_infos): return [0.0] * len(solution_strs)
def other(response, answer): return 1.0
def trl_ids(completions, completion_ids): return [1.0]
def raises(completion): return completion["text"]
def text(completion): return "good"
def one(completions): return 1.0
def no_score(solution_str, ground_truth): return {"reward": 1}
"""
# A reward function, and words of the refusal; none for one that fits.
FORMS_OF_REWARDS = [
    ("values", None), ("trl", None), ("compute_score", None), ("batch", None),
    ("other", "`rewards:other` needs the arguments response, answer"), ("trl_ids", "needs the argument completion_ids"),
    ("raises", "12 of 12 rehearsed steps failed"), ("text", "not a number"), ("one", "must return a list"), ("no_score", "without `score`"),
]


@pytest.fixture(scope="module")
def rewarded(run, root, tmp_path_factory):
    """Checks a recipe of a reward function over rows, with a new model of another environment's words."""
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "rewards.py").write_text(REWARDS)
    made = run("train", root / "recipes/smoke/gigpo.yaml", "--set", "iterations=0", "--set", "warm_start.steps=1", "--set",
               "eval.tasks=none", "--run-dir", folder / "made")
    assert made.returncode == 0, made.stderr

    def call(function, rows, *sets):
        data = folder / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
        config = {"reward": f"rewards:{function}", "data": str(data), "path": [str(folder)], "held_out": 4}
        recipe = folder / "recipe.yaml"
        recipe.write_text(f"extends: {root}/recipes/smoke/gigpo.yaml\nmodel: {{new: null, path: {folder}/made/model}}\nwarm_start: null\n"
                          f"env: {{plugin: python, config: {json.dumps(config)}}}\nrollout: {{tasks: 8}}\neval: {{tasks: 4}}\n")
        words = [word for value in sets for word in ("--set", value)]
        return run("train", recipe, "--check", *words, "--run-dir", folder / "run", cwd=root)
    return call


ROW = {"prompt": "from 1 to 8", "most": 3, "data_source": "x", "reward_model": {"style": "rule", "ground_truth": "4"}}


@pytest.mark.parametrize("function, words", FORMS_OF_REWARDS, ids=lambda value: value or "")
def test_a_reward_function_is_called_before_a_run(function, words, rewarded):
    done = rewarded(function, [ROW] * 12)
    assert done.returncode == (2 if words else 0), done.stderr
    assert (words or "passed: the run would start") in done.stdout + done.stderr
    assert ("first step: an empty response is valid and gets the reward " in done.stdout) is (words is None), done.stdout


def test_over_long_rows_are_named_together(rewarded):
    rows = [ROW] * 12
    rows[7] = rows[9] = ROW | {"prompt": "from 1 to 8 " * 20}
    rows[3] = {name: value for name, value in ROW.items() if name != "most"}
    done = rewarded("compute_score", rows)
    assert done.returncode == 2 and "1 of 8 tasks of split `train` have first prompts over rollout.max_prompt_tokens (48): task 7 (" \
        in done.stderr and "rows.jsonl, line 15) has " in done.stderr and "1 of 4 tasks of split `eval`" in done.stderr, done.stderr
    assert rewarded("compute_score", rows, "rollout.truncation=left", "eval.tasks=none").returncode == 0
    done = rewarded("compute_score", rows, "rollout.truncation=drop", "rollout.tasks=7", "eval.tasks=3")
    assert done.returncode == 0 and "7 training tasks" in done.stdout and "3 of the 3 tasks" in done.stdout, done.stdout + done.stderr
    assert "1 of 8 tasks of split `train` are left out" in done.stdout
    done = rewarded("values", rows)
    assert done.returncode == 2 and "`rewards:values` needs the argument most, which" in done.stderr and "line 7 does not" in done.stderr, done.stderr
