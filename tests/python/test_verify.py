"""`nestor verify`: a smoke recipe is reproducible here, and a planted difference is found and named."""
import json
import math
import shutil
import struct

import pytest

NAMES = ["first", "again", "resumed", "ranks", "plain"]
WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def verified(run, root, tmp_path_factory):
    """The directory of a verification, and its report."""
    out = tmp_path_factory.mktemp("verify") / "out"
    done = run("verify", root / "recipes/smoke/gigpo.yaml", "--kill-at", "0.3", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def test_a_smoke_recipe_is_reproducible(verified):
    out, report = verified
    runs = {run["name"]: run for run in report["runs"]}
    assert report["agrees"] and report["not_run"] == [] and list(runs) == NAMES
    results = {(check["run"], check["part"]): check["result"] for check in report["checks"]}
    parts = ["weights", "state", "metrics", "episodes"]
    assert all(results[name, part] == "equal" for name in ("again", "resumed") for part in parts)
    assert len(results) == 12 and "different" not in results.values()
    # The same weights, so the same episodes of iteration 1. Sums in another order then show in later log-probs at most.
    assert results["ranks", "metrics"] == "within rounding"
    found = next((line for line in (out / "verify.md").read_text().splitlines() if line.startswith("- ranks, episodes: ")), "")
    assert results["ranks", "episodes"] == "equal" or ("equal in iteration 1; later: " in found and ", log-prob of token " in found)
    assert runs["resumed"]["sha256"] == runs["first"]["sha256"]
    assert "killed" in runs["resumed"]["note"] and len(runs["resumed"]["commands"]) == 2
    assert 0 < report["logprob_diff_max"] < 1e-4
    assert report["cost"]["ratio"] > 0 and report["cost"]["seconds"] > sum(run["seconds"] for run in runs.values()) * 0.99
    page = (out / "verify.md").read_text()
    assert "the runs agree" in page and all(run["sha256"]["weights"][:12] in page for run in runs.values())


def flip_one_bit(run):
    path = run / "checkpoints/iteration-000001/policy.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    begin = 8 + length + json.loads(data[8 : 8 + length])[WEIGHT]["data_offsets"][0]
    data[begin + 4 * 37 + 1] ^= 1 << 3
    path.write_bytes(data)


def change_line(path, number, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[number])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_one_token(run):
    def change(episode):
        episode["steps"][-1]["tokens"][2] = "x"
    change_line(run / "rollouts/iteration-000002.jsonl", 5, change)


def change_one_metric(run):
    change_line(run / "metrics.jsonl", 1, lambda row: row.update({"loss/policy": math.nextafter(row["loss/policy"], 1), "time/update_s": 9}))


@pytest.mark.parametrize("plant, part, place", [
    (flip_one_bit, "weights", {"checkpoint": "iteration-000001", "set": "policy", "tensor": WEIGHT, "element": 37, "bits": 1}),
    (change_one_token, "episodes", {"item": "rollouts", "iteration": 2, "group": 1, "episode": 5, "token": 2}),
    (change_one_metric, "metrics", {"item": "metrics.jsonl", "iteration": 1, "field": "loss/policy"}),
])
def test_a_planted_difference_is_named(plant, part, place, verified, run, tmp_path):
    first = verified[0] / "first"
    shutil.copytree(first, tmp_path / "other", symlinks=True)
    same = run("verify", "--runs", first, tmp_path / "other")
    assert same.returncode == 0 and "the runs agree" in same.stdout, same.stderr
    plant(tmp_path / "other")
    done = run("verify", "--runs", first, tmp_path / "other", "--json")
    assert done.returncode == 1, done.stderr
    [check] = [check for check in json.loads(done.stdout)["checks"] if check["result"] != "equal"]
    found = check["difference"]["place"]
    assert check["part"] == part and {name: found[name] for name in place} == place, check
    if part == "weights":
        assert "elements that differ: 1," in check["detail"] and "damaged" in check["detail"]
    if part == "episodes":
        assert found["step"] == len(json.loads((first / "rollouts/iteration-000002.jsonl").read_text().splitlines()[5])["steps"]) - 1


def test_wrong_input_ends_before_any_run(run, root, tmp_path):
    recipe = root / "recipes/smoke/gigpo.yaml"
    for arguments, part in [((recipe, "--set", "seed=x", "--out", tmp_path / "out"), "`seed`"),
                            (("--runs", tmp_path, tmp_path), "holds no run")]:
        done = run("verify", *arguments)
        assert done.returncode == 2 and part in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
