#!/usr/bin/env python3
"""Ends runs in every way and looks for processes that outlive them.

Each run plays an environment that starts helper processes and ends none: plain ones, some in sessions of their own, and orphans
that ignore signals. The run ends by itself, by an error or by a signal, also while its worker hangs, forks or dies. Some seconds
later no process may be left that has the run's mark in its environment variables. Runs that end by themselves must have closed
each environment.

    tests/slow/processes.py [--jobs 2] [NAME...]
"""
import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "NESTOR_TEST_MARK"
# Seconds after which a run that does not end is an error, and seconds that its processes have to end after it. Ranks and runs of
# a launcher that was killed save first.
PATIENCE, REST = 300, 30
SMALL = {"iterations": 2, "rollout.tasks": 2, "rollout.group_size": 2, "rollout.slots": 4, "update.mini_batch": 4,
         "warm_start.steps": 5, "warm_start.batch": 4, "eval.tasks": 4}
INT, TERM, KILL, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP


@dataclass
class Case:
    """One run: the command, the environment's fault, and the signals that it gets once the log has this line."""

    name: str
    command: str
    fault: str = "none"
    signals: tuple = ()
    codes: tuple = (0,)
    at: str = "daemon"
    words: str = ""
    sets: dict = field(default_factory=dict)


def cases():
    """All runs."""
    endless = {"iterations": 100_000}
    found = [
        Case("train", "train"),
        Case("train-term", "train", signals=(TERM,), codes=(130,), sets=endless),
        Case("train-int-twice", "train", "hang", (INT, INT), (1, 130), "fault"),
        Case("train-kill", "train", signals=(KILL,), codes=(-KILL,), sets=endless),
        Case("train-hup", "train", signals=(HUP,), codes=(-HUP, 130), sets=endless),
        Case("train-error", "train", "error", codes=(1,), words="ValueError: a fault"),
        Case("train-leave", "train", "leave", codes=(1,), words="ended with exit code 3"),
        Case("train-crash", "train", "crash", codes=(1,), words="SIGSEGV"),
        Case("train-hang", "train", "hang", codes=(1,), words="did not return within", sets={"env.config.timeout_s": 2}),
        Case("train-forks", "train", "forks"),
        Case("train-forks-kill", "train", "forks", (KILL,), (-KILL,), "fault", sets=endless),
        Case("train-signals", "train", "signals"),
        Case("train-orphans", "train", "orphans", codes=(1,), words="SIGKILL"),
        Case("train-close-error", "train", "close_error", words="warning: `close` of `leaky:Leaky`"),
        Case("train-close-exit", "train", "close_exit", words="warning: `close` of `leaky:Leaky`"),
        Case("train-close-hang", "train", "close_hang", words="warning: `close` of `leaky:Leaky`",
             sets={"env.config.timeout_s": 2}),
        Case("train-isolated", "train", sets={"env.isolate": "process"}),
        Case("train-isolated-kill", "train", "hang", (KILL,), (-KILL,), "fault", sets={"env.isolate": "process"}),
        Case("train-isolated-term", "train", signals=(TERM,), codes=(130,), sets={"env.isolate": "process", **endless}),
        Case("train-isolated-hang", "train", "hang", codes=(1,), words="did not return within",
             sets={"env.isolate": "process", "env.config.timeout_s": 2}),
    ]
    for fault in ("hang", "stubborn"):
        for number in (INT, TERM, KILL):
            code = (-KILL,) if number == KILL else (130,)
            found.append(Case(f"train-{fault}-{number.name}", "train", fault, (number,), code, "fault", sets=endless))
    for command in ("launch", "sweep", "verify"):
        stopped = (130,)
        found += [
            Case(f"{command}-term", command, signals=(TERM,), codes=stopped, sets=endless),
            Case(f"{command}-int-twice", command, "stubborn", (INT, INT), (1, 130), "fault"),
            Case(f"{command}-kill", command, signals=(KILL,), codes=(-KILL,), sets=endless),
            Case(f"{command}-hang-kill", command, "stubborn", (KILL,), (-KILL,), "fault"),
            Case(f"{command}-error", command, "error", codes=(1,), words="" if command == "sweep" else "a fault"),
        ]
    found += [Case("launch", "launch"), Case("sweep", "sweep"), Case("verify", "verify")]
    for command in ("play", "eval"):
        found += [
            Case(command, command),
            Case(f"{command}-int", command, "hang", (INT,), (-INT, 130), "fault"),
            Case(f"{command}-kill", command, "hang", (KILL,), (-KILL,), "fault"),
            Case(f"{command}-stubborn-term", command, "stubborn", (TERM,), (-TERM, 130), "fault"),
        ]
    found += [
        Case("embed", "embed"),
        Case("embed-int", "embed", signals=(INT,), codes=(-INT, 130), at=""),
        Case("embed-kill", "embed", signals=(KILL,), codes=(-KILL,), at=""),
    ]
    return found


def arguments(case, folder):
    """The program's arguments. `folder` is the run's own."""
    config = {"class": "leaky:Leaky", "path": [str(ROOT / "tests/fixtures"), str(ROOT / "plugins/python/examples")],
              "workers": 2, "kwargs": {"log": str(folder / "log"), "fault": case.fault, "after": {"play": 1, "eval": 3}.get(case.command, 20)}}
    sets = {"env.isolate": "none", **SMALL, **case.sets}
    timeout = sets.pop("env.config.timeout_s", 60)
    isolate = sets.pop("env.isolate")
    lines = [f"extends: {ROOT}/recipes/smoke/gigpo.yaml", "env:", "  plugin: python", f"  isolate: {isolate}",
             f"  config: {json.dumps({**config, 'timeout_s': timeout})}"]
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n")
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    recipe, run = str(folder / "recipe.yaml"), str(folder / "run")
    if case.command == "train":
        return ["train", recipe, *words, "--run-dir", run]
    if case.command == "launch":
        return ["launch", "--nproc", "2", "train", recipe, *words, "--run-dir", run]
    if case.command == "verify":
        return ["verify", recipe, *words[2:], "--iterations", "500" if case.signals else "2", "--out", run]
    if case.command == "sweep":
        keys = {key: value for key, value in sets.items()}
        (folder / "sweep.yaml").write_text(json.dumps({"recipe": "recipe.yaml", "dir": run, "seeds": [1, 2], "parallel": 2,
                                                       "variants": {"only": keys}}))
        return ["sweep", str(folder / "sweep.yaml")]
    if case.command == "play":
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "actions.jsonl").write_text('"1"\n"2"\n"3"\n')
        return ["play", "python", "--config", str(folder / "config.json"), "--actions", str(folder / "actions.jsonl")]
    if case.command == "eval":
        return ["eval", recipe, *words, "--model", str(base(folder)), "--episodes", "4"]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(n), "contents": f"title {n}\na passage of words {n}"}) + "\n"
                              for n in range(4000 if case.signals else 20)))
    return ["embed", str(ROOT / "docs/examples/encoder"), str(corpus), "--out", run]


def base(folder):
    """A trained model of the same recipe."""
    run, config = folder / "base", {"class": "guess:Guess", "path": [str(ROOT / "plugins/python/examples")], "workers": 1}
    sets = {**SMALL, "iterations": 0, "env.plugin": "python", "env.config": json.dumps(config)}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    command = [program(), "train", str(ROOT / "recipes/smoke/gigpo.yaml"), *words, "--run-dir", str(run)]
    subprocess.run(command, check=True, capture_output=True)
    return run


def program():
    return os.environ.get("NESTOR", str(ROOT / "target/release/nestor"))


def left(mark):
    """The processes that have the mark, as pairs of process id and command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ")[:80].decode()))
            except (OSError, UnicodeDecodeError):
                pass
    return found


def until(condition, seconds, run=None):
    """True once the condition holds; false if the run or the time ends before."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or (run and run.poll() is not None):
            return condition()
        time.sleep(0.02)
    return True


def play(case, folder):
    """Plays a case. Returns its faults, and the seconds until the last process was gone."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", MARK: mark}
    log, command = folder / "log", [program(), *arguments(case, folder)]
    with (folder / "output").open("w") as output:
        run = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                               start_new_session=True)
        try:
            noted = lambda: case.at in (log.read_text() if log.exists() else "") if case.at else True
            if case.signals and until(noted, PATIENCE, run):
                time.sleep(0.3)
                for number in case.signals:
                    run.send_signal(number)
                    time.sleep(1.2 if len(case.signals) > 1 else 0)
            code = run.wait(PATIENCE)
            begin = time.monotonic()
            until(lambda: not left(mark), REST)
            seconds, alive = time.monotonic() - begin, left(mark)
        finally:
            for process, _ in [(run.pid, ""), *left(mark)]:
                try:
                    os.kill(process, KILL)
                except ProcessLookupError:
                    pass
            run.wait()
    text, lines = (folder / "output").read_text(errors="replace"), log.read_text().split("\n") if log.exists() else []
    faults = [f"{len(alive)} processes are left: {alive[:3]}"] if alive else []
    if code not in case.codes:
        faults.append(f"exit code {code}: {text[-500:]}")
    if case.words not in text:
        faults.append(f"no {case.words!r} in {text[-500:]}")
    made, closed = lines.count("daemon"), lines.count("closed")
    if case.fault in ("none", "forks", "signals", "error") and -KILL not in case.codes and closed < made:
        faults.append(f"{closed} of {made} environments were closed")
    return faults, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs to play; all by default")
    args = parser.parse_args()
    chosen = [case for case in cases() if not args.names or case.name in args.names]
    failed, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        def one(case):
            own = Path(folder) / case.name
            own.mkdir()
            return case, *play(case, own)
        for case, faults, seconds in pool.map(one, chosen):
            failed, slowest = failed + bool(faults), max(slowest, seconds)
            print(f"{case.name}: {'; '.join(faults) or 'ok'} ({seconds:.1f} s after its end)", flush=True)
    print(f"{len(chosen)} runs, {failed} with faults; the last process was gone {slowest:.1f} s after its run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
