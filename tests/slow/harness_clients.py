#!/usr/bin/env python3
"""LangChain's chat model as a worker of the environment `harness`, unchanged, in both modes of history.

    tests/slow/harness_clients.py

langchain-openai is installed into target/langchain on the first run.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from test_harness import clients  # noqa: E402

PACKAGES = ["langchain-openai==1.7.4"]


def run(*args, **kwargs):
    return subprocess.run([ROOT / "target/release/nestor", *map(str, args)], capture_output=True, text=True, **kwargs)


def main():
    packages = ROOT / "target/langchain"
    if not packages.exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", packages, *PACKAGES], check=True)
    os.environ["PYTHONPATH"] = str(packages)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        done = run("train", "recipes/smoke/gigpo.yaml", "--set", "rollout.max_prompt_tokens=148", "--run-dir", folder / "native", cwd=ROOT)
        assert done.returncode == 0, done.stderr
        played = clients(run, ROOT, folder / "native", folder, ["langchain"])
    assert len(played) == 4 and all(episode["return"] == 1.0 and not episode["failure"] for episode in played), played
    print("LangChain's client played", len(played), "episodes of", [len(episode["steps"]) for episode in played], "requests")


if __name__ == "__main__":
    main()
