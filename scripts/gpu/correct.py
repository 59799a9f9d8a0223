"""Correctness in the small: the program on the device beside the program on the CPU."""
import array
import json
import math
import random
import re
import struct

from one import details
from program import HALVES, Program

# Two devices add in different orders. Float32: the largest difference seen between CPU and reference, with a margin. 16 bits:
# bfloat16 keeps 8 of them, float16 11.
LOGPROB_LIMIT = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
GRADIENT_LIMIT = 1e-4
# Milliseconds that the test of all own kernels may take at a start.
SELF_TEST_MS = 200
# Mean difference between the log-probs of rollout and update; see docs/benchmarks.md.
DIFFERENCE_LIMIT = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}


def score(context, shape, dtype):
    p = Program(context)
    shape = p.big(shape)
    tokens = p.rows(shape, [200, 33, 64, 7])
    # A CPU computes every type; the reference is float32 for 16 bits, which would round in other places.
    here, there = (p.nestor("score", p.model(shape, dtype), "--tokens", tokens, "--dtype", kind, "--device", device)
                   for device, kind in [(p.device, dtype), ("cpu", "float32")])
    off = [abs(a - b) for x, y in zip(here["logprobs"], there["logprobs"]) for a, b in zip(x, y)]
    figure = f"log-probs, largest (mean) difference from the CPU in float32: {max(off):.2e} ({sum(off) / len(off):.2e})"
    return {"figure": figure, "good": max(off) <= LOGPROB_LIMIT[dtype], "limit": f"{LOGPROB_LIMIT[dtype]}"}


def kernels(context):
    """The test of the own kernels that every start makes. A CPU has none."""
    p, faulty = Program(context), []
    p.left_out.unlink(missing_ok=True)
    while True:
        try:
            done = p.nestor("bench", "kernels", "--device", p.device, "--verbose", silence=10 if p.rehearsal else 30,
                            **({"CUDA_LAUNCH_BLOCKING": "1"} if faulty else {}))
            break
        except SystemExit as error:
            # A fault ends every process that meets it, and the program names the kernel. A hang is ended here, at the kernel that
            # the program named last. All that follows does without the two.
            named = re.search(r"NESTOR_KERNELS=-(\w+)", str(error)) or re.search(r"testing (\w+)", getattr(error, "last", ""))
            if not named or named[1] in faulty or len(faulty) == 5:
                raise
            faulty.append(named[1])
            details(faulty=faulty, error=str(error))
            p.leave_out(faulty)
    details(kernels=done["kernels"], left_out=done["left_out"], ms=done["ms"])
    figure = f"{len(done['kernels'])} kernels, tested in {done['ms']:.0f} ms"
    if faulty:
        figure += f"; faulty or hung, and left out by all later checks: {', '.join(faulty)}"
    if done["left_out"]:
        figure += "; left out: " + ", ".join(f"{one['kernel']} ({one['reason']})" for one in done["left_out"])
    # A CPU has none, unless they are emulated.
    all_there = not done["left_out"] and not faulty and (p.rehearsal or done["kernels"])
    return {"figure": figure, "limit": f"{SELF_TEST_MS} ms", "good": bool(all_there and (p.rehearsal or done["ms"] <= SELF_TEST_MS)),
            "missed": bool(all_there)}


def greedy(context, shape):
    """Greedy tokens in float32, in both forms of decoding: pass by pass, and as recorded passes (captured graphs on a GPU)."""
    p = Program(context)
    shape = p.big(shape)
    tokens = p.rows(shape, [5, 40, 17, 90])
    runs = [(p.device, {"NESTOR_DECODE": "plain"}), (p.device, {"NESTOR_DECODE": "recorded", "NESTOR_OPS": "generic"}), ("cpu", {})]
    plain, recorded, want = (
        p.nestor("generate", p.model(shape, "float32"), "--tokens", tokens, "--max-new-tokens", 48, "--temperature", 0,
                 "--dtype", "float32", "--device", device, **variables)["tokens"] for device, variables in runs)
    same = [sum(a == b for x, y in zip(got, want) for a, b in zip(x, y)) for got in (plain, recorded)]
    figure = f"{same[0]} tokens, and {same[1]} of recorded passes, of {sum(map(len, want))} equal those of the CPU"
    return {"figure": figure, "good": plain == want and recorded == want}


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = array.array("f", data[8 + size + begin:8 + size + end])
    return tensors


def gradient(context):
    p, draw, sequences = Program(context), random.Random(2), []
    # The last three begin alike, two of them with the same prompt, so that attention gathers keys.
    for turns in [[(20, 9)], [(64, 30), (5, 12)], [(7, 1)], [(40, 6)], [(40, 8)], [(40, 3)]]:
        sequences.append([{"prompt": [draw.randrange(512) for _ in range(prompt)],
                           "response": [draw.randrange(512) for _ in range(response)],
                           "old": [-6 + draw.random() for _ in range(response)],
                           "ref": [-6 + draw.random() for _ in range(response)], "advantage": draw.uniform(-2, 2)}
                          for prompt, response in turns])
    common = sequences[3][0]["prompt"]
    sequences[4][0]["prompt"], sequences[5][0]["prompt"] = common[:25] + sequences[4][0]["prompt"][25:], common
    batch = p.scratch / "batch.json"
    batch.write_text(json.dumps({"sequences": sequences, "temperature": 1.0,
                                 "update": {"mini_batch": 6, "lr": 1e-3, "entropy": 0.01, "kl": {"coef": 0.05}}}))
    both = []
    for device in (p.device, "cpu"):
        out = p.scratch / f"gradients-{device}.safetensors"
        p.call("gradients", p.model("tiny", "float32"), batch, out, device)
        both.append(read_safetensors(out))
    here, there = both
    norm = lambda values: math.sqrt(math.fsum(value * value for value in values))
    off = {name: norm(a - b for a, b in zip(here[name], want)) / norm(want) for name, want in there.items()}
    worst = max(off, key=off.get)
    details(worst=worst)
    figure = f"largest relative difference of a tensor from the CPU: {off[worst]:.2e}"
    return {"figure": figure, "good": off[worst] <= GRADIENT_LIMIT, "limit": f"{GRADIENT_LIMIT}"}


def logprob_diff(context, shape):
    """The log-probs of engine and update on the same tokens, in every type."""
    p, figures, good = Program(context), [], True
    sizes = ["--batch", 16, "--prompt", 128, "--new", 48] if not p.rehearsal else ["--batch", 4, "--prompt", 16, "--new", 8]
    for dtype in ["float32", *HALVES]:
        done = p.bench("logprob-diff", p.big(shape), dtype, *sizes)["types"][dtype]
        details(**{dtype: {"mean": done["mean"], "max": done["max"]}})
        figures.append(f"{dtype} {done['mean']:.1e} (largest {done['max']:.1e})")
        good &= done["mean"] <= DIFFERENCE_LIMIT[dtype]
    return {"figure": "rollout against update, mean: " + ", ".join(figures), "good": good}
