"""The checks of gpu_check.sh, which calls this with the folder of the program. Needs torch alone beside the standard library."""
import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

# Two devices add in different orders. Float32: the largest difference seen between CPU and reference, with a margin; bfloat16
# has 8 bits.
LOGPROB_LIMIT = {"float32": 1e-3, "bfloat16": 0.25}
GRADIENT_LIMIT = 1e-4

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--out", type=Path, default=None)
args = parser.parse_args()
OUT = args.out or Path(tempfile.mkdtemp())
OUT.mkdir(parents=True, exist_ok=True)
REHEARSAL = args.device == "cpu"
TABLE, FAILED = [], []


def call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
        raise RuntimeError(said[0] if said else f"exit code {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout


def nestor(*words):
    return json.loads(call(args.folder / "nestor", *words, "--json"))


def check(name):
    """Runs a check, which returns its figure and whether it is good. An error is a failed check; the next one runs."""
    def run(body):
        try:
            figure, good = body()
        except Exception as error:  # noqa: BLE001
            figure, good = str(error), False
        TABLE.append((name, figure, "ok" if good else "FAILED"))
        if not good:
            FAILED.append(name)
        print(f"{name}: {figure} ({TABLE[-1][2]})", flush=True)
    return run


def model(shape, dtype):
    folder = OUT / f"{shape}-{dtype}"
    if not folder.exists():
        call(args.folder / "nestor", "model", "new", folder, "--shape", shape, "--dtype", dtype)
    return folder


def rows(vocabulary, lengths):
    draw = random.Random(1)
    path = OUT / f"rows-{vocabulary}.json"
    path.write_text(json.dumps({"rows": [[draw.randrange(vocabulary) for _ in range(n)] for n in lengths]}))
    return path


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.float32)
    return tensors


BIG = "tiny" if REHEARSAL else "0.5b"
VOCABULARY = {"tiny": 512, "0.5b": 151_936}

for shape, dtype in [("tiny", "float32"), (BIG, "bfloat16")]:
    @check(f"log-probs, {shape}, {dtype}: {args.device} against CPU, largest (mean)")
    def _(shape=shape, dtype=dtype):
        tokens = rows(VOCABULARY[shape], [200, 33, 64, 7])
        here, there = (nestor("score", model(shape, dtype), "--tokens", tokens, "--dtype", dtype, "--device", device)
                       for device in (args.device, "cpu"))
        off = [abs(a - b) for x, y in zip(here["logprobs"], there["logprobs"]) for a, b in zip(x, y)]
        return f"{max(off):.2e} ({sum(off) / len(off):.2e})", max(off) <= LOGPROB_LIMIT[dtype]

@check(f"greedy tokens, tiny, float32: {args.device} equals CPU")
def _():
    tokens = rows(VOCABULARY["tiny"], [5, 40, 17, 90])
    both = [nestor("generate", model("tiny", "float32"), "--tokens", tokens, "--max-new-tokens", 48, "--temperature", 0,
                   "--dtype", "float32", "--device", device)["tokens"] for device in (args.device, "cpu")]
    return f"{sum(map(len, both[0]))} tokens", both[0] == both[1]

@check(f"gradient, tiny, float32: {args.device} against CPU, largest relative difference of a tensor")
def _():
    draw = random.Random(2)
    sequences = []
    for turns in [[(20, 9)], [(64, 30), (5, 12)], [(7, 1)]]:
        sequences.append([{"prompt": [draw.randrange(512) for _ in range(prompt)],
                           "response": [draw.randrange(512) for _ in range(response)],
                           "old": [-6 + draw.random() for _ in range(response)],
                           "ref": [-6 + draw.random() for _ in range(response)], "advantage": draw.uniform(-2, 2)}
                          for prompt, response in turns])
    batch = OUT / "batch.json"
    batch.write_text(json.dumps({"sequences": sequences, "temperature": 1.0,
                                 "update": {"mini_batch": 3, "lr": 1e-3, "entropy": 0.01, "kl": {"coef": 0.05}}}))
    both = []
    for device in (args.device, "cpu"):
        out = OUT / f"gradients-{device}.safetensors"
        call(args.folder / "gradients", model("tiny", "float32"), batch, out, device)
        both.append(read_safetensors(out))
    off = max(((both[0][name] - want).norm() / want.norm()).item() for name, want in both[1].items())
    return f"{off:.2e}", off <= GRADIENT_LIMIT

for recipe in sorted(Path("recipes/smoke").glob("*.yaml")):
    @check(f"recipe smoke/{recipe.name}, bfloat16")
    def _(recipe=recipe):
        run_dir = OUT / f"run-{recipe.stem}"
        call(args.folder / "nestor", "train", recipe, "--run-dir", run_dir, "--set", f"device={args.device}",
             "--set", "dtype=bfloat16")
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        last = lines[-1]
        good = all(isinstance(v, (int, float)) and math.isfinite(v) for line in lines for v in line.values())
        return (f"{last['iteration']} iterations, log-prob difference mean {last['rollout/logprob_diff_mean']:.1e}, "
                f"gradient norm {last['grad/norm']:.3f}", good and last["grad/skipped"] == 0)

backend = "gloo" if REHEARSAL else "nccl"
@check(f"{backend} group of one: all-reduce of 64 MiB")
def _():
    done = nestor("bench", "collective", "--backend", backend)
    return f"{1e3 * done['seconds']:.2f} ms", done["world"] == 1

@check(f"recipe smoke/gigpo.yaml, bfloat16, sharded over a {backend} group of one")
def _():
    run_dir = OUT / "run-group"
    call(args.folder / "nestor", "launch", "--nproc", 1, "train", "recipes/smoke/gigpo.yaml", "--run-dir", run_dir,
         "--set", f"device={args.device}", "--set", "dtype=bfloat16", "--set", "sharding=full")
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return f"{last['iteration']} iterations, gradient norm {last['grad/norm']:.3f}", last["grad/norm"] > 0

for shape in ["tiny"] if REHEARSAL else ["0.5b", "1.5b"]:
    for work in ["generate", "score", "update"]:
        sizes = (["--batch", 2, "--prompt", 16, "--new", 8] if REHEARSAL else
                 ["--batch", 64, "--prompt", 512, "--new", 128])
        @check(f"bench {work}, {shape}, bfloat16, {' '.join(map(str, sizes))}")
        def _(shape=shape, work=work, sizes=sizes):
            done = nestor("bench", work, "--model", model(shape, "bfloat16"), *sizes, "--dtype", "bfloat16", "--device",
                          args.device, "--repeats", 5)
            return f"{done['seconds']:.3f} s, {done['tokens_per_s']:.0f} tokens/s", done["device"] == args.device

where = "CPU (rehearsal)" if REHEARSAL else torch.cuda.get_device_name(0)
table = f"{where}, torch {torch.__version__}\n\n| check | figure | |\n|---|---|---|\n"
table += "".join(f"| {name} | {figure.replace('|', '/')} | {verdict} |\n" for name, figure, verdict in TABLE)
(OUT / "table.md").write_text(table)
print("\n" + table)
if FAILED:
    sys.exit(f"gpu_check: {len(FAILED)} of {len(TABLE)} checks failed")
