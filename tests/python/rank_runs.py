"""One recipe at several numbers of ranks, and the differences between two such runs."""
import json
import subprocess
from pathlib import Path

import torch
from conftest import ROOT, run_ranks
from safetensors.torch import load_file

NESTOR = ROOT / "target/release/nestor"
# A gradient's norm is relative, a loss absolute, parameters relative by L2.
TARGETS = {"norm": 1e-5, "loss": 1e-7, "parameters": 1e-6}
# Sums in another order round differently, and AdamW amplifies that. So steps are as small as in fine-tuning, and mini-batches
# and the entropy bonus are large enough that no gradient is almost zero.
SETTINGS = ["deterministic=true", "device=cpu", "dtype=float32", "rollout.tasks=8", "update.mini_batch=64",
            "update.short_mini_batch=reference", "update.micro_batch_tokens=512", "update.lr=1e-5", "update.entropy=0.02",
            "eval.every=0"]


def train(world, sharding, recipe, run_dir, iterations, *settings):
    sets = [*SETTINGS, f"iterations={iterations}", f"sharding={sharding}", *settings]
    sets = [word for key in sets for word in ("--set", key)]
    run_ranks(world, [NESTOR, "train", ROOT / "recipes/smoke" / recipe, "--run-dir", run_dir, *sets])
    return run_dir


def warm_start(world, run_dir, recipe="gigpo.yaml"):
    """The smoke model after its warm start; returns the settings of runs that begin with it."""
    train(world, "full", recipe, run_dir, 1)
    return [f"model.path={export(run_dir, 0)}", "model.new=null", "warm_start=null", "checkpoint.every=0"]


def export(run_dir, iteration, *which):
    """A checkpoint in Hugging Face form; `which` are options of `nestor export`."""
    folder = run_dir / "-".join(["exported", str(iteration), *which])
    if not folder.exists():
        checkpoint = run_dir / f"checkpoints/iteration-{iteration:06}"
        subprocess.run([NESTOR, "export", checkpoint, folder, *which], check=True, stdout=subprocess.DEVNULL)
    return folder


def rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def episodes(run_dir):
    """The episodes of each iteration, without the numbers that depend on the last bits of weights and sums."""
    played = [rows(path) for path in sorted((run_dir / "rollouts").glob("iteration-*.jsonl"))]
    for step in (step for iteration in played for episode in iteration for step in episode["steps"]):
        del step["advantage"], step["logprobs"]
    return played


def parameters_apart(folder, other, without=()):
    """Relative difference (L2) of all parameters, those with the endings `without` excepted."""
    def vector(folder):
        tensors = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
        return torch.cat([tensors[name].flatten().double() for name in sorted(tensors) if not name.endswith(without)])
    one, two = vector(folder), vector(other)
    return float((one - two).norm() / one.norm())


def apart(run_dir, other, *which):
    """The largest differences between two runs over all optimizer steps, and between their final parameters."""
    # The critic's steps have no rows of their own.
    pairs = [("steps", "loss/total", "grad/norm"), ("steps", "loss/policy", None), ("steps", "loss/kl", None),
             ("metrics", "loss/value", "value/grad_norm")]
    figures = {"norm": 0.0, "loss": 0.0}
    for file, loss, norm in pairs:
        one, two = rows(run_dir / f"{file}.jsonl"), rows(other / f"{file}.jsonl")
        assert len(one) == len(two)
        for a, b in ((a, b) for a, b in zip(one, two) if loss in a):
            figures["loss"] = max(figures["loss"], abs(a[loss] - b[loss]))
            if norm:
                figures["norm"] = max(figures["norm"], abs(b[norm] / a[norm] - 1))
    last = rows(run_dir / "metrics.jsonl")[-1]["iteration"]
    return figures | {"parameters": parameters_apart(*(export(d, last, *which) for d in (run_dir, other)))}
