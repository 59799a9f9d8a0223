"""Wrong input of users: one message with place, cause and remedy, and the exit code."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

RECIPE = """\
iterations: 1
device: cpu
model:
  new: {hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 400}
env:
  plugin: numberline
estimator:
  plugin: gigpo
rollout:
  tasks: 1
  group_size: 2
  max_steps: 2
  max_prompt_tokens: 512
  max_response_tokens: 4
update:
  mini_batch: 4
  lr: 1e-3
eval:
  tasks: 2
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def one_message(done, code, *parts):
    """One line `error: ...` that holds all parts, and no backtrace."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for part in parts:
        assert part in lines[0], f"{part!r} is not in {lines[0]!r}"


@pytest.mark.parametrize("old, new, parts", [
    ("  lr: 1e-3", "  learning: 1e-3", ["recipe.yaml:17:3", "unknown key `update.learning`"]),
    ("  lr: 1e-3", "  lr: 1e-3\n  clip_hi: 0.3", ["recipe.yaml:18:3", "did you mean `update.clip_high`?"]),
    ("  lr: 1e-3", "  lr: quick", ["recipe.yaml:17:3", "`update.lr` must be a number", '"quick"']),
    ("  lr: 1e-3", "  lr: [", ["recipe.yaml:18", "not valid YAML"]),
    ("  lr: 1e-3", "", ["recipe.yaml:15:1", "`update.lr` is missing"]),
    ("device: cpu", "device: tpu", ["recipe.yaml:2:1", "`device` must be `auto`, `cpu` or `cuda`"]),
    ("group_size: 2", "group_size: 0", ["recipe.yaml:11:3", "`rollout.group_size` must be at least 1"]),
    ("mini_batch: 4", "mini_batch: 5", ["recipe.yaml:16:3", "`update.mini_batch` must be at most", "(4), but is 5"]),
    ("  lr: 1e-3", "  lr: 1e-3\n  micro_batch_tokens: 515",
     ["recipe.yaml:18:3", "`update.micro_batch_tokens` must be at least", "(516), but is 515"]),
    ("  tasks: 2", "  tasks: 2\n  split: evla", ["recipe key `eval.split`", "did you mean `eval`?"]),
    ("plugin: gigpo", "plugin: gigpoo", ["gigpoo", "gigpo"]),
    ("plugin: numberline", "plugin: atlantis", ["atlantis", "numberline"]),
])
def test_damaged_recipe(old, new, parts, recipe, run, tmp_path):
    recipe.write_text(RECIPE.replace(old, new, 1))
    one_message(run("train", recipe, "--run-dir", tmp_path / "run"), 2, *parts)
    assert not (tmp_path / "run/metrics.jsonl").exists()


TRANSCRIPT = ["--set", "rollout.history.mode=transcript"]
LIMIT = ["--set", "rollout.max_sequence_tokens=600"]


@pytest.mark.parametrize("sets, parts", [
    (LIMIT, ["`rollout.max_sequence_tokens` belongs to `rollout.history.mode: transcript`", "leave it out"]),
    (TRANSCRIPT, ["`rollout.max_sequence_tokens` must be at least", "(516)", "is missing"]),
    ([*TRANSCRIPT, "--set", "rollout.max_sequence_tokens=515"], ["`rollout.max_sequence_tokens` must be", "but is 515"]),
    ([*TRANSCRIPT, *LIMIT, "--set", "rollout.history.length=1"], ["`rollout.history.length` must be 0 or left out"]),
    ([*TRANSCRIPT, *LIMIT, "--set", "rollout.truncation=middle"], ["`rollout.truncation` must be `error`"]),
    ([*TRANSCRIPT, *LIMIT, "--set", "update.mini_batch=1"], ["`update.mini_batch`", "`rollout.max_steps` (2)", "is 1"]),
    ([*TRANSCRIPT, *LIMIT, "--set", "warm_start={steps: 1, batch: 1, lr: 1e-3}"], ["`warm_start.batch`", "is 1"]),
    ([*TRANSCRIPT, *LIMIT, "--set", "rollout.max_prompt_tokens=60"], ["step 1 of", "max_prompt_tokens is 60"]),
])
def test_transcript_refuses(sets, parts, recipe, run, tmp_path):
    done = run("train", recipe, "--run-dir", tmp_path / "run", *sets)
    done.stderr = done.stderr.strip().splitlines()[-1]  # the last case has begun
    one_message(done, 2, *parts)


def test_transcript_refuses_a_model(recipe, run, tmp_path):
    """A chat template that does not only append, and a conversation longer than the model was made for."""
    assert run("train", recipe, "--run-dir", tmp_path / "made", "--set", "iterations=0").returncode == 0
    model = tmp_path / "made/model"
    settings = [*TRANSCRIPT, *LIMIT, "--set", f"model={{path: {model}}}", "--run-dir", tmp_path / "run"]
    one_message(run("train", recipe, *settings), 2, "`rollout.max_sequence_tokens` is 600", "max_position_embeddings is 516")
    (model / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    one_message(run("train", recipe, *settings, "--set", "rollout.max_sequence_tokens=516"), 2,
                "chat template", "omits an earlier response", "set the mode to window")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sets, parts", [
    (["estimator.plugin=ppo"], ["`estimator.plugin`: `ppo` asks for a critic's values", "--set critic={}"]),
    (["critic={}"], ["recipe key `critic`: estimator `gigpo` does not ask for values", "--set critic=null"]),
    (["critic={lr: 0}", "estimator.plugin=ppo"], ["--set critic={lr: 0}", "`critic.lr` must be greater than 0"]),
    (["update.loss=gspo"], ["`update.old_logprobs` must be `recompute` with `update.loss: gspo`"]),
    (["update.loss=gspo", "update.old_logprobs=recompute"],
     ["`update.aggregation` must be `seq-mean-token-mean` with `update.loss: gspo`"]),
    (["update.loss=gspo", "update.old_logprobs=recompute", "update.aggregation=seq-mean-token-mean",
      "update.importance_cap=2"], ["`update.importance_cap` must be left out with `update.loss: gspo`"]),
    (["update.importance_cap=0"], ["`update.importance_cap` must be greater than 0"]),
    (["update.aggregation=mean"], ["`update.aggregation` must be `token-mean`"]),
    (["update.kl_in_reward={adaptive: {target: 0}}"],
     ["`update.kl_in_reward.adaptive.target` must be greater than 0"]),
], ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else "")
def test_losses_and_critics_that_do_not_fit(sets, parts, recipe, run, tmp_path):
    sets = [word for s in sets for word in ("--set", s)]
    one_message(run("train", recipe, *sets, "--run-dir", tmp_path / "run"), 2, *parts)
    assert not (tmp_path / "run").exists()


def test_wrong_argument(recipe, run, tmp_path):
    one_message(run("train", tmp_path / "none.yaml"), 2, "there is no recipe", "none.yaml")
    one_message(run("train", recipe, "--set", "update.lrr=1"), 2, "--set update.lrr=1", "`update.lr`?")
    one_message(run("train", recipe, "--run-dir", tmp_path / "none", "--resume"), 2, "none", "--resume")
    several = run("train", recipe, "--run-dir", tmp_path / "run", "--set", "model={path: /nowhere}")
    assert several.returncode == 2 and "2 problems:\n  (1) /nowhere/config.json: " in several.stderr
    one_message(run("score", tmp_path, "--tokens", tmp_path / "none"), 2, "none")
    one_message(run("export", tmp_path, tmp_path / "out"), 2, str(tmp_path), "config.json")
    one_message(run("model", "new", tmp_path / "m", "--shape", "9b"), 2, "`9b`", "0.5b")
    usage = run("trian", recipe)
    assert usage.returncode == 2 and "train" in usage.stderr


def test_a_prompt_that_is_too_long(recipe, run, tmp_path):
    done = run("train", recipe, "--run-dir", tmp_path / "run", "--set", "rollout.max_prompt_tokens=8")
    one_message(done, 2, "step 1 of episode ", "task ", "seed ", "rollout.max_prompt_tokens is 8", "rollout.truncation")


def test_two_plugins_with_one_id(recipe, run, root, tmp_path):
    plugin = root / "target/release/examples/libtoy.so"
    assert plugin.exists(), "build first: cargo build --release --examples --workspace"
    for name in ("libone.so", "libtwo.so"):
        shutil.copy(plugin, tmp_path / name)
    env = os.environ | {"NESTOR_PLUGIN_PATH": str(tmp_path)}
    done = run("train", recipe, "--run-dir", tmp_path / "run", "--set", "env={plugin: toy}", env=env)
    one_message(done, 2, "recipe key `env`", "two plugins have the id `toy`", "libone.so", "libtwo.so")


def test_plugins_of_another_kind_of_file(recipe, run, tmp_path):
    text = tmp_path / "libnestor_text.so"
    text.write_text("no library")
    one_message(run("train", recipe, "--run-dir", tmp_path / "run", "--set", f"env.plugin={text}"), 2, str(text))


def test_a_reader_that_leaves_early_is_no_error(nestor):
    command = f"{nestor} plugin list --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is part of binutils")
def test_linking(nestor):
    """The CUDA half is no part of a start on a CPU; RUNPATH lets LD_LIBRARY_PATH win."""
    program = Path(nestor).with_name("nestor-torch")
    dynamic = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert "libtorch_cpu.so" in needed and "libtorch_cuda.so" not in needed
    assert "(RUNPATH)" in dynamic and "(RPATH)" not in dynamic
    plain = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    assert subprocess.run([program, "--version"], env=plain, capture_output=True).returncode == 0


def test_the_loop_fits_on_one_screen(root):
    source = (root / "core/nestor/src/train.rs").read_text()
    bodies = re.findall(r"^(?:pub )?fn (\w+)\(.*?^}", source, re.DOTALL | re.MULTILINE)
    assert bodies == ["train", "iterate"]
    assert len(source.splitlines()) <= 60
