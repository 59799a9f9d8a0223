"""LoRA against peft on transformers' models: gradients and a step of A and B in float32 (per tensor 1e-4 relative, L2),
the adapted layers, the initial A and B, and saving, exporting and resuming a run with adapters."""
import json
import math
import re
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from test_gradients import (CLIP_HIGH, CLIP_LOW, CONVERSATIONS, DUAL_CLIP, ENTROPY, KL, SINGLE, TEMPERATURE, make_model,
                            make_sequences, padded_stats, reference_loss)
from test_resume import kill_and_resume, outcome
from transformers import AutoModelForCausalLM, AutoTokenizer

# Small steps: where a gradient is nearly zero, AdamW's first step goes a whole learning rate either way.
RANK, ALPHA, CLIP, LR, DECAY = 4, 10, 0.05, 2e-3, 0.1
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("architecture, shapes, tied, recompute, targets", [
    ("qwen2", SINGLE, True, "all", None), ("qwen2", CONVERSATIONS, False, "none", None), ("qwen3", SINGLE, False, 2, None),
    ("qwen2", SINGLE, False, "all", ["v_proj", "q_proj"]), ("qwen2", SINGLE, True, "none", ["o_proj", "up_proj"]),
])
def test_gradients_and_a_step_equal_peft(architecture, shapes, tied, recompute, targets, tmp_path, driver, ops):
    model = make_model(architecture, tied, tmp_path / "model")
    # By default verl's setting for the published recipe.
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets or "all-linear", task_type="CAUSAL_LM"))
    trained = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, p in trained.items():
            if "lora_B" in name:
                p.normal_(0.0, 0.05)
    model.save_pretrained(tmp_path / "adapter")

    sequences = make_sequences(shapes)
    rows = sum(sequences, [])
    with torch.no_grad():
        g = torch.Generator().manual_seed(3)
        for (logp, _), r in zip(padded_stats(model, sequences), rows, strict=True):
            r["old"] = (logp + 0.3 * torch.randn(logp.shape, generator=g)).tolist()
            r["ref"] = (logp + 0.5 * torch.randn(logp.shape, generator=g)).tolist()
    reference_loss(padded_stats(model, sequences), rows)[0].backward()
    want = {name: p.grad.clone() for name, p in trained.items()}
    before = {name: p.detach().clone() for name, p in trained.items()}
    norm = torch.nn.utils.clip_grad_norm_(trained.values(), CLIP)
    assert norm > 2 * CLIP
    torch.optim.AdamW(trained.values(), lr=LR, betas=(0.9, 0.99), weight_decay=DECAY).step()

    update = {"mini_batch": len(rows), "lr": LR, "micro_batch_tokens": 120, "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH,
              "dual_clip": DUAL_CLIP, "entropy": ENTROPY, "recompute": recompute, "kl": {"coef": KL, "kind": "k3"},
              "grad_clip": CLIP, "optimizer": {"betas": [0.9, 0.99], "weight_decay": DECAY}}
    lora = {"settings": {"rank": RANK, "alpha": ALPHA, "target_modules": targets}, "adapter": str(tmp_path / "adapter/adapter_model.safetensors")}
    batch, out = tmp_path / "batch.json", tmp_path / "out.safetensors"
    batch.write_text(json.dumps({"sequences": sequences, "update": update, "temperature": TEMPERATURE, "lora": lora}))
    driver("gradients", tmp_path / "model", batch, out)
    got = load_file(out)
    assert set(got) == set(want) | {f"after.{name}" for name in want}
    for name in want:
        assert want[name].norm() > 0, name
        assert (got[name] - want[name]).norm() <= 1e-4 * want[name].norm(), name
        after = trained[name].detach()
        assert (after - before[name]).norm() > 0.01 * before[name].norm(), name
        assert (got[f"after.{name}"] - after).norm() <= 1e-4 * after.norm(), name


# The embedding, which is the head too, stays as it is: with the usual small one no answer could become likely.
LORA = ["deterministic=true", "device=cpu", "model.lora={rank: 8, alpha: 16}", "model.new.initializer_range=0.3",
        "checkpoint.keep=9", "warm_start.steps=30"]


def train(run, root, run_dir, *settings, estimator="gigpo", resume=False, **kwargs):
    sets = [word for s in (*LORA, *settings) for word in ("--set", s)]
    more = ["--resume"] if resume else []
    return run("train", root / f"recipes/smoke/{estimator}.yaml", *sets, "--run-dir", run_dir, *more, **kwargs)


def checkpoint(run_dir, iteration):
    return run_dir / f"checkpoints/iteration-{iteration:06}"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def finished(request, run, root, tmp_path_factory):
    """A finished run in each compute type; the one in bfloat16 has a critic too."""
    estimator = "ppo" if request.param == "bfloat16" else "gigpo"
    run_dir = tmp_path_factory.mktemp(request.param) / "run"
    done = train(run, root, run_dir, f"dtype={request.param}", estimator=estimator)
    assert done.returncode == 0, done.stderr
    return run_dir, request.param


@torch.no_grad()
def errors_of_bfloat16(run, run_dir, iteration, folder):
    """Errors of transformers' log-probs in bfloat16 on the responses of an iteration, with the policy that played it."""
    assert run("export", checkpoint(run_dir, iteration - 1), folder, "--dtype", "bfloat16").returncode == 0
    tokenizer = AutoTokenizer.from_pretrained(folder)
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    errors = []
    for line in (run_dir / f"rollouts/iteration-{iteration:06}.jsonl").open():
        for step in json.loads(line)["steps"]:
            start = len(tokenizer.encode(step["prompt"]))
            ids = torch.tensor([tokenizer.encode(step["prompt"] + step["response"])])
            exact, half = (torch.log_softmax(model(ids).logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])
                           for model in models)
            errors += (half - exact)[0, start - 1:].abs().flatten().tolist()
    return errors


def test_a_run_learns_through_its_adapters_alone(finished, run, tmp_path):
    run_dir, dtype = finished
    losses = [float(loss) for loss in re.findall(r"warm start \d+/30 \| loss ([0-9.]+)", (run_dir / "log.txt").read_text())]
    assert losses[-1] < 0.7 * losses[0]
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(row["grad/norm"] > 0 and row["loss/kl"] >= 0 for row in rows[1:])
    for row in rows[1:]:
        if dtype == "float32":
            assert row["rollout/logprob_diff_max"] < 1e-4
        else:
            errors = errors_of_bfloat16(run, run_dir, row["iteration"], tmp_path / str(row["iteration"]))
            assert row["rollout/logprob_diff_mean"] < sum(errors) / len(errors), row
            assert row["rollout/logprob_diff_max"] < max(errors), row

    kind = getattr(torch, dtype)
    base = {name: value.to(kind).float() for name, value in load_file(run_dir / "model/model.safetensors").items()}
    for iteration in range(3):
        assert not (checkpoint(run_dir, iteration) / "policy.safetensors").exists()
        adapter = load_file(checkpoint(run_dir, iteration) / "adapter_model.safetensors")
        merged = tmp_path / f"merged-{iteration}"
        assert run("export", checkpoint(run_dir, iteration), merged).returncode == 0
        merged = load_file(merged / "model.safetensors")
        assert base.keys() == merged.keys() and len(adapter) == 2 * 2 * len(PROJECTIONS)
        for name, before in base.items():
            module = name.removesuffix(".weight")
            if not module.endswith(PROJECTIONS):
                assert torch.equal(merged[name], before), name
                continue
            a, b = (adapter[f"base_model.model.{module}.lora_{which}.weight"] for which in "AB")
            assert not torch.equal(merged[name], before), name
            torch.testing.assert_close(merged[name], before + 2 * b @ a, rtol=1e-5, atol=1e-6)


def test_exports_are_what_the_run_computed_with(finished, run, run_json, tmp_path):
    run_dir, dtype = finished
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len({row["eval/return"] for row in rows}) > 1, "all models play alike: the comparison would show nothing"
    source, folder = checkpoint(run_dir, 2), tmp_path / "exported"
    assert run("export", source, folder, "--dtype", dtype).returncode == 0
    # A checkpoint keeps the adapters beside the weights. An export merges them, which rounds in bfloat16.
    for model in (source, folder) if dtype == "float32" else (source,):
        got = run_json("eval", run_dir / "recipe.yaml", "--model", model, "--json")
        assert [got[name] for name in ("success", "return", "length")] == [
            rows[2][f"eval/{name}"] for name in ("success", "return", "length")]
    if dtype == "bfloat16":
        critics = [load_file(checkpoint(run_dir, i) / "critic.safetensors") for i in (0, 2)]
        assert all(not torch.equal(value, critics[1][name]) for name, value in critics[0].items()), "a critic trains all"


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
@torch.no_grad()
def test_peft_loads_an_exported_adapter(finished, run, score, tmp_path):
    run_dir, _ = finished
    source = checkpoint(run_dir, 2)
    assert run("export", source, tmp_path / "merged").returncode == 0
    assert run("export", source, tmp_path / "adapter", "--adapter").returncode == 0
    base = AutoModelForCausalLM.from_pretrained(run_dir / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter")
    ids = list(range(5, 45))
    want = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
    want = want.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert score(tmp_path / "merged", [ids])[0] == pytest.approx(want, abs=1e-4)
    assert score(run_dir / "model", [ids])[0] != pytest.approx(want, abs=1e-2)


@pytest.mark.parametrize("init, targets", [("kaiming", None), ("gaussian", ["k_proj", "down_proj"])])
def test_adapters_begin_as_peft_has_them(init, targets, run, root, score, tmp_path):
    wide = "model.new={hidden_size: 64, intermediate_size: 96, layers: 1, heads: 4, kv_heads: 2, vocab_size: 300}"
    done = train(run, root, tmp_path / "run", wide, "warm_start=null", "iterations=0", "dtype=float32", "eval.tasks=1",
                 "model.lora.rank=64", f"model.lora.init={init}", f"model.lora.target_modules={json.dumps(targets)}")
    assert done.returncode == 0, done.stderr
    adapter = load_file(checkpoint(tmp_path / "run", 0) / "adapter_model.safetensors")
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=64, target_modules=targets or "all-linear", task_type="CAUSAL_LM",
                                            init_lora_weights={"kaiming": True, "gaussian": "gaussian"}[init]))
    want = {name.replace(".default", ""): p for name, p in model.named_parameters() if "lora" in name}
    assert {name: value.shape for name, value in adapter.items()} == {name: p.shape for name, p in want.items()}
    for name, value in adapter.items():
        if "lora_B" in name:
            assert not value.any(), name
            continue
        bound = 1 / math.sqrt(value.shape[1])
        assert abs(value.mean()) < 0.03 * bound, name
        if init == "kaiming":
            assert 0.99 * bound < value.abs().max() <= bound, name
        assert value.std().item() == pytest.approx(want[name].std().item(), rel=0.03), name
    assert len({value.flatten()[0].item() for name, value in adapter.items() if "lora_A" in name}) == len(targets or PROJECTIONS)
    assert run("export", checkpoint(tmp_path / "run", 0), tmp_path / "start").returncode == 0
    ids = list(range(5, 45))
    assert score(tmp_path / "start", [ids]) == score(tmp_path / "run/model", [ids])
    # A run that continues trains what it began with, and peft loads the export.
    done = train(run, root, tmp_path / "run", wide, "warm_start=null", "iterations=1", "dtype=float32", "eval.tasks=1",
                 "model.lora.rank=64", f"model.lora.init={init}", f"model.lora.target_modules={json.dumps(targets)}", "update.lr=0.05",
                 resume=True)
    assert done.returncode == 0, done.stderr
    source = checkpoint(tmp_path / "run", 1)
    assert run("export", source, tmp_path / "adapter", "--adapter").returncode == 0
    assert run("export", source, tmp_path / "merged").returncode == 0
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype=torch.float32), tmp_path / "adapter")
    with torch.no_grad():
        want = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert score(tmp_path / "merged", [ids])[0] == pytest.approx(want, abs=1e-4)
    assert score(tmp_path / "start", [ids])[0] != pytest.approx(want, abs=1e-3)


def test_killed_and_resumed(run, root, tmp_path):
    recipe = root / "recipes/smoke/gigpo.yaml"
    settings = [*LORA, "iterations=4", "dtype=bfloat16", "warm_start.steps=10", "eval.tasks=2"]
    sets = [word for s in settings for word in ("--set", s)]
    assert run("train", recipe, *sets, "--run-dir", tmp_path / "whole").returncode == 0
    want = outcome(tmp_path / "whole")
    assert "adapter_model.safetensors" in want[0]
    # While the checkpoint of iteration 2 is written, after the reference and those of 0 and 1.
    kill_and_resume(run, recipe, tmp_path / "killed", "before-rename:4", settings, want)


@pytest.mark.parametrize("finished", ["float32"], indirect=True)
def test_refusals(finished, run, root, tmp_path):
    def refused(done, *parts):
        line = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 2 and all(part in line for part in parts), done.stderr

    run_dir, weights = tmp_path / "run", tmp_path / "run/model/model.safetensors"
    shutil.copytree(finished[0], run_dir)
    tensors = load_file(weights)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-3
    save_file(tensors, weights, {"format": "pt"})
    again = ("dtype=float32", "iterations=3")
    sets = [word for s in (*LORA, *again) for word in ("--set", s)]
    recipe = root / "recipes/smoke/gigpo.yaml"
    refused(run("train", recipe, *sets, "--run-dir", run_dir, "--resume"), str(run_dir / "model"), "weights are not those")
    refused(run("train", recipe, *sets, "--set", "model.lora.alpha=8", "--run-dir", run_dir, "--resume"), "model.lora.alpha: 16.0 -> 8.0")
    refused(run("train", recipe, *sets, "--set", "model.lora.target_modules=[q_proj, q_proj]", "--check"), "target_modules", "each once")
    refused(run("train", recipe, *sets, "--set", "model.lora.target_modules=[qproj]", "--check"), "qproj", "q_proj")

    sets = ["--set", "warm_start=null", "--set", "iterations=0", "--set", "eval.tasks=1"]
    assert run("train", recipe, *sets, "--run-dir", tmp_path / "all").returncode == 0
    refused(run("export", checkpoint(tmp_path / "all", 0), tmp_path / "none", "--adapter"), "holds no adapter")
