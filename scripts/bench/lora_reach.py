"""How much of an adapter's change reaches the log-probs in bfloat16: Nestor beside peft, and beside merged weights.

    scripts/setup.sh --test && .venv/bin/python scripts/bench/lora_reach.py [--layers N] [--steps 1 17 170]

A random Qwen2 network (projections of standard deviation 0.02 or 0.05) is trained through adapters (rank 64, alpha 64, learning
rate 3e-6, the reference's settings) by peft in float32 on random tokens. After some steps the same adapters change the log-probs
of other tokens: exactly in float32, and in bfloat16 by peft, by Nestor, and by weights that the adapters are merged into. The
share is the projection of a change on the exact one: 100 % is all of it, 0 % none. Every side's change is against its own
log-probs without an adapter.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
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


def logprobs(model, ids):
    with torch.no_grad():
        logp = torch.log_softmax(model(ids).logits.float(), -1)[:, :-1]
    return logp.gather(-1, ids[:, 1:, None])[..., 0].double()


def nestor(folder, adapter, tokens):
    words = [ROOT / "target/release/adapted_logprobs", folder, adapter, RANK, ALPHA, tokens, "bfloat16"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    return torch.tensor(json.loads(done.stdout), dtype=torch.float64)


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


def shares(std, steps, layers):
    """Rows of (steps, share by merged weights, by peft, by Nestor)."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        network(scratch / "model", std, layers)
        trained(scratch / "model", scratch, steps)
        ids = torch.randint(0, 512, (BATCH, LENGTH), generator=torch.Generator().manual_seed(4))
        tokens = scratch / "tokens.json"
        tokens.write_text(json.dumps({"rows": ids.tolist()}))

        def sides(step):
            adapter = scratch / str(step)
            peft = {dtype: PeftModel.from_pretrained(load(scratch / "model", dtype), adapter)
                    for dtype in (torch.float32, torch.bfloat16)}
            exact, beside = (logprobs(model, ids) for model in peft.values())
            # Merged in float32, then rounded.
            merged = logprobs(peft[torch.float32].merge_and_unload().bfloat16(), ids)
            return exact, merged, beside, nestor(scratch / "model", adapter / "adapter_model.safetensors", tokens)

        before, rows = sides(0), []
        for step in steps:
            exact, *others = (after - start for after, start in zip(sides(step), before, strict=True))
            rows.append((step, *(((change * exact).sum() / exact.square().sum()).item() for change in others)))
        return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 17, 170])
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    print("| std | steps | merged | peft | Nestor |\n|---|---|---|---|---|")
    for std in (0.02, 0.05):
        for step, *found in shares(std, args.steps, args.layers):
            print(f"| {std} | {step} | " + " | ".join(f"{100 * share:.1f} %" for share in found) + " |", flush=True)
