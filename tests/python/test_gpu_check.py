"""The GPU check, rehearsed on the CPU: every check runs, and failures are reported."""
import os
import shutil
import subprocess

from conftest import PATIENCE


def test_rehearsal(root, tmp_path):
    done = subprocess.run([root / "scripts/gpu_check.sh", "--device", "cpu", "--out", tmp_path / "out"],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "out/table.md").read_text()
    recipes = list((root / "recipes/smoke").glob("*.yaml"))
    assert table.count("| ok |") == 2 + 1 + 1 + len(recipes) + 2 + 3
    assert "FAILED" not in table


def test_nccl_without_a_gpu_is_refused(root):
    if shutil.which("nvidia-smi"):
        return
    done = subprocess.run([root / "target/release/nestor", "bench", "collective", "--backend", "nccl"],
                          capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ))
    assert done.returncode == 2 and "needs a GPU" in done.stderr
