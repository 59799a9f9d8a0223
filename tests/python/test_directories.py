"""Run directories and resumes: one process group a directory, nothing changes in silence, a refusal leaves no trace
(`tests/slow/directories.py` repeats the races)."""
import json
import os
import random
import shutil
import signal
import subprocess
import time

import directories
import pytest
from conftest import PATIENCE, free_port
from directories import QUIET


def words(*sets):
    return [word for s in sets for word in ("--set", s)]


def one_error(done, *parts):
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1 and all(str(part) in errors[0] for part in parts), done.stderr


def contents(folder):
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def recipe(root, tmp_path_factory):
    """The smoke recipe, made shorter."""
    path = tmp_path_factory.mktemp("recipes") / "short.yaml"
    path.write_text(f"extends: {root}/recipes/smoke/gigpo.yaml\niterations: 1\ndeterministic: true\n"
                    "warm_start: {steps: 4}\neval: {tasks: 4}\n")
    return path


@pytest.fixture(scope="module")
def finished(run, recipe, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    done = run("train", recipe, "--run-dir", run_dir, "--set", "update.lr=1e-5")
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.fixture
def own(finished, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(finished, tmp_path / "own")


def test_starts_at_once_take_directories_of_their_own(nestor, tmp_path):
    want = directories.alone(tmp_path, range(1, 5))
    directories.at_once(tmp_path / "round", want)


def test_a_live_run_is_left_alone(nestor, tmp_path):
    want = directories.alone(tmp_path, [1], 4)[1]
    assert directories.second_process(tmp_path, want, random.Random(0), 4) > 0


def test_a_refused_start_leaves_nothing(run, recipe, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    (here / "file").write_text("")
    kept = contents(here)
    for sets, part in [
        (["critic={}"], "`critic`"),
        (["rollout.split=none"], "split"),
        # Found when the first texts are rendered, after the directory was made.
        (["rollout.template='{{ nothing }}'"], "undefined value"),
        (["update.kl=null", "dtype=float16", "update.loss_scale=0"], "loss_scale"),
    ]:
        for options in ([], ["--run-dir", here / "run/deep"]):
            done = run("train", recipe, *options, *words(*sets), cwd=here)
            assert done.returncode in (1, 2) and part in done.stderr, done.stderr
            assert contents(here) == kept and list(here.iterdir()) == [here / "file"], sets
    for wrong in (here / "file", here / "file/run", here / ("x" * 300)):
        one_error(run("train", recipe, "--run-dir", wrong), "run directory", wrong.name[:20])
    # An empty directory that the user made stays, and stays empty.
    (here / "empty").mkdir()
    assert run("train", recipe, "--run-dir", here / "empty", "--set", "rollout.template='{{ a.b.c }}'").returncode != 0
    assert list((here / "empty").iterdir()) == []
    # A launcher makes the directory for its ranks.
    shutil.rmtree(here / "empty")
    done = run("launch", "--nproc", 2, "train", recipe, "--set", "estimator.plugin=nothing", cwd=here)
    one_error_of_launch = [line for line in done.stderr.splitlines() if "nothing" in line]
    assert done.returncode == 2 and one_error_of_launch, done.stderr
    assert list(here.iterdir()) == [here / "file"]


def test_a_resumed_run_takes_its_own_recipe(run, own):
    before = (own / "recipe.yaml").read_text()
    done = run("train", "--resume", "--run-dir", own, "--set", "iterations=2", "--set", "update.entropy=0")
    assert done.returncode == 0, done.stderr
    changed = [line for line in done.stdout.splitlines() if line.startswith("changed ")]
    assert changed == ["changed iterations: 1 -> 2", "changed update.entropy: 1e-3 -> 0.0"], done.stdout
    assert all(line in (own / "log.txt").read_text().splitlines() for line in changed)
    rows = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("lr") for row in rows] == [None, 1e-5, 1e-5]
    # Each life's recipe is kept, and one that does not change is kept once.
    assert (own / "recipe-1.yaml").read_text() == before
    now = (own / "recipe.yaml").read_text()
    assert "From iteration 2 on" in now and "entropy: 0.0" in now and "sha256" in now
    assert "length: 0" in now and "gamma: 0.95" in now, "defaults are filled in"
    done = run("train", "--resume", "--run-dir", own)
    assert done.returncode == 0 and "changed" not in done.stdout, done.stderr
    assert (own / "recipe.yaml").read_text() == now and not (own / "recipe-2.yaml").exists()


def test_a_recipe_of_its_own_is_compared(run, recipe, own):
    done = run("train", recipe, "--resume", "--run-dir", own, "--set", "iterations=2")
    assert done.returncode == 0 and "changed update.lr: 1e-5 -> 1e-3" in done.stdout, done.stderr


def test_a_refused_resume_changes_nothing(run, recipe, root, own):
    kept = contents(own)
    resumed = ["train", "--resume", "--run-dir", own, "--set", "iterations=2"]
    for sets, *parts in [
        (["seed=2", "rollout.group_size=2"], "seed: 1 -> 2, rollout.group_size: 4 -> 2",
         "--allow-change seed --allow-change rollout.group_size"),
        (["estimator.plugin=grpo"], "estimator.plugin: gigpo -> grpo"),
        (["estimator.plugin=ppo", "critic={}"], "estimator.plugin: gigpo -> ppo", "critic: none -> "),
        (["env.config.max=6"], "env.config.max: 5 -> 6"),
        (["iterations=0"], "`iterations` is 0", "1 or more"),
        (["update.kl=null", "update.kl_in_reward={}", "rollout.split=eval"], "rollout.split: train -> eval"),
    ]:
        one_error(run(*resumed, *words(*sets)), *parts)
        assert contents(own) == kept, sets
    # Permitted by the user, but found to be impossible later.
    allowed = ["--allow-change", "estimator", "--allow-change", "critic"]
    one_error(run(*resumed, *allowed, *words("estimator.plugin=ppo", "critic={}")), "holds no critic")
    one_error(run(*resumed, "--allow-change", "model", *words("model.lora={rank: 2, alpha: 4}")))
    one_error(run(*resumed, "--allow-change", "sede"), "did you mean `seed`?")
    assert contents(own) == kept
    alone = run("train", recipe, "--allow-change", "seed")
    assert alone.returncode == 2 and "--resume" in alone.stderr


def test_other_tasks_need_a_permission_and_begin_a_new_list(run, own):
    resumed = ["train", "--resume", "--run-dir", own, *words("iterations=2", "env.config.max=6", "eval.tasks=5")]
    done = run(*resumed, "--allow-change", "env.config")
    assert done.returncode == 0, done.stderr
    state = json.loads((own / "checkpoints/iteration-000002/state.json").read_text())
    assert state["tasks"]["count"] != 20 and state["tasks"]["position"] == 4
    # The first evaluation had other tasks, so nothing is compared with it.
    assert "before reinforcement learning" not in done.stdout and state["comparable_from"] == 2


def test_inside_an_update_the_objective_stays(run, failpoints, recipe, tmp_path):
    run_dir = tmp_path / "run"
    stopped = failpoints("mid-mini-batch:2=term", "train", recipe, "--run-dir", run_dir, *words("update.epochs=2"))
    assert stopped.returncode == 130, stopped.stderr
    [halfway] = (run_dir / "checkpoints").glob("*+*")
    kept = contents(run_dir)
    resumed = ["train", "--resume", "--run-dir", run_dir]
    for sets in (["update.mini_batch=16"], ["update.epochs=1"], ["update.shuffle=true"], ["rollout.temperature=0.5"]):
        key = sets[0].split("=")[0]
        one_error(run(*resumed, *words(*sets)), "inside the update of iteration 1", f"{key}: ", "--set iterations=1")
    one_error(run(*resumed, "--allow-change", "estimator", *words("estimator.plugin=grpo")), "inside the update")
    assert contents(run_dir) == kept
    # The rates may change, and the interrupted update then ends with the new one.
    done = run(*resumed, *words("update.lr=1e-5"))
    assert done.returncode == 0 and "changed update.lr: 1e-3 -> 1e-5" in done.stdout, done.stderr


def test_a_run_without_a_checkpoint_is_not_overwritten(run, failpoints, recipe, tmp_path):
    run_dir = tmp_path / "run"
    killed = failpoints("mid-mini-batch:5", "train", recipe, "--run-dir", run_dir, *words("checkpoint.every=0", "iterations=9"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shutil.rmtree(run_dir / "checkpoints")
    kept = contents(run_dir)
    one_error(run("train", "--resume", "--run-dir", run_dir), "no checkpoint", "another --run-dir", "remove the directory")
    one_error(run("train", recipe, "--run-dir", run_dir), "--resume")
    # The killed process left its lock's file, which holds nobody up.
    assert contents(run_dir).keys() - {"run.lock"} == kept.keys() - {"run.lock"}
    assert all(contents(run_dir)[name] == kept[name] for name in kept.keys() - {"run.lock"})
    # A launcher's restart begins again, and keeps what there was beside the new files.
    done = run("train", recipe, "--restarted", "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    assert (run_dir / "before-restart-1/metrics.jsonl").read_bytes() == kept["metrics.jsonl"]


def test_resume_asks_where_several_runs_could_be_meant(run, recipe, own, tmp_path):
    runs = tmp_path / "runs"
    one_error(run("train", recipe, "--resume", cwd=tmp_path), "runs/short[-N] holds no run")
    one_error(run("train", "--resume", cwd=tmp_path), "runs holds no run")
    for name in ("short", "short-3"):
        shutil.copytree(own, runs / name)
    kept = contents(runs)
    for command in (["train", "--resume"], ["train", recipe, "--resume"], ["launch", "--nproc", 2, "train", "--resume"]):
        one_error(run(*command, "--set", "iterations=2", cwd=tmp_path), "2 runs", "runs/short", "runs/short-3", "--run-dir")
    assert contents(runs) == kept
    shutil.rmtree(runs / "short")
    for command in (["train", "--resume"], ["train", recipe, "--resume"], ["train", own / "recipe.yaml", "--resume"]):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "resumed from runs/short-3" in (runs / "short-3/log.txt").read_text()
    assert f"resumed from {own}" in (own / "log.txt").read_text()


def rebuilt(root, folder, name):
    """A copy of a bundled plugin that counts as another build."""
    folder.mkdir()
    copy = shutil.copy(root / f"target/release/libnestor_{name}.so", folder)
    with open(copy, "ab") as file:
        file.write(b"\0")
    return folder


def test_the_plugin_files_are_recorded_and_another_build_is_reported(run, root, own, tmp_path):
    plugins = {"env": os.environ | {"NESTOR_PLUGIN_PATH": str(rebuilt(root, tmp_path / "plugins", "numberline"))}}
    sets = words("iterations=2", "wandb={mode: offline}")
    done = run("train", "--resume", "--run-dir", own, *sets, "--json", **plugins)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    copy = str(tmp_path / "plugins/libnestor_numberline.so")
    [environment, estimator] = events[0]["plugins"]
    assert environment["path"] == copy and len(environment["sha256"]) == 64 and environment["border"] == "1.0"
    assert estimator == json.loads((own / "checkpoints/iteration-000001/state.json").read_text())["plugins"][1]
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    assert any("numberline is another build than before" in line and copy in line for line in warnings), warnings
    assert any("has the same name and is not used" in line and copy in line for line in warnings), warnings
    [tracked] = own.glob("wandb/*/*.wandb")
    assert environment["sha256"].encode() in tracked.read_bytes()
    assert f"# environment numberline: {copy}, sha256 {environment['sha256']}" in (own / "recipe.yaml").read_text()


def test_ranks_must_be_started_alike(nestor, root, recipe, tmp_path):
    other = {"NESTOR_PLUGIN_PATH": str(rebuilt(root, tmp_path / "plugins", "gigpo"))}
    for sets, variables, part in [
        (words("update.lr=5", "seed=77"), {}, "seed: 1 -> 77, update.lr: 1e-3 -> 5.0"),
        ([], other, "plugin gigpo: "),
    ]:
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = [nestor, "train", recipe, "--run-dir", tmp_path / "run"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        first = subprocess.Popen(command, env=os.environ | place | {"RANK": "0"}, **pipes)
        second = subprocess.Popen([*command, *sets], env=os.environ | place | variables | {"RANK": "1"}, **pipes)
        for rank in (first, second):
            _, errors = rank.communicate(timeout=PATIENCE)
            lines = [line for line in errors.splitlines() if "error: " in line]
            assert rank.returncode == 2 and len(lines) == 1, errors
            assert "rank 1 was started otherwise than rank 0: " + part in lines[0], errors
        assert not (tmp_path / "run").exists()


def test_a_restart_uses_the_recipe_that_was_read_at_the_start(nestor, recipe, tmp_path):
    """The recipe's file changes while the ranks run; then one is killed."""
    changing = shutil.copy(recipe, tmp_path / "changing.yaml")
    command = [nestor, "launch", "--nproc", "2", "--restarts", "1", "train", changing, *words("iterations=1000000")]
    launcher = subprocess.Popen([str(word) for word in command], cwd=tmp_path, **QUIET)
    metrics = tmp_path / "runs/changing/metrics.jsonl"

    def wait_for_rows(number):
        end = time.monotonic() + PATIENCE
        while not (metrics.exists() and metrics.read_text().count("\n") > number):
            assert launcher.poll() is None and time.monotonic() < end, launcher.communicate()
            time.sleep(0.05)

    wait_for_rows(2)
    with open(changing, "a") as file:
        file.write("update: {lr: 0.5}\n")
    ranks = (tmp_path / f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(int(ranks[0]), signal.SIGKILL)
    log = tmp_path / "runs/changing/log.txt"
    end = time.monotonic() + PATIENCE
    while "resumed from" not in log.read_text():
        assert launcher.poll() is None and time.monotonic() < end, launcher.communicate()
        time.sleep(0.05)
    wait_for_rows(metrics.read_text().count("\n") + 1)
    launcher.send_signal(signal.SIGTERM)
    _, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130 and "restart 1 of 1" in errors, errors
    assert {json.loads(line).get("lr", 1e-3) for line in metrics.read_text().splitlines()} == {1e-3}
    assert not list(metrics.parent.glob("recipe-*")) and "lr: 0.001" in (metrics.parent / "recipe.yaml").read_text()
