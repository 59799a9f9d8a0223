"""Fixtures of all Python tests: the program as a user calls it, and the examples that tests drive."""
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Seconds after which a test gives up waiting. A hang is the only thing that this may find: no test measures a duration.
PATIENCE = 900
# Tensors are small here, so more threads would only slow each other down.
QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
os.environ.update(QUIET)
sys.path.insert(0, str(ROOT / "tests/slow"))

# The files that take longest come first, so that no worker ends long after the others (`--no-loadscope-reorder`).
LONGEST = ["test_docs", "test_kills", "test_resume", "test_model", "test_wandb", "test_openenv", "test_check", "test_tracking",
           "test_run", "test_fully_shard", "test_ranks", "test_vision_recipes", "test_alfworld", "test_checkpoint_faults",
           "test_python", "test_tokenizer", "test_plugin_faults", "test_launch", "test_init", "test_bench", "test_lora",
           "test_console", "test_plan", "test_refusals", "test_package", "test_float16", "test_verify", "test_cli",
           "test_gpu_check", "test_directories", "test_sweep"]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT


@pytest.fixture(params=["fused", "generic"])
def ops(request, monkeypatch):
    """Runs a test twice: with the operations of a CPU, and on a CPU with those that CUDA runs."""
    monkeypatch.setenv("NESTOR_OPS", request.param)
    return request.param


@pytest.fixture
def own_kernels(monkeypatch):
    """Runs a test on a CPU with the operations of a GPU and its kernels, which an emulator runs."""
    library = subprocess.run([ROOT / "scripts/emulator.sh"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("NESTOR_OPS", "generic")
    monkeypatch.setenv("NESTOR_EMULATED_KERNELS", library)


@pytest.fixture(scope="session")
def nestor():
    """The program."""
    path = ROOT / "target/release/nestor"
    assert path.exists(), "build first: scripts/setup.sh --test"
    return path


@pytest.fixture(scope="session")
def failpoints():
    """Runs the variant of the program that kills or stops itself at a failpoint (tests/drivers)."""
    def call(failpoint, *args, timeout=PATIENCE, **kwargs):
        path = ROOT / "target/release/nestor_failpoints"
        assert path.exists(), "build first: scripts/setup.sh --test"
        env = {**os.environ, "NESTOR_FAILPOINT": failpoint}
        command = [str(path), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, **kwargs)
    return call


@pytest.fixture(scope="session")
def outside():
    """Builds an estimator of examples/estimators, which are crates of their own, and returns its file."""
    def call(name):
        target = ROOT / "target/outside"
        build = ["cargo", "build", "--quiet", "--release", "--offline", "--locked", "--target-dir", target]
        subprocess.run(build, cwd=ROOT / "examples/estimators" / name, check=True)
        return target / f"release/libnestor_{name}.so"
    return call


@pytest.fixture(scope="session")
def run(nestor, failpoints):
    """Runs the program, or with `failpoint` the variant that acts at one, and returns its exit code, stdout and stderr (text).
    Other keyword arguments go to subprocess.run."""
    def call(*args, timeout=PATIENCE, failpoint=None, **kwargs):
        if failpoint:
            return failpoints(failpoint, *args, timeout=timeout, **kwargs)
        command = [str(nestor), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **kwargs)
    return call


@pytest.fixture(scope="session")
def run_json(run):
    """Runs the program, which must succeed, and returns the JSON that it prints."""
    def call(*args, **kwargs):
        done = run(*args, **kwargs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return call


@pytest.fixture(scope="session")
def driver():
    """Runs a program of tests/drivers or an example of a crate, which must succeed, and returns its output."""
    def call(name, *args):
        path = ROOT / "target/release" / name
        assert path.exists(), "build first: scripts/setup.sh --test"
        done = subprocess.run([str(path), *map(str, args)], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return call


# Ports below those that the kernel assigns (ip_local_port_range), from 32768 on: no other program is given one of them. Each
# process of pytest begins elsewhere.
PORTS = itertools.cycle(range(20_000, 32_000))
next(itertools.islice(PORTS, 97 * os.getpid() % 12_000, None))


def free_port():
    """A port on loopback that nobody uses and that this process gives out once."""
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def run_ranks(world, command, timeout=PATIENCE):
    """Runs a command as `world` ranks with torchrun's variables. All must succeed; returns the output of rank 0."""
    port = free_port()
    outputs = [tempfile.TemporaryFile("w+") for _ in range(2 * world)]  # pipes that nobody reads would fill up
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
