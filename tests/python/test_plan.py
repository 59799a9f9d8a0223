"""`nestor plan` as a user calls it: on a published recipe whose weights are not here, without allocating anything."""
import os
import subprocess

RECIPE = "recipes/alfworld/gigpo_qwen2.5_7b.yaml"
ALL_WEIGHTS = ("--set", "model.lora=null")


def test_published_recipe(run_json, root):
    plan = run_json("plan", RECIPE, "--shape", "7b", *ALL_WEIGHTS, "--gpus", 4, "--json", cwd=root)
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
    done = run("plan", RECIPE, "--shape", "7b", "--gpus", 1024, "--gpus-per-node", 8, cwd=root)
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
