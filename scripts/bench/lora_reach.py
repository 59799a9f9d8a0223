"""How much of an adapter's change reaches the logits in bfloat16: Nestor beside peft, and beside merged weights.

    scripts/setup.sh --test && .venv/bin/python scripts/bench/lora_reach.py [--layers N] [--steps 1 17 170] [--rows N]

A random Qwen2 network (projections of standard deviation 0.02 or 0.05) is trained through adapters (rank 64, alpha 64, learning
rate 3e-6, the reference's settings) by peft in float32 on random tokens. After some steps the same adapters change the logits of
other tokens: exactly in float32, and in bfloat16 by peft, by Nestor, and by weights that the adapters are merged into. The
share is the projection of a change on the exact one: 100 % is all of it, 0 % none. Every side's change is against its own
logits without an adapter. The error is a standard error over rows of tokens: rounding noise is larger than a small change.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
RANK, ALPHA, LR, BATCH, LENGTH = 64, 64, 3e-6, 16, 48


def network(folder, std, layers):
    """A random network, stored in bfloat16, so that all sides begin with the same weights."""
    torch.manual_seed(1)
    config = Qwen2Config(vocab_size=512, hidden_size=256, intermediate_size=704, num_hidden_layers=layers, num_attention_heads=8,
                         num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=std)
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


@torch.no_grad()
def logits(model, ids):
    return torch.cat([model(part).logits[:, :-1].float() for part in ids.split(16)])


def nestor(folder, adapter, tokens, out):
    words = [ROOT / "target/release/adapted_logits", folder, adapter, RANK, ALPHA, tokens, out]
    subprocess.run([str(word) for word in words], check=True)
    return load_file(out)["logits"].clone()  # the file is mapped, and written again


def trained(folder, out, steps):
    """Adapters after each of these numbers of steps of peft in float32."""
    torch.manual_seed(2)
    model = get_peft_model(load(folder, torch.float32), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear",
                                                                   task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, weight_decay=0.01)
    model.save_pretrained(out / "0")
    draw = torch.Generator().manual_seed(3)
    for step in range(1, max(steps) + 1):
        ids = torch.randint(0, 512, (BATCH, LENGTH), generator=draw)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in steps:
            model.save_pretrained(out / str(step))


def share(change, exact):
    """The share and its standard error, by the jackknife over rows."""
    along = (change * exact).double().sum((1, 2))
    whole = exact.double().square().sum((1, 2))
    without = (along.sum() - along) / (whole.sum() - whole)
    n = len(along)
    return (along.sum() / whole.sum()).item(), ((n - 1) / n * (without - without.mean()).square().sum()).sqrt().item()


def shares(std, steps, layers, rows):
    """Rows of (steps, shares by merged weights, by peft, by Nestor)."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        network(scratch / "model", std, layers)
        trained(scratch / "model", scratch, steps)
        ids = torch.randint(0, 512, (rows, LENGTH), generator=torch.Generator().manual_seed(4))
        tokens = scratch / "tokens.json"
        tokens.write_text(json.dumps({"rows": ids.tolist()}))

        def sides(step):
            adapter = scratch / str(step)
            peft = {dtype: PeftModel.from_pretrained(load(scratch / "model", dtype), adapter)
                    for dtype in (torch.float32, torch.bfloat16)}
            exact, beside = (logits(model, ids) for model in peft.values())
            # Merged in float32, then rounded.
            merged = logits(peft[torch.float32].merge_and_unload().bfloat16(), ids)
            ours = nestor(scratch / "model", adapter / "adapter_model.safetensors", tokens, scratch / "out.safetensors")
            return exact, merged, beside, ours.view(exact.shape)

        before, found = sides(0), []
        for step in steps:
            exact, *others = (after - start for after, start in zip(sides(step), before, strict=True))
            found.append((step, [share(change, exact) for change in others]))
        return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 17, 170])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=256, help="rows of tokens that the changes are measured on")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    print("| std | steps | merged | peft | Nestor |\n|---|---|---|---|---|")
    for std in (0.02, 0.05):
        for step, found in shares(std, args.steps, args.layers, args.rows):
            shown = " | ".join(f"{100 * value:.0f} ± {100 * error:.0f} %" for value, error in found)
            print(f"| {std} | {step} | {shown} |", flush=True)
