"""Columns that an estimator asks for, against the recorded episodes and transformers; what a run cannot give is refused.

The example plugin `columns` (plugins/sdk/examples/witness.rs) writes down every column that it gets.
"""
import json
import re
import shutil

import jinja2
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

TEMPERATURE, TOLERANCE = 0.7, 1e-4
EPISODES = ["next_anchor", "success", "action", "task", "seed", "split", "task_type", "iteration", "token", "observation",
            "admissible", "info.current", "info.nothing", "greedy_return"]
NETWORKS = ["entropy", "teacher_logprobs", "hidden.0", "hidden.-1", "hidden.-1.4", "hidden.0.999", "hidden.7?"]


@pytest.fixture(scope="module")
def models(run, root, tmp_path_factory):
    """A policy and a teacher of the smoke recipe's shape and tokenizer, with weights that make every part count."""
    folder = tmp_path_factory.mktemp("models")
    done = run("train", root / "recipes/smoke/gigpo.yaml", "--set", "iterations=1", "--set", "warm_start.steps=1",
               "--set", "eval.tasks=1", "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    for seed, name in enumerate(["policy", "teacher"]):
        shutil.copytree(folder / "run/model", folder / name)
        generator = torch.Generator().manual_seed(seed)
        config = json.loads((folder / name / "config.json").read_text())
        (folder / name / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 640}))
        weights = load_file(folder / name / "model.safetensors")
        weights = {key: w + 0.2 * torch.randn(w.shape, generator=generator) for key, w in weights.items()}
        save_file(weights, folder / name / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def train(run, root, models, tmp_path):
    """Trains one iteration with the example plugin; returns the process, its columns and its episodes."""
    def call(columns, *sets, launch=(), teacher=True):
        plugin, file, run_dir = root / "target/release/examples/libwitness.so", tmp_path / "columns.json", tmp_path / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        recipe = tmp_path / "recipe.yaml"
        estimator = {"plugin": str(plugin), "config": {"file": str(file), "columns": columns}}
        if teacher:
            estimator["teacher"] = {"path": str(models / "teacher")}
        changes = {"model": {"new": None, "path": str(models / "policy")}, "warm_start": None, "iterations": 1,
                   "estimator": estimator}
        recipe.write_text(json.dumps({"extends": str(root / "recipes/smoke/gigpo.yaml"), **changes}))
        words = [word for s in (f"rollout.temperature={TEMPERATURE}", "eval.tasks=1", *sets) for word in ("--set", s)]
        done = run(*launch, "train", recipe, *words, "--run-dir", run_dir)
        if done.returncode:
            return done, None, None
        episodes = [json.loads(line) for line in (run_dir / "rollouts/iteration-000001.jsonl").read_text().splitlines()]
        return done, json.loads(file.read_text()), episodes
    return call


def reference(folder, sequences):
    """Log-probs and entropies at the temperature, and the states after each block, of (prompt, response) ids."""
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    after = {}
    for number, block in enumerate(model.model.layers):
        block.register_forward_hook(lambda _, __, out, n=number: after.update({n: out[0] if isinstance(out, tuple) else out}))
    for prompt, response in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1:-1] / TEMPERATURE
        log_p = logits.log_softmax(-1)
        yield (log_p[range(len(response)), response].tolist(), (-(log_p.exp() * log_p).sum(-1)).tolist(),
               {n: states.reshape(-1, states.shape[-1]) for n, states in after.items()})


def near(got, want):
    assert len(got) == len(want) > 0
    worst = max(abs(a - b) / (1 + abs(b)) for a, b in zip(got, want))
    assert worst < TOLERANCE, worst


@pytest.mark.parametrize("launch", [(), ("launch", "--nproc", 2)], ids=["alone", "two-ranks"])
def test_columns_equal_the_episodes_and_transformers(launch, train, models, tmp_path):
    # With recomputed log-probs the same pass gives entropies and states.
    sets = ["update.old_logprobs=recompute"] if launch else []
    done, columns, episodes = train(EPISODES + NETWORKS, *sets, launch=launch)
    assert done.returncode == 0, done.stderr
    steps = [(episode, step) for episode in episodes for step in episode["steps"]]
    assert len(columns["episode"]) == len(steps) > 20

    follow = [next_step["anchor"] for episode in episodes for next_step in episode["steps"][1:] + [None] if next_step]
    known = [anchor for anchor, step in zip(columns["next_anchor"], steps) if not (step[1]["terminated"] or step[1]["truncated"])]
    assert known == follow
    # The state after the last step has an anchor too: that of the number reached.
    last = [anchor for anchor, (_, step) in zip(columns["next_anchor"], steps) if step["terminated"] or step["truncated"]]
    assert len(last) == len(episodes) and all(last)
    for name in ("task", "seed", "task_type", "success"):
        key = {"success": "won"}.get(name, name)
        assert columns[name] == [episode[key] if episode[key] is not None else "" for episode, _ in steps], name
    assert columns["action"] == [step["action"] for _, step in steps]
    assert columns["admissible"] == ["\n".join(step["admissible"]) for _, step in steps]
    assert all(text in step["prompt"] for text, (_, step) in zip(columns["observation"], steps))
    assert columns["info.current"] == [step["info"]["current"] for _, step in steps]
    assert columns["info.nothing"] == [None] * len(steps)
    # One number for a group: a return that the environment can give.
    greedy = {(episode["group"], value) for (episode, _), value in zip(steps, columns["greedy_return"])}
    assert len(greedy) == len({group for group, _ in greedy}) and all(value == int(value) for _, value in greedy), greedy
    assert columns["split"] == ["train"] and columns["iteration"] == [1]
    assert [step["parts"]["task_number"] for _, step in steps] == [episode["task"] for episode, _ in steps]
    row = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[1])
    assert row["estimator/columns"] == len(EPISODES + NETWORKS)

    tokenizer = Tokenizer.from_file(str(models / "policy/tokenizer.json"))
    offsets, sequences = columns["token_offsets"], []
    for number, (_, step) in enumerate(steps):
        prompt = tokenizer.encode(step["prompt"], add_special_tokens=False).ids
        response = columns["token"][offsets[number]:offsets[number + 1]]
        assert tokenizer.decode(prompt, skip_special_tokens=False) == step["prompt"]
        assert len(response) == step["response_tokens"]
        sequences.append((prompt, response))
    entropy, hidden = [], {name: [] for name in NETWORKS if name.startswith("hidden") and "?" not in name}
    for (prompt, _), (_, entropies, after) in zip(sequences, reference(models / "policy", sequences)):
        entropy += entropies
        for name, states in hidden.items():
            layer, tokens = (name.split(".") + ["1"])[1:3]
            states += after[int(layer) % len(after)][:len(prompt)][-int(tokens):].mean(0).tolist()
    near(columns["entropy"], entropy)
    assert max(entropy) - min(entropy) > 0.1  # a constant would not do
    for name, states in hidden.items():
        near(columns[name], states)
    assert columns["hidden.7"] is None
    near(columns["teacher_logprobs"], [x for logprobs, *_ in reference(models / "teacher", sequences) for x in logprobs])


HINT = "{{ task }}|{{ observation }}|{{ info.current }}|{{ won }}|{{ steps_taken }}|" \
       "{% for s in history %}{{ s.observation }}>{{ s.action }},{% endfor %}|{{ admissible | join(' ') }}"
WINDOW = ["rollout.template=T={{ task }};{{ observation }}", "rollout.max_prompt_tokens=96"]
TRANSCRIPT = [*WINDOW, "rollout.history={mode: transcript}", "rollout.max_sequence_tokens=600"]


@pytest.mark.parametrize("launch, sets, before", [
    ((), WINDOW, 0), ((), TRANSCRIPT, 6), (("launch", "--nproc", 2), [*WINDOW, "rollout.history.length=2"], 2)])
def test_a_teacher_with_a_template_scores_behind_its_own_prompts(launch, sets, before, train, run, models, tmp_path):
    """Log-probs of transformers behind prompts that Python's jinja2 renders, from what the recorded episodes hold."""
    done, columns, episodes = train(["task", "token", "observation", "admissible", "teacher_logprobs"], *sets,
                                    f"estimator.teacher.template={json.dumps(HINT)}", launch=launch)
    assert done.returncode == 0, done.stderr
    tokenizer, template = AutoTokenizer.from_pretrained(models / "teacher"), jinja2.Template(HINT)
    offsets, sequences, row = columns["token_offsets"], [], 0
    for episode in episodes:
        task = re.search("T=(.*?);", episode["steps"][0]["prompt"], re.DOTALL)[1]
        seen = [{"observation": columns["observation"][row + n], "action": step["action"]}
                for n, step in enumerate(episode["steps"])]
        for number, step in enumerate(episode["steps"]):
            text = template.render(task=task, observation=seen[number]["observation"], info=step["info"],
                                   won=episode["won"], steps_taken=number, admissible=step["admissible"],
                                   history=seen[max(0, number - before):number])
            prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
            ids = tokenizer.encode(prompt, add_special_tokens=False)
            sequences.append((ids, columns["token"][offsets[row]:offsets[row + 1]]))
            row += 1
    assert row > 20 and task
    if not launch:
        shown = run("train", tmp_path / "recipe.yaml", *[word for s in (*sets, f"estimator.teacher.template={json.dumps(HINT)}")
                                                         for word in ("--set", s)], "--check")
        assert re.search(r"the teacher scores it behind this prompt:\n.*\|\d+\|(True|False)\|0\|", shown.stdout, re.DOTALL), shown
    near(columns["teacher_logprobs"], [x for logprobs, *_ in reference(models / "teacher", sequences) for x in logprobs])


def test_another_model_is_the_reference(train, run, run_json, models, tmp_path):
    sets = [f"reference.path={models / 'teacher'}", "update.kl=null", "update.kl_in_reward={coef: 0.1, kind: k1}"]
    done, columns, episodes = train(["task", "token", "teacher_logprobs"], *sets)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run/reference").exists()  # it stays where it is
    tokenizer, offsets = Tokenizer.from_file(str(models / "policy/tokenizer.json")), columns["token_offsets"]
    steps = [step for episode in episodes for step in episode["steps"]]
    sequences = [(tokenizer.encode(step["prompt"], add_special_tokens=False).ids, columns["token"][start:end])
                 for step, start, end in zip(steps, offsets, offsets[1:])]
    want = [sum(p - q for p, q in zip(logprobs, columns["teacher_logprobs"][start:end])) / (end - start)
            for (logprobs, *_), start, end in zip(reference(models / "policy", sequences), offsets, offsets[1:])]
    got = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[1])["reward/kl"]
    assert got == pytest.approx(sum(want) / len(want), rel=1e-4) and got > 0.1

    recipe, words = tmp_path / "recipe.yaml", [word for s in sets for word in ("--set", s)]
    items = [item["name"] for item in run_json("plan", recipe, *words, "--json")["here"]["memory"]["items"]]
    assert items.count("reference") == items.count("teacher") == 1
    again = run("train", recipe, *words, "--set", "iterations=2", "--run-dir", tmp_path / "run", "--resume")
    assert again.returncode == 0, again.stderr
    idle = run("train", recipe, "--check", "--set", sets[0], "--set", "update.kl=null")
    assert idle.returncode == 2 and "`reference`: nothing reads its log-probs" in idle.stderr, idle.stderr


def test_what_a_run_cannot_give_is_refused_at_its_start(train, run, models, tmp_path):
    def refused(*args, **kwargs):
        done, *_ = train(*args, **kwargs)
        assert done.returncode == 2 and not (tmp_path / "run").exists(), done
        return done.stderr

    missing = refused(["teacher_logprobs"], teacher=False)
    assert "estimator.teacher" in missing and "teacher_logprobs" in missing and "{path: FOLDER}" in missing, missing
    assert "loaded for nothing" in refused(["task"])
    assert "hidden.7" in refused(["hidden.7"], teacher=False) and "layers 0 to 1" in refused(["hidden.-3"], teacher=False)
    assert "column `sucess` is unknown; did you mean `success`?" in refused(["sucess"], teacher=False)
    other = tmp_path / "other"
    shutil.copytree(models / "teacher", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "other ids than the policy's" in refused(["teacher_logprobs"], f"estimator.teacher.path={other}")
    assert "config.json: no such file" in refused(["teacher_logprobs"], "estimator.teacher.path=no/such/folder")
    assert "config.json: no such file" in refused(["teacher_logprobs"], "reference.path=no/such/folder")
    wrong = refused(["teacher_logprobs"], "estimator.teacher.template='{{ answr }}'")
    assert "estimator.teacher.template" in wrong and "follow_up, info (after the response) and won" in wrong, wrong
    # A column that may be missing is null, and the run starts.
    done, columns, _ = train(["teacher_logprobs?", "task"], teacher=False)
    assert done.returncode == 0 and columns["teacher_logprobs"] is None, done.stderr


def test_a_plan_counts_the_teacher(train, run, run_json, tmp_path):
    done, *_ = train(["teacher_logprobs", "task"])
    assert done.returncode == 0, done.stderr
    def planned(*sets):
        words = [word for s in sets for word in ("--set", s)]
        return run_json("plan", tmp_path / "recipe.yaml", *words, "--json")["here"]["memory"]["items"]
    teacher = [item["bytes"] for item in planned() if item["name"] == "teacher"]
    assert teacher and teacher[0][0] > 0
    without = ["estimator.teacher=null", "estimator.config.columns=[task]"]
    assert not any(item["name"] == "teacher" for item in planned(*without))
