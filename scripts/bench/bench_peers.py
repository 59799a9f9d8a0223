"""Measures Nestor beside its alternatives, one row of the table in docs/benchmarks.md at a time: transformers' generate, a
plain PyTorch update, verl-agent's lock-step rollout on transformers, TRL's GRPOTrainer. Both sides have the same random
weights, type, lengths or script, and number of threads. Their runs alternate and never overlap.

usage: scripts/bench.sh ROW... | all [--repeat R] [--threads N] [--write FILE] [--small]
    --repeat R     alternated runs; the row shows their median (5)
    --threads N    threads of each side (2)
    --write FILE   writes the table of all rows measured so far between the marks of a Markdown file
    --small        a rehearsal on a tiny model, whose figures mean nothing and are not kept
rows: generate-0.5b generate-27m update-0.5b update-ragged-27m rollout-27m iteration-27m logprob-diff deterministic
    deterministic-price tree-textworld tree-alfworld-no-history tree-alfworld tree-none
    of real models: generate-coder-0.5b update-coder-0.5b lora-coder-0.5b generate-smollm2 update-smollm2 lora-smollm2
    iteration-smollm2 sft-smollm2 logprob-diff-coder-0.5b logprob-diff-smollm2
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

THREADS = next((sys.argv[i + 1] for i, a in enumerate(sys.argv[:-1]) if a == "--threads"), "2")
os.environ |= {"OMP_NUM_THREADS": THREADS, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch  # noqa: E402  (after the number of threads)
import transformers  # noqa: E402

from peers import deterministic, learn, models, play, tune  # noqa: E402
from peers.program import ROOT, Failed, nestor  # noqa: E402
from peers.report import Result, machine, ratio, refuse_to_drop, spread, write  # noqa: E402

DTYPE = "bfloat16"


def alternate(repeat, ours, theirs):
    """Measures both in turn; the two take turns to be first. A warm-up run of the peer precedes, as Nestor has its own."""
    theirs_once = lambda: timed(theirs)
    theirs_once()
    mine, other = [], []
    for number in range(repeat):
        pair = [(mine, ours), (other, theirs_once)]
        for into, work in pair if number % 2 == 0 else reversed(pair):
            into.append(work())
        print(f"  round {number + 1}: nestor {mine[-1]:.2f} s, peer {other[-1]:.2f} s", file=sys.stderr, flush=True)
    return mine, other


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def bench(what, folder, *args, dtype=DTYPE, tree="on"):
    return nestor("bench", what, "--model", folder, "--dtype", dtype, "--device", "cpu", *args, NESTOR_PREFIX_TREE=tree)


def compared(row, work, peer, target, seconds, notes=(), sound=True):
    """Makes a row that compares seconds."""
    mine, theirs = seconds
    times = ratio(mine, theirs)
    return Result(row, work, peer, spread(mine), spread(theirs), f"{times:.2f} ×", f"{target} ×",
                  sound and times >= target, list(notes))


def named(shape):
    return f"{shape} shape" if shape in models.SHAPES else shape


def random_prompts(folder, count, length):
    vocab = transformers.AutoConfig.from_pretrained(folder).vocab_size
    return torch.randint(0, vocab, (count, length), generator=torch.Generator().manual_seed(2))


def generate(row, a, shape, batch, prompt, new, target):
    shape, batch, prompt, new = ("tiny", 4, 16, 8) if a.small else (shape, batch, prompt, new)
    folder = models.folder(shape)
    sample = random_prompts(folder, min(batch, 16 if shape == "27m" else 4), prompt).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "prompts.json"
        file.write_text(json.dumps({"rows": sample}))
        greedy = nestor("generate", folder, "--tokens", file, "--temperature", 0, "--max-new-tokens", min(new, 32),
                        "--dtype", "float32", "--device", "cpu")["tokens"]
    note, sound = play.compare_greedy(models.load(folder, "float32"), sample, greedy)
    model, prompts = models.load(folder, DTYPE), random_prompts(folder, batch, prompt)
    # Nestor is a new process each time and the peer is warm, so a short run is the median of three after a warm-up.
    sizes = ["--batch", batch, "--prompt", prompt, "--new", new, "--repeats", 3 if shape == "27m" else 1]
    seconds = alternate(a.repeat, lambda: bench("generate", folder, *sizes)["seconds"],
                        lambda: play.generate(model, prompts, new))
    work = f"generate, {named(shape)}, batch {batch}, prompt {prompt}, {new} new, forced length"
    return compared(row, work, "transformers generate", target, seconds, [note], sound)


def update(row, a, shape, batch, prompt, new, target, lora=None):
    shape, batch, prompt, new = ("tiny", 4, 16, 8) if a.small else (shape, batch, prompt, new)
    folder = models.folder(shape)
    peer = learn.PlainUpdate(models.load(folder, DTYPE), [(prompt, new)] * batch, lora)
    sizes = ["--batch", batch, "--prompt", prompt, "--new", new, "--repeats", 1]
    sizes += ["--lora", lora] if lora else []
    mine = []

    def ours():
        mine.append(bench("update", folder, *sizes))
        return mine[-1]["seconds"]

    seconds = alternate(a.repeat, ours, peer)
    what = f"update of adapters of rank {lora}" if lora else "update"
    work = f"{what}, {named(shape)}, {batch} sequences of {prompt + new} tokens, {new} of them response"
    peak = statistics.median(m["peak_bytes"][0] for m in mine) / 1e9
    name = "plain PyTorch update with peft" if lora else "plain PyTorch update"
    return compared(row, work, name, target, seconds, [f"Nestor's process took {peak:.1f} GB at most"])


def update_ragged(row, a, shape, batch, prompt, new, target):
    shape, batch, prompt, new = ("tiny", 4, 16, 8) if a.small else (shape, batch, prompt, new)
    folder = models.folder(shape)
    sizes = ["--batch", batch, "--prompt", prompt, "--new", new, "--ragged", "--repeats", 1]
    lengths = bench("update", folder, *sizes)["lengths"]  # (prompt, response) of each sequence
    peer = learn.PlainUpdate(models.load(folder, DTYPE), lengths)
    seconds = alternate(a.repeat, lambda: bench("update", folder, *sizes)["seconds"], peer)
    tokens = sum(p + r for p, r in lengths)
    work = f"update, ragged, {shape} shape, {batch} sequences of at most {prompt + new} tokens, {tokens} in all"
    return compared(row, work, "plain PyTorch update, padded", target, seconds)


class Scripted:
    """The multi-turn workload: the script that Nestor writes, checked by a greedy rollout in float32."""

    def __init__(self, a, shape="27m", *args):
        self.shape = "tiny" if a.small else shape
        self.folder = models.folder(self.shape)
        self.args = ["--envs", 4, "--group-size", 2, "--turns", 3] if a.small else list(args)
        with tempfile.TemporaryDirectory() as scratch:
            script, responses = Path(scratch) / "script.json", Path(scratch) / "responses.json"
            bench("rollout", self.folder, *self.args, "--script-out", script, "--responses-out", responses,
                  "--temperature", 0, "--repeats", 1, "--warm-up", 0, dtype="float32")
            self.script = json.loads(script.read_text())
            greedy = json.loads(responses.read_text())["episodes"]
        pairs = [(turn["prompt"], response) for episode, responses in zip(self.script["episodes"], greedy)
                 for turn, response in zip(episode["turns"], responses)]
        sample = pairs[::5]
        self.note, self.sound = play.compare_greedy(models.load(self.folder, "float32"), *zip(*sample))
        turns = [turn for episode in self.script["episodes"] for turn in episode["turns"]]
        generated = sum(turn["response"] for turn in turns)
        self.tokens = generated + sum(len(turn["prompt"]) for turn in turns)
        longest = max(len(episode["turns"]) for episode in self.script["episodes"])
        self.work = (f"{named(self.shape)}, {len(self.script['episodes'])} environments × at most {longest} turns, ragged: "
                     f"{len(turns)} turns, {generated} tokens")


def rollout(row, a, target):
    scripted = Scripted(a)
    model = models.load(scripted.folder, DTYPE)
    seconds = alternate(a.repeat, lambda: bench("rollout", scripted.folder, *scripted.args, "--repeats", 1)["seconds"],
                        lambda: play.lockstep(model, scripted.script))
    return compared(row, f"multi-turn rollout, {scripted.work}", "transformers generate in lock-step, as verl-agent",
                    target, seconds, [scripted.note], scripted.sound)


def iteration(row, a, target, shape="27m", *args):
    scripted = Scripted(a, shape, *args)
    mine, phases = [], []

    def ours():
        measured = bench("iteration", scripted.folder, "--workload", "multi-turn", *scripted.args, "--repeats", 1)
        assert measured["tokens"] == scripted.tokens and measured["optimizer_steps"] == 1
        mine.append(measured["seconds"])
        phases.append(measured["phases"])

    theirs, rollouts = learn.iterations_of_trl(models.load(scripted.folder, DTYPE), scripted.script, a.repeat, ours)
    parts = ", ".join(f"{part} {statistics.median(p[part] for p in phases):.2f} s" for part in phases[0])
    notes = [scripted.note, f"Nestor's phases: {parts}; rollout of TRL {spread(rollouts)}"]
    return compared(row, f"whole iteration on that workload, {scripted.work}", "TRL's GRPOTrainer with a rollout function",
                    target, (mine, theirs), notes, scripted.sound)


def page_prompts(folder, count, length):
    """Pieces of this project's pages, for a real model: random tokens would give it activations that no text gives."""
    text = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"])
    step = len(ids) // count
    return torch.stack([ids[i * step:][:length] for i in range(count)])


def logprob_diff(row, a, target, shape="27m", half=False):
    shape, batch, prompt, new = ("tiny", 4, 16, 8) if a.small else (shape, 16, 128, 48)
    real = shape not in models.SHAPES
    folder = models.folder(shape, sharp=not real)
    prompts = (page_prompts if real else random_prompts)(folder, batch, prompt)
    torch.manual_seed(3)
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "prompts.json"
        file.write_text(json.dumps({"rows": prompts.tolist()}))
        for dtype in ("bfloat16", "float32", *["float16"] * half):
            model = models.load(folder, dtype)
            theirs = play.logprob_difference(model, prompts, new)
            std = models.logit_std(model)
            del model  # the machine need not hold both
            ours = bench("logprob-diff", folder, "--tokens", file, "--new", new, dtype=dtype)["types"][dtype]
            figures[dtype] = ours, theirs
    shown = [", ".join(f"{dtype} {pair[side]['mean']:.1e} (largest {pair[side]['max']:.1e})"
                       for dtype, pair in figures.items()) for side in (0, 1)]
    mine, theirs = (side["mean"] for side in figures["bfloat16"])
    exact = figures["float32"][0]["mean"]
    work = (f"mean log-prob difference rollout against update, {named(shape)}, {batch} × {new} tokens after prompts of {prompt}, "
            f"logit std {std:.1f}")
    return Result(row, work, "transformers, cached decode against full pass", *shown, f"{mine / max(theirs, 1e-12):.2f} ×",
                  f"at most {target} ×, float32 at most 1e-5", (real or std >= 2.5) and mine <= target * theirs and exact <= 1e-5)


def same_twice(row, a):
    identical, what, differs = deterministic.compare(*["warm_start.steps=5"] * a.small)
    return Result(row, "`deterministic: true`, two runs, 1 and 4 environment threads", "–",
                  "bit-identical" if identical else f"differs: {', '.join(differs)}", "–", "–", "bit-identical", identical,
                  [f"compared: {what}"])


def deterministic_price(row, a):
    recipe = "recipes/smoke/gigpo.yaml" if a.small else "recipes/real/smollm2.yaml"
    sets = ["warm_start.steps=5"] if a.small else ["warm_start=null", "rollout.tasks=4", "iterations=2"]
    if not a.small:
        models.folder("smollm2-135m")  # says how to fetch it
    seconds = deterministic.price(recipe, [*sets, "eval.tasks=none", "checkpoint.every=0"], a.repeat)
    times = lambda one, other: {part: ratio(seconds[other][part], seconds[one][part]) for part in deterministic.PARTS}
    shown = lambda of: ", ".join(f"{part} {value:.2f} ×" for part, value in of.items())
    price, threads = times("deterministic", "plain"), times("one thread", "plain")
    rest = times("deterministic", "one thread")
    figures = [", ".join(f"{part} {spread(seconds[case][part])}" for part in deterministic.PARTS) for case in ("deterministic", "plain")]
    note = f"without the mode, one thread in place of {a.threads} takes {shown(threads)}; the mode's other rules take {shown(rest)}"
    return Result(row, "`deterministic: true`, an iteration of SmolLM2-135M on the number line", "the same without it", *figures, shown(price),
                  "iteration at most 1.10 × the time", price["iteration"] <= 1.1, [note])


def prefix_tree(row, a, target, workload, *args, trl=False):
    """A workload whose sequences begin alike, with and without the prefix tree, beside a plain update of the same lengths."""
    shape = "tiny" if a.small else "27m"
    folder, args = models.folder(shape), ["--workload", workload, *(["--envs", 8, "--turns", 3] if a.small else args)]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "script.json"
        bench("rollout", folder, *args, "--script-out", file, "--repeats", 1, "--warm-up", 0)
        script = json.loads(file.read_text())
    turns = [turn for episode in script["episodes"] for turn in episode["turns"]]
    plain = learn.PlainUpdate(models.load(folder, DTYPE), [(len(turn["prompt"]), turn["response"]) for turn in turns])
    measured = {"on": [], "off": []}
    plains, rounds = [], []

    def measure():
        for tree in ("on", "off") if len(rounds) % 2 == 0 else ("off", "on"):
            measured[tree].append(bench("iteration", folder, *args, "--repeats", 1, tree=tree))
        plains.append(timed(plain))
        rounds.append({tree: each[-1]["phases"]["update"] for tree, each in measured.items()} | {"plain": plains[-1]})
        print(f"  round {len(rounds)}: {rounds[-1]}", file=sys.stderr, flush=True)

    notes = []
    if trl:
        theirs, _ = learn.iterations_of_trl(models.load(folder, DTYPE), script, a.repeat, measure)
        notes.append(f"an iteration of TRL's GRPOTrainer, as one optimizer step, took {spread(theirs)}")
    else:
        for _ in range(a.repeat):
            measure()
    seconds = lambda tree, part: [m["phases"].get(part) or m["seconds"] for m in measured[tree]]
    peak = lambda tree: statistics.median(m["peak_bytes"] for m in measured[tree]) / 1e9
    on, off = (seconds(tree, "update") for tree in ("on", "off"))
    iterations = [seconds(tree, "iteration") for tree in ("on", "off")]
    notes += [
        f"tree factor {measured['on'][0]['tree_factor']:.1f}; iteration {spread(iterations[0])} and {spread(iterations[1])}, "
        f"{ratio(*iterations):.2f} ×; memory {peak('on'):.1f} and {peak('off'):.1f} GB",
        f"a plain PyTorch update of these lengths, padded, took {spread(plains)}, {ratio(on, plains):.2f} × the tree's",
    ]
    work = f"update of {workload}, {named(shape)}, {len(turns)} turns, {measured['on'][0]['tokens']} tokens"
    return compared(row, work, "Nestor without the prefix tree", target, (on, off), notes)


def prefix_tree_none(row, a, target):
    """An update of sequences that have nothing in common."""
    folder = models.folder("tiny" if a.small else "27m")
    sizes = ["--batch", 32, "--prompt", 256, "--new", 64, "--ragged", "--repeats", 3]
    seconds = {"on": [], "off": []}
    for number in range(a.repeat):
        for tree in ("on", "off") if number % 2 == 0 else ("off", "on"):
            seconds[tree].append(bench("update", folder, *sizes, tree=tree)["seconds"])
    work = "update of 32 ragged sequences that have nothing in common, 27m shape"
    return compared(row, work, "Nestor without the prefix tree", target, (seconds["on"], seconds["off"]))


def fine_tuning(row, a, model, steps, batch, target):
    """Fine-tuning on a file of chats in float32: losses of every step, and seconds."""
    folder, steps, longest = models.folder(model), 3 if a.small else steps, 512
    rows = tune.chats(folder, 4 * batch, longest)
    measured = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "chats.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
        work = {"ours": lambda: tune.ours(folder, file, steps, batch, 1e-5, longest),
                "theirs": lambda: tune.theirs(folder, rows, steps, batch, 1e-5, longest)}
        for number in range(a.repeat):
            for side in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
                measured[side].append(work[side]())
            print(f"  round {number + 1}: nestor {measured['ours'][-1][1]:.1f} s, peer {measured['theirs'][-1][1]:.1f} s",
                  file=sys.stderr, flush=True)
    curves = [measured[side][0][0] for side in ("ours", "theirs")]
    apart = max(abs(one - other) for one, other in zip(*curves, strict=True))
    note = f"losses of {steps} steps are at most {apart:.1e} apart, and fell from {curves[0][0]:.3f} to {curves[0][-1]:.3f}"
    seconds = [[seconds for _, seconds in measured[side]] for side in ("ours", "theirs")]
    what = f"fine-tuning, {model}, {steps} steps of {batch} chats, float32"
    return compared(row, what, "TRL's SFTTrainer", target, seconds, [note], apart <= 1e-3)


ROWS = {
    "generate-0.5b": lambda row, a: generate(row, a, "0.5b", 16, 256, 64, target=1.8),
    "generate-27m": lambda row, a: generate(row, a, "27m", 32, 128, 48, target=2),
    "update-0.5b": lambda row, a: update(row, a, "0.5b", 16, 256, 64, target=1.5),
    "update-ragged-27m": lambda row, a: update_ragged(row, a, "27m", 32, 256, 64, target=2.5),
    "rollout-27m": lambda row, a: rollout(row, a, target=4),
    "iteration-27m": lambda row, a: iteration(row, a, target=4),
    "logprob-diff": lambda row, a: logprob_diff(row, a, target=1.2),
    "tree-textworld": lambda row, a: prefix_tree(row, a, 5, "textworld", "--envs", 8, trl=True),
    "tree-alfworld-no-history": lambda row, a: prefix_tree(row, a, 1.8, "alfworld-no-history", "--envs", 8),
    "tree-alfworld": lambda row, a: prefix_tree(row, a, 1.2, "alfworld-1.5b", "--envs", 8),
    "tree-none": lambda row, a: prefix_tree_none(row, a, 0.97),
    "deterministic": same_twice,
    "deterministic-price": deterministic_price,
    "generate-coder-0.5b": lambda row, a: generate(row, a, "qwen2.5-coder-0.5b", 16, 256, 64, target=2),
    "update-coder-0.5b": lambda row, a: update(row, a, "qwen2.5-coder-0.5b", 16, 256, 64, target=1.6),
    "lora-coder-0.5b": lambda row, a: update(row, a, "qwen2.5-coder-0.5b", 16, 256, 64, target=1.8, lora=16),
    "generate-smollm2": lambda row, a: generate(row, a, "smollm2-135m", 16, 256, 64, target=2),
    "update-smollm2": lambda row, a: update(row, a, "smollm2-135m", 16, 256, 64, target=1.6),
    "lora-smollm2": lambda row, a: update(row, a, "smollm2-135m", 16, 256, 64, target=1.8, lora=16),
    "logprob-diff-coder-0.5b": lambda row, a: logprob_diff(row, a, 1.2, "qwen2.5-coder-0.5b"),
    "logprob-diff-smollm2": lambda row, a: logprob_diff(row, a, 1.2, "smollm2-135m", half=True),
    "sft-smollm2": lambda row, a: fine_tuning(row, a, "smollm2-135m", 50, 8, target=1.2),
    "iteration-smollm2": lambda row, a: iteration(row, a, 3, "smollm2-135m", "--envs", 8, "--group-size", 4, "--turns", 4),
}


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    p.add_argument("rows", nargs="+", choices=[*ROWS, "all"])
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--write", type=Path)
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    if a.repeat < 1 or a.threads < 1:
        p.error("--repeat and --threads must be at least 1")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed, rows = False, list(ROWS) if "all" in a.rows else a.rows
    if a.write:
        refuse_to_drop(a.write, ROWS, rows)
    for row in rows:
        try:
            result = ROWS[row](row, a)
        except Failed as error:
            print(f"{row}: {error}\n", file=sys.stderr)
            failed = True
            continue
        result.machine = machine(a.threads)
        result.print()
        if not a.small:
            result.keep()
    if a.write:
        write(a.write, ROWS)
    sys.exit(failed)


main()
