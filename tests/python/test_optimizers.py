"""Optimizers over 20 steps against PyTorch's own in float64, at one rank and at two; and runs with Muon: two ranks train as one,
and a killed run resumes bit-identical."""
import json
import signal

import pytest
import torch
from conftest import ROOT, run_ranks
from rank_runs import apart, episodes, train, warm_start
from safetensors.torch import load_file, save_file
from test_resume import SETTINGS, outcome
from test_resume import train as train_recipe

STEPS, LR, DECAY, CLIP = 20, 0.02, 0.1, 30.0
# The outer unit has matrices that are no hidden ones.
UNITS = {"block 0": {"tall": (48, 20), "norm": (33,), "wide": (20, 64), "bias": (7,), "square": (32, 32)},
         "merger": {"long": (200, 3), "row": (1, 40)},
         "outer": {"embedding": (50, 16), "head": (50, 16)},
         "patch embedding": {"patches": (8, 3, 2, 4, 4)}}
MUON = {"name": "muon", "momentum": 0.9, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": DECAY, "adamw_lr_ratio": 0.25}
RUNS = ["update.optimizer.name=muon", "update.lr=1e-3"]


def pytorch(tensors, hidden, optimizers):
    """The final parameters of PyTorch's optimizers in float64, `hidden` by the first and the others by the second."""
    params = {name: t.double().requires_grad_() for name, t in tensors.items() if "." not in name}
    split = [[p for name, p in params.items() if (name in hidden) == first] for first in (True, False)]
    made = [make(group) for make, group in zip(optimizers, split) if group]
    for step in range(STEPS):
        for name, param in params.items():
            param.grad = tensors[f"{name}.{step}"].double()
        torch.nn.utils.clip_grad_norm_(params.values(), CLIP)
        for optimizer in made:
            optimizer.step()
    return params


@pytest.mark.parametrize("optimizer, scale", [("adamw", None), ("muon", "match_rms_adamw"), ("muon", "aspect_ratio")])
def test_steps_equal_those_of_pytorch(optimizer, scale, tmp_path, monkeypatch):
    # PyTorch's Muon iterates in bfloat16; its own code is run in float64 instead.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    g = torch.Generator().manual_seed(1)
    shapes = {name: shape for unit in UNITS.values() for name, shape in unit.items()}
    tensors = {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}
    # Some gradients are above the clip; those of a matrix share a direction, as in training.
    tensors |= {f"{name}.{step}": (0.2 + step / 20) * torch.randn(shape, generator=g) + 0.3 * tensors[name]
                for name, shape in shapes.items() for step in range(STEPS)}
    hidden = {"tall", "wide", "square", "long", "row"} if optimizer == "muon" else set()
    section = MUON | {"scale": scale} if scale else {"name": "adamw", "betas": [0.9, 0.99], "weight_decay": DECAY}
    named = {"aspect_ratio": "original"}.get(scale, scale)
    want = pytorch(tensors, hidden, [
        lambda group: torch.optim.Muon(group, lr=LR, momentum=0.9, weight_decay=DECAY, adjust_lr_fn=named),
        lambda group: torch.optim.AdamW(group, lr=LR * section.get("adamw_lr_ratio", 1), betas=(0.9, 0.99), eps=1e-8,
                                        weight_decay=DECAY)])
    steps, start, out = (tmp_path / name for name in ("steps.json", "tensors.safetensors", "out.safetensors"))
    save_file(tensors, start)
    steps.write_text(json.dumps({"optimizer": section, "lr": LR, "grad_clip": CLIP, "steps": STEPS,
                                 "units": {unit: list(params) for unit, params in UNITS.items()}}))
    for world in (1, 2):
        run_ranks(world, [ROOT / "target/release/optimize", steps, start, out])
        got = load_file(out)
        assert got.keys() == want.keys()
        for name, param in want.items():
            assert (param - tensors[name]).abs().max() > 0.05, name
            assert (got[name] - param).abs().max() <= 1e-5, (world, name)


def test_two_ranks_train_as_one_with_muon(tmp_path):
    start = warm_start(1, tmp_path / "start")
    one, two = (train(world, "full", "gigpo.yaml", tmp_path / str(world), 3, *start, *RUNS, "update.lr=1e-5")
                for world in (1, 2))
    assert episodes(one) == episodes(two)
    figures = apart(one, two)
    assert figures["norm"] <= 1e-5 and figures["loss"] <= 1e-6 and figures["parameters"] <= 1e-5, figures
    # Each rank holds the momentum of its own elements of the matrices.
    saved = [load_file(file) for file in (two / "checkpoints/iteration-000003").glob("momentum_buffer-*")]
    names = [{name.split("[")[0] for name in tensors} for tensors in saved]
    matrices = {name for name in names[0] | names[1]}
    assert len(saved) == 2 and len(matrices) == 14 and all(name.endswith("_proj.weight") for name in matrices)
    assert sum(t.numel() for tensors in saved for t in tensors.values()) == 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64)


def test_a_killed_run_with_muon_resumes_as_if_it_had_not_been(run, root, tmp_path):
    recipe = root / "recipes/smoke/gigpo.yaml"
    settings = [*SETTINGS, *RUNS]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = train_recipe(run, recipe, whole, settings=settings)
    assert done.returncode == 0, done.stderr
    ended = train_recipe(run, recipe, killed, failpoint="mid-mini-batch:5", settings=settings)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    resumed = train_recipe(run, recipe, killed, "--resume", settings=settings)
    assert resumed.returncode == 0, resumed.stderr
    (files, rows), (want, want_rows) = outcome(killed), outcome(whole)
    assert "momentum_buffer.safetensors" in files and files == want and rows == want_rows
    # Another optimizer has another state.
    other = train_recipe(run, recipe, killed, "--resume", "--allow-change", "update.optimizer.name",
                         settings=[*SETTINGS, "iterations=5"])
    assert other.returncode == 2 and "its run had another optimizer" in other.stderr, other.stderr
