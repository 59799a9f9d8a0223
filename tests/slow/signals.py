#!/usr/bin/env python3
"""Stops and kills runs at random moments and compares their ends with an undisturbed run's.

A run of the smoke recipe (`deterministic: true`) receives SIGTERM or SIGINT at a random moment of its warm start, a rollout, an
update, an evaluation or a save, and resumes; again and again until it ends. It must end with parameters, moments, state and
metrics bit-identical to those of an uninterrupted run, evaluations included. One rank, and two under `nestor launch`.

Then a run that saves by time alone receives SIGKILL. What each kill loses must be less than `checkpoint.every_minutes` and the
longest stretch that cannot be saved (a rollout or an evaluation).

    tests/slow/signals.py [--signals 200] [--kills 30] [--seed 0]
"""
import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from measured import MEASURED  # noqa: E402

SETTINGS = {"deterministic": "true", "iterations": 8, "checkpoint": "{every: 3}", "eval": "{tasks: 300, every: 2}",
            "env.config": "{max: 40, max_steps: 6, held_out: 300}", "rollout.tasks": 12, "update.mini_batch": 16,
            "update.epochs": 2, "update.shuffle": "true", "update.micro_batch_tokens": 256, "warm_start.steps": 100}
BY_TIME = {**SETTINGS, "checkpoint": "{every_minutes: 0.01}", "eval": "{tasks: 300}", "iterations": 12}
# The answer to a signal names the work that the run is in.
ANSWER = re.compile(r"^(?:\[rank 0\] )?(stopping .*), then saving; again: exit without saving$", re.MULTILINE)
PATIENCE = 900


def command(run_dir, world, settings, resume=False):
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    launch = ["launch", "--nproc", str(world)] if world > 1 else []
    nestor = os.environ.get("NESTOR", ROOT / "target/release/nestor")
    return [str(nestor), *launch, "train", str(ROOT / "recipes/smoke/gigpo.yaml"), *sets, "--run-dir", str(run_dir),
            *(["--resume"] if resume else [])]


def checkpoints(run_dir):
    """The checkpoints of a run, oldest first."""
    found = (run_dir / "checkpoints").glob("*-[0-9]*")
    whole = [path for path in found if (path / "manifest.json").exists() and path.suffix != ".tmp"]
    return sorted(whole, key=lambda path: (path.name.startswith("iteration"), path.name))


def outcome(run_dir):
    """Names of the last checkpoint and of the links' targets, its contents, and the metrics that are not times."""
    last = checkpoints(run_dir)[-1]
    links = {name: os.readlink(run_dir / "checkpoints" / name) for name in ("latest", "best")}
    files = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    # A stop adds a checkpoint, and these name checkpoints.
    files["state.json"] = {key: value for key, value in json.loads((last / "state.json").read_text()).items()
                           if key not in ("candidate", "good")}
    rows = [json.loads(line) for name in ("metrics.jsonl", "steps.jsonl")
            for line in (run_dir / name).read_text().splitlines()]
    return last.name, links, files, [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]


def compare(run_dir, want):
    got = outcome(run_dir)
    for what, a, b in zip(("last checkpoint", "links", "files", "metrics"), got, want):
        if what == "files":
            assert a.keys() == b.keys(), (a.keys(), b.keys())
            a, b = ([name for name in b if x[name] != b[name]] for x in (a, b))
        assert a == b, f"{run_dir.name}: {what} differ: {a} is not {b}"


def undisturbed(folder, world, settings):
    whole = subprocess.run(command(folder, world, settings), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert whole.returncode == 0, whole.stderr
    return outcome(folder)


def life(run_dir, world, settings, delay, how, at_once=False):
    """Starts or resumes a run and sends it a signal after a delay, counted from its first line (its start is over then) or
    `at_once` from the beginning. Returns its exit code, standard error, and the time from the newest checkpoint to the signal."""
    resumes = bool(checkpoints(run_dir))
    with tempfile.TemporaryFile("w+") as out:
        run = subprocess.Popen(command(run_dir, world, settings, resumes), stdout=out, stderr=subprocess.PIPE, text=True)
        while not at_once and run.poll() is None and os.fstat(out.fileno()).st_size == 0:
            time.sleep(0.005)
        begin = time.time()
        try:
            _, err = run.communicate(timeout=delay)
            return run.returncode, err, None
        except subprocess.TimeoutExpired:
            run.send_signal(how)
            now = time.time()
        _, err = run.communicate(timeout=PATIENCE)
    saved = max([(path / "manifest.json").stat().st_mtime for path in checkpoints(run_dir)], default=begin)
    return run.returncode, err, now - max(saved, begin)


def stop(total, world, seed, folder, settings=SETTINGS, longest=3.0, say=lambda line: None):
    """Stops runs until `total` signals were sent; returns the number of signals by the work that they met."""
    want = undisturbed(folder / "whole", world, settings)
    numbers, met = random.Random(seed), collections.Counter()
    number = 0
    while met.total() < total:
        number += 1
        run_dir, begin, before = folder / f"run-{number}", time.monotonic(), met.total()
        while True:
            delay = numbers.uniform(0, longest) if met.total() < total else PATIENCE
            how, at_once = numbers.choice([signal.SIGTERM, signal.SIGINT]), numbers.random() < 0.1
            code, err, sent = life(run_dir, world, settings, delay / 2 if at_once else delay, how, at_once)
            if code == 0:
                break
            if code == -how or (code == 130 and "nothing to save yet" in err):
                met["before the run answers signals"] += 1
                assert not run_dir.exists() or checkpoints(run_dir), err
                continue
            assert code == 130 and sent is not None, f"run {number} ended with {code}:\n{err[-4000:]}"
            met[(ANSWER.search(err) or [None, "no answer"])[1]] += 1
            assert checkpoints(run_dir), err
        compare(run_dir, want)
        say(f"{world} rank(s), run {number}: {met.total() - before} signals in {time.monotonic() - begin:.0f} s, ended "
            f"bit-identical ({met.total()} of {total})")
    return met


def kill(total, seed, folder, longest=5.0, say=lambda line: None):
    """Kills runs that save by time alone; returns the seconds of work that each kill lost, and the seconds of the longest rollout
    (with its log-probs) or evaluation."""
    want = undisturbed(folder / "whole", 1, BY_TIME)
    numbers, lost, number = random.Random(seed), [], 0
    while len(lost) < total:
        number += 1
        run_dir = folder / f"run-{number}"
        while True:
            delay = numbers.uniform(0, longest) if len(lost) < total else PATIENCE
            code, err, seconds = life(run_dir, 1, BY_TIME, delay, signal.SIGKILL)
            if code == 0:
                break
            assert code == -signal.SIGKILL, err
            if checkpoints(run_dir):
                lost.append(seconds)
            elif run_dir.exists():
                subprocess.run(["rm", "-r", run_dir], check=True)  # there is nothing to resume from
        compare(run_dir, want)
        say(f"run {number} ended bit-identical ({len(lost)} of {total} kills)")
    rows = [json.loads(line) for path in folder.glob("*/metrics.jsonl") for line in path.read_text().splitlines()]
    phases = [("evaluate",), ("rollout", "pack", "reference", "advantage")]
    return lost, max(sum(row.get(f"time/{name}_s", 0) for name in names) for row in rows for names in phases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
    say = lambda line: print(line, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2):
            met = stop(args.signals // 2, world, args.seed + world, Path(folder) / f"stops-{world}", say=say)
            say(f"{world} rank(s): " + "; ".join(f"{work}: {count}" for work, count in sorted(met.items())))
        if args.kills:
            lost, longest = kill(args.kills, args.seed, Path(folder) / "kills", say=say)
            every = 60 * float(re.search(r"every_minutes: ([0-9.]+)", BY_TIME["checkpoint"])[1])
            say(f"{len(lost)} kills lost at most {max(lost):.2f} s of work, {sum(lost) / len(lost):.2f} s on average; "
                f"every_minutes is {every:.2f} s, and the longest rollout or evaluation took {longest:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
