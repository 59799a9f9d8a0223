"""Plugins from outside the workspace train: an environment with a Cargo.lock of its own, the estimators and losses that `nestor plugin
new` writes in Rust and C, and an environment in C. The
environments that `plugin new` writes are trained by the commands of docs/plugins.md."""
import json
import math
import subprocess
import tomllib

import pytest

RECIPE = """\
iterations: 2
device: cpu
dtype: float32
model: {model}
env: {{plugin: {env}}}
estimator: {{plugin: {estimator}}}
rollout: {{tasks: 2, group_size: 2, max_steps: 4, max_prompt_tokens: 200, max_response_tokens: 16}}
update: {{mini_batch: 8, lr: 1e-3}}
eval: {{tasks: 4}}
checkpoint: {{every: 1}}
"""
NEW = "{new: {hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 300}}"


def train(run, tmp_path, name, **values):
    recipe = tmp_path / f"{name}.yaml"
    recipe.write_text(RECIPE.format(**values))
    done = run("train", recipe, "--run-dir", tmp_path / name)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert all(math.isfinite(row["loss/policy"]) for row in rows[1:])


def test_plugins_outside_the_workspace_train(root, run, tmp_path):
    target, example = root / "target/outside", root / "examples/environments/keydoor"

    def build(crate, *flags):
        subprocess.run(["cargo", "build", "--quiet", "--release", "--offline", "--target-dir", target, *flags], cwd=crate, check=True)

    def new(name, lang, *flags):
        done = run("plugin", "new", name, "--kind", "estimator", "--lang", lang, "--dir", tmp_path, *flags)
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    build(example, "--locked")
    build(new("group_mean", "rust", "--sdk", root / "plugins/sdk"))
    built = target / "release"
    train(run, tmp_path, "rust", model=NEW, env=built / "libkeydoor.so", estimator=built / "libgroup_mean.so")

    subprocess.run(["make", "--quiet"], cwd=new("c_mean", "c"), check=True)
    library, source = tmp_path / "libcounts.so", root / "plugins/sdk/examples/c/counts.c"
    subprocess.run(["cc", "-std=c99", "-shared", "-fPIC", "-I", root / "plugins/sdk", source, "-o", library], check=True)
    # The tokenizer of another environment reads any text.
    train(run, tmp_path, "c", model=f"{{path: {tmp_path}/rust/model}}", env=library, estimator=tmp_path / "c_mean/libc_mean.so")

    again = run("plugin", "new", "c_mean", "--kind", "env", "--lang", "c", "--dir", tmp_path)
    assert again.returncode == 2 and again.stderr.startswith(f"error: {tmp_path}/c_mean is there already"), again.stderr


def test_losses_outside_the_workspace_train_as_the_built_in_one(root, run, tmp_path):
    libraries = {}
    for lang in ["rust", "c"]:
        name = f"clip_{lang}"
        sdk = ["--sdk", root / "plugins/sdk"] if lang == "rust" else []
        done = run("plugin", "new", name, "--kind", "loss", "--lang", lang, "--dir", tmp_path, *sdk)
        assert done.returncode == 0, done.stderr
        build = ["make", "--quiet"] if lang == "c" else ["cargo", "build", "--quiet", "--release", "--offline", "--target-dir", root / "target/outside"]
        subprocess.run(build, cwd=tmp_path / name, check=True)
        libraries[lang] = (root / "target/outside/release" if lang == "rust" else tmp_path / name) / f"lib{name}.so"
    recipe = tmp_path / "clip_rust/recipe.yaml"

    def update_of(name, *sets):
        done = run("train", recipe, "--run-dir", tmp_path / name, "--set", "iterations=1", *sets)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[1])

    # The templates are PPO's clip without the dual clip.
    core = update_of("core", "--set", "loss=null", "--set", "update.dual_clip=1e6")
    for lang, library in libraries.items():
        row = update_of(lang, "--set", f"loss={{plugin: {library}}}")
        for key in ["loss/policy", "loss/total", "grad/norm", "policy/entropy", "policy/approx_kl"]:
            assert row[key] == pytest.approx(core[key], rel=1e-3, abs=1e-5), (lang, key)
        assert row["loss/clip_fraction"] == pytest.approx(core["policy/clip_fraction"], abs=2e-3) and row["loss/clip_fraction"] > 0, lang
    refused = run("train", recipe, "--check", "--set", "loss.plugin=grpo")
    assert refused.returncode == 2 and "`grpo` is an estimator, not a loss" in refused.stderr, refused.stderr


def test_recorded_rows_with_columns_are_scored(root, run, run_json, tmp_path):
    file = json.loads((root / "tests/fixtures/estimator_family.json").read_text())
    case, rows = file["cases"][0], tmp_path / "rows.json"
    result = next(result for result in file["methods"]["adastep"] if result["case"] == case["id"])
    rows.write_text(json.dumps(case))
    params = result["runs"][0]["params"]
    config = json.dumps({"norm": {"mean_std_norm": "std", "mean_norm": "none"}[params["mode"]], "gamma": params["gamma"]})
    got = run_json("advantage", "adastep", "--config", config, "--rows", rows, "--json")["advantages"]
    assert [tokens[0] for tokens in got] == pytest.approx(result["runs"][0]["adv_f64"], abs=1e-5)
    for row in case["rows"]:
        del row["action"]
    rows.write_text(json.dumps(case))
    lacking = run("advantage", "adastep", "--rows", rows)
    assert lacking.returncode == 2 and "needs the column `action` in every row" in lacking.stderr, lacking.stderr


def test_the_examples_lock_what_the_workspace_locks(root):
    """So that they build without a network wherever the workspace does."""
    def versions(lock):
        return {(package["name"], package["version"]) for package in tomllib.loads(lock.read_text())["package"] if "source" in package}
    locks = sorted(root.glob("examples/*/*/Cargo.lock"))
    assert locks
    for lock in locks:
        assert versions(lock) <= versions(root / "Cargo.lock"), f"copy Cargo.lock to {lock.parent} and run cargo build --offline there"
