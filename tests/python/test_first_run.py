"""The first half hour on a GPU (scripts/gpu/first_run.sh), rehearsed on a CPU with planted faults: the report names each and keeps the
rest. A model in pieces is the model."""
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import PATIENCE
from test_get_model import write_gguf


@pytest.fixture
def gpu(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "scripts/gpu")


def call(root, number, out, **variables):
    return subprocess.run([root / "scripts/gpu/first_run.sh", str(number), "--out", out, "--device", "cpu"], capture_output=True,
                          text=True, timeout=PATIENCE, env={**os.environ, **variables})


def report(root, folder):
    return subprocess.run([sys.executable, root / "scripts/gpu/report.py", folder], capture_output=True, text=True, timeout=PATIENCE)


def test_the_calls_are_checks_that_fit_into_half_an_hour(gpu):
    import calls
    import order
    checks = {check.name: check for check in order.checks(rehearsal=False)}
    for one in calls.CALLS:
        assert sum(checks[name].seconds for name in one.checks) <= one.seconds
    assert sum(one.seconds for one in calls.CALLS) <= 30 * 60
    named = [name for one in calls.CALLS for name in one.checks]
    assert len(set(named)) == len(named) and {check.name for check in checks.values() if check.apart} <= set(named)


def test_a_report_of_a_half_hour_with_faults(root, tmp_path, own_kernels):
    # A kernel with wrong results, a check that hangs, one that dies, and a machine that is lost.
    assert call(root, 1, tmp_path, NESTOR_EMULATOR_DAMAGE="rotate_gather_f32").returncode == 0
    done = call(root, 6, tmp_path, NESTOR_GPU_CHECK_PLANT="hang:rollouts")
    assert done.returncode == 0, done.stderr
    assert call(root, 2, tmp_path, NESTOR_GPU_CHECK_PLANT="crash:synccheck").returncode == 0
    lost = tmp_path / "3"
    lost.mkdir()
    whole = (tmp_path / "2/checks.jsonl").read_text().splitlines()[0].replace("memcheck", "gradient")
    (lost / "checks.jsonl").write_text(whole + "\n" + whole[:40])
    done = report(root, tmp_path)
    assert done.returncode == 0, done.stderr
    _, _, bad = done.stdout.partition("## Not ok")
    assert "| kernels | **failed** |" in bad and "rotate_gather_f32 (its result differs" in bad
    assert "| rollouts | **hung** |" in bad and "| synccheck | **failed** |" in bad
    assert "call 3: a line is cut" in bad and "call 3 ended before greedy" in bad and "call 4 did not come back: generate," in bad
    assert "| memcheck | needs a GPU | ok |" in done.stdout and '"flops"' in done.stdout


def test_kernels_that_fault_or_hang_are_left_out_by_all_that_follows(gpu, root, tmp_path, own_kernels, monkeypatch):
    import correct
    import program
    monkeypatch.setenv("NESTOR_EMULATOR_FAULT", "adamw_f16")
    monkeypatch.setenv("NESTOR_EMULATOR_HANG", "silu_mul_bf16")
    monkeypatch.setattr(correct, "details", lambda **_: None)
    (tmp_path / "nestor").symlink_to(root / "target/release/nestor")
    context = SimpleNamespace(folder=tmp_path, scratch=tmp_path, device="cpu", rehearsal=True)
    found = correct.kernels(context)
    assert not found["good"]
    _, _, named = found["figure"].partition("left out by all later checks: ")
    assert set(named.partition(";")[0].split(", ")) == {"adamw_f16", "silu_mul_bf16"}
    p = program.Program(context)
    kernels = p.nestor("bench", "kernels", "--device", "cpu")["kernels"]
    assert "adamw_bf16" in kernels and not {"adamw_f16", "silu_mul_bf16"} & set(kernels)


def test_a_model_in_pieces(root, gpu, tmp_path, monkeypatch):
    import pieces
    write_gguf(tmp_path / "tiny.gguf", "tiny")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100_000)
    pieces.cut(tmp_path / "tiny.gguf", tmp_path / "cut")
    parts = sorted((tmp_path / "cut").iterdir())
    assert len(parts) > 2
    damaged = parts[1] / "piece"
    right = damaged.read_bytes()
    damaged.write_bytes(right[:-1])
    with pytest.raises(SystemExit, match="carry it again"):
        pieces.keep(parts[1], tmp_path / "kept")
    damaged.write_bytes(right)
    for part in parts:
        pieces.keep(part, tmp_path / "kept")
    script = root / "scripts/models/from_gguf.py"
    subprocess.run([sys.executable, script, tmp_path / "tiny.gguf", tmp_path / "whole"], check=True, timeout=PATIENCE)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "kept/model" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "kept/pieces").exists()


@pytest.mark.slow
def test_the_folder_fits_and_its_commands_run(root, tmp_path):
    """Needs the package index. The folder is made, and its first call runs from it."""
    done = subprocess.run([root / "scripts/gpu/first_run.sh"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("timeout")]
    assert len(commands) == 8
    size = sum(file.stat().st_size for file in (root / "target/first_run").rglob("*") if file.is_file())
    assert size < 60e6
    try:
        assert call(root, 1, tmp_path).returncode == 0
    finally:
        # Other tests would run what was unpacked.
        shutil.rmtree(root / "target/first_run")
        shutil.rmtree(root / "target/gpu_check", ignore_errors=True)
    assert report(root, tmp_path).returncode == 0


def test_a_report_is_written_into_page_and_rates(gpu):
    import json

    import limits
    import report
    page = report.with_tables("# On a GPU\n\n## Repeat it\n\nText.\n", "## Update\n\nfirst\n")
    assert page.startswith("# On a GPU\n\n## Last half hour\n\n") and page.endswith("\n\n## Repeat it\n\nText.\n")
    again = report.with_tables(page, "## Update\n\nsecond\n")
    assert again == page.replace("first", "second") and "### Update" in again
    found = {"card": "NVIDIA H100 80GB HBM3", "flops": 801.23e12, "bytes_per_s": 3.0149e12}
    rates = json.loads(report.with_rates(limits.RATES_FILE.read_text(), found))
    assert rates["H100"] == {"flops": 801e12, "bytes_per_s": 3.01e12} and rates.keys() == limits.RATES.keys()
    assert "A100" in json.loads(report.with_rates("{}", {**found, "card": "NVIDIA A100-SXM4-80GB"}))
