"""The critic against transformers' token classification with one label on padded rows, float32: values, clipped value
loss and its gradients (per tensor 1e-4 relative, L2); sequences with one response and with several."""
import json

import pytest
import torch
from safetensors.torch import load_file
from test_gradients import make_model
from transformers import AutoModelForTokenClassification

CLIP = 0.5


def make_critic(policy):
    """The policy's network under a random head."""
    config = type(policy.config)(**{**policy.config.to_dict(), "num_labels": 1, "tie_word_embeddings": False})
    critic = AutoModelForTokenClassification.from_config(config).eval()
    critic.model.load_state_dict(policy.model.state_dict())
    torch.manual_seed(4)
    with torch.no_grad():
        critic.score.weight.normal_(0, 0.3)
        critic.score.bias.fill_(0.2)
    return critic


def make_sequences():
    g = torch.Generator().manual_seed(2)
    sequences = []
    # (context, response) pairs: one response, or a transcript of several.
    for parts in [[(5, 1)], [(40, 7), (3, 4), (9, 1)], [(17, 12)], [(8, 20), (1, 2)], [(30, 3), (30, 5)]]:
        spans, length = [], 0
        for context, response in parts:
            spans.append({"start": length + context, "length": response})
            length += context + response
        tokens = torch.randint(0, 300, (length,), generator=g).tolist()
        sequences.append({"tokens": tokens, "spans": spans})
    return sequences


def padded_values(critic, sequences):
    """The value before each response token and after the last: a list of (L + 1) tensors."""
    length = max(len(s["tokens"]) for s in sequences)
    ids = torch.zeros(len(sequences), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, s in enumerate(sequences):
        ids[i, : len(s["tokens"])], mask[i, : len(s["tokens"])] = torch.tensor(s["tokens"]), 1
    values = critic(ids, attention_mask=mask, use_cache=False).logits[..., 0]
    return [values[i, span["start"] - 1 : span["start"] + span["length"]]
            for i, s in enumerate(sequences) for span in s["spans"]]


@pytest.mark.parametrize("architecture, tied, aggregation, recompute", [
    ("qwen2", True, "token-mean", "all"),
    ("qwen2", False, "seq-mean-token-mean", "none"),
    ("qwen3", True, "seq-mean-token-mean", 1),
])
def test_values_and_gradients_equal_autograd(architecture, tied, aggregation, recompute, tmp_path, driver, ops):
    policy = make_model(architecture, tied, tmp_path / "model")
    critic, sequences = make_critic(policy), make_sequences()
    spans = [span for s in sequences for span in s["spans"]]
    values = padded_values(critic, sequences)
    g = torch.Generator().manual_seed(3)
    losses = []
    for value, span in zip(values, spans):
        old = (value + 0.6 * torch.randn(value.shape, generator=g)).detach()
        returns = (value[:-1] + torch.randn(span["length"], generator=g)).detach()
        span["old_values"], span["returns"] = old.tolist(), returns.tolist()
        # The state after the last token has nothing to come.
        target = torch.cat([returns, torch.zeros(1)])
        clipped = torch.maximum(torch.minimum(value, old + CLIP), old - CLIP)
        losses.append(torch.maximum((value - target) ** 2, (clipped - target) ** 2))
    loss = torch.cat(losses).mean() if aggregation == "token-mean" else torch.stack([l.mean() for l in losses]).mean()
    loss.backward()

    batch, out = tmp_path / "batch.json", tmp_path / "gradients.safetensors"
    batch.write_text(json.dumps({
        "weight": critic.score.weight[0].tolist(), "bias": critic.score.bias.item(), "sequences": sequences, "clip": CLIP,
        "update": {"mini_batch": 99, "lr": 1.0, "micro_batch_tokens": 70, "aggregation": aggregation,
                   "recompute": recompute}}))
    report = json.loads(driver("critic", tmp_path / "model", batch, out))
    assert report["values"] == pytest.approx(torch.cat(values).tolist(), abs=1e-5)
    assert report["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert 0 < report["clip_fraction"] < 1
    got = load_file(out)
    want = {name: p.grad for name, p in critic.named_parameters()}
    assert set(got) == set(want)
    for name in want:
        assert want[name].norm() > 0, name
        assert (got[name] - want[name]).norm() <= 1e-4 * want[name].norm(), name
