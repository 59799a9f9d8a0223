"""A newcomer's path with the wheel of scripts/package.sh: install, init, check, train, resume, evaluate, export, load, view; and the tarball.

The program runs outside the repository, with no folder in PATH but that of the environment it is installed in: no compiler, no
cargo, no python3. torch is that of .venv, so that nothing is downloaded.
"""
import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import torch
from conftest import PATIENCE, QUIET
from transformers import AutoModelForCausalLM, AutoTokenizer

TORCH = Path(torch.__file__).parent


def package(root, out, **environment):
    done = subprocess.run([root / "scripts/package.sh", "--out", out], capture_output=True, text=True, timeout=PATIENCE,
                          env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return next(out.glob("nestor_rl-*.whl")), next(out.glob("nestor-*.tar.gz"))


@pytest.fixture(scope="module")
def packages(root, tmp_path_factory):
    return package(root, tmp_path_factory.mktemp("dist"), SOURCE_DATE_EPOCH="1700000000")


@pytest.fixture(scope="module")
def site(packages, tmp_path_factory):
    """The packages' folder of a new virtual environment: torch, and the wheel as pip installs it."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "torch").symlink_to(TORCH)
    install = [sys.executable, "-m", "pip", "--python", venv, "install", "--quiet", "--no-deps", "--no-index", packages[0]]
    subprocess.run(install, check=True)
    return site


def user(program, folder, *args):
    """Runs a program as its user does: in a folder of theirs, and with no other program in PATH."""
    env = QUIET | {"HOME": str(folder), "PATH": str(program.parent)}
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE, cwd=folder, env=env)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def nestor(site, tmp_path_factory):
    """The installed command, in a folder that all tests share."""
    folder, program = tmp_path_factory.mktemp("work"), site.parents[2] / "bin/nestor"
    return lambda *args: user(program, folder, *args)


@pytest.fixture(scope="module")
def recipe(nestor, tmp_path_factory):
    """The recipe that `nestor init` writes."""
    file = tmp_path_factory.mktemp("recipe") / "mine.yaml"
    nestor("init", "--env", "numberline", "--estimator", "gigpo", "--model", "new", "--out", file)
    return file


@pytest.fixture(scope="module")
def run_dir(nestor, recipe, tmp_path_factory):
    """A run of one iteration, resumed for a second one."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    short = ["iterations=1", "warm_start.steps=4", "eval.tasks=6", "eval.every=1", "checkpoint.every=1", "checkpoint.keep=9",
             "wandb={mode: offline}"]
    nestor("train", recipe, "--run-dir", folder, *(part for key in short for part in ("--set", key)))
    nestor("train", "--resume", "--run-dir", folder, "--set", "iterations=2")
    return folder


def rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_pages_that_recipes_point_to_are_there(packages, root):
    with zipfile.ZipFile(packages[0]) as wheel:
        names = set(wheel.namelist())
    pages = {page for recipe in root.glob("recipes/**/*.yaml") if "bench" not in recipe.parts
             for page in re.findall(r"(?:docs|plugins/environments/\w+)/\w+\.md", recipe.read_text())}
    assert pages and {f"nestor_rl/{page}" for page in pages} <= names


def test_the_record_names_every_file_of_the_wheel(packages):
    with zipfile.ZipFile(packages[0]) as wheel:
        names = wheel.namelist()
        record = next(name for name in names if name.endswith("RECORD"))
        listed = {name: (digest, size) for name, digest, size in csv.reader(wheel.read(record).decode().splitlines())}
        assert listed.pop(record) == ("", "") and listed.keys() == set(names) - {record}
        for name, (digest, size) in listed.items():
            data = wheel.read(name)
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={sha256}", len(data)), name


def test_the_wheel_asks_for_what_it_was_built_with(packages, root):
    with zipfile.ZipFile(packages[0]) as wheel:
        metadata = Parser().parsestr(wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode())
    pinned = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]["run"]
    assert metadata["Requires-Dist"] in pinned and metadata["Requires-Dist"] == f"torch=={torch.__version__.split('+')[0]}"
    assert metadata["Version"] == tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    # torch itself needs glibc 2.28.
    glibc = int(re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", packages[0].name)[1])
    assert 28 <= glibc <= int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1])


def test_the_program_and_its_plugins_are_those_of_the_package(nestor, site, root):
    plugins = json.loads(nestor("plugin", "list", "--json"))
    assert plugins["refused"] == [] and {Path(found["path"]).parent for found in plugins["found"]} == {site / "nestor_rl/bin"}
    assert {Path(found["path"]).name for found in plugins["found"]} == \
           {path.name for path in (root / "target/release").glob("libnestor_*.so")}
    # Nothing leads back to the folder that it was built in.
    for program in (site / "nestor_rl/bin").iterdir():
        dynamic = subprocess.run(["readelf", "--dynamic", program], capture_output=True, text=True, check=True).stdout
        assert set(re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic)) <= {"$ORIGIN/../../torch/lib"}, program


def test_a_torch_elsewhere_is_found(site, nestor, recipe):
    """An environment that sees the packages of another one, as with --system-site-packages."""
    (site / "torch").rename(site / "hidden")
    (site / "other.pth").write_text(f"{TORCH.parent}\n")
    try:
        nestor("train", recipe, "--check")
    finally:
        (site / "hidden").rename(site / "torch")
        (site / "other.pth").unlink()


def test_check(nestor, recipe):
    nestor("train", recipe, "--check")


def test_train_and_resume(run_dir):
    assert [row["iteration"] for row in rows(run_dir)] == [0, 1, 2]


def test_everything_reports_one_version(run_dir, nestor):
    shown, version, short = re.fullmatch(r"nestor (([^ ]+)(?: \((\w{7})\))?)\n", nestor("--version")).groups()
    commits = set()
    for iteration in range(3):
        writer = json.loads((run_dir / f"checkpoints/iteration-{iteration:06}/manifest.json").read_text())["writer"]
        assert writer["nestor"] == version
        commits.add(writer["commit"])
    assert len(commits) == 1 and (min(commits) or "")[:7] == (short or "")
    assert f"# nestor {shown}" in (run_dir / "recipe.yaml").read_text()
    # W&B's config holds values as JSON.
    file = next(run_dir.glob("wandb/offline-run-*/run-*.wandb")).read_bytes()
    assert all(json.dumps(value).encode() in file for value in (version, min(commits)))


def test_evaluate_three_checkpoints(run_dir, nestor):
    checkpoints = [run_dir / f"checkpoints/iteration-{row['iteration']:06}" for row in rows(run_dir)]
    report = json.loads(nestor("eval", *checkpoints, "--json"))
    assert [model["success"] for model in report["models"]] == [row["eval/success"] for row in rows(run_dir)]


@torch.no_grad()
def test_export_and_load_in_transformers(run_dir, nestor, tmp_path):
    nestor("export", run_dir, tmp_path / "exported")
    model, notes = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32, output_loading_info=True)
    assert not any(notes.values()), notes
    ids = AutoTokenizer.from_pretrained(tmp_path / "exported").encode("target: 3 current: 1")
    (tmp_path / "tokens.json").write_text(json.dumps({"rows": [ids]}))
    score = ("score", tmp_path / "exported", "--tokens", tmp_path / "tokens.json", "--dtype", "float32", "--device", "cpu", "--json")
    logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
    want = logprobs.gather(-1, torch.tensor(ids)[1:, None])[:, 0].tolist()
    assert json.loads(nestor(*score))["logprobs"][0] == pytest.approx(want, abs=1e-4)


def test_view(run_dir, nestor):
    nestor("view", run_dir)
    assert "<html" in (run_dir / "view.html").read_text()


def test_the_tarball_runs_with_the_torch_of_python3(packages, tmp_path):
    with tarfile.open(packages[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder, = tmp_path.iterdir()
    (folder / "bin/python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "bin/python3").chmod(0o755)
    for tool in ("dirname", "readlink"):
        (folder / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    user(folder / "bin/nestor", tmp_path, "train", folder / "recipes/smoke/gigpo.yaml", "--check")


def test_the_dockerfile_names_what_is_there(root):
    """All of it that can be checked without Docker."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    text = re.sub(r"\\\n\s*", "", (root / "Dockerfile").read_text())
    for word, rest in re.findall(r"^(COPY|RUN) (.*)$", text, re.MULTILINE):
        if word == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
            assert all(os.access(root / script, os.X_OK) for script in re.findall(r"scripts/\S+", rest))
            assert set(re.findall(r"--group (\S+)", rest)) <= project.keys()
            for command in re.findall(r"\$\((.*)\)", rest):
                there = command.replace("/tmp/nestor/", f"{root}/")
                assert subprocess.check_output(["bash", "-c", there], text=True).strip() == project["run"][0]
        elif not rest.startswith("--from"):
            assert all((root / source).exists() for source in rest.split()[:-1])
    assert "WORKDIR /nestor\n" in text and "package.sh --out dist\n" in text and "--from=build /nestor/dist/*.whl" in text


def test_equal_programs_give_equal_files(packages, root, tmp_path):
    again = package(root, tmp_path, SOURCE_DATE_EPOCH="1700000000")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in packages]
