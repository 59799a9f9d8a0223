"""Training on a real OpenEnv server (the package of PyPI), with one session per slot, and through a restart of the server."""
import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from conftest import PATIENCE, free_port
from measured import MEASURED

RECONNECTS = ("env/reconnects",)
SESSIONS = 32
RECIPE = """\
extends: {root}/recipes/smoke/gigpo.yaml
env:
  plugin: openenv
  config:
    url: http://127.0.0.1:{port}
    raw: true
    admissible: moves
    expert: best
    max_steps: 6
rollout: {{tasks: 8, group_size: 4, slots: 32}}
"""


class Server:
    """Runs the server, and starts it again when it dies."""

    def __init__(self, folder, steps):
        self.port, self.counts, self.starts, self.ends = free_port(), folder / "counts", 0, False
        self.folder = folder
        self.start(steps)
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def start(self, steps):
        script = Path(__file__).with_name("openenv_server.py")
        command = [sys.executable, script, self.port, steps, SESSIONS, self.counts]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
        self.starts += 1

    def watch(self):
        while self.process.wait() is not None and not self.ends:
            self.start(0)

    def wait(self):
        """Waits until the server answers."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").read()
            except OSError:
                time.sleep(0.1)
        raise AssertionError((self.folder / "server.log").read_text())

    def close(self):
        self.ends = True
        self.process.kill()
        self.thread.join()


def train(run, root, folder, steps):
    """Trains on a server that dies once, in its `steps`-th step with all sessions open. Returns the rows of the metrics without
    what differs between equal runs, and the server."""
    folder.mkdir()
    server = Server(folder, steps)
    try:
        server.wait()
        recipe = folder / "recipe.yaml"
        recipe.write_text(RECIPE.format(root=root, port=server.port))
        done = run("train", recipe, "--run-dir", folder / "run")
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith(MEASURED + RECONNECTS)} for row in rows], server


def test_a_run_survives_the_restart_of_its_server(run, root, tmp_path):
    quiet, server = train(run, root, tmp_path / "quiet", 0)
    assert server.starts == 1 and [row["iteration"] for row in quiet] == [0, 1, 2]
    assert max(map(int, server.counts.read_text().split())) == SESSIONS
    # Each of the 32 episodes has its first step by then, and some their second: all are continued in new sessions.
    disturbed, server = train(run, root, tmp_path / "disturbed", 40)
    assert server.starts == 2
    assert disturbed == quiet
