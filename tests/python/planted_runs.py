"""Run directories with planted outcomes: each task has a difficulty, each run a curve, and the dice have a fixed seed."""
import hashlib
import json
import math
import random
import subprocess
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("pick", "heat", "cool", "look")


def plant(folder, estimator, seed, success, *, tasks=20, samples=2, evaluations=6, every=10, config=None, noise=0.2, **changes):
    """Writes a run whose evaluations rise to about `success` in logits. `changes` are recipe keys with `__` for dots."""
    rng = random.Random(f"{estimator} {seed} {success}")
    difficulty = [random.Random(task).gauss(0, 1) for task in range(tasks)]
    own = success + rng.gauss(0, noise)
    recipe = {
        "seed": seed, "iterations": every * evaluations, "model": {"path": "runs/warm/model"},
        "env": {"plugin": "maze", "config": {"size": 5}},
        "estimator": {"plugin": estimator, "config": config or {}},
        "rollout": {"tasks": 8, "group_size": 4, "max_steps": 10, "max_prompt_tokens": 256, "max_response_tokens": 16},
        "update": {"mini_batch": 16, "epochs": 1, "lr": 1e-3},
        "eval": {"every": every, "tasks": tasks, "samples": samples, "seed": 1},
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = recipe
        for section in sections:
            place = place[section]
        place[key] = value
    panel = {"name": f"maze/eval/{tasks}", "sha256": hashlib.sha256(f"{tasks}".encode()).hexdigest(), "environment": "maze",
             "split": "eval", "seed": 1, "samples": samples, "temperature": 1.0,
             "tasks": [{"task": task, "seed": task + 100, "type": KINDS[task % 4]} for task in range(tasks)]}
    rows, outcomes = [], []
    for iteration in range(every * evaluations + 1):
        row = {"iteration": iteration}
        if iteration:
            row |= {"episode/success": rng.random(), "episode/length": 9 - 4 * iteration / (every * evaluations),
                    "episode/total": 32 * iteration, "tokens/total": 1900 * iteration + rng.randrange(200), "policy/entropy": rng.random(),
                    "advantage/zero_ratio": rng.random(), "time/advantage_s": 1e-4 * rng.random(), "time/iteration_s": 1 + rng.random(),
                    "memory/peak_rss_bytes": 2**29 + rng.randrange(2**20), "grad/norm": rng.random()}
        if iteration % every == 0:
            level = own - 2 * (1 - iteration / (every * evaluations))
            won = [sum(rng.random() < 1 / (1 + math.exp(d - level)) for _ in range(samples)) for d in difficulty]
            outcomes.append({"iteration": iteration, "panel": panel["sha256"], "won": won})
            row["eval/success"] = sum(won) / (tasks * samples)
        rows.append(row)
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("# all defaults\n" + yaml.safe_dump(recipe, sort_keys=False))
    start = hashlib.sha256(f"weights {seed}".encode()).hexdigest()
    facts = {"state": "done", "seconds": 90.5, "parameters": 35104, "estimator": estimator, "environment": "maze", "start_weights": start}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "panel.json").write_text(json.dumps(panel))
    for name, lines in (("metrics", rows), ("outcomes", outcomes)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def plant_example(folder):
    """The runs of docs/examples/compare.jsonl: three estimators with five seeds each."""
    places = {"grpo": 0.2, "gigpo": 1.1, "rloo": 0.3}
    return [plant(folder / f"runs/{name}-seed{seed}", name, seed, at, tasks=40, evaluations=6, every=2)
            for name, at in places.items() for seed in range(1, 6)]


if __name__ == "__main__":  # writes docs/examples/compare.jsonl
    with tempfile.TemporaryDirectory() as folder:
        record = ROOT / "docs/examples/compare.jsonl"
        subprocess.run([ROOT / "target/release/nestor", "compare", *plant_example(Path(folder)), "--save", record], check=True)
