"""The GPU check, rehearsed on the CPU: every check runs, a hang or a crash of one leaves the others whole, and the limits that
the table compares with are those of the reference."""
import json
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PATIENCE

# Of the pack as it travels: scripts/gpu/first_run.sh compresses it by xz.
PACK_BYTES = 25e6


def rehearse(root, out, *args, plant=""):
    env = {**os.environ, "NESTOR_GPU_CHECK_PLANT": plant}
    done = subprocess.run([root / "scripts/gpu_check.sh", "--device", "cpu", "--out", out, *args], capture_output=True,
                          text=True, timeout=PATIENCE, env=env)
    lines = [json.loads(line) for line in (out / "checks.jsonl").read_text().splitlines()]
    return done, lines, (out / "table.md").read_text()


# One of each file of scripts/gpu that computes, and those whose details are looked at here.
SEVEN = ["flash-decode", "rms-norm", "update-hundred", "profile-generate", "profile-update", "checkpoint", "iteration"]


@pytest.mark.parametrize("only", [SEVEN, pytest.param([], marks=pytest.mark.slow)], ids=["seven", "all"])
def test_rehearsal(only, root, tmp_path):
    done, lines, table = rehearse(root, tmp_path / "out", *(["--only", ",".join(only)] if only else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line["verdict"] == "ok" and line["figure"] and line["seconds"] > 0 for line in lines)
    assert table.count("| ok |") == len(lines) >= (len(only) or 35)
    # Launches of decoding and update were counted, and the output folder holds no models.
    profiles = {line["name"]: line["details"]["profile"] for line in lines if "profile" in line["details"]}
    assert profiles.keys() == {"profile-generate", "profile-update"}
    assert all(p["launches_per_layer"] > 1 and p["dearest"] for p in profiles.values())
    hundred = next(line for line in lines if line["name"] == "update-hundred")["details"]["report"]
    assert hundred["hundredth_ms"] > 0 and len(set(hundred["seconds_all"])) > 1
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["checks.jsonl", "table.md"]


@pytest.mark.parametrize("kind, verdict", [("hang", "HUNG"), ("crash", "FAILED")])
def test_a_fault_of_one_check_leaves_the_others_whole(kind, verdict, root, tmp_path):
    done, lines, table = rehearse(root, tmp_path / "out", "--only", "greedy,score-float32,collective", plant=f"{kind}:greedy")
    assert done.returncode == 1 and "1 of 3 checks are not ok: greedy" in done.stderr
    assert {line["name"]: line["verdict"] for line in lines} == {"score-float32": "ok", "greedy": verdict, "collective": "ok"}
    assert table.count("| ok |") == 2 and f"| {verdict} |" in table
    # The details from before the fault are kept, and the process that it started in a session of its own is gone.
    kept = next(line for line in lines if line["name"] == "greedy")["details"]
    assert kept["planted"] == kind and not Path(f"/proc/{kept['below']}").exists()


def test_checks_that_no_longer_fit_are_listed(root, tmp_path):
    done, lines, table = rehearse(root, tmp_path / "out", "--only", "greedy,collective", "--deadline", "1")
    assert done.returncode == 1 and table.count("| not started |") == 4
    assert [line["verdict"] for line in lines] == ["not started"] * 2


def test_the_limits_are_those_of_the_reference(root, monkeypatch):
    """Milliseconds of a decode pass and token rates as worked out by hand: 1.5B reads 3.09 GB of weights and 28 KiB a token."""
    monkeypatch.syspath_prepend(root / "scripts/gpu")
    import limits
    import order
    for shape, card, ms in [("1.5b", "H100", 2.28), ("7b", "H100", 7.22), ("1.5b", "H200", 1.59)]:
        seconds = limits.SHAPES[shape].decode_seconds(128 * 1024, limits.RATES[card][1])
        assert 1e3 * seconds == pytest.approx(ms, abs=0.005)
    # 6 FLOPs a parameter and token; a sequence of one token has next to no attention.
    own = limits.SHAPES["1.5b"]
    assert 798e12 / own.update_flops([(0, 1)]) == pytest.approx(86_200, rel=2e-3)
    assert limits.card_of("NVIDIA H200") == "H200" and limits.card_of("NVIDIA A100") is None
    checks = order.checks(rehearsal=False)
    assert len({check.name for check in checks}) == len(checks)
    assert sum(check.seconds for check in checks if not check.apart) <= 540


def test_measured_kernels_stand_beside_the_ledger(root, monkeypatch):
    """Attention of 128 requests of 1,024 tokens reads 134 MB of keys and values of a block of 1.5b: 65 us at 69 % of 3.0 TB/s."""
    monkeypatch.syspath_prepend(root / "scripts/gpu")
    import limits
    import speed
    def kernel(name, us):
        return {"name": name, "ms": us / 100, "calls": 10}
    shape = limits.SHAPES["1.5b"]
    measured = [kernel("paged_attention_128_bf16", 60), kernel("paged_attention_combine_bf16", 3), kernel("cublas", 9)]
    found = speed.own_kernels({"dearest": measured}, "generate", shape, 128, 896, 256, "H100")
    assert found.keys() == {"paged_attention"} and found["paged_attention"][0] == pytest.approx(63)
    assert found["paged_attention"][1] == pytest.approx(64.8, rel=0.05)
    found = speed.own_kernels({"dearest": [kernel("silu_mul_grad_bf16", 350)], "passes": 2}, "update", shape, 32, 512, 88, "H100")
    # 9,600 rows, of one micro-batch of two, read 3 and write 2 times 8,960 numbers of two bytes.
    assert found["silu_mul_backward"][1] == pytest.approx(9_600 * 5 * 8_960 * 2 / 0.90 / 3.0e12 * 1e6, rel=1e-3)


def test_the_pack_is_small(root):
    done = subprocess.run([root / "scripts/gpu_check.sh", "--pack"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    files = list((root / "target/gpu_check").iterdir())
    assert {"nestor", "nestor-torch", "gradients"} <= {file.name for file in files}
    size = len(lzma.compress(b"".join(file.read_bytes() for file in files), preset=1))
    shutil.rmtree(root / "target/gpu_check")
    assert size < PACK_BYTES


def test_nccl_without_a_gpu_is_refused(root):
    if shutil.which("nvidia-smi"):
        return
    done = subprocess.run([root / "target/release/nestor", "bench", "collective", "--backend", "nccl"],
                          capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ))
    assert done.returncode == 2 and "needs a GPU" in done.stderr
