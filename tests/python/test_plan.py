"""`nestor plan` as a user calls it: on a published recipe whose weights are not here, without allocating anything."""
import os
import shlex
import subprocess

import plan_fit
import pytest

RECIPE = "recipes/alfworld/gigpo_qwen2.5_7b.yaml"
ALL_WEIGHTS = ("--set", "model.lora=null")
H100 = ("--gpu", "h100-80gb")


def test_published_recipe(run_json, root):
    plan = run_json("plan", RECIPE, "--shape", "7b", *ALL_WEIGHTS, "--gpus", 4, *H100, "--json", cwd=root)
    # https://huggingface.co/Qwen/Qwen2.5-7B: 7.61 billion parameters.
    assert abs(plan["model"]["parameters"] / 7.6156e9 - 1) < 1e-4
    assert plan["here"]["sharding"] == "full" and plan["here"]["ranks"] == 4
    assert [fit["ranks"] for fit in plan["worlds"]] == [1, 2, 4, 8]
    for fit in plan["worlds"] + plan["modes"] + [plan["here"]]:
        totals = [sum(item["bytes"][moment] for item in fit["memory"]["items"]) for moment in range(3)]
        assert fit["peak_bytes"] == max(totals)
        assert fit["fits"] == (max(totals) <= fit["capacity"])
    # 7.6 G parameters of AdamW are 122 GB, which one card has not.
    assert not plan["worlds"][0]["fits"]
    assert [phase["name"] for phase in plan["iteration"]["phases"]] == ["rollout", "log-probs", "update"]
    assert plan["iteration"]["hidden"]


def test_text_and_adapters(run, root):
    done = run("plan", RECIPE, "--shape", "7b", "--gpus", 1024, "--gpus-per-node", 8, *H100, cwd=root)
    assert done.returncode == 0, done.stderr
    for words in ["frozen base of the adapters", "smallest cluster", "Communication", "Assumed:"]:
        assert words in done.stdout, done.stdout


def test_nothing_is_allocated(nestor, root):
    """Planning for a large model takes no more memory than for a small one."""
    def peak(*arguments):
        process = subprocess.Popen([nestor, "plan", *arguments], cwd=root, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        return usage.ru_maxrss

    small = peak("recipes/smoke/gigpo.yaml")
    assert peak(RECIPE, "--shape", "14b") < 1.2 * small


def test_world_size_and_refusals(run, run_json, root, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    plan = run_json("plan", "recipes/smoke/gigpo.yaml", "--json", cwd=root)
    assert plan["world"]["ranks"] == 8
    for args, words in [
        ((RECIPE,), "--shape"),
        ((RECIPE, "--shape", "9b"), "unknown shape"),
        (("recipes/smoke/gigpo.yaml", "--set", "sharding=none"), "grad_op"),
        (("recipes/smoke/gigpo.yaml", "--shape", "7b"), "model.new"),
    ]:
        done = run("plan", *args, cwd=root)
        assert done.returncode == 2 and words in done.stderr, (args, done.stderr)


def test_the_answer_comes_first(run, run_json, root):
    quickstart = "recipes/quickstart.yaml"
    lines = run("plan", quickstart, "--memory", 4, cwd=root).stdout.splitlines()
    assert lines[0].startswith(f"{quickstart}: 117 thousand parameters (model.new) in 2 blocks, float32, 1 rank of this CPU")
    assert lines[2].startswith("It fits: ") and "of 4.00 GB" in lines[2]
    assert "40 iterations, 5 evaluations (" in lines[3] and "the warm start (" in lines[3]
    assert "It does not fit: " in run("plan", quickstart, "--memory", 0.4, cwd=root).stdout
    # Available memory, within the machine's own.
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < run_json("plan", quickstart, "--json", cwd=root)["here"]["capacity"] <= total


@pytest.mark.parametrize("share", [0.05, 0.6])
def test_a_run_with_fitted_settings_stays_within_its_memory(share, tmp_path):
    """The least and the most that a run can use, and its peak as the system counts it (tests/slow/plan_fit.py: 60 of them)."""
    recipe = "smoke/ppo"
    least, most = plan_fit.fitted(recipe, 0.001), plan_fit.fitted(recipe, 1000)["fit"]["after"]["peak_bytes"]
    size = least + share * (most - least)
    fit = plan_fit.fitted(recipe, size / 1e9)["fit"]
    assert 0.75 * size <= fit["after"]["peak_bytes"] <= size
    code, words, measured, _ = plan_fit.trained(recipe, fit["sets"], str(tmp_path / "run"))
    assert code == 0, words
    assert measured <= size, fit


def test_a_run_without_room_is_warned_of(run, root):
    wide = "model.new={hidden_size: 16384, intermediate_size: 65536, layers: 64, heads: 64, kv_heads: 8, vocab_size: 320}"
    for more, warns in ((["--set", wide], True), ([], False)):
        done = run("train", "recipes/smoke/gigpo.yaml", "--check", "--set", "device=cpu", *more, cwd=root)
        assert ("the run may need" in done.stderr + done.stdout) == warns, done.stderr


def test_fitted_settings_are_arguments(run, run_json, root):
    more = ("recipes/quickstart.yaml", "--set", "update.mini_batch=1024", "--memory", 0.95)
    done = run("plan", *more, "--fit", cwd=root)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  --set ")]
    sets = run_json("plan", *more, "--fit", "--json", cwd=root)["fit"]["sets"]
    # Both runs measure the plugins' memory, so their numbers may differ a little.
    keys = lambda sets: [word.split("=")[0] for word in sets]
    assert keys(word for word in shlex.split(line) if word != "--set") == keys(sets) and len(sets) > 0
    assert "It fits: " in run("plan", *more, *shlex.split(line), cwd=root).stdout
    assert "--fit" not in line


def test_a_refusal_names_what_would_fit(run, root):
    done = run("plan", RECIPE, "--shape", "7b", *ALL_WEIGHTS, *H100, "--fit", cwd=root)
    assert done.returncode == 2 and "(--gpus " in done.stderr and "--set 'model.lora={rank: 64, alpha: 64}'" in done.stderr
    done = run("plan", "recipes/smoke/gigpo.yaml", "--memory", -1, cwd=root)
    assert done.returncode == 2 and "--memory" in done.stderr
