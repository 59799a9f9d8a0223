#!/usr/bin/env python3
"""Runs examples/cluster/slurm.sbatch under a real Slurm on this machine: two ranks, requeued again and again.

Starts munged, slurmctld and slurmd of Debian (`apt-get install slurmctld slurmd slurm-client munge`, as root) in a folder of their own, and
ends them. A job of the smoke recipe is requeued at random moments, and stopped by the signal that its time limit would send. Every job must
end by itself with the parameters, moments, state and metrics of an undisturbed run. An array trains two seeds.

    tests/slow/slurm.py [--requeues 30] [--seed 0]
"""
import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import kills

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel"]
# Two ranks share the cores of this machine.
LAYOUT = ["--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", "--mem=0"]
PATIENCE = 600


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def configuration(folder):
    host = socket.gethostname()
    memory = int(next(line for line in open("/proc/meminfo") if line.startswith("MemTotal")).split()[1]) // 1024
    return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=30
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory={memory * 9 // 10}
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE
"""


@contextmanager
def cluster(folder):
    """Starts the daemons; yields the environment of the clients."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(configuration(folder))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{ROOT}/target/release:{os.environ['PATH']}:/usr/sbin"}
    munged = ["munged", "--foreground", "--force", "--num-threads=2", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
              f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started = []
    try:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
            log = open(folder / f"{command[0]}.out", "w")
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            time.sleep(1)
        end = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True).stdout:
            assert time.monotonic() < end and all(daemon.poll() is None for daemon in started), logs(folder)
            time.sleep(0.5)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root", "--full"], env=environment, capture_output=True)
        time.sleep(1)
        for daemon in reversed(started):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=60)


def logs(folder):
    return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in folder.glob("*.out"))


class Job:
    """A job of the example's script."""

    def __init__(self, environment, run_dir, iterations, *options):
        self.environment, self.run_dir = environment, run_dir
        recipe = run_dir.parent / "recipe.yaml"
        settings = {"deterministic": "true", "iterations": iterations, "checkpoint": "{every: 1}"}
        recipe.write_text(f"extends: {ROOT}/recipes/smoke/gigpo.yaml\n" + "".join(f"{key}: {value}\n" for key, value in settings.items())
                          + "eval: {every: 4}\nupdate: {mini_batch: 16, micro_batch_tokens: 128}\nwarm_start: {steps: 20}\n")
        self.output = run_dir.parent / f"{run_dir.name}.txt"
        command = ["sbatch", "--parsable", *LAYOUT, f"--output={self.output}", *options, ROOT / "examples/cluster/slurm.sbatch", recipe, run_dir]
        variables = {**environment, "MOST_RESTARTS": "1000"}
        self.number = subprocess.run(list(map(str, command)), env=variables, check=True, capture_output=True, text=True).stdout.strip()

    def ask(self, *command):
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    def state(self):
        shown = self.ask("scontrol", "show", "job", self.number).stdout
        return next((word.split("=")[1] for word in shown.split() if word.startswith("JobState=")), "GONE")

    def wait(self):
        end = time.monotonic() + PATIENCE
        while (state := self.state()) not in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "GONE"):
            assert time.monotonic() < end, f"job {self.number} is {state}:\n{self.text()}"
            time.sleep(0.2)
        assert state == "COMPLETED", f"{state}:\n{self.text()}"

    def text(self):
        return self.output.read_text()[-3000:] if self.output.exists() else "(no output)"


def disturbed(job, how, numbers, most):
    """Disturbs a job until it has ended; returns how often."""
    done = 0
    while job.state() != "COMPLETED" and done < most:
        time.sleep(numbers.uniform(1, 8))
        if job.state() == "RUNNING":
            done += job.ask(*how, job.number).returncode == 0
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requeues", type=int, default=30)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    missing = [program for program in PROGRAMS if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")]
    if missing or os.geteuid() != 0:
        sys.exit(f"needs root, and {', '.join(missing) or 'nothing else'}: apt-get install slurmctld slurmd slurm-client munge")
    numbers = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "slurm").mkdir()
        with cluster(folder / "slurm") as environment:
            whole = Job(environment, folder / "whole", args.iterations)
            whole.wait()
            want = kills.outcome(folder / "whole", stops=True)
            ways = {"scontrol requeue": ["scontrol", "requeue"], "SIGTERM to the ranks": ["scancel", "--signal=TERM"]}
            for name, how in ways.items():
                done, run = 0, 0
                while done < args.requeues // 2:
                    run += 1
                    job = Job(environment, folder / f"{how[0]}-{run}", args.iterations)
                    done += disturbed(job, how, numbers, args.requeues // 2 - done)
                    job.wait()
                    kills.check(f"run {run} under {name}", kills.outcome(job.run_dir, stops=True), want)
                print(f"{name}: {done} in {run} runs, all ended bit-identical to the undisturbed one", flush=True)
            array = Job(environment, folder / "array", 2, "--array=1-2")
            array.wait()
            for seed in (1, 2):
                assert (folder / f"array/seed-{seed}/checkpoints/iteration-000002").is_dir(), array.text()
            print("array: two seeds, each in a run directory of its own")


if __name__ == "__main__":
    sys.exit(main())
