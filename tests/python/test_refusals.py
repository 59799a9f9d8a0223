"""Faults of a model's files, a checkpoint or the disk: one line with the place, and the exit code."""
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from conftest import PATIENCE, ROOT

DEEP = "[" * 100_000


def refusal(done, code, *parts):
    """One line `error: ...` that holds all parts."""
    assert done.returncode == code, done.stderr
    *before, line = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and not any(other.startswith("error: ") for other in before), done.stderr
    assert "internal error" not in line, line
    for part in parts:
        assert str(part) in line, f"{part!r} is not in {line!r}"


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def train(run, root):
    def call(run_dir, *sets, resume=False, **kwargs):
        sets = [word for s in ("device=cpu", "dtype=float32", "deterministic=true", *sets) for word in ("--set", s)]
        resumed = ["--resume"] * resume
        return run("train", root / "recipes/smoke/gigpo.yaml", *sets, "--run-dir", run_dir, *resumed, **kwargs)
    return call


@pytest.fixture(scope="module")
def smoke(train, tmp_path_factory):
    """A run of one iteration; its folder `model` is a whole model with a tokenizer."""
    run_dir = tmp_path_factory.mktemp("smoke") / "run"
    done = train(run_dir, "iterations=1")
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.fixture
def model(smoke, tmp_path):
    return Path(shutil.copytree(smoke / "model", tmp_path / "model"))


@pytest.mark.parametrize("file, content, parts", [
    ("config.json", '{"a":' + DEEP, ["not valid JSON", "recursion limit"]),
    ("config.json", "\ufffd".encode("utf-16"), ["not UTF-8"]),
    ("tokenizer_config.json", '{"a":' + DEEP, ["not valid JSON"]),
    ("generation_config.json", '{"eos_token_id":' + DEEP, ["not valid JSON"]),
    ("tokenizer.json", '{"model":' + DEEP, ["not a tokenizer"]),
    ("model.safetensors.index.json", '{"weight_map":' + DEEP, ["not valid JSON"]),
    ("model.safetensors.index.json", '{"weight_map":{"x":".."}}', ["weight_map"]),
    ("chat_template.jinja", "{% if a %}" * 100_000, ["chat template"]),
    ("model.safetensors", struct.pack("<Q", 100_000) + DEEP.encode(), ["damaged", "object of tensors"]),
    ("model.safetensors", struct.pack("<Q", 2**63) + b"{}", ["damaged", "9223372036854775808"]),
    ("config.json", '{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}', ["MambaForCausalLM", "Qwen3"]),
])
def test_damaged_files_of_a_model(file, content, parts, model, run):
    if file == "model.safetensors.index.json":
        (model / "model.safetensors").unlink()  # it comes before an index
    (model / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    refusal(run("generate", model, "--chat", "hello", "--max-new-tokens", 1), 2, file, *parts)


def test_ids_beyond_the_vocabulary(model, run, train, root, tmp_path):
    ids = json.loads((model / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    extra = dict(tokenizer["added_tokens"][-1], content="<|one more|>", id=ids)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer | {"added_tokens": tokenizer["added_tokens"] + [extra]}))
    parts = (model, f"{ids + 1} ids", f"vocab_size is {ids}")
    refusal(run("generate", model, "--prompt", "hello", "--max-new-tokens", 1), 2, *parts)
    refusal(train(tmp_path / "run", "model.new=null", f"model.path={model}"), 2, "model.path", *parts)
    assert not (tmp_path / "run").exists()
    refusal(run("eval", root / "recipes/smoke/gigpo.yaml", "--model", model), 2, *parts)

    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    edit(model / "generation_config.json", eos_token_id=[ids + 7])
    refusal(run("generate", model, "--prompt", "hello", "--max-new-tokens", 1), 2, f"id {ids + 7}", "eos_token_id")


def test_thinking_needs_a_template_with_the_switch(model, train, tmp_path):
    done = train(tmp_path / "run", "model.new=null", f"model.path={model}", "rollout.thinking=false")
    refusal(done, 2, "rollout.thinking", "enable_thinking")
    refusal(train(tmp_path / "run", "rollout.thinking=true"), 2, "`rollout.thinking`", "model.new")
    assert not (tmp_path / "run").exists()


def sign(checkpoint):
    """Makes the checksums of a changed checkpoint right again."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, entry in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    listed = json.dumps([value for key, value in manifest.items() if key != "sha256"], separators=(",", ":"))
    manifest["sha256"] = hashlib.sha256(listed.encode()).hexdigest()
    path.write_text(json.dumps(manifest, indent=2) + "\n")


def test_a_checkpoint_of_another_model(model, train, run, tmp_path):
    run_dir, sets = tmp_path / "run", ("model.new=null", f"model.path={model}")
    assert train(run_dir, *sets, "iterations=1").returncode == 0
    checkpoint = run_dir / "checkpoints/iteration-000001"

    # The model folder was exchanged: for one of another kind, of the same shapes, or with other tokens.
    sound = {name: (model / name).read_bytes() for name in ("config.json", "tokenizer.json")}
    edit(model / "config.json", rope_theta=5e5)
    done = train(run_dir, *sets, "iterations=2", resume=True)
    refusal(done, 2, checkpoint, "another model", "config.json", model)
    (model / "config.json").write_bytes(sound["config.json"])
    (model / "tokenizer.json").write_bytes(sound["tokenizer.json"] + b"\n")
    refusal(train(run_dir, *sets, "iterations=2", resume=True), 2, checkpoint, "another model", "tokenizer.json")
    (model / "tokenizer.json").write_bytes(sound["tokenizer.json"])
    done = train(run_dir, *sets, "iterations=2", resume=True)
    assert done.returncode == 0, done.stderr

    # The checkpoint itself holds files of two models, or a hostile one.
    out = tmp_path / "out"
    weights = (checkpoint / "policy.safetensors").read_bytes()
    config = json.loads((checkpoint / "config.json").read_text())
    edit(checkpoint / "config.json", intermediate_size=config["intermediate_size"] + 1)
    refusal(run("export", checkpoint, out), 2, "config.json", "checksum")
    sign(checkpoint)
    refusal(run("export", checkpoint, out), 2, checkpoint, "mlp.", str(config["intermediate_size"] + 1))
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "policy.safetensors").write_bytes(struct.pack("<Q", 100_000) + DEEP.encode())
    sign(checkpoint)
    refusal(run("export", checkpoint, out), 2, "policy.safetensors", "damaged")
    (checkpoint / "policy.safetensors").write_bytes(weights)
    sign(checkpoint)
    assert not out.exists() and run("export", checkpoint, out).returncode == 0


class Disk:
    """A disk of a given size; where none can be mounted, a limit on the size of a file replaces it."""
    def __init__(self, path, kilobytes):
        self.path, self.kilobytes = path, kilobytes
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", path]
        self.mounted = subprocess.run(mount, capture_output=True).returncode == 0
        self.words = "the disk is full" if self.mounted else "File too large"

    def limit(self):
        """Keyword arguments of a command that writes to this disk."""
        def lower():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.kilobytes * 1024, resource.RLIM_INFINITY))
        return {} if self.mounted else {"preexec_fn": lower}

    def grow(self):
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,size=1g", self.path], check=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", self.path], check=True)


@pytest.fixture
def disk(tmp_path):
    disks = []
    def make(kilobytes):
        disks.append(Disk(tmp_path / f"disk-{len(disks)}", kilobytes))
        return disks[-1]
    yield make
    for made in disks:
        made.close()


def test_a_full_disk_leaves_the_older_checkpoint(train, smoke, disk):
    size = lambda folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    one = size(smoke / "checkpoints/iteration-000001")
    others = size(smoke) - size(smoke / "checkpoints") + size(smoke / "checkpoints/reference")
    small = disk((others + 3 * one + 4 * one // 5) // 1024)
    if not small.mounted:
        small.kilobytes = (smoke / "checkpoints/iteration-000001/policy.safetensors").stat().st_size // 1024 - 1
    run_dir, sets = small.path / "run", ("iterations=4", "checkpoint.every=1", "checkpoint.keep=9")
    refusal(train(run_dir, *sets, **small.limit()), 1, run_dir / "checkpoints/iteration-00000", small.words)
    left = sorted(path.name for path in (run_dir / "checkpoints").iterdir() if path.name not in ("reference", "latest", "best"))
    whole = ["iteration-000000", "iteration-000001", "warm-start-000060"] if small.mounted else []
    assert left == whole  # nothing of the one that did not fit, whatever its name
    small.grow()
    done = train(run_dir, *sets, resume=small.mounted) if small.mounted else None
    assert done is None or (done.returncode == 0 and "resumed from" in done.stdout), done.stderr


def test_a_full_disk_while_a_model_is_written(run, smoke, disk):
    tiny, exported = disk(200), disk(100)
    done = run("model", "new", tiny.path / "m", "--shape", "tiny", "--dtype", "float32", **tiny.limit())
    refusal(done, 1, tiny.path, "model.safetensors", tiny.words)
    checkpoint = smoke / "checkpoints/iteration-000001"
    refusal(run("export", checkpoint, exported.path / "m", **exported.limit()), 1, exported.path, exported.words)
    assert list(tiny.path.iterdir()) == list(exported.path.iterdir()) == []


def test_a_full_disk_while_episodes_are_written(train, disk, tmp_path):
    run_dir, small = tmp_path / "run", disk(16)
    assert train(run_dir, "iterations=1").returncode == 0
    rollouts = run_dir / "rollouts"
    shutil.rmtree(rollouts)
    rollouts.symlink_to(small.path)
    where = [rollouts / "iteration-000002.jsonl"] if small.mounted else []  # else any file is limited
    refusal(train(run_dir, "iterations=2", resume=True, **small.limit()), 1, *where, small.words)
    assert list(small.path.iterdir()) == []
    rollouts.unlink()
    assert train(run_dir, "iterations=2", resume=True).returncode == 0


SMOKE = ["train", ROOT / "recipes/smoke/gigpo.yaml", "--set", "device=cpu", "--set", "warm_start=null"]


@pytest.mark.parametrize("sets, phase, keys", [
    ([], "reference", ["`update.micro_batch_tokens`"]),
    (["update.kl=null"], "update", ["`update.micro_batch_tokens`", "`update.recompute` to all"]),
])
def test_memory_that_runs_out_in_a_phase(sets, phase, keys, tmp_path):
    """The limit of 100 MB above what the process has at its first response leaves room for a rollout, but not for the
    activations of a micro-batch, of which each tensor takes 65,536 floats for every token."""
    sets = [word for s in ["model.new.layers=1", "model.new.intermediate_size=65536", *sets] for word in ("--set", s)]
    command = [ROOT / "target/release/nestor_failpoints", *SMOKE, *sets, "--run-dir", tmp_path / "run"]
    run = subprocess.Popen([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, env={**os.environ, "NESTOR_FAILPOINT": "mid-rollout:1=stop"})
    try:
        status = Path(f"/proc/{run.pid}/status")
        end = time.monotonic() + PATIENCE
        while "State:\tT" not in (text := status.read_text()):
            assert run.poll() is None and time.monotonic() < end, "the program did not stop at its first response"
            time.sleep(0.05)
        size = 1024 * int(re.search(r"VmSize:\s+(\d+) kB", text)[1])
        resource.prlimit(run.pid, resource.RLIMIT_AS, (size + 100_000_000, resource.RLIM_INFINITY))
        run.send_signal(signal.SIGCONT)
        out, err = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    done = subprocess.CompletedProcess(command, run.returncode, out, err)
    refusal(done, 1, f"out of memory in phase {phase}: ", "MiB asked for", *keys)
