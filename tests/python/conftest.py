"""Fixtures of all Python tests: the program as a user calls it, and the examples that tests drive."""
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Small tensors: threads would only get into each other's way.
QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
os.environ.update(QUIET)
sys.path.insert(0, str(ROOT / "tests/slow"))


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def nestor():
    """The program."""
    path = ROOT / "target/release/nestor"
    assert path.exists(), "build first: scripts/setup.sh"
    return path


@pytest.fixture(scope="session")
def failpoints():
    """Runs the variant of the program that kills or stops itself at a failpoint (tests/drivers)."""
    def call(failpoint, *args, timeout=300, **kwargs):
        path = ROOT / "target/release/nestor_failpoints"
        assert path.exists(), "build first: scripts/setup.sh"
        env = {**os.environ, "NESTOR_FAILPOINT": failpoint}
        command = [str(path), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, **kwargs)
    return call


@pytest.fixture(scope="session")
def run(nestor):
    """Runs the program; gives returncode, stdout and stderr (text). Keyword arguments go to subprocess.run."""
    def call(*args, timeout=300, **kwargs):
        command = [str(nestor), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **kwargs)
    return call


@pytest.fixture(scope="session")
def run_json(run):
    """Runs the program, which must succeed, and gives what it prints as JSON."""
    def call(*args, **kwargs):
        done = run(*args, **kwargs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return call


@pytest.fixture(scope="session")
def driver():
    """Runs a program of tests/drivers, which must succeed, and gives its output."""
    def call(name, *args):
        path = ROOT / "target/release" / name
        assert path.exists(), "build first: scripts/setup.sh"
        done = subprocess.run([str(path), *map(str, args)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return call


def run_ranks(world, command, timeout=300):
    """Runs a command as so many ranks, with torchrun's variables, all of which must succeed; gives rank 0's output."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outputs = [tempfile.TemporaryFile("w+") for _ in range(2 * world)]  # a pipe that nobody reads would fill up
    ranks = []
    for rank in range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = os.environ | {name: str(value) for name, value in place.items()}
        out, err = outputs[2 * rank : 2 * rank + 2]
        ranks.append(subprocess.Popen([*map(str, command)], env=env, stdout=out, stderr=err, text=True))
    try:
        codes = [rank.wait(timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for file in outputs:
        file.seek(0)
    texts = [file.read() for file in outputs]
    assert codes == [0] * world, (codes, texts)
    return texts[0]


@pytest.fixture
def score(run_json, tmp_path):
    """`nestor score` of rows of token ids: a list of log-probs for each."""
    def call(model, rows, dtype="float32"):
        file = tmp_path / "tokens.json"
        file.write_text(json.dumps({"rows": rows}))
        return run_json("score", model, "--tokens", file, "--dtype", dtype, "--device", "cpu", "--json")["logprobs"]
    return call
