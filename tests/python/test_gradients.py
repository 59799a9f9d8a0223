"""Gradients of the packed, block-wise update against autograd of transformers' model on right-padded rows, float32.

Each tensor must agree within 1e-4 relative (L2), the whole within 1e-5; tied and untied embeddings, one response in a
sequence and conversations with several (the loss is on responses alone, each with its own advantage), one-token responses, KL and entropy terms on, ratios away from 1, everything or nothing recomputed, several micro-batches.
Dr. GRPO and GSPO too, over one and two ranks and in a short mini-batch.
"""
import itertools
import json

import pytest
import torch
from conftest import ROOT, run_ranks
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

CLIP_LOW, CLIP_HIGH, DUAL_CLIP, ENTROPY, KL, TEMPERATURE = 0.2, 0.28, 3.0, 0.01, 0.05, 0.9


def make_model(architecture, tied, directory):
    torch.manual_seed(1)
    settings = dict(vocab_size=300, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
                    num_key_value_heads=2, max_position_embeddings=512, rope_theta=1e6, rms_norm_eps=1e-6,
                    tie_word_embeddings=tied)
    if architecture == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**settings, head_dim=24))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**settings))
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


SINGLE = [[(5, 1)], [(40, 7)], [(17, 12)], [(33, 1)], [(8, 20)], [(40, 3)], [(90, 9)]]
# Turns of (new tokens, response tokens); responses of one token, and follow-ups of one token between two responses.
CONVERSATIONS = [[(5, 1), (4, 3), (1, 1)], [(40, 7)], [(17, 12), (8, 20)], [(6, 1), (1, 5), (30, 2), (3, 9)], [(20, 4)]]
# The third number says how many tokens a sequence begins with in common with the first one: its prompt, a part, all of it.
ALIKE = [[(40, 9)], [(40, 7, 40)], [(40, 7, 44)], [(40, 9, 49)], [(60, 5, 49)], [(12, 3, 9)], [(30, 4)], [(40, 2, 40), (3, 2)]]


def make_sequences(shapes):
    g, first = torch.Generator().manual_seed(2), []
    def turn(prompt, response, common=0):
        ids = torch.randint(0, 300, (prompt + response,), generator=g).tolist()
        first.extend([] if first else ids)
        ids[:common] = first[:common]
        return {"prompt": ids[:prompt], "response": ids[prompt:], "advantage": float(torch.randn((), generator=g)) * 2}
    return [[turn(*shape) for shape in turns] for turns in shapes]


def padded_stats(model, sequences):
    """Log-probs and entropies of the response tokens, one padded row for each sequence: (L) tensors, turn by turn."""
    tokens = [sum((turn["prompt"] + turn["response"] for turn in turns), []) for turns in sequences]
    length = max(map(len, tokens))
    ids = torch.tensor([t + [0] * (length - len(t)) for t in tokens])
    mask = torch.tensor([[1] * len(t) + [0] * (length - len(t)) for t in tokens])
    logits = model(ids, attention_mask=mask, use_cache=False).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / TEMPERATURE
    logp = torch.log_softmax(logits, -1)
    out = []
    for i, turns in enumerate(sequences):
        start = 0
        for turn in turns:
            start += len(turn["prompt"])
            end = start + len(turn["response"])
            at = logp[i, start - 1 : end - 1]
            out.append((at.gather(-1, torch.tensor(turn["response"])[:, None])[:, 0], -(at.exp() * at).sum(-1)))
            start = end
    return out


def token_sums(stats, rows):
    """Section 2 of the algorithm's description: policy loss, KL and entropy, summed over all response tokens."""
    policy = kl = entropy = 0.0
    for (logp, ent), r in zip(stats, rows, strict=True):
        a, old, ref = r["advantage"], torch.tensor(r["old"]), torch.tensor(r["ref"])
        ratio = torch.exp(logp - old)
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH))
        if a < 0:
            loss = torch.minimum(loss, torch.full_like(loss, -a * DUAL_CLIP))
        d = ref - logp
        # Terms of both signs nearly cancel.
        policy = policy + loss.sum(dtype=torch.float64)
        kl = kl + (d.exp() - d - 1).clamp(-10, 10).sum(dtype=torch.float64)
        entropy = entropy + ent.sum(dtype=torch.float64)
    return policy, kl, entropy


def reference_loss(stats, rows):
    """The whole loss, and its parts, token-mean over all response tokens."""
    total = sum(len(r["response"]) for r in rows)
    policy, kl, entropy = (x / total for x in token_sums(stats, rows))
    return policy - ENTROPY * entropy + KL * kl, policy, kl, entropy


def old_log_probs(logp, std, generator):
    """Around these log-probs, so that no ratio is near a bound of the clipping, where its gradient jumps: rounding would decide on
    which side it is."""
    noise = std * torch.randn(logp.shape, generator=generator)
    near = [((-noise).exp() - bound).abs() < 0.03 for bound in (1 - CLIP_LOW, 1 + CLIP_HIGH, DUAL_CLIP)]
    return (logp + noise.masked_fill(torch.stack(near).any(0), 0)).tolist()


def with_old_and_ref(model, sequences, old, ref):
    """The turns, with old and reference log-probs around the model's own, at these standard deviations."""
    rows = sum(sequences, [])
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for (logp, _), r in zip(padded_stats(model, sequences), rows, strict=True):
            r["old"] = old_log_probs(logp, old, g)
            r["ref"] = (logp + ref * torch.randn(logp.shape, generator=g)).tolist()
    return rows


def assert_gradients_equal(got, want):
    assert set(got) == set(want)
    for name in want:
        scale = want[name].norm()
        assert (got[name] - want[name]).norm() <= 1e-4 * scale, name
        assert scale > 0, name
    both = [torch.cat([t[name].flatten() for name in sorted(want)]) for t in (got, want)]
    assert (both[0] - both[1]).norm() <= 1e-5 * both[1].norm()


def compare_with_autograd(architecture, shapes, tied, recompute, tmp_path, driver):
    """Fails unless the program's gradients are those of autograd. Returns a function that computes the program's again."""
    model = make_model(architecture, tied, tmp_path / "model")
    sequences = make_sequences(shapes)
    rows = with_old_and_ref(model, sequences, 0.3, 0.5)
    loss, policy, kl, entropy = reference_loss(padded_stats(model, sequences), rows)
    loss.backward()
    want = {name: p.grad for name, p in model.named_parameters()}

    update = {"mini_batch": len(rows), "lr": 1e-3, "micro_batch_tokens": 120, "clip_low": CLIP_LOW,
              "clip_high": CLIP_HIGH, "dual_clip": DUAL_CLIP, "entropy": ENTROPY, "recompute": recompute,
              "kl": {"coef": KL, "kind": "k3"}}
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps({"sequences": sequences, "update": update, "temperature": TEMPERATURE}))
    out = tmp_path / "gradients.safetensors"

    def gradients():
        sums = json.loads(driver("gradients", tmp_path / "model", batch, out))
        # Copies, since the next call overwrites the file.
        return sums, {name: gradient.clone() for name, gradient in load_file(out).items()}

    sums, got = gradients()
    assert sums["policy"] == pytest.approx(policy.item(), abs=1e-5)
    assert sums["kl"] == pytest.approx(kl.item(), abs=1e-5)
    assert sums["entropy"] == pytest.approx(entropy.item(), rel=1e-5)
    assert_gradients_equal(got, want)
    return gradients


@pytest.mark.parametrize("architecture, shapes, tied, recompute", [
    *(("qwen2", SINGLE, tied, recompute) for tied in (True, False) for recompute in ("all", "none", 2)),
    ("qwen2", CONVERSATIONS, True, "all"), ("qwen2", CONVERSATIONS, False, "none"),
    ("qwen3", SINGLE, True, "all"), ("qwen3", CONVERSATIONS, False, 2),
    ("qwen2", ALIKE, True, "all"), ("qwen3", ALIKE, False, "none"),
])
def test_gradients_equal_autograd(architecture, shapes, tied, recompute, tmp_path, driver, ops):
    compare_with_autograd(architecture, shapes, tied, recompute, tmp_path, driver)


@pytest.mark.parametrize("architecture, shapes, tied", [("qwen2", ALIKE + CONVERSATIONS, True), ("qwen3", ALIKE, False)])
def test_own_kernels(architecture, shapes, tied, tmp_path, driver, own_kernels, monkeypatch):
    gradients = compare_with_autograd(architecture, shapes, tied, 2, tmp_path, driver)
    if architecture == "qwen3":
        return  # the same kernels
    sums, want = gradients()
    # A kernel that writes wrong numbers shows, so each one was used.
    for kernel in ("rms_norm", "add_norm", "rms_norm_grad", "rotate", "rotate_gather", "rotate_grad", "column_sums", "silu_mul", "silu_mul_grad",
                   "head_statistics", "head_gradient"):
        monkeypatch.setenv("NESTOR_EMULATOR_DAMAGE", f"{kernel}_f32")
        damaged_sums, got = gradients()
        assert damaged_sums != sums or any((got[name] != want[name]).any() for name in want), kernel


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_sequences_that_begin_alike(world, tmp_path):
    on_ranks = lambda name, *args: run_ranks(world, [ROOT / "target/release" / name, *args])
    compare_with_autograd("qwen2", ALIKE, True, "all", tmp_path, on_ranks)


LONGEST = 16  # rollout.max_response_tokens in the driver
MINI_BATCH = 10  # more responses than there are: a short mini-batch


def dr_grpo(logp, r):
    """arXiv:2503.20783: token losses of a response, summed and divided by a constant."""
    ratio = torch.exp(logp - torch.tensor(r["old"]))
    loss = torch.maximum(-r["advantage"] * ratio, -r["advantage"] * ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH))
    return loss.minimum(torch.tensor(-r["advantage"] * DUAL_CLIP)) if r["advantage"] < 0 else loss


def gspo(logp, r):
    """arXiv:2507.18071, equations 5 and 7: one ratio for the response, which every token has here."""
    ratio = torch.exp((logp - torch.tensor(r["old"])).mean())
    loss = torch.maximum(-r["advantage"] * ratio, -r["advantage"] * ratio.clamp(1 - 0.01, 1 + 0.02))
    return loss.expand(len(logp))


def cispo(logp, r):
    """arXiv:2506.13585, section 3.1: the clipped ratio is a constant weight."""
    weight = torch.exp(logp.detach() - torch.tensor(r["old"])).clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return -r["advantage"] * weight * logp


REDUCTIONS = {
    "token-mean": lambda each: torch.cat(each).sum() / sum(map(len, each)),
    "seq-mean-token-mean": lambda each: sum(x.sum() / len(x) for x in each) / len(each),
    "seq-mean-token-sum-norm": lambda each: sum(x.sum() / LONGEST for x in each) / len(each),
    "token-sum-norm": lambda each: sum(x.sum() for x in each) / LONGEST,
}
GSPO = {"loss": "gspo", "aggregation": "seq-mean-token-mean", "clip_low": 0.01, "clip_high": 0.02}


# Keys of `update`, the loss of a response's tokens, and the reductions of its policy term and of KL and entropy.
@pytest.mark.parametrize("keys, token_loss, policy_term, regularizers", [
    ({"aggregation": "seq-mean-token-sum-norm"}, dr_grpo, "seq-mean-token-sum-norm", "seq-mean-token-sum-norm"),
    ({"aggregation": "token-sum-norm"}, dr_grpo, "token-sum-norm", "token-sum-norm"),
    (GSPO, gspo, "seq-mean-token-mean", "token-mean"),
    (GSPO | {"regularizer_aggregation": "seq-mean-token-mean"}, gspo, "seq-mean-token-mean", "seq-mean-token-mean"),
    ({"loss": "cispo", "aggregation": "token-mean"}, cispo, "token-mean", "token-mean"),
], ids=["dr_grpo", "reference_scaling", "gspo", "gspo_regularizers_by_response", "cispo"])
def test_dr_grpo_gspo_and_cispo_equal_autograd(keys, token_loss, policy_term, regularizers, tmp_path):
    model = make_model("qwen2", True, tmp_path / "model")
    sequences = make_sequences(CONVERSATIONS)
    # GSPO's ratios are means over a response, so differences are small for some to be inside the clip range.
    rows = with_old_and_ref(model, sequences, 0.03 if token_loss is gspo else 0.3, 0.5)
    stats = padded_stats(model, sequences)
    policy = REDUCTIONS[policy_term]([token_loss(logp, r) for (logp, _), r in zip(stats, rows, strict=True)])
    gaps = [torch.tensor(r["ref"]) - logp for (logp, _), r in zip(stats, rows, strict=True)]
    kl = REDUCTIONS[regularizers]([gap.exp() - gap - 1 for gap in gaps])
    entropy = REDUCTIONS[regularizers]([entropy for _, entropy in stats])
    loss = policy - ENTROPY * entropy + KL * kl
    loss.backward()
    want = {name: p.grad for name, p in model.named_parameters()}

    def gradients(world, **more):
        update = {"mini_batch": MINI_BATCH, "lr": 1e-3, "micro_batch_tokens": 60, "clip_low": CLIP_LOW,
                  "clip_high": CLIP_HIGH, "dual_clip": DUAL_CLIP, "entropy": ENTROPY, "kl": {"coef": KL, "kind": "k3"}}
        batch, out = tmp_path / "batch.json", tmp_path / "gradients.safetensors"
        given = {"sequences": sequences, "update": update | keys | more, "temperature": TEMPERATURE}
        batch.write_text(json.dumps(given))
        program = ROOT / "target/release/gradients"
        sums = json.loads(run_ranks(world, [program, tmp_path / "model", batch, out]))
        return sums, load_file(out)

    for world in (1, 2):
        sums, got = gradients(world)
        assert sums["policy"] == pytest.approx(policy.item(), abs=1e-6)
        assert sums["total"] == pytest.approx(loss.item(), abs=1e-6)
        assert_gradients_equal(got, want)

    # A mean over a full mini-batch's responses. A sum has less of a short mini-batch by itself.
    share = 1 if keys["aggregation"] == "token-sum-norm" else len(rows) / MINI_BATCH
    _, got = gradients(1, short_mini_batch="reference")
    assert_gradients_equal(got, {name: gradient * share for name, gradient in want.items()})
