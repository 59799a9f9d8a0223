"""A plugin that hangs, crashes or leaves the process: every run ends with one message that names plugin, call, task and seed.
In a process of its own it costs an episode instead."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

RECIPE = """\
iterations: 1
device: cpu
dtype: float32
model:
  new: {{hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 300}}
env: {{plugin: {env}, config: {{{config}}}, isolate: {isolate}, timeout_s: {timeout}}}
estimator: {estimator}
rollout: {{tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 64, max_response_tokens: 4, env_errors: {errors}}}
update: {{mini_batch: 4, lr: 1e-3}}
eval: {{tasks: 1}}
"""
TRAINED_STEPS = 1024  # of the 512 episodes that a new model's tokenizer is trained on


@pytest.fixture(scope="session")
def faults(root, tmp_path_factory):
    """Compiles tests/fixtures/plugin_faults.c; options become macros."""
    folder = tmp_path_factory.mktemp("faults")

    def call(name="libfaults.so", *options):
        library = folder / name
        if not library.exists():
            source = root / "tests/fixtures/plugin_faults.c"
            flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-I", root / "plugins/sdk", *options]
            subprocess.run(["cc", *map(str, flags), source, "-o", library], check=True)
        return library
    return call


@pytest.fixture
def recipe(faults, tmp_path):
    def call(config, timeout=60, errors=0, isolate="none"):
        """Both plugins have a function `open`, and only the estimator has `score`."""
        library = faults()
        estimator = f"{{plugin: {library}, config: {{{config}}}, isolate: {isolate}}}" if "at: score" in config else "{plugin: gigpo}"
        path = tmp_path / "recipe.yaml"
        path.write_text(RECIPE.format(env=library, config=config, timeout=timeout, errors=errors, estimator=estimator,
                                      isolate=isolate))
        return path
    return call


STEP = [r"plugin faults: task", "of split train, seed", "step 0"]
# Fault, function, exit code, and words of the message. A negative code is the signal that the process dies by.
TABLE = [
    ("hang", "open", 1, ["plugin faults", "`open` did not return within 1 s", "env.timeout_s"]),
    ("hang", "prompt_template", 1, ["plugin faults", "`prompt_template` did not return within 1 s"]),
    ("hang", "tasks", 1, ["plugin faults", "`tasks` did not return within 1 s"]),
    ("hang", "spawn", 1, ["plugin faults", "`spawn` did not return within 1 s"]),
    ("hang", "reset", 1, ["plugin faults: task", "reset", "`reset` did not return within 1 s"]),
    ("hang", "step", 1, [*STEP, "`step` did not return within 1 s"]),
    ("busy", "step", 1, [*STEP, "`step` did not return within 1 s"]),
    ("hang", "next_action", 1, ["plugin faults: task", "expert's action at step 0", "`next_action` did not return"]),
    ("hang", "score", 1, ["plugin faults", "`score` did not return within 1 s"]),
    ("segv", "open", -signal.SIGSEGV, ["plugin faults", "`open` died by signal 11 (SIGSEGV"]),
    ("segv", "step", -signal.SIGSEGV, [*STEP, "`step` died by signal 11 (SIGSEGV"]),
    ("segv", "score", -signal.SIGSEGV, ["plugin faults", "`score` died by signal 11"]),
    ("bus", "step", -signal.SIGBUS, [*STEP, "`step` died by signal 7 (SIGBUS"]),
    ("fpe", "reset", -signal.SIGFPE, ["plugin faults: task", "`reset` died by signal 8 (SIGFPE"]),
    ("ill", "step", -signal.SIGILL, [*STEP, "`step` died by signal 4 (SIGILL"]),
    ("abort", "step", -signal.SIGABRT, [*STEP, "`step` died by signal 6 (SIGABRT"]),
    ("overflow", "step", -signal.SIGABRT, [*STEP, "`step` died by signal 11 (SIGSEGV", "overflowed its stack"]),
    ("thread_segv", "step", -signal.SIGSEGV, ["in no call of a plugin died by signal 11", "calls under way: plugin faults: task"]),
    ("exit", "step", 1, [*STEP, "`step` left the process by `exit`"]),
    ("exit3", "open", 1, ["plugin faults", "`open` left the process by `exit`"]),
    ("_exit", "step", 1, [*STEP, "`step` left the process with code 0"]),
    ("_Exit", "reset", 1, ["plugin faults: task", "`reset` left the process with code 0"]),
    ("quick_exit", "step", 1, [*STEP, "`step` left the process with code 0"]),
    ("thread_leave", "step", 1, ["left the process with code 0", "calls under way: plugin faults: task"]),
]


@pytest.mark.parametrize("fault, at, code, words", TABLE, ids=[f"{fault}-{at}" for fault, at, *_ in TABLE])
def test_a_fault_names_its_call(fault, at, code, words, recipe, run, tmp_path):
    path = recipe(f"fault: {fault}, at: {at}", timeout=1)
    done = run("train", path, "--run-dir", tmp_path / "run", "--json", timeout=120)
    codes = [-signal.SIGABRT, -signal.SIGSEGV] if fault == "overflow" else [code]  # the Rust runtime aborts, if its stack lasts
    assert done.returncode in codes, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [event["message"] for event in events if event["event"] == "error"]
    assert len(errors) == 1 and words[0] in errors[0], events
    assert done.stderr.count("error: ") == 1 or fault == "overflow", done.stderr


def test_a_hanging_step_is_survived(recipe, run, tmp_path):
    """One hang while the tokenizer is made and one in an episode of the policy: each costs its episode, and counts."""
    for after in [9, TRAINED_STEPS + 5]:  # after the rehearsal before the run
        path = recipe(f"fault: hang, at: step, after: {after}, times: 1", timeout=1, errors=3)
        done = run("train", path, "--run-dir", tmp_path / f"run{after}", timeout=120)
        assert done.returncode == 0, done.stderr
        warnings = [line for line in done.stderr.splitlines() if "did not return within 1 s" in line]
        assert len(warnings) == 1 and "(failure 1 of 3)" in warnings[0] and "plugin faults: task" in warnings[0], done.stderr


def test_failures_over_the_budget_say_so(recipe, run, tmp_path):
    done = run("train", recipe("fault: hang, at: step, after: 3", timeout=1, errors=1), "--run-dir", tmp_path / "run")
    assert done.returncode == 1 and "more failures than `rollout.env_errors` allows (1)" in done.stderr.splitlines()[-1]


# Faults of a step in a process of its own, each once in the run, and the words that name it. Those without words cost nothing.
ISOLATED = {
    "hang": "`step` did not return within 5 s",
    "segv": "`step` died by SIGSEGV",
    "abort": "`step` died by SIGABRT",
    "double_free": "`step` died by SIGABRT",
    "exit3": "`step` left with exit code 3",
    "_exit": "`step` left with exit code 0",
    "syscall": "`step` left with exit code 0",
    "allocate": "at its memory limit",
    "close_all": "`step` closed its connection to nestor",
    "nan_reward": "the reward NaN",
    "huge_reward": "the reward 1e300",
    "huge_text": "over 4 MiB of text",
    "not_utf8": "not UTF-8",
    "stdout": None,
    "chdir": None,
    "slow": None,
}


@pytest.fixture
def trained(recipe, run, tmp_path):
    """Trains a made model with an isolated environment. Each instance counts its own steps: with `after: 8`, those of the
    rehearsal before the run have no fault."""
    made = run("train", recipe("fault: none", isolate="process"), "--set", "iterations=0", "--run-dir", tmp_path / "made")
    assert made.returncode == 0, made.stderr

    def call(config, timeout, errors, **sets):
        path = recipe(f"{config}, at: step, after: 8", timeout=timeout, errors=errors, isolate="process")
        path.write_text(re.sub("  new: .*", f"  path: {tmp_path}/made/model", path.read_text()))
        words = [word for key, value in sets.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        done = run("train", path, *words, "--run-dir", tmp_path / "run")
        assert done.returncode == 0, done.stderr
        return done.stderr
    return call


def test_isolated_faults_cost_an_episode_each(trained, tmp_path):
    """A run trains through all of them. Each is named with plugin, task, seed and step, and counted."""
    once = tmp_path / "once"
    once.mkdir()
    for fault in ISOLATED:
        (once / fault).touch()
    said = trained(f"once: {once}", 5, len(ISOLATED), iterations=12, rollout__tasks=4, rollout__group_size=4, env__memory_gib=0.1)
    assert not list(once.iterdir()), "faults that never happened"
    failures = [line for line in said.splitlines() if "(failure " in line]
    named = {fault: words for fault, words in ISOLATED.items() if words}
    for fault, words in named.items():
        assert any(words in line for line in failures), (fault, said)
    # Two abort and two leave with code 0 in one iteration: equal faults are one line with a count.
    assert len(failures) == len(set(named.values())), said
    assert all(re.search(r"plugin faults: task \d+ of split \w+, seed \d+, step \d", line) for line in failures), said
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert sum(row["env/errors"] for row in rows) == len(named), rows
    assert "plugin faults printed: " in said and "more lines, which are not shown" in said


def test_an_isolated_call_that_waits_takes_no_thread_from_others(trained, tmp_path):
    """Four steps that wait for each other return with one environment thread."""
    (tmp_path / "met").mkdir()
    said = trained(f"fault: meet, folder: {tmp_path / 'met'}", 60, 0, iterations=6, rollout__group_size=4, rollout__env_threads=1, eval__tasks=4)
    assert len(list((tmp_path / "met").iterdir())) == 4, said


def test_an_isolated_open_that_fails_ends_the_run(recipe, run, tmp_path):
    for fault, words in [("hang", "`open` did not return within 1 s"), ("segv", "`open` died by SIGSEGV"), ("exit3", "`open` left with exit code 3")]:
        done = run("train", recipe(f"fault: {fault}, at: open", timeout=1, isolate="process"), "--run-dir", tmp_path / fault)
        assert done.returncode == 1 and "plugin faults" in done.stderr and words in done.stderr, done.stderr


@pytest.mark.parametrize("at, after", [("open", 0), ("step", 5), ("step", TRAINED_STEPS + 5), ("score", 0)])
def test_sigterm_does_not_wait_for_a_plugin(at, after, recipe, nestor, tmp_path):
    """A run that has begun saves itself without the call that hangs. One that has not begun has nothing to save."""
    path = recipe(f"fault: hang, at: {at}, after: {after}", timeout=600)
    process = subprocess.Popen([nestor, "train", path, "--run-dir", tmp_path / "run"], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_for_hang(process)
    process.send_signal(signal.SIGTERM)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, (process.returncode, out, err)
    begun = at == "score" or after > TRAINED_STEPS
    assert (tmp_path / "run/checkpoints/latest/manifest.json").exists() == begun, (out, err)


def wait_for_hang(process):
    """Waits until a thread of the process sleeps in the plugin's pause()."""
    while process.poll() is None:
        for task in os.listdir(f"/proc/{process.pid}/task"):
            try:
                with open(f"/proc/{process.pid}/task/{task}/syscall") as file:
                    if file.read().split()[0] == "34":  # pause
                        return
            except (FileNotFoundError, ProcessLookupError):
                pass
        time.sleep(0.02)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("fault, words", [
    ("syscall", "ended with code 0 before its work was done"),
    ("_exit", "`step` left the process with code 0"),
    ("segv", "`step` died by signal 11 (SIGSEGV"),
    ("hang", "`step` did not return within 1 s"),
])
def test_under_launch(fault, words, recipe, run, tmp_path):
    path = recipe(f"fault: {fault}, at: step, after: {TRAINED_STEPS}", timeout=1)
    done = run("launch", "--nproc", 2, "train", path, "--run-dir", tmp_path / "run", timeout=240)
    assert done.returncode == 1 and words in done.stderr, (done.returncode, done.stderr)


@pytest.mark.parametrize("fault", ["print", "close_stdout", "fork"])
def test_standard_output_and_children(fault, recipe, run, tmp_path):
    """A plugin prints to standard error, a closed standard output harms nobody, and a child may end as it likes."""
    done = run("train", recipe(f"fault: {fault}, at: step"), "--run-dir", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events[0] == "start" and events[-1] == "end" and "iteration" in events
    rows = [json.loads(line)["iteration"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert rows == [0, 1]
    assert ("a line of the plugin" in done.stderr) == (fault == "print")


def test_expert_episodes_use_few_instances(recipe, run, tmp_path):
    """As many as there are threads, not one per episode; then one for each episode that is in flight."""
    path = recipe("fault: count_spawns")
    done = run("train", path, "--set", "warm_start={steps: 3, batch: 64, lr: 1e-3}", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("spawned") <= 2 + 2 + 2, done.stderr.count("spawned")


def test_a_broken_file_harms_only_those_who_name_it(faults, root, run, tmp_path):
    """Search paths hold a file that crashes, one that never loads, a text, and one with a bundled plugin's name."""
    (tmp_path / "libtext.so").write_text("no library")
    crashing = faults("libcrashing.so", "-DENTRY=__builtin_trap()")
    (tmp_path / crashing.name).write_bytes(crashing.read_bytes())
    missing = faults("libnestor_missing.so", "-DENTRY=extern void nowhere(void); nowhere()")
    (tmp_path / missing.name).write_bytes(missing.read_bytes())
    shadow = faults("libnestor_numberline.so", '-DID="numberline"')
    (tmp_path / shadow.name).write_bytes(shadow.read_bytes())
    env = {**os.environ, "NESTOR_PLUGIN_PATH": str(tmp_path)}
    (tmp_path / "actions").write_text("\n")

    def play(plugin):
        return run("play", plugin, "--actions", tmp_path / "actions", env=env)

    assert play("sokoban").returncode == 0
    listed = run("plugin", "list", env=env).stdout
    assert "refused" in listed and "libcrashing.so crashed with SIGILL" in listed and "libtext.so" not in listed
    done = play("missing")
    assert done.returncode == 2 and "undefined symbol: nowhere" in done.stderr, done.stderr
    assert play(tmp_path / "libcrashing.so").returncode == 2
    assert play(tmp_path / "libtext.so").returncode == 2
    done = play("numberline")
    assert done.returncode == 0 and "has the same name and is not used" in done.stderr, done.stderr
    done = play("gigpo")
    assert done.returncode == 2 and "`gigpo` is an estimator, not an environment" in done.stderr, done.stderr
    done = play(f"{faults()}#faults")
    assert done.returncode == 0, done.stderr
