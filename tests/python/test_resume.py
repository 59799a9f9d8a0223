"""A run killed by SIGKILL at a named place and resumed ends with bit-identical parameters (deterministic, float32, CPU)."""
import json
import re
import shutil
import signal

import pytest
from measured import MEASURED

SETTINGS = ["deterministic=true", "dtype=float32", "device=cpu", "iterations=4", "checkpoint.every=1", "eval.every=2",
            "update.epochs=2", "update.shuffle=true", "update.kl={coef: 0.01}"]
# Pairs of short episodes, whose returns are often equal.
SAMPLING = [*SETTINGS, "rollout.dynamic_sampling={rounds: 3}", "rollout.tasks=6", "rollout.group_size=2",
            "rollout.max_steps=3"]
# Episodes of an iteration and of an evaluation.
TRAINED, EVALUATED = 16, 10
FAILPOINTS = ["mid-rollout:3", "mid-rollout:70", "mid-mini-batch:5", "mid-checkpoint:1", "mid-checkpoint:3",
              "before-rename:2", "before-rename:4", "after-rename:1", "after-rename:3"]


def train(run, recipe, run_dir, *args, failpoint=None, settings=SETTINGS):
    sets = [word for s in settings for word in ("--set", s)]
    return run("train", recipe, *sets, "--run-dir", run_dir, *args, failpoint=failpoint)


def outcome(run_dir):
    """Final parameters, moments, episodes of evaluations, steps and histograms as bytes, and the metrics that are not times."""
    last = sorted((run_dir / "checkpoints").glob("iteration-*"))[-1]
    assert last.name == "iteration-000004"
    files = {path.name: path.read_bytes() for path in [*last.glob("*.safetensors"), *last.glob("*.bin"), last / "state.json"]}
    weights = "adapter_model" if (last / "adapter_config.json").exists() else "policy"
    assert {f"{weights}.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors"} <= files.keys()
    files |= {path.name: path.read_bytes() for path in (run_dir / "evaluations").iterdir()}
    assert state(run_dir) == "done"
    files |= {name: (run_dir / name).read_bytes() for name in ("steps.jsonl", "warm_start.jsonl", "histograms.jsonl")}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return files, [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]


def state(run_dir):
    return json.loads((run_dir / "run.json").read_text())["state"]


@pytest.fixture(scope="module")
def whole(run, root, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    done = train(run, root / "recipes/smoke/gigpo.yaml", run_dir)
    assert done.returncode == 0, done.stderr
    return outcome(run_dir)


def has_checkpoint(run_dir):
    return any((run_dir / "checkpoints").glob("iteration-*[0-9]"))


def kill_and_resume(run, recipe, run_dir, failpoint, settings, want):
    killed = train(run, recipe, run_dir, failpoint=failpoint, settings=settings)
    assert killed.returncode == -signal.SIGKILL and state(run_dir) == "running", killed.stderr
    resumed = train(run, recipe, run_dir, "--resume", settings=settings)
    if not has_checkpoint(run_dir):
        assert resumed.returncode == 2 and "no checkpoint" in resumed.stderr, resumed.stderr
        return
    assert resumed.returncode == 0, resumed.stderr
    files, rows = outcome(run_dir)
    want_files, want_rows = want
    assert rows == want_rows
    for name in want_files:
        assert files[name] == want_files[name], name


@pytest.mark.parametrize("failpoint", ["mid-mini-batch:1", "mid-mini-batch:5", "mid-mini-batch:8", "mid-rollout:150"])
def test_stopped_by_a_signal_and_resumed(failpoint, whole, run, root, tmp_path):
    """A started update is saved with the mini-batches done; a started rollout is discarded."""
    recipe, run_dir = root / "recipes/smoke/gigpo.yaml", tmp_path / "run"
    stopped = train(run, recipe, run_dir, failpoint=f"{failpoint}=term")
    assert stopped.returncode == 130 and state(run_dir) == "stopped", stopped.stderr
    if "mini-batch" in failpoint:
        # The answer may come when the save has begun.
        assert re.fullmatch(r"stopping after this (mini-batch|checkpoint), then saving; again: exit without saving\n",
                            stopped.stderr), stopped.stderr
    halfway = sorted(path.name for path in (run_dir / "checkpoints").glob("iteration-*+*"))
    assert len(halfway) == ("mini-batch" in failpoint), halfway
    resumed = train(run, recipe, run_dir, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert outcome(run_dir) == whole
    # The row of an iteration that two processes share has the time of both.
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][1:]
    assert all(row["time/rollout_s"] > 0 and row["time/update_s"] > 0 for row in rows), rows


def responses(rows):
    """The number of responses before the middle of each evaluation of an undisturbed run."""
    played, middles = 0, []
    for row in rows:
        played += round(TRAINED * row.get("episode/length", 0))
        evaluated = round(EVALUATED * row.get("eval/length", 0))
        middles += [played + evaluated // 2] if evaluated else []
        played += evaluated
    return middles


def test_stopped_before_the_first_iteration_or_in_an_evaluation(whole, run, root, tmp_path):
    """The resumed run makes up for the evaluation. Before the first one it resumes inside or after the warm start."""
    recipe = root / "recipes/smoke/gigpo.yaml"
    first, middle, last = responses(whole[1])
    places = {"mid-warm-start:7": "warm-start-000007", f"mid-rollout:{first}": "warm-start-000060",
              f"mid-rollout:{middle}": "iteration-000001+0000", f"mid-rollout:{last}": "iteration-000003+0000"}
    for failpoint, left in places.items():
        run_dir = tmp_path / failpoint.replace(":", "-")
        stopped = train(run, recipe, run_dir, failpoint=f"{failpoint}=term")
        assert stopped.returncode == 130 and "stopped by a signal; resume with: nestor train --resume" in stopped.stdout, (failpoint, stopped.stderr)
        latest = (run_dir / "checkpoints/latest").readlink().name
        assert latest.startswith(left), (failpoint, latest)
        resumed = train(run, recipe, run_dir, "--resume")
        assert resumed.returncode == 0, (failpoint, resumed.stderr)
        assert outcome(run_dir) == whole, failpoint


def test_saved_by_time_and_killed(whole, run, root, tmp_path):
    """At every chance, since the time is over at once: after each optimizer step and each step of the warm start."""
    recipe = root / "recipes/smoke/gigpo.yaml"
    settings = [*SETTINGS, "checkpoint={every_minutes: 1.0e-9}"]
    for failpoint, left in {"mid-warm-start:9": "warm-start-000008", "mid-mini-batch:3": "iteration-000000+000002"}.items():
        run_dir = tmp_path / failpoint.replace(":", "-")
        killed = train(run, recipe, run_dir, failpoint=failpoint, settings=settings)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert (run_dir / "checkpoints/latest").readlink().name == left
        resumed = train(run, recipe, run_dir, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert outcome(run_dir) == whole, failpoint


def test_the_best_checkpoint_is_kept(whole, run, root, tmp_path):
    """An evaluation that is the best so far is saved, whatever the intervals, and outlives newer checkpoints. That of the warm start is one."""
    run_dir, settings = tmp_path / "run", [*SETTINGS, "checkpoint={keep: 1}", "iterations=6", "update.lr=1.0e-9"]
    done = train(run, root / "recipes/smoke/gigpo.yaml", run_dir, settings=settings)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluated = {row["iteration"]: row["eval/success"] for row in rows if "eval/success" in row}
    best = max(evaluated, key=evaluated.get)  # the first of equal ones
    folder = run_dir / "checkpoints"
    assert (folder / "best").readlink().name == f"iteration-{best:06}"
    assert (folder / "latest").readlink().name == "iteration-000006"
    kept = {path.name for path in folder.glob("*-0*")}
    assert kept == {f"iteration-{best:06}", "iteration-000006"}, kept
    assert json.loads((folder / "latest/state.json").read_text())["best"] == {"iteration": best, "success": evaluated[best]}


def test_resumed_from_an_earlier_checkpoint(whole, run, root, tmp_path):
    """The iterations after it are played again, to the same end, and the later checkpoints of before are gone."""
    run_dir, recipe, settings = tmp_path / "run", root / "recipes/smoke/gigpo.yaml", [*SETTINGS, "checkpoint.keep=9"]
    done = train(run, recipe, run_dir, settings=settings)
    assert done.returncode == 0, done.stderr
    folder = run_dir / "checkpoints"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-0*")}
    earliest = min(1, int((folder / "best").readlink().name.removeprefix("iteration-")))
    for name in ["7", "newest", str(tmp_path)]:
        refused = train(run, recipe, run_dir, "--resume-from", name, settings=settings)
        wanted = f"--resume-from {name}: the run in {run_dir} has no such checkpoint; it has warm-start-000060, iteration-000000, iteration-000001, "
        assert refused.returncode == 2 and wanted in refused.stderr, refused.stderr
    for name in ["best", "2", folder / "iteration-000001"]:
        resumed = train(run, recipe, run_dir, "--resume-from", name, settings=settings)
        assert resumed.returncode == 0, resumed.stderr
        assert outcome(run_dir) == whole
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-0*")}
    again = {name for name in before if before[name] != after[name]}
    assert after.keys() == before.keys() and again == {f"iteration-{i:06}" for i in range(earliest + 1, 5)}, again


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_killed_and_resumed(failpoint, whole, run, root, tmp_path):
    kill_and_resume(run, root / "recipes/smoke/gigpo.yaml", tmp_path / "run", failpoint, SETTINGS, whole)


@pytest.mark.parametrize("failpoint", ["mid-checkpoint:2", "between-files:6", "before-manifest:2", "after-rename:2", "mid-rollout:40",
                                       "mid-mini-batch:5"])
def test_killed_while_a_thread_saves_and_resumed(failpoint, whole, run, root, tmp_path):
    """The checkpoints and rows are those of a run that waits for its saves."""
    settings = [*SETTINGS, "checkpoint.background=true"]
    kill_and_resume(run, root / "recipes/smoke/gigpo.yaml", tmp_path / "run", failpoint, settings, whole)


def test_dynamic_sampling_killed_and_resumed(run, root, tmp_path):
    """Every iteration plays further rounds, so each kill leaves the task cursor elsewhere than the checkpoint."""
    recipe = root / "recipes/smoke/gigpo.yaml"
    done = train(run, recipe, tmp_path / "whole", settings=SAMPLING)
    assert done.returncode == 0, done.stderr
    files, rows = outcome(tmp_path / "whole")
    assert all(row["rollout/groups_dropped"] > 0 for row in rows[1:]), rows
    assert json.loads(files["state.json"])["tasks"]["position"] == sum(row["rollout/groups_played"] for row in rows[1:])
    for failpoint in ("mid-rollout:110", "mid-rollout:190", "before-rename:3"):
        run_dir = tmp_path / failpoint.replace(":", "-")
        kill_and_resume(run, recipe, run_dir, failpoint, SAMPLING, (files, rows))


def test_a_curriculum_killed_and_resumed(run, root, tmp_path):
    """A killed iteration leaves no success behind, whichever of its rounds it played; an iteration stopped in its update is not drawn anew."""
    recipe, settings = root / "recipes/smoke/gigpo.yaml", [*SAMPLING, "rollout.curriculum={window: 2, floor: 0.2}"]
    assert train(run, recipe, tmp_path / "whole", settings=settings).returncode == 0
    files, rows = outcome(tmp_path / "whole")
    tasks = json.loads(files["state.json"])["tasks"]["history"]["played"]
    assert len(tasks) == rows[-1]["curriculum/tasks_seen"] and all(len(task["success"]) <= 2 for task in tasks), tasks
    assert rows[1]["curriculum/weight"] == rows[1]["curriculum/new_ratio"] == 1
    assert all(0.2 <= row["curriculum/weight"] < 1 and row["curriculum/new_ratio"] < 1 for row in rows[2:]), rows
    for failpoint in ("mid-rollout:110", "mid-rollout:190", "before-rename:3"):
        kill_and_resume(run, recipe, tmp_path / failpoint.replace(":", "-"), failpoint, settings, (files, rows))
    run_dir = tmp_path / "stopped"
    assert train(run, recipe, run_dir, failpoint="mid-mini-batch:5=term", settings=settings).returncode == 130
    assert train(run, recipe, run_dir, "--resume", settings=settings).returncode == 0
    assert outcome(run_dir) == (files, rows)


def test_a_critic_and_an_adaptive_coefficient_killed_and_resumed(run, root, tmp_path):
    recipe = root / "recipes/smoke/ppo.yaml"
    settings = [*SETTINGS, "critic.warmup=1", "update.old_logprobs=recompute",
                "update.kl_in_reward={coef: 0.05, adaptive: {target: 0.01, horizon: 100}}"]
    assert train(run, recipe, tmp_path / "whole", settings=settings).returncode == 0
    files, rows = outcome(tmp_path / "whole")
    assert {"critic.safetensors", "critic_exp_avg.safetensors", "critic_exp_avg_sq.safetensors"} <= files.keys()
    assert len({row["reward/kl_coef"] for row in rows[1:]}) == 4
    for failpoint in ("mid-mini-batch:14", "before-rename:4"):
        kill_and_resume(run, recipe, tmp_path / failpoint[:6], failpoint, settings, (files, rows))
    without = train(run, root / "recipes/smoke/gigpo.yaml", tmp_path / "none")
    assert without.returncode == 0, without.stderr
    taken_up = train(run, recipe, tmp_path / "none", "--resume", settings=[*settings, "iterations=5"])
    assert taken_up.returncode == 2 and "critic: none -> " in taken_up.stderr, taken_up.stderr


def test_an_estimator_that_remembers_killed_and_resumed(outside, run, root, tmp_path):
    """The running baseline of examples/: its state is in every checkpoint, also in one inside an update."""
    recipe, plugin = root / "recipes/smoke/gigpo.yaml", tmp_path / "libestimator.so"
    shutil.copy(outside("running_baseline"), plugin)
    # Few tasks, so that every iteration compares with earlier ones.
    settings = [*SETTINGS, f"estimator={{plugin: {plugin}, config: {{}}}}", "env.config.max=2", "env.config.held_out=2", "eval.tasks=2"]
    assert train(run, recipe, tmp_path / "whole", settings=settings).returncode == 0
    files, rows = outcome(tmp_path / "whole")
    assert len({row["estimator/baseline_mean"] for row in rows[1:]}) == 4
    baselines = json.loads(files["estimator-state.bin"])
    assert max(baseline["iterations"] for baseline in baselines.values()) > 1, baselines
    kill_and_resume(run, recipe, tmp_path / "killed", "mid-rollout:70", settings, (files, rows))
    # A stop inside an update comes after the score that changed the state; one in a rollout discards its iteration.
    for failpoint in ("mid-mini-batch:4", "mid-rollout:150"):
        run_dir = tmp_path / failpoint.replace(":", "-")
        assert train(run, recipe, run_dir, failpoint=f"{failpoint}=term", settings=settings).returncode == 130
        assert train(run, recipe, run_dir, "--resume", settings=settings).returncode == 0
        assert outcome(run_dir) == (files, rows), failpoint
    manifest = json.loads((tmp_path / "whole/checkpoints/latest/manifest.json").read_text())
    assert "estimator-state.bin" in manifest["files"]
    saved_by = json.loads(files["state.json"])["plugins"][1]
    assert saved_by["id"] == "running_baseline" and saved_by["border"] and len(saved_by["sha256"]) == 64, saved_by

    # Another estimator under the path of the recipe, and the first one after one without a state.
    def resume(library, name, *allowed):
        shutil.copy(library, plugin)
        words = [word for key in ("estimator.config", *allowed) for word in ("--allow-change", key)]
        return train(run, recipe, tmp_path / name, "--resume", *words, settings=[*settings, "iterations=5"])
    other = resume(root / "target/release/libnestor_adastep.so", "whole")
    assert other.returncode == 2 and "holds the state of estimator `running_baseline`, not of `adastep`" in other.stderr, other.stderr
    assert train(run, recipe, tmp_path / "without", settings=[*settings, "iterations=1"]).returncode == 0
    without = resume(outside("running_baseline"), "without")
    assert without.returncode == 2 and "holds no state of estimator `running_baseline`" in without.stderr, without.stderr
    assert resume(outside("running_baseline"), "without", "estimator.plugin").returncode == 0


def test_graphs_of_tasks_killed_and_resumed(run, root, tmp_path):
    """The bundled estimator with a state, on few tasks, so that later iterations meet remembered edges and scores."""
    recipe = root / "recipes/smoke/gigpo.yaml"
    settings = [*SETTINGS, "estimator={plugin: tigpo, config: {}}", "env.config.max=2", "env.config.held_out=2", "eval.tasks=2"]
    assert train(run, recipe, tmp_path / "whole", settings=settings).returncode == 0
    files, rows = outcome(tmp_path / "whole")
    tasks = json.loads(files["estimator-state.bin"])
    assert tasks and all(task["links"] and task["scores"] for task in tasks.values())
    kill_and_resume(run, recipe, tmp_path / "killed", "mid-rollout:70", settings, (files, rows))


def test_a_transcript_killed_and_resumed(run, root, tmp_path):
    recipe = tmp_path / "transcript.yaml"
    recipe.write_text(f"extends: {root}/recipes/smoke/gigpo.yaml\n"
                      "rollout: {history: {mode: transcript}, max_sequence_tokens: 200}\n")
    assert train(run, recipe, tmp_path / "whole").returncode == 0
    run_dir = tmp_path / "run"
    assert train(run, recipe, run_dir, failpoint="mid-rollout:70").returncode == -signal.SIGKILL
    resumed = train(run, recipe, run_dir, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert outcome(run_dir) == outcome(tmp_path / "whole")
    episode = json.loads((run_dir / "rollouts/iteration-000001.jsonl").read_text().splitlines()[0])
    assert not any("assistant" in step["prompt"].rsplit("<|im_start|>", 1)[0] for step in episode["steps"])


def test_a_damaged_checkpoint_is_passed_over(whole, run, root, tmp_path):
    run_dir = tmp_path / "run"
    recipe = root / "recipes/smoke/gigpo.yaml"
    assert train(run, recipe, run_dir, "--set", "iterations=3").returncode == 0
    newest = sorted((run_dir / "checkpoints").glob("iteration-*"))[-1]
    damaged = bytearray((newest / "policy.safetensors").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (newest / "policy.safetensors").write_bytes(damaged)
    resumed = train(run, recipe, run_dir, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{newest.name}" in resumed.stderr and "checksum" in resumed.stderr
    assert outcome(run_dir)[0] == whole[0]


def test_the_program_has_no_failpoints(nestor):
    variable = b"NESTOR_FAILPOINT"
    assert variable not in nestor.read_bytes()
    assert variable in (nestor.parent / "nestor_failpoints").read_bytes()


def test_resume_without_a_checkpoint_says_so(run, root, tmp_path):
    done = train(run, root / "recipes/smoke/gigpo.yaml", tmp_path / "nothing", "--resume")
    assert done.returncode == 2
    assert "checkpoint" in done.stderr
    shutil.rmtree(tmp_path / "nothing", ignore_errors=True)
