#!/usr/bin/env python3
"""Kills ranks of a sharded run at random moments and compares its end with an undisturbed run's.

A run of the smoke recipe (`deterministic: true`) on several ranks under `nestor launch --restarts`, or torchrun's `--max-restarts`, loses a
random rank by SIGKILL again and again: while it starts, plays, updates or saves. It must end by itself, with parameters, moments and state
bit-identical to those of an uninterrupted run, and with the same metrics except times.

With `--inside-saves` every kill comes while a checkpoint is being written.

    tests/slow/kills.py [--kills 200] [--nproc 2] [--sharding full|grad_op] [--launcher nestor|torchrun] [--inside-saves] [--background]
                        [--seed 0]
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from measured import MEASURED  # noqa: E402


def command(run_dir, launcher, nproc, sharding, iterations, restarts, more=()):
    settings = {"deterministic": "true", "iterations": iterations, "sharding": sharding, "checkpoint.every": 1,
                "eval.every": 4, "update.mini_batch": 16, "update.micro_batch_tokens": 128, "warm_start.steps": 20}
    sets = [word for setting in [*map("{0[0]}={0[1]}".format, settings.items()), *more] for word in ("--set", setting)]
    nestor = os.environ.get("NESTOR", ROOT / "target/release/nestor")
    start = [str(nestor), "launch", "--nproc", str(nproc), "--restarts", str(restarts)]
    if launcher == "torchrun":
        start = [str(ROOT / ".venv/bin/torchrun"), "--nproc-per-node", str(nproc), "--max-restarts", str(restarts), "--no-python", str(nestor)]
    return [*start, "train", str(ROOT / "recipes/smoke/gigpo.yaml"), *sets, "--run-dir", str(run_dir)]


def outcome(run_dir, stops=False):
    """The contents of the newest checkpoint and of the metrics. A run that `stops` saves checkpoints of its own, which its state names."""
    last = sorted((run_dir / "checkpoints").glob("iteration-*"))[-1]
    files = {path.name: path.read_bytes() for path in [*last.glob("*.safetensors"), last / "state.json"]}
    files["state.json"] = {key: value for key, value in json.loads(files["state.json"]).items()
                           if not (stops and key in ("candidate", "good"))}
    rows = [json.loads(line) for name in ("metrics.jsonl", "steps.jsonl")
            for line in (run_dir / name).read_text().splitlines()]
    return last.name, files, [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]


def check(name, got, want):
    """Fails with the first thing in which two outcomes differ."""
    assert got[0] == want[0], f"{name}: the newest checkpoint is {got[0]}, not {want[0]}"
    assert got[1].keys() == want[1].keys(), f"{name}: it has the files {sorted(got[1])}, not {sorted(want[1])}"
    different = [file for file in want[1] if got[1][file] != want[1][file]]
    states = [files["state.json"] for _, files, _ in (got, want)]
    keys = {key: [state.get(key) for state in states] for key in {**states[0], **states[1]} if states[0].get(key) != states[1].get(key)}
    assert not different, f"{name}: {different} differ; keys of state.json: {keys}"
    rows = [(a, b) for a, b in zip(got[2], want[2]) if a != b]
    assert not rows, f"{name}: of {len(rows)} rows that differ the first is {rows[0][0]}, not {rows[0][1]}"
    assert len(got[2]) == len(want[2]), f"{name}: {len(got[2])} rows, not {len(want[2])}"


def ranks_of(launcher):
    """Process ids of the ranks that a launcher started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    try:
        return [int(pid) for pid in children.read_text().split()]
    except OSError:
        return []


def disturb(run, random_numbers, most, longest):
    """Kills a random rank after a random time, again and again; returns the number of kills."""
    kills = 0
    while run.poll() is None and kills < most:
        time.sleep(random_numbers.uniform(0, longest))
        ranks = ranks_of(run.pid)
        if ranks and run.poll() is None:
            try:
                os.kill(random_numbers.choice(ranks), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
    return kills


def is_saving(run_dir):
    try:
        return any(name.endswith(".tmp") and ".old" not in name for name in os.listdir(run_dir / "checkpoints"))
    except OSError:
        return False


def disturb_saves(run, random_numbers, most, run_dir):
    """Kills a random rank while a checkpoint is being written, again and again; returns the number of kills."""
    kills = 0
    while run.poll() is None and kills < most:
        if not is_saving(run_dir):
            time.sleep(0.0002)
            continue
        time.sleep(random_numbers.uniform(0, 0.01))
        ranks = ranks_of(run.pid)
        if ranks and is_saving(run_dir):
            try:
                os.kill(random_numbers.choice(ranks), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                continue
            time.sleep(random_numbers.uniform(1.5, 4.0))  # the ranks start again, and get on or not
    return kills


def kills(total, launcher, nproc, sharding, seed, folder, iterations=24, longest=5.0, inside_saves=False, more=(), say=lambda line: None):
    """Disturbs runs until `total` ranks were killed; every run must end like the undisturbed one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    whole = subprocess.run(command(folder / "whole", launcher, nproc, sharding, iterations, 0), **quiet)
    assert whole.returncode == 0, whole.stderr
    want = outcome(folder / "whole")
    numbers = random.Random(seed)
    done, number = 0, 0
    while done < total:
        number += 1
        run_dir = folder / f"run-{number}"
        begin = time.monotonic()
        log = (folder / f"run-{number}.log").open("w+")
        run = subprocess.Popen(command(run_dir, launcher, nproc, sharding, iterations, 10_000, more), **{**quiet, "stderr": log})
        most = min(total - done, 25)
        killed = disturb_saves(run, numbers, most, run_dir) if inside_saves else disturb(run, numbers, most, longest)
        code = run.wait(timeout=900)
        log.seek(0)
        assert code == 0, f"run {number} ended with {code}:\n{log.read()[-4000:]}"
        check(f"run {number}", outcome(run_dir), want)
        done += killed
        say(f"run {number}: {killed} kills in {time.monotonic() - begin:.0f} s, ended bit-identical ({done} of {total})")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--sharding", default="full", choices=["full", "grad_op"])
    parser.add_argument("--launcher", default="nestor", choices=["nestor", "torchrun"])
    parser.add_argument("--inside-saves", action="store_true")
    parser.add_argument("--background", action="store_true", help="with checkpoint.background")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        say = lambda line: print(line, flush=True)
        more = ["checkpoint.background=true"] if args.background else []
        runs = kills(args.kills, args.launcher, args.nproc, args.sharding, args.seed, Path(folder), inside_saves=args.inside_saves, more=more,
                     say=say)
    print(f"{args.kills} kills in {runs} runs: all ended, bit-identical to the undisturbed one")


if __name__ == "__main__":
    sys.exit(main())
