"""Speed of the program: decoding and update beside the limits of the card."""
from statistics import median

import ledger
from limits import DECODE_TARGET, PLAN_TARGET, RAGGED_TARGET, RATES, SHAPES, UPDATE_TARGET, card_of, of_cards
from one import details
from program import HALVES, Program


def result(p, figure, limit, targets):
    """A result that misses its target where one of `targets`, pairs of name and truth, is not met. A rehearsal has none."""
    missed = [] if p.rehearsal else [name for name, met in targets if not met]
    if missed:
        figure += f"; missed: {', '.join(missed)}"
    return {"figure": figure, "limit": limit, "good": not missed, "missed": bool(missed)}


def peak_of(done):
    """The largest peak in bytes: of the GPUs, or of the process in a rehearsal."""
    peak = done["peak_bytes"]
    return max(peak) if isinstance(peak, list) else peak


def drift(done):
    """How much the last of at least a hundred runs differ from the first ones, as a share, or None."""
    runs = done["seconds_all"]
    return median(runs[-5:]) / median(runs[:5]) - 1 if len(runs) >= 100 else None


def variables(assignment):
    """A variable of the environment, from NAME=VALUE."""
    name, _, value = assignment.partition("=")
    return {name: value} if name else {}


def own_kernels(profile, work, shape, batch, prompt, new, card):
    """Microseconds of each own operation among a profile's dearest kernels, and those of the ledger on this card (else an H100)."""
    if work == "generate":
        listed = ledger.lists("decode", shape, ledger.Work(batch, prompt + new // 2))
    else:
        rows = batch // profile["passes"]  # of a micro-batch
        listed = ledger.lists(ledger.UPDATES[0], shape, ledger.Work(rows * (prompt + new), prompt + new, rows * new))
    # A block's own after the others, so that they count.
    all_of = [it for part in reversed(listed) for it in part if it.name.startswith("nestor::")]
    operations = {it.name.removeprefix("nestor::"): it for it in all_of}
    found = {}
    for kernel in profile["dearest"]:
        # A kernel is named after its operation: paged_attention_combine_bf16, rms_norm_grad_bf16.
        called = kernel["name"].replace("_grad_", "_backward_")
        name = max((it for it in operations if called.startswith(it)), key=len, default=None)
        if name:
            us, _ = found.get(name, (0, 0))
            want = operations[name].seconds(*RATES[card or "H100"]) - operations[name].kernels * ledger.GAP
            found[name] = (us + 1e3 * kernel["ms"] / kernel["calls"], 1e6 * want)
    return found


def profile(context, work, shape, dtype, sizes, small):
    """The dearest kernels, and launches a pass and a layer; apart from the measurements, which a profiler may break."""
    p = Program(context)
    shape = p.big(shape)
    batch, prompt, new = small if p.rehearsal else sizes
    sizes = ["--batch", batch, "--prompt", prompt, "--new", new, "--repeats", 1]
    found = p.bench(work, shape, dtype, *sizes, "--profile")["profile"]
    own = {} if p.rehearsal else own_kernels(found, work, SHAPES[shape], batch, prompt, new, card_of(context.card))
    details(profile=found, own_kernels=own)
    figure = (f"{found['launches_per_pass']:.0f} launches a pass, {found['launches_per_layer']:.1f} a layer, "
              f"{found['syncs_per_pass']:.1f} waits a pass; busy {found['busy_ms']:.0f} of {found['ms']:.0f} ms")
    figure += "".join(f"; {name} {us:.0f} us, ledger {want:.0f}" for name, (us, want) in own.items())
    return {"figure": figure, "good": found["launches"] > 0 and found["busy_ms"] > 0}


def generate(context, shape, dtype, sizes, small, ragged, without=""):
    """Decoding; `without` is the variable that leaves a part out, for a figure to compare with, which has no target."""
    p = Program(context)
    shape = p.big(shape)
    batch, prompt, new, repeats = small if p.rehearsal else sizes
    words = ["--batch", batch, "--prompt", prompt, "--new", new, "--repeats", repeats, *["--ragged"] * ragged]
    done = p.bench("generate", shape, dtype, *words, **variables(without))
    decode, own = done.pop("decode"), SHAPES[shape]
    details(decode=decode, report=done)
    figure = (f"warm-up {done['warm_up_s']:.1f} s, {done['tokens_per_s']:.0f} tokens/s, {done['passes']} passes of "
              f"{done['ms_per_pass']:.2f} ms")
    if decode is None:
        return result(p, figure, "", [])
    figure += f"; decoding {decode['rows']:.0f} rows of {decode['context'] / decode['rows']:.0f} tokens: {decode['ms']:.2f} ms"
    limit = of_cards(lambda _, copy: f"{1e3 * own.decode_seconds(decode['context'], copy):.2f} ms")
    targets, card = [], card_of(context.card)
    if card:
        reached = own.decode_seconds(decode["context"], RATES[card][1]) / decode["ms"] * 1e3
        details(share=reached)
        figure += f", {reached:.0%} of the limit"
        targets.append((f"{DECODE_TARGET:.0%} of the limit", reached >= DECODE_TARGET or ragged or without))
    return result(p, figure, limit, targets)


def update(context, shape, dtype, recompute, sizes, small, ragged=False, short=False, without=""):
    """One optimizer step after the other. Equal lengths with `auto` have the target of MFU; `short` steps only that of drift."""
    p = Program(context)
    shape = p.big(shape)
    batch, prompt, new, repeats = small if p.rehearsal else sizes
    words = ["--batch", batch, "--prompt", prompt, "--new", new, "--repeats", repeats, "--recompute", recompute]
    done = p.bench("update", shape, dtype, *words, *["--ragged"] * ragged, **variables(without))
    own, lengths, plan = SHAPES[shape], done.pop("lengths"), done.pop("plan")
    details(report=done, plan=plan)
    flops = own.update_flops(lengths)
    peak = peak_of(done)
    figure = (f"warm-up {done['warm_up_s']:.1f} s, {done['tokens_per_s']:.0f} tokens/s, "
              f"{1e3 * done['seconds'] / done['passes']:.0f} ms a pass")
    limit = of_cards(lambda rate, _: f"{done['tokens'] * rate / flops:.0f} tokens/s")
    targets, card, drifted = [], card_of(context.card), drift(done)
    if card:
        mfu = flops / done["seconds"] / RATES[card][0]
        details(mfu=mfu)
        figure += f", MFU {mfu:.0%}"
        targets.append((f"MFU {UPDATE_TARGET:.0%}", mfu >= UPDATE_TARGET or ragged or without or recompute != "auto"))
    figure += f"; planned {done['planned_bytes'] / 1e9:.1f} GB, peak {peak / 1e9:.1f}"
    targets.append((f"plan within {PLAN_TARGET:.0%}", abs(done["planned_bytes"] / peak - 1) <= PLAN_TARGET or short or without))
    if drifted is not None:
        figure += f"; last of {len(done['seconds_all'])} passes against the first {drifted:+.0%}"
        targets.append((f"drift {RAGGED_TARGET:.0%}", abs(drifted) <= RAGGED_TARGET))
    return result(p, figure, limit, targets)


def score(context, shape, dtype, sizes, small):
    """Log-probs of given sequences: a forward pass and the head on every token."""
    p = Program(context)
    shape = p.big(shape)
    batch, prompt, new, repeats = small if p.rehearsal else sizes
    done = p.bench("score", shape, dtype, "--batch", batch, "--prompt", prompt, "--new", new, "--repeats", repeats)
    details(report=done)
    own = SHAPES[shape]
    flops = 2 * (own.block_parameters + own.head_parameters) * done["tokens"]
    figure = f"warm-up {done['warm_up_s']:.1f} s, {done['tokens_per_s']:.0f} tokens/s"
    if card := card_of(context.card):
        figure += f", {flops / done['seconds'] / RATES[card][0]:.0%} of the limit"
    return result(p, figure, of_cards(lambda rate, _: f"{done['tokens'] * rate / flops:.0f} tokens/s"), [])


def iteration(context, workload, turns):
    """A whole iteration of a workload, with agentic rollouts: short turns and prompts that arrive while others decode."""
    p = Program(context)
    words = ["--model", p.model("tiny", HALVES[0]), "--envs", 8, "--turns", 2] if p.rehearsal else ["--turns", turns]
    done = p.nestor("bench", "iteration", "--workload", workload, *words, "--dtype", HALVES[0], "--device", p.device,
                    "--recompute", "auto", "--warm-up", 1, "--repeats", 1)
    details(report=done)
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in done["phases"].items())
    rollout = done["phases"]["rollout"]
    figure = (f"{done['seconds']:.2f} s ({phases}); {done['generated'] / rollout:.0f} tokens/s generated, "
              f"{done['tokens_per_s']:.0f} trained; log-prob difference {done['logprob_diff_mean']:.1e}, "
              f"peak {peak_of(done) / 1e9:.1f} GB")
    return {"figure": figure, "good": done["optimizer_steps"] > 0}
