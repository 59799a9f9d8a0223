"""`nestor generate` with its KV cache against transformers' generate, greedy, float32, on ragged prompts.

Weights are random with projections four times larger than the usual initialisation, so that the continuation
depends on the prompt. transformers continues one prompt at a time; nestor all of them at once, more than it has slots.
"""
import functools
import json

import pytest
import torch
from transformers import (GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, TopKLogitsWarper,
                          TopPLogitsWarper)

NEW = 16
SHAPES = {
    "tied": dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
    "untied": dict(num_attention_heads=6, num_key_value_heads=1, tie_word_embeddings=False),
    "qwen3 tied": dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, head_dim=32),
    "qwen3 untied": dict(num_attention_heads=6, num_key_value_heads=1, tie_word_embeddings=False, head_dim=12),
}


def make_model(shape):
    torch.manual_seed(3)
    settings = dict(vocab_size=512, hidden_size=96, intermediate_size=160, num_hidden_layers=3,
                    max_position_embeddings=4096, rope_theta=1e6, rms_norm_eps=1e-6, **SHAPES[shape])
    if shape.startswith("qwen3"):
        model = Qwen3ForCausalLM._from_config(Qwen3Config(**settings), dtype=torch.float32)
    else:
        model = Qwen2ForCausalLM._from_config(Qwen2Config(**settings), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.normal_(1.0, 0.3)
            elif "norm" not in name:
                parameter.normal_(0.0, 0.1 if name.endswith("bias") else 0.08)
    return model.eval()


def make_prompts(count):
    lengths = ([1, 2, 3, 31, 32, 33, 63, 64, 65, 200, 7, 150] * 6)[:count]
    return [torch.randint(0, 512, (n,)).tolist() for n in lengths]


@torch.no_grad()
def reference(model, prompts):
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW, pad_token_id=0)
    return [model.generate(torch.tensor([p]), attention_mask=torch.ones(1, len(p)), generation_config=config)[0, len(p):]
            .tolist() for p in prompts]


@functools.cache
def continued(shape, count):
    """A model, prompts and their continuations by transformers: made once for both kinds of operations."""
    model, prompts = make_model(shape), make_prompts(count)
    return model, prompts, reference(model, prompts)


@pytest.fixture
def generate(run_json, tmp_path):
    """`nestor generate` in float32: tokens, log-probs and why each row ended."""
    def call(folder, prompts, *arguments):
        file = tmp_path / "prompts.json"
        file.write_text(json.dumps({"rows": prompts}))
        return run_json("generate", folder, "--tokens", file, "--max-new-tokens", NEW, "--dtype", "float32",
                        "--device", "cpu", "--json", *arguments)
    return call


# 70: more than nestor decodes at once
@pytest.mark.parametrize("shape, count", [("tied", 70), ("untied", 12), ("qwen3 tied", 24), ("qwen3 untied", 12)])
def test_greedy_tokens_equal_transformers(shape, count, tmp_path, generate, ops):
    (model, prompts, free), folder = continued(shape, count), tmp_path / "model"
    # Two tokens that many continuations hold end them: both must be heeded.
    counts = torch.bincount(torch.tensor(sum((row[2:] for row in free), [])), minlength=512)
    eos = counts.argsort(descending=True)[:2].tolist()
    want = [row[:1 + next((i for i, token in enumerate(row) if token in eos), NEW)] for row in free]
    assert 2 < sum(len(row) < NEW for row in want) < len(want)
    model.generation_config.eos_token_id = eos
    model.save_pretrained(folder)

    got = generate(folder, prompts, "--temperature", 0)
    assert got["tokens"] == want
    assert got["finished"] == ["eos" if row[-1] in eos else "length" for row in want]


@pytest.mark.parametrize("shape", ["tied", "qwen3 tied"])
def test_recorded_logprobs_are_those_of_the_whole_distribution(shape, tmp_path, generate, score, ops):
    model, prompts, folder = make_model(shape), make_prompts(12), tmp_path / "model"
    model.save_pretrained(folder)
    got = generate(folder, prompts, "--temperature", 1, "--top-k", 20, "--top-p", 0.9, "--seed", 5)
    rows = [p + t for p, t in zip(prompts, got["tokens"])]
    for prompt, logprobs, scored in zip(prompts, got["logprobs"], score(folder, rows)):
        assert logprobs == pytest.approx(scored[len(prompt) - 1:], abs=1e-4)
    # Each token is among those that transformers keeps, up to one at the edge of top-p.
    top_k, top_p = TopKLogitsWarper(20), TopPLogitsWarper(0.901)
    for prompt, row in zip(prompts, rows):
        logits = model(torch.tensor([row])).logits[0, len(prompt) - 1:-1].float()
        kept = top_p(None, top_k(None, logits)).gather(1, torch.tensor(row[len(prompt):]).unsqueeze(1))
        assert kept.isfinite().all()
    assert got == generate(folder, prompts, "--temperature", 1, "--top-k", 20, "--top-p", 0.9, "--seed", 5)
    assert got != generate(folder, prompts, "--temperature", 1, "--top-k", 20, "--top-p", 0.9, "--seed", 6)
