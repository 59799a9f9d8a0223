"""The same work in PyTorch and transformers, on the same card and in the same run: what a trainer without Nestor's own kernels
and scheduler would take. Models have random weights; weights, gradients and moments are in bfloat16, which is cheaper than
Nestor's float32 ones."""
import sys
import time
from pathlib import Path
from statistics import median

import torch
from device import Device
from limits import RATES, SHAPES, card_of
from one import details

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

# Sequences that the peer's update runs together: the first of these that fits in memory is taken.
MICRO_BATCHES = [32, 16, 8]
# New tokens of the peer's warm-up.
WARM_UP = 8


def missing():
    """The result of a check on a machine without transformers, or None."""
    try:
        import transformers
    except ImportError:
        return {"figure": "left out: no transformers here", "good": True}
    details(transformers=transformers.__version__)
    return None


def model(d, name):
    """A Qwen2 network of random weights in transformers."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    shape = SHAPES[d.pick(name, "tiny")]
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, tie_word_embeddings=shape.tied,
        max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None, dtype=torch.bfloat16)
    with torch.device(d.name):
        return Qwen2ForCausalLM(config).to(torch.bfloat16), shape


def beside(context, name, tokens_per_s):
    """Nestor's tokens per second in the check `name` of this run, as a multiple of the peer's."""
    ours = context.earlier.get(name, {}).get("report", {}).get("tokens_per_s")
    return f"; Nestor {ours:.0f}, {ours / tokens_per_s:.2f} ×" if ours else ""


def timed(d, work):
    d.sync()
    begin = time.perf_counter()
    work()
    d.sync()
    return time.perf_counter() - begin


def sized(context, name, sizes, small):
    """The device, the network with its shape, and the sizes of the work."""
    d = Device(context)
    return d, *model(d, name), d.pick(sizes, small)


def update(context, shape, sizes, small):
    """An optimizer step of a plain policy gradient: scaled_dot_product_attention, AdamW (fused), no recomputation."""
    if done := missing():
        return done
    from peers.learn import PlainUpdate
    d, network, own, (batch, prompt, new, repeats) = sized(context, shape, sizes, small)
    for micro_batch in MICRO_BATCHES:
        try:
            step = PlainUpdate(network, [(prompt, new)] * batch, micro_batch=micro_batch)
            step()
            break
        except torch.OutOfMemoryError:
            network.zero_grad()
            torch.cuda.empty_cache()
    else:
        return {"figure": f"out of memory with {MICRO_BATCHES[-1]} sequences", "good": True}
    seconds = median(timed(d, step) for _ in range(repeats))
    tokens = batch * (prompt + new) / seconds
    peak = torch.cuda.max_memory_allocated() if d.cuda else 0
    details(seconds=seconds, tokens_per_s=tokens, micro_batch=micro_batch, peak_bytes=peak)
    figure = f"{tokens:.0f} tokens/s in micro-batches of {micro_batch}, peak {peak / 1e9:.1f} GB"
    if card := card_of(context.card):
        figure += f", MFU {own.update_flops([(prompt, new)] * batch) / seconds / RATES[card][0]:.0%}"
    return {"figure": figure + beside(context, "update-auto", tokens), "good": True}


def generate(context, shape, sizes, small):
    """transformers' generate, whose cache grows with the batch, on requests of equal length."""
    if done := missing():
        return done
    from peers.play import generate as once
    d, network, own, (batch, prompt, new, _) = sized(context, shape, sizes, small)
    prompts = torch.randint(0, own.vocabulary, (batch, prompt), device=d.name)
    network.eval()
    once(network, prompts, WARM_UP)
    seconds = timed(d, lambda: once(network, prompts, new))
    tokens = batch * new / seconds
    details(seconds=seconds, tokens_per_s=tokens)
    return {"figure": f"{tokens:.0f} tokens/s" + beside(context, "generate", tokens), "good": True}

