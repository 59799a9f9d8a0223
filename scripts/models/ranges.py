#!/usr/bin/env python3
"""Shows the largest activations of a real model, and how near they are to the end of float16.

    scripts/models/ranges.py FOLDER [TOKENS]

The model reads TOKENS (2000) tokens of this project's pages in float32, by transformers. For each kind of activation the script
prints the largest absolute value, its block, and the share of float16's largest number, 65,504.
"""
import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
LARGEST = torch.finfo(torch.float16).max
# A module of a block: the kinds of its input and its output.
KINDS = {
    "": ("residual stream", "residual stream"),
    "input_layernorm": (None, "normed input of attention"),
    "self_attn.q_proj": (None, "queries"),
    "self_attn.k_proj": (None, "keys"),
    "self_attn.v_proj": (None, "values"),
    "self_attn.o_proj": (None, "output of attention"),
    "post_attention_layernorm": (None, "normed input of the MLP"),
    "mlp.gate_proj": (None, "gate"),
    "mlp.up_proj": (None, "up"),
    "mlp.down_proj": ("gate times up", "output of the MLP"),
}


@torch.no_grad()
def largest(folder, tokens):
    """The largest absolute value of each kind: (value, block)."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(text)["input_ids"][:tokens]])
    found = {}

    def note(kind, block, tensor):
        value = tensor.abs().max().item()
        if kind and value > found.get(kind, (0.0, 0))[0]:
            found[kind] = value, block

    def hook(block, kinds):
        def see(module, inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            for kind, tensor in zip(kinds, (inputs[0] if inputs else None, output)):
                if tensor is not None:
                    note(kind, block, tensor)
                    if kind == "residual stream":
                        # A norm divides by its root, so a norm in float16 would have to hold it.
                        note("mean square of the residual stream", block, tensor.square().mean(-1))
        return see

    for number, block in enumerate(model.model.layers):
        for name, kinds in KINDS.items():
            (block.get_submodule(name) if name else block).register_forward_hook(hook(number, kinds))
    note("logits", len(model.model.layers), model(ids, use_cache=False).logits)
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("folder", type=Path)
    p.add_argument("tokens", type=int, nargs="?", default=2000)
    a = p.parse_args()
    print("| activation | largest | block | of 65,504 |\n|---|---|---|---|")
    for kind, (value, block) in sorted(largest(a.folder, a.tokens).items(), key=lambda item: -item[1][0]):
        print(f"| {kind} | {value:,.1f} | {block} | {100 * value / LARGEST:.1f} % |")


main()
