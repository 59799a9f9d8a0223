"""Whole runs: groups of ranks, the smoke recipes and checkpoints."""
import math
import shutil

from one import details
from program import Program, metrics


def collective(context):
    p = Program(context)
    backend = "gloo" if p.rehearsal else "nccl"
    done = p.nestor("bench", "collective", "--backend", backend)
    figure = f"{backend}, group of one, all-reduce of 64 MiB: {1e3 * done['seconds']:.2f} ms"
    return {"figure": figure, "good": done["world"] == 1}


def summary(rows):
    """The last row of a run as text, and whether all rows are finite and no step was skipped."""
    last = rows[-1]
    good = all(isinstance(v, (int, float)) and math.isfinite(v) for row in rows for v in row.values())
    figure = (f"{last['iteration']} iterations, log-prob difference mean {last['rollout/logprob_diff_mean']:.1e}, gradient norm "
              f"{last['grad/norm']:.3f}")
    return figure, good and last["grad/skipped"] == 0 and last["grad/norm"] > 0


def smoke(context, recipe):
    p = Program(context)
    run_dir = p.scratch / f"run-{recipe}"
    p.call("nestor", "train", *p.train(recipe, run_dir))
    figure, good = summary(metrics(run_dir))
    return {"figure": f"{figure}, bfloat16", "good": good}


def sharded(context):
    p = Program(context)
    run_dir = p.scratch / "run-group"
    p.call("nestor", "launch", "--nproc", 1, "train", *p.train("gigpo", run_dir, "sharding=full"))
    figure, good = summary(metrics(run_dir))
    return {"figure": f"launched with one rank, sharded: {figure}", "good": good}


def rollouts(context):
    """Forty short rollouts whose decoding is recorded: the graphs of each leave memory that libtorch keeps (a pool apart), so that it
    would grow from one to the next."""
    p = Program(context)
    run_dir = p.scratch / "run-rollouts"
    sets = ["iterations=4" if p.rehearsal else "iterations=40", "eval.every=1000", "checkpoint.every=1000"]
    # Heads of 64, whose decoding the own kernels do.
    sets += [] if p.rehearsal else [f"model.new.{size}" for size in ("hidden_size=512", "heads=8", "kv_heads=2", "layers=4")]
    p.call("nestor", "train", *p.train("gigpo", run_dir, *sets))
    rows = metrics(run_dir)
    reserved = [row["memory/device_peak_reserved_bytes"] / 1e9 for row in rows if "memory/device_peak_reserved_bytes" in row]
    retries = sum(row.get("memory/device_retries", 0) for row in rows)
    details(reserved_gb=reserved, retries=retries)
    figure = f"{len(rows)} rollouts, {retries:.0f} retries of the allocator"
    if not reserved:
        return {"figure": figure, "good": p.rehearsal}
    # The first ones meet new sizes.
    settled = reserved[len(reserved) // 4:]
    figure += f"; reserved {reserved[0]:.2f} GB, then {min(settled):.2f} to {max(settled):.2f} GB"
    return {"figure": figure, "limit": "5 % more than at first", "good": settled[-1] <= 1.05 * settled[0] and retries == 0}


def checkpoint(context):
    """Saves and loads a checkpoint of a network of 122 million parameters: weights and both moments in float32, hashed."""
    p = Program(context)
    run_dir = p.scratch / "run-checkpoint"
    sizes = ["hidden_size=1024", "intermediate_size=4096", "layers=8", "heads=8"]
    sets = [] if p.rehearsal else [f"model.new.{size}" for size in sizes]
    sets += ["checkpoint.every=1", "eval.tasks=2"]
    p.call("nestor", "train", *p.train("gigpo", run_dir, *sets))
    saved = run_dir / "checkpoints/iteration-000001"
    size = sum(file.stat().st_size for file in saved.iterdir())
    # The time of a save counts towards the row after it.
    save = metrics(run_dir)[-1]["time/checkpoint_s"]
    p.call("nestor", "train", *p.train("gigpo", run_dir, *sets, "iterations=3"), "--resume")
    resumed = metrics(run_dir)[-1]
    load = resumed["time/start_s"]
    details(bytes=size, save_s=save, load_s=load)
    shutil.rmtree(run_dir)
    figure = f"{size / 1e9:.2f} GB: save {size / save / 1e9:.2f} GB/s, start with load {size / load / 1e9:.2f} GB/s"
    return {"figure": figure, "good": resumed["iteration"] == 3}


def offload(context):
    """The same run with the optimizer's tensors on the device and in pinned memory of the host: equal weights and moments."""
    p = Program(context)
    found = {}
    for offload in ("none", "moments", "all"):
        run_dir = p.scratch / f"run-offload-{offload}"
        sets = ["deterministic=true", "iterations=2", "eval.tasks=2", "checkpoint.every=2", f"update.offload={offload}"]
        p.call("nestor", "train", *p.train("gigpo", run_dir, *sets))
        saved = run_dir / "checkpoints/iteration-000002"
        found[offload] = {file.name: file.read_bytes() for file in saved.glob("*.safetensors")}
        details(**{f"update_s_{offload}": metrics(run_dir)[-1]["time/update_s"]})
        shutil.rmtree(run_dir)
    same = [found[offload] == found["none"] for offload in ("moments", "all")]
    return {"figure": f"moments, and all of it, on the host: {['other', 'equal'][same[0]]} and {['other', 'equal'][same[1]]} tensors",
            "limit": "equal to the last bit", "good": all(same) and len(found["none"]) == 3}
