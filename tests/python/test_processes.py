"""No process outlives its run, and no half-written folder its command (`tests/slow/processes.py` ends runs in all ways)."""
import fcntl
import json
import resource
import signal
import subprocess
import time

import processes
import pytest

CASES = {case.name: case for case in processes.cases()}


@pytest.mark.parametrize("name", ["train-stubborn-SIGKILL", "train-isolated-kill", "train-close-exit", "train-orphans", "play-kill",
                                  "launch-hang-kill"])
def test_no_process_is_left(name, nestor, tmp_path):
    faults, _ = processes.play(CASES[name], tmp_path)
    assert not faults, faults


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_writer_leaves_nothing(number, nestor, tmp_path):
    command = [nestor, "model", "new", tmp_path / "model", "--shape", "0.5b"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".model.partial-*")) and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(number)
    assert run.wait(60) == 130, run.stderr.read()
    assert not list(tmp_path.iterdir()) and "stopped by a signal" in run.stderr.read()


def test_a_limit_of_file_sizes_reads_as_a_full_disk(nestor, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    command = [nestor, "model", "new", tmp_path / "model", "--shape", "tiny"]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 1 and "the disk is full, or `ulimit -f`" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_more_processes_than_the_machine_can_run_are_refused(run, root, tmp_path):
    recipe, sweep = root / "recipes/smoke/gigpo.yaml", tmp_path / "sweep.yaml"
    sweep.write_text(json.dumps({"recipe": str(recipe), "dir": str(tmp_path / "runs"), "parallel": 1024,
                                 "seeds": list(range(2000))}))
    for command in (["launch", "--nproc", 9999, "train", recipe, "--run-dir", tmp_path / "run"],
                    ["verify", recipe, "--ranks", 9999, "--out", tmp_path / "run"], ["sweep", sweep]):
        done = run(*command)
        assert done.returncode == 2 and "too many for this machine" in done.stderr, done.stderr
        assert "--oversubscribe" in done.stderr and sorted(tmp_path.iterdir()) == [sweep]


def test_a_folder_in_use_names_its_holder(run, root, tmp_path):
    (tmp_path / "sweep.yaml").write_text(json.dumps({"recipe": str(root / "recipes/smoke/gigpo.yaml"), "dir": str(tmp_path)}))
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "a title"}\n')
    for lock, command, option in [
        (".sweep.lock", ["sweep", tmp_path / "sweep.yaml"], "`dir`"),
        ("embed.lock", ["embed", root / "docs/examples/encoder", tmp_path / "corpus.jsonl", "--out", tmp_path], "--out"),
    ]:
        with (tmp_path / lock).open("w") as file:
            file.write("process 7 on somewhere")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            done = run(*command)
        assert done.returncode == 2 and "is in use by process 7 on somewhere" in done.stderr, done.stderr
        assert option in done.stderr
