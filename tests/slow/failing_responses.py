"""Trains in environments that fail at some responses, in every way and place: the policy must not learn to make them fail (some
minutes; not in CI).

usage: .venv/bin/python tests/slow/failing_responses.py [KIND...] [--seeds 1] [--estimators grpo,gigpo] [--delays 0]
A small random model plays a game in which each step costs 1 for 30 iterations. A response that begins with a letter from A to H
makes the environment fail. KIND is a place and a fault, such as `process:abort`; the default is all of them, and `process:none`,
the control in which nothing fails. Prints the share of such responses in the first and in the last five iterations; exit code 1 if
one of the shares has risen. `--delays` has the C plugin fail that many steps later.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
import failing  # noqa: E402
from conftest import free_port  # noqa: E402

KINDS = [
    *(f"process:{fault}" for fault in ("none", "abort", "segv", "exit", "hang", "nan_reward", "not_utf8", "error")),
    *(f"trainer:{fault}" for fault in ("nan_reward", "not_utf8", "error", "hang")),
    *(f"python:{fault}" for fault in ("exit", "error", "hang", "nan_reward", "not_utf8")),
    *(f"openenv:{fault}" for fault in ("close", "error", "nan_reward")),
]
# Each hang in the trainer's own process leaves a thread behind.
FEWER = {"trainer:hang": ["iterations=10"]}


def environment(kind, delay, library, port):
    place, fault = kind.split(":")
    if place == "python":
        config = {"class": "failing:Game", "kwargs": {"fault": fault}, "path": [str(ROOT / "tests/python")], "timeout_s": 1}
        return {"plugin": "python", "config": config}
    if place == "openenv":
        config = {"url": f"http://127.0.0.1:{port}", "raw": True, "action": "text", "connect_timeout_s": 1}
        return {"plugin": "openenv", "config": config}
    isolate = "process" if place == "process" else "none"
    return {"plugin": str(library), "config": {"fault": fault, "delay": delay}, "isolate": isolate, "timeout_s": 1}


def train(folder, recipe, *options):
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe)
    command = [ROOT / "target/release/nestor", "train", folder / "recipe.yaml", "--run-dir", folder / "run", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failing_responses: nestor train ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return folder / "run"


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].replace("%", "%%"))
    p.add_argument("kinds", nargs="*", metavar="KIND")
    p.add_argument("--seeds", type=int, default=1)
    p.add_argument("--estimators", default="grpo,gigpo")
    p.add_argument("--delays", default="0")
    p.add_argument("--set", action="append", default=[])
    a = p.parse_args()
    unknown = set(a.kinds) - set(KINDS)
    if unknown:
        p.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    risen = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        library = failing.library(scratch)
        for seed in range(a.seeds):
            env = environment("process:none", 0, library, 0)
            start = train(scratch / f"start{seed}", failing.recipe(env, iterations=0, seed=seed))
            model = json.dumps({"path": str(start / "model")})
            for kind in a.kinds or KINDS:
                for estimator in a.estimators.split(","):
                    for delay in map(int, a.delays.split(",")):
                        name, port = f"{kind} {estimator} delay {delay} seed {seed}", free_port()
                        recipe = failing.recipe(environment(kind, delay, library, port), model, estimator, seed=seed)
                        sets = [word for one in [*a.set, *FEWER.get(kind, [])] for word in ("--set", one)]
                        server = None
                        if kind.startswith("openenv"):
                            command = [sys.executable, failing.__file__, str(port), kind.split(":")[1]]
                            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                            server.stdout.readline()
                        try:
                            run = train(scratch / name.replace(" ", "-").replace(":", "-"), recipe, *sets)
                        finally:
                            if server:
                                server.kill()
                                server.wait()
                        rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
                        errors = sum(row.get("env/errors", 0) for row in rows)
                        first, last = failing.first_and_last(failing.shares(run))
                        print(f"{name}: {errors:.0f} failures; share of such responses {first:.3f}, at the end {last:.3f}", flush=True)
                        if last > first and not kind.endswith(":none"):
                            risen.append(name)
    print("the policy learned to make an environment fail: " + ", ".join(risen) if risen else "no share has risen")
    sys.exit(bool(risen))


if __name__ == "__main__":
    main()
