"""Whole runs of the smoke recipes through the program: the files of a run, how they are used afterwards, and how a run stops."""
import json
import math
import re
import shutil
import signal
import subprocess
import time

import pytest
import torch
from conftest import PATIENCE
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

# Names that other programs rely on, in the rows of reinforcement learning.
NAMES = {"eval/success", "episode/success", "episode/return", "episode/length", "loss/policy", "loss/total",
         "policy/approx_kl", "episode/total", "tokens/total",
         "policy/clip_fraction", "policy/entropy", "grad/norm", "rollout/logprob_diff_mean", "rollout/tokens_per_s",
         "update/tokens_per_s", "time/rollout_s", "time/generate_s", "time/prefill_s", "time/env_wait_s", "time/update_s", "time/evaluate_s", "time/iteration_s"}
# Parts of a phase.
PARTS = {"time/generate_s", "time/prefill_s", "time/env_wait_s"}
# A longer warm start than the smoke recipes': enough that responses are read and advantages are not all zero.
TAUGHT = ["--set", "warm_start.steps=60", "--set", "warm_start.lr=1e-2"]
ESTIMATORS = ["gigpo", "grpo", "rloo", "ppo", "reinforce_pp"]
TASKS, GROUP_SIZE, EVAL_TASKS = 4, 4, 10
# Two different numbers from 0 to 5.
PAIRS = 30


def read_rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def read_rollouts(run_dir):
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted((run_dir / "rollouts").glob("*.jsonl"))}


def checkpoints(run_dir):
    return sorted((run_dir / "checkpoints").glob("iteration-*"))


@pytest.fixture(scope="module")
def finished(run, root, tmp_path_factory):
    """The directory of a finished run of a smoke recipe; each recipe runs once."""
    done = {}

    def call(estimator):
        if estimator not in done:
            run_dir = tmp_path_factory.mktemp(estimator) / "run"
            ended = run("train", root / f"recipes/smoke/{estimator}.yaml", *TAUGHT, "--run-dir", run_dir)
            assert ended.returncode == 0, ended.stderr
            done[estimator] = run_dir, ended
        return done[estimator]
    return call


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_metrics(estimator, finished, root):
    run_dir, _ = finished(estimator)
    rows = read_rows(run_dir)
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert {"eval/success", "time/iteration_s"} <= rows[0].keys()
    for row in rows[1:]:
        assert NAMES <= row.keys(), NAMES - row.keys()
        assert row["rollout/logprob_diff_max"] < 1e-4
        assert row["advantage/max"] > 0, "the run teaches nothing, so it shows nothing"
        assert row["grad/norm"] > 0 and row["grad/skipped"] == 0
        if estimator == "ppo":
            assert {"loss/value", "value/explained_variance", "time/critic_s", "time/values_s"} <= row.keys()
            assert row["loss/value"] > 0 and row["value/grad_norm"] > 0
    for row in rows:
        assert [k for k, v in row.items() if not isinstance(v, int | float) or not math.isfinite(v)] == []

    emitted = set().union(*rows) - {"iteration"}
    assert [name for name in sorted(emitted) if not any(k.fullmatch(name) for k in table(root))] == []
    for row in rows:
        phases = sum(value for name, value in row.items() if name.startswith("time/") and name not in PARTS | {"time/iteration_s"})
        assert phases == pytest.approx(row["time/iteration_s"], rel=1e-6), "phases leave no gap"
    for row in rows[1:]:
        assert min(row[name] for name in PARTS) > 0, row
        # Templates and weights take the rest; an evaluation before is none of it.
        assert sum(row[name] for name in PARTS) < row["time/rollout_s"], row
    # Utilisation, in FLOPs again: those of the update are at least 6 for each weight of a matrix and distinct token, and a part
    # of the iteration's.
    config = json.loads((run_dir / "model/config.json").read_text())
    weights = config["num_hidden_layers"] * config["hidden_size"] * (3 * config["hidden_size"] + 3 * config["intermediate_size"])
    for row in rows[1:]:
        update = row["update/mfu"] * row["perf/peak_flops"] * row["time/update_s"]
        whole = row["perf/mfu"] * row["perf/peak_flops"] * row["time/iteration_s"]
        assert row["perf/tree_factor"] >= 1
        tokens = row["update/tokens_per_s"] * row["time/update_s"] / row["perf/tree_factor"]
        assert 6 * weights * tokens < update < 3 * 6 * weights * tokens, (update, weights, tokens)
        assert update < whole


def table(root):
    """Patterns of the names in docs/metrics.md; `<word>` there stands for any word."""
    names = re.findall(r"^\| `([^`]+)` \|", (root / "docs/metrics.md").read_text(), re.MULTILINE)
    return [re.compile(re.sub("<[a-z_]+>", "[^/]+", name)) for name in names]


def test_every_metric_of_the_table_is_written(finished, run, root, tmp_path):
    """By a run of kinds of tasks in float16 with a critic, KL in the reward and dynamic sampling, one of two environments with a
    curriculum, and a plain one. A GPU's memory is a GPU's alone."""
    plugin, log = root / "target/release/examples/libwitness.so", tmp_path / "log"
    sets = [f"env={{plugin: {plugin}, config: {{log: {log}, delay_ms: 10}}}}", "rollout.dynamic_sampling={rounds: 2}",
            "update.kl_in_reward={coef: 0.05}", "update.kl=null", "warm_start.steps=2", "dtype=float16", "eval.samples=2",
            "rollout.env_errors=1"]
    done = run("train", root / "recipes/smoke/ppo.yaml", *(part for key in sets for part in ("--set", key)),
               "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    several = run("train", root / "recipes/smoke/environments.yaml", "--set", "rollout.curriculum={by: success}", "--run-dir", tmp_path / "two")
    assert several.returncode == 0, several.stderr
    emitted = set().union(*(row for folder in (tmp_path / "run", tmp_path / "two", finished("gigpo")[0]) for row in read_rows(folder)))
    missing = [k.pattern for k in table(root) if not any(k.fullmatch(name) for name in emitted)]
    # An estimator's own numbers are in test_columns.py, those of images in test_vision_runs.py, those of chats in test_sft.py.
    elsewhere = ("memory/device_", "estimator/", "rollout/images_", "update/images_", "warm_start/validation_loss")
    assert [name for name in missing if not name.startswith(elsewhere)] == []
    # No pass for columns or a teacher without an estimator that asks for them.
    assert not emitted & {"time/columns_s", "time/teacher_s"}
    # The environment's own number is the return of its one step.
    rows = read_rows(tmp_path / "run")[1:]
    assert all(row["time/env_wait_s"] > 0.01 for row in rows), "nothing is left to compute while the last steps take 10 ms"
    assert [row["env/outcome"] for row in rows] == pytest.approx([row["episode/return"] for row in rows])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rollouts_hold_the_episodes(estimator, finished):
    run_dir, _ = finished(estimator)
    rollouts, rows = read_rollouts(run_dir), read_rows(run_dir)
    assert list(rollouts) == ["iteration-000001.jsonl", "iteration-000002.jsonl"]
    for episodes, row in zip(rollouts.values(), rows[1:]):
        assert len(episodes) == TASKS * GROUP_SIZE
        assert row["episode/return"] == pytest.approx(sum(e["return"] for e in episodes) / len(episodes))
        assert row["episode/success"] == pytest.approx(sum(e["won"] for e in episodes) / len(episodes))
        assert row["episode/length"] == pytest.approx(sum(len(e["steps"]) for e in episodes) / len(episodes))
        for group in range(TASKS):
            members = [e for e in episodes if e["group"] == group]
            assert len(members) == GROUP_SIZE
            # Siblings start alike.
            assert len({(e["task"], e["seed"], e["steps"][0]["prompt"]) for e in members}) == 1
        for episode in episodes:
            assert episode["return"] == pytest.approx(sum(step["reward"] for step in episode["steps"]))
            ends = [step["terminated"] or step["truncated"] for step in episode["steps"]]
            assert not any(ends[:-1]) and ends[-1]
            for step in episode["steps"]:
                assert "target:" in step["prompt"] and isinstance(step["response"], str)
                assert isinstance(step["advantage"], float)
                assert len(step["tokens"]) == len(step["logprobs"]) == step["response_tokens"]
                assert all(logprob <= 0 for logprob in step["logprobs"])
                assert len(step["admissible"]) == 2 and step["action"] in [*step["admissible"], ""]
    if estimator == "gigpo":  # step_weight is 1
        assert all(s["advantage"] == pytest.approx(s["parts"]["episode_advantage"] + s["parts"]["step_advantage"], abs=1e-5)
                   for episodes in rollouts.values() for e in episodes for s in e["steps"])
    largest = [max(abs(s["advantage"]) for e in episodes for s in e["steps"]) for episodes in rollouts.values()]
    most = [row["advantage/max"] for row in rows[1:]]
    if estimator == "ppo":  # the file has a step's mean, and its tokens differ here
        assert all(0 < mean < token for mean, token in zip(largest, most))
    else:
        assert largest == pytest.approx(most, rel=1e-5)


GSPO = ["loss=gspo", "aggregation=seq-mean-token-mean", "old_logprobs=recompute", "clip_low=3e-4", "clip_high=4e-4"]


@pytest.mark.parametrize("keys", [
    GSPO,
    ["aggregation=seq-mean-token-sum-norm"],
    ["importance_cap=2", "old_logprobs=rollout"],
    ["importance_cap=2", "old_logprobs=recompute", "aggregation=seq-mean-token-sum"],
    ["kl=null", "kl_in_reward={coef: 0.5, adaptive: {target: 0.001, horizon: 100}}"],
], ids=" ".join)
def test_every_loss_trains(keys, run, root, tmp_path):
    sets = [word for key in keys for word in ("--set", f"update.{key}")]
    done = run("train", root / "recipes/smoke/gigpo.yaml", *TAUGHT, *sets, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    first, second = read_rows(tmp_path / "run")[1:]
    for row in (first, second):
        assert row["grad/norm"] > 0 and math.isfinite(row["loss/total"])
        assert row["rollout/logprob_diff_max"] < 1e-4
    if "kl=null" in keys:
        # In the first iteration the policy is the reference. Afterwards it differs, and the coefficient has moved by at most
        # a fifth for every 100 steps of the iteration.
        assert first["reward/kl"] == pytest.approx(0, abs=1e-5) and abs(second["reward/kl"]) > 1e-4
        assert first["reward/kl_coef"] == 0.5 and 0 < second["reward/kl_coef"] < 0.5


def test_a_stop_text_ends_a_response(run, root, tmp_path):
    done = run("train", root / "recipes/smoke/gigpo.yaml", *TAUGHT, "--set", "rollout.stop=['\"}']", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    steps = [step for file in (tmp_path / "run/rollouts").iterdir() for line in file.read_text().splitlines()
             for step in json.loads(line)["steps"]]
    texts = [step["response"] for step in steps]
    # A token may have more behind the stop text.
    assert all(text.count('"}') <= 1 and len(text.partition('"}')[2]) < 4 for text in texts), texts
    stopped = sum('"}' in text for text in texts)
    assert stopped > 0.5 * len(texts)
    for row in read_rows(tmp_path / "run")[1:]:
        assert row["response/clipped_ratio"] < 0.5 and row["grad/norm"] > 0


def test_responses_that_were_cut_teach_nothing(run, root, tmp_path):
    """The untrained policy ends few of its responses, so few are left to learn from."""
    rows, steps = {}, {}
    for masks in ["false", "true"]:
        sets = ["warm_start=null", "iterations=1", "rollout.max_response_tokens=4", f"update.mask_cut_responses={masks}"]
        done = run("train", root / "recipes/smoke/gigpo.yaml", *(word for key in sets for word in ("--set", key)), "--run-dir", tmp_path / masks)
        assert done.returncode == 0, done.stderr
        rows[masks] = read_rows(tmp_path / masks)[1]
        steps[masks] = len((tmp_path / masks / "steps.jsonl").read_text().splitlines())
    assert rows["false"]["response/clipped_ratio"] == rows["true"]["response/clipped_ratio"] > 0.9
    assert steps["true"] < steps["false"], steps


def test_the_policy_waits_while_the_critic_warms_up(run, root, tmp_path):
    done = run("train", root / "recipes/smoke/ppo.yaml", *TAUGHT, "--set", "critic.warmup=1", "--set",
               "checkpoint.keep=3", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    before, first, second = [load_file(path / "policy.safetensors") for path in checkpoints(tmp_path / "run")]
    assert all(torch.equal(before[name], first[name]) for name in before)
    assert any(not torch.equal(before[name], second[name]) for name in before)
    rows = read_rows(tmp_path / "run")
    assert "loss/policy" not in rows[1] and "loss/policy" in rows[2]
    assert all(row["loss/value"] > 0 for row in rows[1:])


def test_a_critic_is_exported_as_transformers_has_it(finished, run, tmp_path):
    checkpoint = checkpoints(finished("ppo")[0])[-1]
    assert run("export", checkpoint, tmp_path / "critic", "--critic").returncode == 0
    model, notes = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", dtype=torch.float32,
                                                                   output_loading_info=True)
    assert not any(notes.values()), notes
    assert model.config.num_labels == 1 and model.score.weight.norm() > 0
    trained = load_file(checkpoint / "critic.safetensors")
    assert torch.equal(model.score.weight, trained["score.weight"])
    none = run("export", checkpoints(finished("grpo")[0])[-1], tmp_path / "none", "--critic")
    assert none.returncode == 2 and "holds no critic" in none.stderr


def starts(episodes):
    return {re.search(r"target: \d+\ncurrent: \d+", e["steps"][0]["prompt"]).group() for e in episodes}


def test_held_out_tasks_start_no_episode(finished, run, root, tmp_path):
    """One iteration over all tasks of a split shows its pairs of target and start; the two splits share none."""
    def all_starts(split, tasks):
        run_dir = tmp_path / split
        done = run("train", root / "recipes/smoke/gigpo.yaml", "--run-dir", run_dir, "--set", "warm_start=null",
                   "--set", f"rollout.split={split}", "--set", f"rollout.tasks={tasks}", "--set", "iterations=1",
                   "--set", "rollout.group_size=2", "--set", "rollout.max_steps=1", "--set", "update.mini_batch=8")
        assert done.returncode == 0, done.stderr
        return starts(sum(read_rollouts(run_dir).values(), []))

    held_out, train = all_starts("eval", EVAL_TASKS), all_starts("train", PAIRS - EVAL_TASKS)
    assert (len(held_out), len(train), len(held_out | train)) == (EVAL_TASKS, PAIRS - EVAL_TASKS, PAIRS)
    seen = starts(sum(read_rollouts(finished("gigpo")[0]).values(), []))
    assert len(seen) == 2 * TASKS and seen <= train


def test_files_of_a_run(finished):
    run_dir, ended = finished("gigpo")
    log = (run_dir / "log.txt").read_text()
    assert "2/2" in log and "eval" in log
    assert set(log.splitlines()) <= set((ended.stdout + ended.stderr).splitlines())
    best = (run_dir / "checkpoints/best").readlink().name
    assert [path.name for path in checkpoints(run_dir)] == sorted({"iteration-000001", "iteration-000002", best})


def test_the_saved_recipe_is_a_recipe(finished, run, run_json, tmp_path):
    run_dir, _ = finished("gigpo")
    again = tmp_path / "again"
    done = run("train", run_dir / "recipe.yaml", "--set", "iterations=0", "--run-dir", again)
    assert done.returncode == 0, done.stderr
    want, got = ((folder / "recipe.yaml").read_text() for folder in (run_dir, again))
    assert "steps: 60" in want  # as `--set` said
    # Defaults are written out, those of plugins and of the history too, so that a later change of one shows.
    facts = json.loads((run_dir / "run.json").read_text())
    assert facts["state"] == "done" and f"# nestor {facts['nestor']}" in want and f", torch {facts['torch']}\n" in want
    assert re.search(r"\n    length: \d\n", want)
    for plugin in (facts["environment"], facts["estimator"]):
        properties = run_json("plugin", "show", plugin, "--json")[0]["schema"]["properties"]
        defaults = {f"\n    {key}: " for key, schema in properties.items() if schema.get("default") is not None}
        assert defaults and all(default in want for default in defaults), (plugin, defaults)
    assert got == want.replace("iterations: 2", "iterations: 0")
    assert [row["iteration"] for row in read_rows(again)] == [0]
    assert read_rows(again)[0]["eval/success"] == read_rows(run_dir)[0]["eval/success"]


@torch.no_grad()
def test_export_loads_in_transformers(finished, run, score, tmp_path):
    run_dir, _ = finished("gigpo")
    checkpoint, folder = checkpoints(run_dir)[-1], tmp_path / "exported"
    done = run("export", checkpoint, folder)
    assert done.returncode == 0, done.stderr
    trained = load_file(checkpoint / "policy.safetensors")
    exported = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
    assert trained.keys() == exported.keys()
    assert all(torch.equal(trained[name], exported[name]) for name in trained)
    first = load_file(run_dir / "model/model.safetensors")
    assert any(not torch.equal(trained[name], first[name]) for name in trained)

    model, notes = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(notes.values()), notes
    tokenizer = AutoTokenizer.from_pretrained(folder)
    step = next(iter(read_rollouts(run_dir).values()))[0]["steps"][0]
    prompt = tokenizer.encode(step["prompt"])
    assert tokenizer.decode(prompt) == step["prompt"]
    assert model.generation_config.eos_token_id is not None
    rows = [prompt, prompt + list(range(12)), [5]]
    for row, got in zip(rows, score(folder, rows)):
        ids = torch.tensor(row)
        logits = torch.log_softmax(model(ids[None]).logits[0, :-1], -1)
        assert got == pytest.approx(logits.gather(-1, ids[1:, None])[:, 0].tolist(), abs=1e-4)


@torch.no_grad()
def test_a_qwen3_folder_is_trained_and_exported(finished, run, score, root, tmp_path):
    """Policy and critic from a Qwen3 folder, whose heads have a size of their own, load in transformers."""
    start, run_dir, folder = tmp_path / "start", tmp_path / "run", tmp_path / "exported"
    assert run("model", "new", start, "--shape", "qwen3-tiny", "--dtype", "float32").returncode == 0
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(finished("gigpo")[0] / "model" / name, start / name)
    sets = ("model.new=null", f"model.path={start}", "warm_start=null", "iterations=1")
    done = run("train", root / "recipes/smoke/ppo.yaml", *[word for s in sets for word in ("--set", s)], "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    checkpoint = checkpoints(run_dir)[-1]
    assert run("export", checkpoint, folder).returncode == 0
    assert run("export", checkpoint, tmp_path / "critic", "--critic").returncode == 0

    model, notes = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert model.config.model_type == "qwen3" and not any(notes.values()), notes
    before = load_file(start / "model.safetensors")
    assert all(not torch.equal(value, before[name]) for name, value in model.named_parameters())
    ids = torch.tensor(list(range(5, 40)))
    want = torch.log_softmax(model(ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
    assert score(folder, [ids.tolist()])[0] == pytest.approx(want.tolist(), abs=1e-4)
    critic, notes = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", output_loading_info=True)
    assert critic.config.model_type == "qwen3" and not any(notes.values()), notes


def test_deterministic_runs_are_bit_identical(run, root, tmp_path):
    def parameters(name):
        done = run("train", root / "recipes/smoke/gigpo.yaml", *TAUGHT, "--set", "deterministic=true",
                   "--run-dir", tmp_path / name)
        assert done.returncode == 0, done.stderr
        return (checkpoints(tmp_path / name)[-1] / "policy.safetensors").read_bytes()

    assert parameters("one") == parameters("two")


def test_recorded_decoding_plays_the_same_episodes(run, root, tmp_path, monkeypatch):
    monkeypatch.setenv("NESTOR_OPS", "generic")
    rows, episodes = {}, {}
    for decode in ["plain", "recorded"]:
        monkeypatch.setenv("NESTOR_DECODE", decode)
        done = run("train", root / "recipes/smoke/gigpo.yaml", *TAUGHT, "--run-dir", tmp_path / decode)
        assert done.returncode == 0, done.stderr
        rows[decode], episodes[decode] = read_rows(tmp_path / decode), read_rollouts(tmp_path / decode)
    # One pass ahead decodes the rows of ended requests once more, so that only times and passes may differ.
    for plain, recorded in zip(*rows.values(), strict=True):
        for name in NAMES & {"eval/success", "episode/return", "tokens/total", "loss/total", "grad/norm", "policy/entropy"}:
            assert (name in recorded) == (name in plain), name
            assert recorded.get(name, 0) == pytest.approx(plain.get(name, 0), rel=1e-3, abs=1e-6), name
        assert recorded.get("rollout/logprob_diff_max", 0) < 1e-4
    assert episodes["plain"].keys() == episodes["recorded"].keys()
    tokens = [[[step["tokens"] for step in episode["steps"]] for name in sorted(played) for episode in played[name]]
              for played in episodes.values()]
    assert tokens[0] == tokens[1]


def test_stopped_by_a_signal_and_resumed(nestor, run, root, tmp_path):
    run_dir, recipe = tmp_path / "run", root / "recipes/smoke/gigpo.yaml"
    settings = ["--run-dir", run_dir, "--set", "eval.every=0", "--set", "checkpoint.every=0"]
    with subprocess.Popen([nestor, "train", recipe, *settings, "--set", "iterations=100000"], stderr=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, text=True) as process:
        deadline = time.monotonic() + PATIENCE
        # Row 1: reinforcement learning is under way.
        metrics = run_dir / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 1):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    stopped = len(read_rows(run_dir)) - 1
    assert 1 <= stopped
    # The recipe asks for no checkpoints. The warm start's evaluation is the best, and the signal caused the other one: between two
    # iterations, or inside an update.
    best, saved = [path.name for path in checkpoints(run_dir)]
    assert best == "iteration-000000" and saved.partition("+")[0] == f"iteration-{stopped:06}"

    again = run("train", recipe, *settings)
    assert again.returncode == 2 and "--resume" in again.stderr
    assert len(read_rows(run_dir)) - 1 == stopped

    last = stopped + 2
    resumed = run("train", recipe, *settings, "--set", f"iterations={last}", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["iteration"] for row in read_rows(run_dir)] == list(range(last + 1))
    assert checkpoints(run_dir)[-1].name == f"iteration-{last:06}"


@pytest.fixture(scope="module")
def tiny(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert run("model", "new", folder, "--shape", "tiny", "--dtype", "float32").returncode == 0
    return folder


# `tokens_per_s` counts generated tokens, or all tokens processed.
@pytest.mark.parametrize("work, tokens", [("generate", 4 * 8), ("score", 4 * 24), ("update", 4 * 24)])
def test_bench(work, tokens, tiny, run_json):
    report = run_json("bench", work, "--model", tiny, "--batch", 4, "--prompt", 16, "--new", 8, "--repeats", 2,
                      "--dtype", "float32", "--device", "cpu", "--json")
    assert report["seconds"] > 0
    assert report["tokens_per_s"] == pytest.approx(tokens / report["seconds"], rel=1e-3)
    if work == "update":  # beside the plan: the memory of the device that it plans for
        assert report["peak_of"] == "host" and len(report["peak_bytes"]) == 1 and report["planned_bytes"] > 0
