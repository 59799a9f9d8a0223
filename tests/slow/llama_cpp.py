"""llama.cpp's own converter reads models that Nestor exports, and its file holds the very weights and vocabulary (a minute a
model; not in CI).

usage: .venv/bin/python tests/slow/llama_cpp.py [NAME...]      # of scripts/models/get.py; smollm2-135m by default

The converter is that of the source package of llama-cpp-python, pinned by its sum. Nothing of it is installed: the converter and
the package sentencepiece, which it imports, are unpacked into a temporary folder.
"""
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
NESTOR = ROOT / "target/release/nestor"
SOURCE, SUM = "llama-cpp-python==0.3.9", "a3a985f558385e2f5de5b663f4e9b0817506d6af98122450142cd98e79216370"
IN_SOURCE = "vendor/llama.cpp/"
sys.path.insert(0, str(ROOT / "scripts/models"))


def run(*command, **variables):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        sys.exit(f"llama_cpp: {' '.join(map(str, command[:3]))} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()


def fetch(folder):
    """The converter, unpacked."""
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "install", "--quiet", "--no-deps", "--target", folder / "packages", "sentencepiece")
    run(*pip, "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", folder, SOURCE)
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    assert (digest := hashlib.sha256(archive.read_bytes()).hexdigest()) == SUM, digest
    with tarfile.open(archive) as source:
        wanted = [m for m in source.getmembers()
                  if m.name.partition("/")[2].startswith((IN_SOURCE + "convert_hf_to_gguf.py", IN_SOURCE + "gguf-py/"))]
        source.extractall(folder, members=wanted, filter="data")
    return next(folder.glob(f"*/{IN_SOURCE}convert_hf_to_gguf.py"))


def check(name, converter, folder):
    from from_gguf import convert
    model = Path(run(sys.executable, ROOT / "scripts/models/get.py", name).splitlines()[-1])
    copy, file, back = folder / f"{name}-export", folder / f"{name}.gguf", folder / f"{name}-back"
    run(NESTOR, "export", model, copy, "--dtype", "bfloat16")
    run(sys.executable, converter, copy, "--outfile", file, "--outtype", "bf16", PYTHONPATH=str(folder / "packages"))
    convert(file, back, {}, "")
    exported, read = load_file(copy / "model.safetensors"), load_file(back / "model.safetensors")
    assert exported.keys() == read.keys(), exported.keys() ^ read.keys()
    off = [tensor for tensor in exported if not torch.equal(exported[tensor].bfloat16(), read[tensor].bfloat16())]
    assert not off, off
    text = (ROOT / "docs/checkpoints.md").read_text()
    ours, theirs = (AutoTokenizer.from_pretrained(place)(text)["input_ids"] for place in (copy, back))
    assert ours == theirs
    print(f"{name}: {len(read)} tensors and {len(ours)} tokens of a page are equal", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        converter = fetch(Path(folder))
        for name in sys.argv[1:] or ["smollm2-135m"]:
            check(name, converter, Path(folder))


if __name__ == "__main__":
    main()
