"""Plugins from outside the workspace: an environment and an estimator in Rust, an environment in C, the estimators of examples/."""
import json
import math
import shutil
import subprocess
import tomllib

import pytest

ESTIMATORS = ["adastep", "graphgpo", "running_baseline"]

MANIFEST = """\
[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[lib]
crate-type = ["cdylib"]

[dependencies]
anyhow = "1"
nestor-plugin = {{ path = "{sdk}" }}
schemars = "1"
serde = {{ version = "1", features = ["derive"] }}
serde_json = "1"

[workspace]
"""

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
    crate = tmp_path / "crate"
    (crate / "src").mkdir(parents=True)
    (crate / "Cargo.toml").write_text(MANIFEST.format(sdk=root / "plugins/sdk"))
    shutil.copy(root / "plugins/sdk/examples/toy.rs", crate / "src/lib.rs")
    shutil.copy(root / "Cargo.lock", crate)  # the versions that are already here
    target = root / "target/outside"
    subprocess.run(["cargo", "build", "--quiet", "--release", "--offline", "--target-dir", target], cwd=crate, check=True)
    plugin = target / "release/liboutside.so"
    train(run, tmp_path, "rust", model=NEW, env=plugin, estimator=plugin)

    library = tmp_path / "libcounts.so"
    source = root / "plugins/sdk/examples/c/counts.c"
    subprocess.run(["cc", "-std=c99", "-shared", "-fPIC", "-I", root / "plugins/sdk", source, "-o", library], check=True)
    train(run, tmp_path, "c", model=f"{{path: {tmp_path}/rust/model}}", env=library, estimator="gigpo")


@pytest.mark.parametrize("name", ESTIMATORS[:2])
def test_an_estimator_outside_equals_the_reference(name, root):
    """The crate's own test compares it with tests/fixtures/estimator_family.json."""
    command = ["cargo", "test", "--quiet", "--release", "--offline", "--locked", "--target-dir", root / "target/outside"]
    done = subprocess.run(command, cwd=root / "examples/estimators" / name, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_recorded_rows_with_columns_are_scored(root, outside, run, run_json, tmp_path):
    file = json.loads((root / "tests/fixtures/estimator_family.json").read_text())
    case, rows = file["cases"][0], tmp_path / "rows.json"
    result = next(result for result in file["methods"]["adastep"] if result["case"] == case["id"])
    rows.write_text(json.dumps(case))
    plugin, params = outside("adastep"), result["runs"][0]["params"]
    config = json.dumps({"norm": {"mean_std_norm": "std", "mean_norm": "none"}[params["mode"]], "gamma": params["gamma"]})
    got = run_json("advantage", plugin, "--config", config, "--rows", rows, "--json")["advantages"]
    assert [tokens[0] for tokens in got] == pytest.approx(result["runs"][0]["adv_f64"], abs=1e-5)
    for row in case["rows"]:
        del row["action"]
    rows.write_text(json.dumps(case))
    lacking = run("advantage", plugin, "--rows", rows)
    assert lacking.returncode == 2 and "needs the column `action` in every row" in lacking.stderr, lacking.stderr


def test_the_examples_lock_what_the_workspace_locks(root):
    """So that they build without a network wherever the workspace does."""
    def versions(folder):
        lock = tomllib.loads((folder / "Cargo.lock").read_text())
        return {(package["name"], package["version"]) for package in lock["package"] if "source" in package}
    for name in ESTIMATORS:
        own = root / "examples/estimators" / name
        assert versions(own) <= versions(root), f"copy Cargo.lock to {own} and run cargo build --offline there"
