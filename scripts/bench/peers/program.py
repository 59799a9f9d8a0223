"""Runs the program under measurement."""
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NESTOR = ROOT / "target/release/nestor"


class Failed(Exception):
    """A row cannot be measured; the message says why."""


def nestor(*args, **environment):
    """Returns the JSON that `nestor ARGS --json` prints. It computes on the CPU, in as many threads as this process."""
    return json.loads(run([NESTOR, *args, "--json"], **environment))


def run(command, **environment):
    """Runs a command, which must succeed, and returns its output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT,
                          env=os.environ | environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")] or done.stderr.splitlines()
        raise Failed(f"{' '.join(map(str, command[:3]))} failed: {lines[0] if lines else done.returncode}")
    return done.stdout
