#!/usr/bin/env python3
"""Cost of a step of the plugin `openenv` on loopback, with 64 instances that one thread steps in turn.

    cargo build --release -p nestor-openenv --example latency
    .venv/bin/python scripts/bench/openenv.py [STEPS]

Prints median and 99th percentile in milliseconds for three pairs of client and server: the plugin with an echo server in Rust (the
client's own cost), the plugin with a real OpenEnv server, and a bare client of the Python package `websockets` with that server.
STEPS (default 100) counts the steps of each instance. It takes some seconds.
"""
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from websockets.sync.client import connect

ROOT = Path(__file__).resolve().parents[2]
INSTANCES = 64
SERVER = """
import sys
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
class Say(Action):
    text: str
class Heard(Observation):
    text: str = ""
class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **kwargs):
        return Heard(text="start")
    def step(self, action, timeout_s=None, **kwargs):
        return Heard(text=action.text, reward=0.0)
    @property
    def state(self):
        return State()
app = create_fastapi_app(Echo, Say, Heard, max_concurrent_envs=%d)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
""" % INSTANCES


def plugin(url, steps):
    program = ROOT / "target/release/examples/latency"
    if not program.exists():
        sys.exit("build first: cargo build --release -p nestor-openenv --example latency")
    command = [program, json.dumps({"url": url}), str(INSTANCES), str(steps)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def bare(port, steps):
    """The same messages from a bare client, each answer parsed."""
    with contextlib.ExitStack() as stack:
        return timed_steps([stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws")) for _ in range(INSTANCES)], steps)


def timed_steps(sockets, steps):

    def ask(ws, kind, data):
        ws.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(ws.recv())
        assert answer["type"] == "observation", answer

    for seed, ws in enumerate(sockets):
        ask(ws, "reset", {"seed": seed})
    seconds = []
    for _ in range(steps):
        for ws in sockets:
            begin = time.perf_counter()
            ask(ws, "step", {"text": "go to shelf 1"})
            seconds.append(time.perf_counter() - begin)
    seconds.sort()
    return {"steps": len(seconds), "median_s": seconds[len(seconds) // 2], "p99_s": seconds[len(seconds) * 99 // 100]}


def show(name, timed):
    print(f"{name:<34} {1e3 * timed['median_s']:7.3f} ms  {1e3 * timed['p99_s']:7.3f} ms   {timed['steps']} steps", flush=True)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{'client and server':<34} {'median':>10}  {'p99':>10}")
    show("plugin, echo server in Rust", plugin("ws://echo", steps))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)])
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                break
            except OSError:
                time.sleep(0.1)
        show("plugin, OpenEnv server", plugin(f"http://127.0.0.1:{port}", steps))
        show("Python websockets, OpenEnv server", bare(port, steps))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
