"""Makes dist/nestor_rl-VERSION-….whl and dist/nestor-VERSION-linux-x86_64.tar.gz from target/release.

Both hold the same files: the programs with their bundled plugins in one folder, as programs look for plugins beside themselves;
the plugin header; the recipes; the pages that recipes and messages point to. They hold no libtorch: programs find that of a Python environment (RUNPATH).
"""
import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import archives
import elf

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "target/release"
HERE = Path(__file__).parent
# Users call the first ones.
COMMANDS = ["nestor", "nestor-alfworld", "nestor-retrieve", "nestor-search", "nestor-webshop"]
PROGRAMS = [*COMMANDS, "nestor-host", "nestor-torch"]
# From the folder of the programs in the wheel, `site-packages/nestor_rl/bin`, to the torch beside the package.
RUNPATH = "$ORIGIN/../../torch/lib"
SUMMARY = "Trains language-model agents by reinforcement learning over many turns"


def main():
    parser = argparse.ArgumentParser(description="Make the wheel and the tarball from target/release")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the two files")
    out = parser.parse_args().out
    if missing := [name for name in PROGRAMS if not (BUILT / name).is_file()]:
        raise SystemExit(f"package: {BUILT} has no {', '.join(missing)}: build first: scripts/setup.sh")
    out.mkdir(parents=True, exist_ok=True)
    version = version_of(BUILT / "nestor")
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary)
        tag = stage_programs(stage / "bin")
        stage_texts(stage)
        made = [wheel(out, stage, version, tag), tarball(out, stage, version)]
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


def version_of(program):
    """The version that the program reports, without its commit."""
    line = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return line.split()[1]


def stage_programs(folder):
    """Copies programs and plugins without symbols and with the RUNPATH of the package. Returns the platform tag of the wheel."""
    folder.mkdir()
    files = [BUILT / name for name in PROGRAMS] + sorted(BUILT.glob("libnestor_*.so"))
    for file in files:
        copy = shutil.copy(file, folder)
        subprocess.run(["strip", "--strip-unneeded", copy], check=True)
        if elf.read(copy).runpath:
            subprocess.run(["patchelf", "--set-rpath", RUNPATH, copy], check=True)
    return elf.platform_tag([elf.read(folder / file.name) for file in files])


def stage_texts(stage):
    (stage / "include").mkdir()
    shutil.copy(ROOT / "plugins/sdk/nestor_plugin.h", stage / "include")
    shutil.copytree(ROOT / "recipes", stage / "recipes", ignore=shutil.ignore_patterns("bench"))
    # Recipes point to these.
    for page in [ROOT / "docs/recipe.schema.json", *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/environments/*/README.md")]:
        place = stage / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, place)
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        shutil.copy(ROOT / name, stage)


def requirement(name):
    """A pinned requirement of the dependency group `run`, such as torch==2.11.0."""
    return re.search(rf'"({name}==[^"]+)"', (ROOT / "pyproject.toml").read_text())[1]


def wheel(out, stage, version, tag):
    info = f"nestor_rl-{version}.dist-info"
    files = {f"nestor_rl/{path.relative_to(stage)}": path for path in stage.rglob("*") if not path.name.startswith("LICENSE")}
    files |= {f"nestor_rl/{path.name}": path for path in (HERE / "nestor_rl").glob("*.py")}
    files |= {f"{info}/licenses/{path.name}": path for path in stage.glob("LICENSE-*")}
    texts = {
        f"{info}/METADATA": "\n".join([
            "Metadata-Version: 2.4", "Name: nestor-rl", f"Version: {version}", f"Summary: {SUMMARY}",
            "License-Expression: MIT OR Apache-2.0", "License-File: LICENSE-APACHE", "License-File: LICENSE-MIT",
            "Requires-Python: >=3.10", f"Requires-Dist: {requirement('torch')}",
            "Provides-Extra: wandb", f"Requires-Dist: {requirement('wandb')} ; extra == 'wandb'", ""]),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: nestor\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n",
        f"{info}/entry_points.txt": "\n".join(["[console_scripts]", *(f"{name} = nestor_rl.__main__:main" for name in COMMANDS), ""]),
    }
    return archives.wheel(out / f"nestor_rl-{version}-py3-none-{tag}.whl", files, texts, record=f"{info}/RECORD")


def tarball(out, stage, version):
    name = f"nestor-{version}-linux-x86_64"
    files = {f"{name}/{path.relative_to(stage)}": path for path in stage.rglob("*")}
    # The programs are in a folder of their own, so that bin/ holds the one command that users call.
    files = {place.replace(f"{name}/bin/", f"{name}/libexec/"): path for place, path in files.items()}
    files |= {f"{name}/bin/nestor": HERE / "nestor.sh", f"{name}/README.md": HERE / "README.md"}
    return archives.tarball(out / f"{name}.tar.gz", files)


if __name__ == "__main__":
    main()
