"""Measures `nestor bench` beside what a user would pick instead: transformers' generate, its forward pass, and a plain
PyTorch policy-gradient update. Same random weights, same lengths, same type, same threads; ours and the peer's alternate.

usage: .venv/bin/python scripts/bench_peers.py [--shape 27m|0.5b] [--dtype float32|bfloat16] [--batch B] [--prompt P]
           [--new N] [--repeat R] [--what generate,score,update]
Prints a Markdown table: median seconds, spread (smallest to largest), and the ratio of the medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {
    "27m": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
                num_key_value_heads=2, vocab_size=8192),
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                 num_key_value_heads=2, vocab_size=151936),
}

p = argparse.ArgumentParser()
p.add_argument("--shape", default="27m", choices=SHAPES)
p.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
p.add_argument("--batch", type=int, default=16)
p.add_argument("--prompt", type=int, default=128)
p.add_argument("--new", type=int, default=48)
p.add_argument("--repeat", type=int, default=5)
p.add_argument("--what", default="generate,score,update")
a = p.parse_args()


def log_probs(model, rows, new):
    """Log-probs of the last `new` tokens of each row."""
    logits = model(rows, use_cache=False, logits_to_keep=new + 1).logits[:, :-1].float()
    return torch.log_softmax(logits, -1).gather(-1, rows[:, -new:, None])[..., 0]


class Peer:
    """transformers and plain PyTorch on the same files."""

    def __init__(self, directory):
        self.model = Qwen2ForCausalLM.from_pretrained(directory, dtype=getattr(torch, a.dtype))
        vocab = self.model.config.vocab_size
        self.prompts = torch.randint(0, vocab, (a.batch, a.prompt))
        self.rows = torch.randint(0, vocab, (a.batch, a.prompt + a.new))
        self.advantages = torch.randn(a.batch, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)

    @torch.no_grad()
    def generate(self):
        self.model.eval()
        self.model.generate(self.prompts, attention_mask=torch.ones_like(self.prompts), max_new_tokens=a.new,
                            min_new_tokens=a.new, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)

    @torch.no_grad()
    def score(self):
        self.model.eval()
        for rows in self.rows.split(4):
            log_probs(self.model, rows, a.prompt + a.new - 1)

    def update(self):
        """Micro-batches of four sequences, one optimiser step."""
        self.model.train()
        self.optimizer.zero_grad()
        for rows, advantages in zip(self.rows.split(4), self.advantages.split(4)):
            logp = log_probs(self.model, rows, a.new)
            loss = -(torch.exp(logp - logp.detach()) * advantages).mean() * len(rows) / a.batch
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def ours(what, directory):
    command = [ROOT / "target/release/nestor", "bench", what, "--model", directory, "--batch", a.batch, "--prompt",
               a.prompt, "--new", a.new, "--dtype", a.dtype, "--repeats", 1, "--device", "cpu", "--json"]
    done = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"]


def timed(f):
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def spread(seconds):
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


torch.manual_seed(0)
config = Qwen2Config(max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True,
                     **SHAPES[a.shape])
with tempfile.TemporaryDirectory() as directory:
    Qwen2ForCausalLM(config).to(getattr(torch, a.dtype)).save_pretrained(directory)
    peer = Peer(directory)
    print(f"{a.shape}, {a.dtype}, batch {a.batch}, prompt {a.prompt}, new {a.new}, {torch.get_num_threads()} threads of "
          f"{os.cpu_count()}, torch {torch.__version__}\n\n| work | Nestor | peer | peer / Nestor |\n|---|---|---|---|")
    for what in a.what.split(","):
        work = getattr(peer, what)
        work()  # warm-up; `nestor bench` makes its own
        pairs = [(ours(what, directory), timed(work)) for _ in range(a.repeat)]
        mine, theirs = map(list, zip(*pairs))
        ratio = statistics.median(theirs) / statistics.median(mine)
        print(f"| {what} | {spread(mine)} | {spread(theirs)} | {ratio:.2f} |", flush=True)
