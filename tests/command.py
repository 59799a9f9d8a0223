"""Runs the nestor binary, as a user would."""
import json
import subprocess
from pathlib import Path

BINARY = Path(__file__).resolve().parent.parent / "target" / "release" / "nestor"


def nestor(*arguments):
    """The standard output of a command that must succeed."""
    run = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def refusal(*arguments):
    """The message of a command that must refuse its input: exit code 2, one line."""
    run = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 2, (run.returncode, run.stderr)
    return run.stderr


def score(model, rows, folder, dtype="float32"):
    """`nestor score` of rows of token ids: a list of log-probs for each."""
    file = folder / "tokens.json"
    file.write_text(json.dumps({"rows": rows}))
    return json.loads(nestor("score", model, "--tokens", file, "--dtype", dtype, "--json"))["logprobs"]
