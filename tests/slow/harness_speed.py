#!/usr/bin/env python3
"""Speed of 64 workers at once behind the environment `harness`, beside the native number line: tokens a second of the rollout, same prompts.

    tests/slow/harness_speed.py [--rounds 3] [--model models/smollm2-135m] [--worker harness_walker|number_line]

Each round runs both, one after the other. The workers start in the first iteration, which does not count.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKERS = {"harness_walker": ROOT / "tests/python/harness_walker.py", "number_line": ROOT / "examples/harness/number_line.py"}


def recipe(model, env, tokens):
    return {
        "seed": 1, "device": "cpu", "dtype": "bfloat16", "iterations": 4, "model": {"path": model}, "env": env,
        "estimator": {"plugin": "gigpo", "config": {"norm": "std", "step_weight": 1.0, "gamma": 0.95}},
        "rollout": {"tasks": 8, "group_size": 8, "max_steps": 6, "max_prompt_tokens": 96, "max_response_tokens": tokens, "slots": 64,
                    "history": {"length": 0}, "env_threads": 64, "open_episodes": 64, "temperature": 1.0},
        "update": {"mini_batch": 384, "lr": 1.0e-9}, "eval": {"tasks": "none"}, "checkpoint": {"every": 0},
    }


def speed(folder, name, content):
    """Median tokens a second of the iterations behind the first, and the tokens and prompts of all."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    done = subprocess.run([ROOT / "target/release/nestor", "train", path, "--run-dir", folder / name], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["rollout/tokens_per_s"] for row in rows[-3:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="models/smollm2-135m")
    parser.add_argument("--worker", choices=WORKERS, default="harness_walker")
    parser.add_argument("--tokens", type=int, default=12, help="longest response")
    args = parser.parse_args()
    pairs = [{"target": t, "current": c, "max": 9, "steps": 10} for t in range(10) for c in range(10) if t != c]
    ratios = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "tasks.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
            native = {"plugin": "numberline", "config": {"max": 9, "max_steps": 10, "held_out": 0}}
            config = {"command": f"{sys.executable} {WORKERS[args.worker]}", "reuse": True, "tasks": {"train": str(folder / "tasks.jsonl")}}
            own = recipe(args.model, native, args.tokens)
            own["rollout"]["template"] = "{{ observation }}"
            one = speed(folder, "native", own)
            other = speed(folder, "harness", recipe(args.model, {"plugin": "harness", "config": config}, args.tokens))
            ratios.append(other / one)
            print(f"round {number + 1}: native {one:.0f} tokens/s, harness {other:.0f}, ratio {other / one:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
