#!/usr/bin/env python3
"""Trains on two machines made here: network namespaces that a cable joins, each with an agent of torchrun and two ranks (as root).

Every run must end by itself with the parameters, moments, state and metrics of four ranks on one machine, whatever happens on the way: a rank
killed, a machine lost and replaced, a cable cut and mended, a link of 20 ms that loses 1 % of its packets, IPv6 alone, a second network that
leads nowhere. Wrong interfaces and secrets are refused with a message. The table has the seconds from a fault to the first error that names it.

    tests/slow/two_machines.py [CASE...]
"""
import argparse
import fcntl
import heapq
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import kills

ROOT = Path(__file__).resolve().parents[2]
NESTOR = os.environ.get("NESTOR", ROOT / "target/release/nestor")
SECRET = "a secret of the tests, which both machines have"
SILENCE = 5
PATIENCE = 600
V4, V6 = ["10.77.0.1", "10.77.0.2"], ["fd77::1", "fd77::2"]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class SlowCable(threading.Thread):
    """Carries packets between two TUN devices, 20 ms late, and loses 1 % of them: the kernel here has no netem."""

    def __init__(self, ends, delay=0.02, loss=0.01):
        super().__init__(daemon=True)
        self.files, self.delay, self.loss, self.numbers = [self.tun(name) for name in ends], delay, loss, random.Random(1)
        self.done = False

    @staticmethod
    def tun(name):
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, 0x400454CA, struct.pack("16sH", name.encode(), 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
        return file

    def run(self):
        late, count = [], 0
        while not self.done:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else 0.1
            for file in select.select(self.files, [], [], wait)[0]:
                try:
                    packet = os.read(file, 65536)
                except OSError:
                    return  # the machines are gone
                if self.numbers.random() >= self.loss:
                    count += 1
                    heapq.heappush(late, (time.monotonic() + self.delay, count, self.files[1 - self.files.index(file)], packet))
            while late and late[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(late)
                try:
                    os.write(to, packet)
                except OSError:
                    pass  # its machine is down


class Machines:
    """Two namespaces and a cable."""

    def __init__(self, slow=False, second=False):
        self.names = [f"nestor-{os.getpid()}-{letter}" for letter in "ab"]
        self.ends = [f"n{os.getpid()}{letter}" for letter in "ab"]
        self.cable = None
        for name in self.names:
            ip("netns", "add", name)
        if slow:
            self.cable = SlowCable(self.ends)
        else:
            ip("link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1])
        for place, (name, end) in enumerate(zip(self.names, self.ends)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{V4[place]}/24", "dev", end)
            ip("-n", name, "-6", "addr", "add", f"{V6[place]}/64", "dev", end, "nodad")
            ip("-n", name, "link", "set", "lo", "up")
            self.plug(place)
            if second:
                ip("-n", name, "link", "add", "nowhere", "type", "veth", "peer", "name", "nobody")
                ip("-n", name, "addr", "add", f"192.168.77.{place + 1}/24", "dev", "nowhere")
                ip("-n", name, "link", "set", "nowhere", "up")
        if self.cable:
            self.cable.start()

    def plug(self, place, state="up"):
        ip("-n", self.names[place], "link", "set", self.ends[place], state)
        if state == "up":  # the kernel drops IPv6 addresses of a link that is down
            subprocess.run(["ip", "-n", self.names[place], "-6", "addr", "add", f"{V6[place]}/64", "dev", self.ends[place], "nodad"],
                           capture_output=True)

    def pids(self, place):
        return [int(pid) for pid in subprocess.check_output(["ip", "netns", "pids", self.names[place]], text=True).split()]

    def kill(self, place):
        for pid in self.pids(place):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def ranks(self, place):
        """Process ids of a machine's ranks."""
        def is_rank(pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                return False
            return b"train" in words and words[0].endswith(b"nestor")
        return [pid for pid in self.pids(place) if is_rank(pid)]

    def close(self):
        for place, name in enumerate(self.names):
            self.kill(place)
            ip("netns", "del", name)
        if self.cable:
            self.cable.done = True


class Run:
    """A run on both machines."""

    def __init__(self, machines, folder, iterations, addresses=V4, variables=({}, {}), restarts=5):
        self.machines, self.folder, self.iterations, self.addresses = machines, folder, iterations, addresses
        self.variables, self.restarts, self.agents = variables, restarts, [None, None]
        self.lost = set()  # machines without an agent until another takes their place
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
        for place in (0, 1):
            self.start(place)

    def start(self, place):
        host = f"[{self.addresses[0]}]" if ":" in self.addresses[0] else self.addresses[0]
        agent = ["ip", "netns", "exec", self.machines.names[place], ROOT / ".venv/bin/torchrun", "--nnodes", "2", "--nproc-per-node", "2",
                 "--max-restarts", self.restarts, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{self.port}", "--rdzv-id", "test",
                 "--rdzv-conf", f"is_host={int(place == 0)}", "--local-addr", self.addresses[place], "--no-python", NESTOR]
        command = [*agent, *train(self.folder / "run", self.iterations)]
        log = open(self.folder / f"agent-{place}.log", "a")
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "NESTOR_SECRET": SECRET, **self.variables[place]}
        self.agents[place] = subprocess.Popen(list(map(str, command)), env=variables, stdout=log, stderr=log)
        self.lost.discard(place)

    def text(self):
        return "".join((self.folder / f"agent-{place}.log").read_text() for place in (0, 1))

    def wait_for_rows(self, number):
        metrics, end = self.folder / "run/metrics.jsonl", time.monotonic() + PATIENCE
        while not (metrics.exists() and metrics.read_text().count("\n") > number):
            assert time.monotonic() < end and self.agents[0].poll() is None, self.text()[-4000:]
            time.sleep(0.05)

    def wait_for_error(self, since):
        """Seconds until the first error after a fault that had `since` characters of logs."""
        begin = time.monotonic()
        while not (found := re.search(r"error: .*", self.text()[since:])):
            assert time.monotonic() < begin + PATIENCE, self.text()[-4000:]
            time.sleep(0.05)
        return time.monotonic() - begin, found[0]

    def ends(self):
        """Waits for the end; an agent that gave up is started again, as a scheduler would."""
        end = time.monotonic() + PATIENCE
        while self.lost or not all(agent.poll() == 0 for agent in self.agents):
            assert time.monotonic() < end, self.text()[-4000:]
            for place, agent in enumerate(self.agents):
                if agent.poll() not in (None, 0) and place not in self.lost:
                    self.start(place)
            time.sleep(0.2)


def train(run_dir, iterations):
    settings = {"deterministic": "true", "iterations": iterations, "checkpoint.every": 1, "eval.every": 4, "update.mini_batch": 16,
                "update.micro_batch_tokens": 128, "warm_start.steps": 20, "dist.silence_s": SILENCE, "dist.timeout_s": 120}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["train", ROOT / "recipes/smoke/gigpo.yaml", *sets, "--run-dir", run_dir]


def undisturbed(run):
    return None


def rank_killed(run):
    run.wait_for_rows(2)
    os.kill(run.machines.ranks(1)[0], signal.SIGKILL)


def machine_lost(run):
    """Everything on it ends; a new machine takes its place after ten seconds."""
    run.wait_for_rows(2)
    run.lost.add(1)
    run.machines.kill(1)
    threading.Timer(10, run.start, [1]).start()


def cable_cut(run):
    run.wait_for_rows(2)
    run.machines.plug(1, "down")
    threading.Timer(20, run.machines.plug, [1]).start()


FAULTS = {"rank killed": rank_killed, "machine lost and replaced": machine_lost, "cable cut for 20 s": cable_cut}
LINKS = {
    "undisturbed": ({}, {}),
    "slow link": ({"slow": True}, {}),
    "IPv6 alone": ({}, {"addresses": V6}),
    "two networks": ({"second": True}, {}),
    "two networks, named": ({"second": True}, {"variables": "own"}),
}
REFUSED = {
    "interface missing": ({"GLOO_SOCKET_IFNAME": "eth99"}, r"GLOO_SOCKET_IFNAME"),
    "secret wrong": ({"NESTOR_SECRET": "another secret, which is as long as that"}, r"another NESTOR_SECRET"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*LINKS, *FAULTS, *REFUSED]))
    parser.add_argument("--iterations", type=int, default=8)
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("skipped: network namespaces need root")
    chosen = lambda names: [name for name in names if not args.cases or name in args.cases]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        one = [NESTOR, "launch", "--nproc", 4, "--oversubscribe", *train(folder / "one", args.iterations)]
        subprocess.run(list(map(str, one)), check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        want = kills.outcome(folder / "one")
        print(f"| case | named after | by | outcome |\n|---|---|---|---|", flush=True)
        for number, name in enumerate(chosen([*LINKS, *FAULTS])):
            links, options = LINKS.get(name, ({}, {}))
            machines = Machines(**links)
            if options.get("variables") == "own":
                options = {"variables": [{"GLOO_SOCKET_IFNAME": end} for end in machines.ends]}
            own = folder / f"case-{number}"
            own.mkdir()
            begin = time.monotonic()
            try:
                run = Run(machines, own, args.iterations, **options)
                shown = "–", "–"
                if fault := FAULTS.get(name):
                    since = 0
                    fault(run)
                    seconds, error = run.wait_for_error(since)
                    shown = f"{seconds:.1f} s", error.replace("|", "/")[:110]
                run.ends()
                kills.check(name, kills.outcome(own / "run"), want)
            finally:
                machines.close()
            print(f"| {name} | {shown[0]} | {shown[1]} | bit-identical after {time.monotonic() - begin:.0f} s |", flush=True)
        for number, name in enumerate(chosen(REFUSED)):
            variables, part = REFUSED[name]
            machines, own = Machines(), folder / f"refused-{number}"
            own.mkdir()
            try:
                run = Run(machines, own, args.iterations, variables=({}, variables), restarts=0)
                begin = time.monotonic()
                while not re.search(f"error: .*({part})", run.text()):
                    assert time.monotonic() < begin + PATIENCE and any(agent.poll() is None for agent in run.agents), run.text()[-4000:]
                    time.sleep(0.05)
                seconds = time.monotonic() - begin
            finally:
                machines.close()
            found = next(line for line in re.findall(r"error: .*", run.text()) if re.search(part, line))
            print(f"| {name} | {seconds:.1f} s | {found.replace('|', '/')[:160]} | refused |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
