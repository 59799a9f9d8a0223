"""Own CUDA kernels in whole runs on a CPU, where the emulator of a block runs them."""
import json
import re
import subprocess

import pytest
from test_resume import train

SETTINGS = ["deterministic=true", "dtype=float32", "device=cpu", "iterations=1", "eval.tasks=2", "warm_start.steps=2"]


@pytest.fixture(scope="module")
def smoke(run, root, tmp_path_factory):
    """Runs a smoke recipe by the operations of a GPU. Returns its warnings about kernels, its policy and its steps."""
    built = subprocess.run([root / "scripts/emulator.sh"], capture_output=True, text=True, check=True)

    def call(damaged=None):
        run_dir = tmp_path_factory.mktemp("kernels") / "run"
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv("NESTOR_OPS", "generic")
            if damaged:
                variables.setenv("NESTOR_EMULATED_KERNELS", built.stdout.strip())
                variables.setenv("NESTOR_EMULATOR_DAMAGE", damaged)
            done = train(run, root / "recipes/smoke/gigpo.yaml", run_dir, settings=SETTINGS)
        assert done.returncode == 0, done.stderr
        warnings = [line for line in done.stderr.splitlines() if "in place of these kernels" in line]
        last = sorted((run_dir / "checkpoints").glob("iteration-*"))[-1]
        steps = [json.loads(line) for line in (run_dir / "warm_start.jsonl").read_text().splitlines()]
        return warnings, (last / "policy.safetensors").read_bytes(), steps
    return call


@pytest.fixture(scope="module")
def public(smoke):
    """The run by libtorch's operations alone."""
    return smoke()


@pytest.fixture(scope="module")
def tested(run, root):
    """The report of `bench kernels` with this kernel damaged."""
    built = subprocess.run([root / "scripts/emulator.sh"], capture_output=True, text=True, check=True)

    def call(damaged=None):
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv("NESTOR_EMULATED_KERNELS", built.stdout.strip())
            if damaged:
                variables.setenv("NESTOR_EMULATOR_DAMAGE", damaged)
            return json.loads(run("bench", "kernels", "--device", "cpu", "--json").stdout)
    return call


def test_bench_kernels_names_those_of_a_device(tested, run):
    all_of, damaged = tested(), tested("silu_mul_f16")
    assert all_of["left_out"] == [] and all_of["ms"] > 0
    assert [one["kernel"] for one in damaged["left_out"]] == ["silu_mul_f16"] and "differs" in damaged["left_out"][0]["reason"]
    assert set(all_of["kernels"]) - set(damaged["kernels"]) == {"silu_mul_f16"}
    assert run("bench", "kernels", "--device", "cpu").stdout.startswith("0 kernels")


def test_kernels_are_left_out_by_name(tested, run, monkeypatch):
    monkeypatch.setenv("NESTOR_KERNELS", "-adamw_bf16,-paged_attention_64_f32")
    left_out = {one["kernel"]: one["reason"] for one in tested()["left_out"]}
    assert left_out == dict.fromkeys(["adamw_bf16", "paged_attention_64_f32"], "left out by NESTOR_KERNELS")
    monkeypatch.setenv("NESTOR_KERNELS", "-adam_bf16")
    refused = run("bench", "kernels", "--device", "cpu")
    assert refused.returncode == 2 and 'it has "-adam_bf16"' in refused.stderr


def test_damaged_kernels_are_left_out(smoke, public, root):
    warnings, policy, _ = smoke("all")
    operations = set(re.findall(r"EACH_TYPE\(X, (\w+)\)", (root / "core/torch/cuda/list.h").read_text())) - {"name"}
    kernels = {f"{operation}_{kind}" for operation in operations for kind in ("f32", "f16", "bf16")}
    assert len(warnings) == 1 and len(operations) > 2
    # Each kernel has a self-test, which finds the damage.
    assert not [kernel for kernel in kernels if kernel not in warnings[0]], warnings
    assert public[0] == [] and policy == public[1]


def test_one_damaged_kernel_leaves_the_others(smoke, public):
    warnings, policy, steps = smoke("rms_norm_f32")
    assert len(warnings) == 1 and "rms_norm_f32 (its result differs" in warnings[0], warnings
    assert "add_norm" not in warnings[0] and policy != public[1], "the other kernels were used"
    for step, want in zip(steps, public[2], strict=True):
        assert step["loss"] == pytest.approx(want["loss"], rel=1e-4), step
