"""The docs are true of the program: every command in them runs, and the list of files to read leads to them.

A fenced block of language `sh` contains commands. The test runs the blocks of a page in order, in a copy of the work tree with
`target/release` in PATH. A comment line `<!-- not run: REASON -->` directly before a block exempts it.
"""
import os
import re
import shutil
import subprocess

import pytest
from conftest import PATIENCE, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if page.exists()]
FENCE = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# Each answers one question of a reader in docs/architecture.md.
SUBJECTS = ["training loop", "GiGPO", "loss", "model", "plugin border", "token sampling", "checkpoint format", "scheduler"]


def blocks(page):
    """Line, code and reason not to run of the page's blocks of commands."""
    text = page.read_text()
    for block in FENCE.finditer(text):
        if block["language"] == "sh":
            yield text[:block.start("code")].count("\n") + 1, block["code"], block["reason"]


@pytest.fixture
def copy(root, tmp_path):
    """A copy of the work tree, installed and built like the original: scripts/setup.sh has nothing left to do."""
    folder = tmp_path / "nestor"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)
    for name in ("target", ".venv"):
        (folder / name).symlink_to((root / name).resolve())
    (folder / "scripts/setup.sh").write_text("#!/bin/sh\n")
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if any(not reason for *_, reason in blocks(page))],
                         ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, copy, root):
    # A plugin's project finds its dependencies compiled (test_outside.py), and puts its library where its README says.
    built = {"CARGO_BUILD_BUILD_DIR": f"{root}/target/outside"}
    env = os.environ | built | {"PATH": f"{root}/target/release:{os.environ['PATH']}"}
    for line, code, reason in blocks(page):
        if not reason:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=copy, env=env, capture_output=True, text=True,
                                  timeout=PATIENCE)
            assert done.returncode == 0, f"{page.name}:{line}\n{code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_marked_as_such(page):
    """A block of commands under another language, or an exemption away from its block, would go unnoticed."""
    text = page.read_text()
    found = list(FENCE.finditer(text))
    assert {block["language"] for block in found}.isdisjoint({"bash", "shell", "console", "zsh"})
    assert text.count("\n```") % 2 == 0
    exempt = re.findall(r"^<!-- not run: .+ -->$", text, re.MULTILINE)
    assert len(exempt) == sum(bool(block["reason"]) and block["language"] == "sh" for block in found)


def test_readme_shows_the_whole_loop(root):
    """README's block is `iterate` of train.rs, comments included."""
    readme, source = (re.findall(r"^fn iterate\(.*?^}\n", (root / file).read_text(), re.DOTALL | re.MULTILINE)
                      for file in ("README.md", "core/nestor/src/train.rs"))
    assert len(source) == 1 and readme == source


def test_the_list_of_files_to_read_is_true(root):
    """README links docs/architecture.md, which links each file: two hops."""
    assert "](docs/architecture.md" in (root / "README.md").read_text()
    text = (root / "docs/architecture.md").read_text()
    rows = dict(re.findall(r"^\| (?:the )?([^|]+?) \| \[`[^`]+`\]\(\.\./([^)]+)\) \|$", text, re.MULTILINE))
    assert [subject for subject in SUBJECTS if subject not in rows] == []
    assert [path for path in rows.values() if not (root / path).is_file()] == []
    # Each row shows the path that it links.
    assert all(shown == path for shown, path in re.findall(r"\[`([^`]+)`\]\(\.\./([^)]+)\) \|$", text, re.MULTILINE))


# The most files that each may touch.
ADDED = {"architecture": 4, "optimizer": 4, "loss": 3, "metric": 3, "recipe key": 4}


def test_the_lists_of_files_to_add_to_are_true(root):
    """Each file of a list is there; NAME in a path stands for the new file's name, and its folder has others of its kind."""
    text = (root / "docs/architecture.md").read_text()
    sections = dict(re.findall(r"^## Add an? ([\w ]+)\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(ADDED)
    for subject, section in sections.items():
        files = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
        assert 0 < len(files) <= ADDED[subject], (subject, files)
        missing = [file for file in files if not list(root.glob(file.replace("NAME", "*")))]
        assert missing == [], subject
