"""Whole iterations of updates against PyTorch's `fully_shard` at two ranks (Gloo, float32) on the same sequences: ours at
one rank, and at two with everything spread and with the weights kept whole. Losses within 1e-7 and gradient norms within
1e-5 relative at each optimizer step, final parameters within 1e-6 relative (L2).

Each iteration makes three steps; the last mini-batch is one sequence, so that a rank is idle. A sequence as long as all
others of its mini-batch leaves one rank with a single micro-batch and the other with several.
"""
import json
import sys

import pytest
import torch
from conftest import ROOT, run_ranks
from safetensors.torch import load_file
from test_gradients import CLIP_HIGH, CLIP_LOW, DUAL_CLIP, ENTROPY, KL, TEMPERATURE, make_model, old_log_probs, padded_stats

# Turns of (new tokens, response tokens); five turns each in the first two mini-batches.
SHAPES = [[(30, 150)], [(9, 40)], [(17, 31), (8, 20)], [(3, 25)],
          [(40, 90)], [(25, 1), (6, 30)], [(12, 60)], [(2, 1)],
          [(20, 100), (6, 90), (3, 70)]]
UPDATE = {"mini_batch": 5, "lr": 1e-5, "micro_batch_tokens": 100, "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH,
          "dual_clip": DUAL_CLIP, "entropy": ENTROPY, "kl": {"coef": KL, "kind": "k3"}, "grad_clip": 0.8,
          "optimizer": {"betas": [0.9, 0.99], "weight_decay": 0.1}}


def make_batches(model, iterations):
    """Random sequences whose old and reference log-probs lie around those of the model."""
    g = torch.Generator().manual_seed(4)
    batches = []
    for _ in range(iterations):
        batch = []
        for shapes in SHAPES:
            ids = [torch.randint(0, 300, (p + r,), generator=g).tolist() for p, r in shapes]
            batch.append([{"prompt": i[:p], "response": i[p:], "advantage": float(torch.randn((), generator=g)) / 2}
                          for i, (p, _) in zip(ids, shapes)])
        with torch.no_grad():
            stats = padded_stats(model, batch)
        for (logp, _), turn in zip(stats, sum(batch, []), strict=True):
            turn |= {"old": old_log_probs(logp, 0.3, g), "ref": (logp + 0.3 * torch.randn(logp.shape, generator=g)).tolist()}
        batches.append(batch)
    return batches


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def whole(tensors):
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors)])


@pytest.mark.parametrize("tied, iterations", [(True, 20), (False, 6)])
def test_updates_equal_those_of_fully_shard(tied, iterations, tmp_path):
    model = make_model("qwen2", tied, tmp_path / "model")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = tmp_path / "batches.json"
    given = {"batches": make_batches(model, iterations), "update": UPDATE, "temperature": TEMPERATURE}
    batches.write_text(json.dumps(given))

    def run(world, program, *args):
        out = tmp_path / "out.safetensors"
        steps = lines(run_ranks(world, [*program, tmp_path / "model", batches, out, *args]))
        return steps, load_file(out)

    want, parameters = run(2, [sys.executable, ROOT / "tests/python/fully_shard.py"])
    assert len(want) == 3 * iterations
    clipped = [step["norm"] > UPDATE["grad_clip"] for step in want]
    assert any(clipped) and not all(clipped)
    moved = (whole(parameters) - whole(before)).norm() / whole(before).norm()
    assert moved > 3e-4

    for world, sharding in ((1, "full"), (2, "full"), (2, "grad_op")):
        steps, got = run(world, [ROOT / "target/release/updates"], sharding)
        assert len(steps) == len(want)
        for number, (own, theirs) in enumerate(zip(steps, want)):
            for loss in ("total", "policy", "kl"):
                assert own[loss] == pytest.approx(theirs[loss], abs=1e-7, rel=0), (world, sharding, number, loss)
            assert own["norm"] == pytest.approx(theirs["norm"], rel=1e-5), (world, sharding, number)
        assert set(got) == set(parameters)
        apart = (whole(got) - whole(parameters)).norm() / whole(parameters).norm()
        assert apart <= 1e-6, (world, sharding, apart)
