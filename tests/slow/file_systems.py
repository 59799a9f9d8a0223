#!/usr/bin/env python3
"""Trains in run directories on odd file systems (as root): mounts without locks, links, renames or appends, slow ones, a full or small
/dev/shm, a read-only folder; and while the clock jumps.

A run must end like that on a plain disk, and continue there after a stop, or be refused before it begins, with one message and exit code 2.
odd_file_system.py makes the mounts by FUSE; NFS itself needs a kernel that has it. faketime (Debian) makes the clock jump.

    apt-get install libfuse2 faketime
    tests/slow/file_systems.py [CASE...]

mfusepy is installed into target/fuse on the first run.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import kills

ROOT = Path(__file__).resolve().parents[2]
NESTOR = os.environ.get("NESTOR", str(ROOT / "target/release/nestor"))
PACKAGE = "mfusepy==3.1.1"
PATIENCE = 300
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def train(run_dir, iterations, *more, nproc=2):
    settings = {"deterministic": "true", "iterations": iterations, "checkpoint.every": 1, "checkpoint.keep": 2, "eval.every": 3,
                "update.mini_batch": 16, "warm_start.steps": 10, "dist.silence_s": 20}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    start = [NESTOR] if nproc == 1 else [NESTOR, "launch", "--nproc", str(nproc)]
    return [*start, "train", str(ROOT / "recipes/smoke/gigpo.yaml"), *sets, "--run-dir", str(run_dir), *more]


def run(command, **variables):
    begin = time.monotonic()
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begin


def twice(run_dir, around=lambda command: command, **variables):
    """Trains for two iterations, then continues to six; returns what the first part said, and the seconds of both."""
    code, text, seconds = run(around(train(run_dir, 2)), **variables)
    assert code == 0, text[-3000:]
    code, more, further = run(around(train(run_dir, 6, "--resume")), **variables)
    assert code == 0, more[-3000:]
    return text + more, seconds + further


@contextmanager
def odd(folder, *options):
    """Mounts an odd file system; yields its folder."""
    python = ROOT / "target/fuse/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ROOT / "target/fuse"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE], check=True)
    real, mount = folder / "real", folder / "mount"
    real.mkdir()
    mount.mkdir()
    log = open(folder / "fuse.log", "w")
    server = subprocess.Popen([python, ROOT / "tests/slow/odd_file_system.py", real, mount, *options], stdout=log, stderr=log)
    end = time.monotonic() + 30
    while not os.path.ismount(mount):
        assert server.poll() is None and time.monotonic() < end, (folder / "fuse.log").read_text()
        time.sleep(0.05)
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)
        server.wait()


@contextmanager
def small(folder, options):
    """Mounts a file system of memory; yields its folder."""
    mount = folder / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


def trains(place, want, part=None):
    """Trains there; returns what the run said."""
    text, seconds = twice(place / "run")
    kills.check("the run", kills.outcome(place / "run"), want)
    assert part is None or re.search(part, text), f"no {part} in:\n{text[-3000:]}"
    shutil.rmtree(place / "run", ignore_errors=True)
    said = next((line for line in text.splitlines() if part and re.search(part, line)), "")
    return f"trains and continues, bit-identical, in {seconds:.0f} s{': ' + said.strip() if said else ''}"


def refused(place, part):
    """The run is refused before it begins, and leaves nothing."""
    code, text, seconds = run(train(place / "run", 2, nproc=1))
    errors = [line for line in text.splitlines() if "error: " in line]
    assert code == 2 and len(errors) == 1 and re.search(part, errors[0]), f"exit code {code}:\n{text[-3000:]}"
    left = {path.name for path in (place / "run").iterdir()} if (place / "run").exists() else set()
    assert left <= {"run.lock"}, left  # where nothing is renamed, FUSE keeps the open file
    return f"refused in {seconds:.1f} s: {errors[0].split('error: ', 1)[1]}"


def mounted(*options, part=None, is_refused=False):
    def case(folder, want):
        with odd(folder, *options) as mount:
            return refused(mount, part) if is_refused else trains(mount, want, part)
    return case


def files_open_elsewhere(folder, want):
    """A program has a file of every checkpoint open; such a file keeps its directory, as on NFS."""
    with odd(folder) as mount:
        held, done = {}, threading.Event()

        def hold():
            while not done.wait(0.02):
                for file in mount.glob("run/checkpoints/*/policy*.safetensors"):
                    if str(file) not in held:
                        try:
                            held[str(file)] = open(file)
                        except OSError:
                            pass  # renamed just now

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            return trains(mount, want, "has files open") + f"; {len(held)} files were open"
        finally:
            done.set()
            thread.join()
            for file in held.values():
                file.close()


def small_shared_memory(folder, want):
    """/dev/shm of 64 MiB, as Docker gives it, in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    _, seconds = twice(folder / "run", lambda command: ["unshare", "--mount", "bash", "-c", script, "bash", *command])
    kills.check("the run", kills.outcome(folder / "run"), want)
    return f"trains and continues, bit-identical, in {seconds:.0f} s"


def read_only(folder, want):
    with small(folder, "size=1m,ro") as mount:
        return refused(mount, "cannot make the run directory")


def too_small(folder, want):
    with small(folder, "size=256k") as mount:
        return refused(mount, "free some space")


def clock_jumps(folder, want):
    """The time of day jumps by an hour, forth and back, every second; the monotonic clock does not."""
    stamp = folder / "stamp"
    stamp.write_text("+0\n")
    done = threading.Event()

    def jump():
        jumps = 0
        while not done.wait(1):
            jumps += 1
            (folder / "new").write_text(["+3600\n", "-3600\n", "+0\n"][jumps % 3])
            os.replace(folder / "new", stamp)

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        fake = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(stamp), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}
        _, seconds = twice(folder / "run", **fake)
    finally:
        done.set()
        thread.join()
    kills.check("the run", kills.outcome(folder / "run"), want)
    times = [float(found) for found in re.findall(r'"time/[a-z_]+_s": ?(-?[0-9.e+-]+)', (folder / "run/metrics.jsonl").read_text())]
    assert times and all(0 <= seconds < 600 for seconds in times), sorted(times)
    return f"trains and continues, bit-identical, in {seconds:.0f} s; all recorded times from 0 to {max(times):.1f} s"


CASES = {
    "no locks": mounted("--without", "flock", part="has no locks"),
    "no symbolic links": mounted("--without", "symlink", part="the checkpoint itself is whole"),
    "no flush of a directory": mounted("--without", "fsync-dir"),
    "files open elsewhere": files_open_elsewhere,
    "20 ms an operation": mounted("--delay", "0.02"),
    "no rename of directories": mounted("--without", "rename-dir", is_refused=True, part="rename a directory"),
    "no rename": mounted("--without", "rename", is_refused=True, part="rename"),
    "no append": mounted("--without", "append", is_refused=True, part="append to a file"),
    "/dev/shm of 64 MiB": small_shared_memory,
    "read-only folder": read_only,
    "folder of 256 KiB": too_small,
    "clock jumps": clock_jumps,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("skipped: mounts need root")
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        twice(folder / "plain")
        want = kills.outcome(folder / "plain")
        print("| file system | outcome |\n|---|---|", flush=True)
        for number, name in enumerate(args.cases or CASES):
            own = folder / f"case-{number}"
            own.mkdir()
            try:
                print(f"| {name} | {CASES[name](own, want).replace('|', '/').replace(str(folder), '')} |", flush=True)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"| {name} | FAILED: {error} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
