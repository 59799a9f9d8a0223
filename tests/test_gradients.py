"""Gradients of the packed, block-wise update against autograd of transformers' model on right-padded rows, float32.

Each tensor must agree within 1e-4 relative (L2), the whole within 1e-5; tied and untied embeddings, one-token
responses, KL and entropy terms on, ratios away from 1, everything or nothing recomputed, several micro-batches.
"""
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

CLIP_LOW, CLIP_HIGH, DUAL_CLIP, ENTROPY, KL, TEMPERATURE = 0.2, 0.28, 3.0, 0.01, 0.05, 0.9


def make_model(tied, directory):
    torch.manual_seed(1)
    config = Qwen2Config(vocab_size=300, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rope_theta=1e6,
                         rms_norm_eps=1e-6, tie_word_embeddings=tied)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight"):
                p.normal_(1.0, 0.1)
            elif name.endswith("bias"):
                p.normal_(0.0, 0.1)
            else:
                p.normal_(0.0, 0.08)
    model.save_pretrained(directory)
    return model


def make_rows():
    g = torch.Generator().manual_seed(2)
    rows = []
    for prompt, response in [(5, 1), (40, 7), (17, 12), (33, 1), (8, 20), (40, 3), (90, 9)]:
        ids = torch.randint(0, 300, (prompt + response,), generator=g).tolist()
        rows.append({"prompt": ids[:prompt], "response": ids[prompt:],
                     "advantage": float(torch.randn((), generator=g)) * 2})
    return rows


def padded_stats(model, rows):
    """Log-probs and entropies of the response tokens, one padded row each: lists of (L) tensors."""
    length = max(len(r["prompt"]) + len(r["response"]) for r in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for i, r in enumerate(rows):
        tokens = torch.tensor(r["prompt"] + r["response"])
        ids[i, : len(tokens)], mask[i, : len(tokens)] = tokens, 1
    logits = model(ids, attention_mask=mask, use_cache=False).logits.float() / TEMPERATURE
    logp = torch.log_softmax(logits, -1)
    out = []
    for i, r in enumerate(rows):
        p, n = len(r["prompt"]), len(r["response"])
        at = logp[i, p - 1 : p + n - 1]
        out.append((at.gather(-1, torch.tensor(r["response"])[:, None])[:, 0], -(at.exp() * at).sum(-1)))
    return out


def reference_loss(stats, rows):
    """Section 2 of the algorithm's description, token-mean over all response tokens."""
    total = sum(len(r["response"]) for r in rows)
    policy = kl = entropy = 0.0
    for (logp, ent), r in zip(stats, rows):
        a, old, ref = r["advantage"], torch.tensor(r["old"]), torch.tensor(r["ref"])
        ratio = torch.exp(logp - old)
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH))
        if a < 0:
            loss = torch.minimum(loss, torch.full_like(loss, -a * DUAL_CLIP))
        policy = policy + loss.sum() / total
        d = ref - logp
        kl = kl + (d.exp() - d - 1).clamp(-10, 10).sum() / total
        entropy = entropy + ent.sum() / total
    return policy - ENTROPY * entropy + KL * kl, policy, kl, entropy


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("recompute", ["all", "none", 2])
def test_gradients_equal_autograd(tied, recompute, tmp_path, example):
    model = make_model(tied, tmp_path / "model")
    rows = make_rows()
    with torch.no_grad():
        g = torch.Generator().manual_seed(3)
        for (logp, _), r in zip(padded_stats(model, rows), rows):
            r["old"] = (logp + 0.3 * torch.randn(logp.shape, generator=g)).tolist()
            r["ref"] = (logp + 0.5 * torch.randn(logp.shape, generator=g)).tolist()
    loss, policy, kl, entropy = reference_loss(padded_stats(model, rows), rows)
    loss.backward()
    want = {name: p.grad for name, p in model.named_parameters()}

    update = {"mini_batch": len(rows), "lr": 1e-3, "micro_batch_tokens": 120, "clip_low": CLIP_LOW,
              "clip_high": CLIP_HIGH, "dual_clip": DUAL_CLIP, "entropy": ENTROPY, "recompute": recompute,
              "kl": {"coef": KL, "kind": "k3"}}
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps({"sequences": rows, "update": update, "temperature": TEMPERATURE}))
    out = tmp_path / "gradients.safetensors"
    sums = json.loads(example("gradients", tmp_path / "model", batch, out))
    got = load_file(out)

    assert sums["policy"] == pytest.approx(policy.item(), abs=1e-5)
    assert sums["kl"] == pytest.approx(kl.item(), abs=1e-5)
    assert sums["entropy"] == pytest.approx(entropy.item(), rel=1e-5)
    assert set(got) == set(want)
    for name in want:
        scale = want[name].norm()
        assert (got[name] - want[name]).norm() <= 1e-4 * scale, name
        assert scale > 0, name
    both = [torch.cat([t[name].flatten() for name in sorted(want)]) for t in (got, want)]
    assert (both[0] - both[1]).norm() <= 1e-5 * both[1].norm()
