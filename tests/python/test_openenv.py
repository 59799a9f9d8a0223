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
    """Runs the server, and starts it again when it dies for the first time."""

    def __init__(self, folder, steps):
        self.port, self.counts, self.starts, self.ends = free_port(), folder / "counts", 0, False
        self.folder = folder
        self.start(steps)
        self.thread = threading.Thread(target=self.watch)

    def start(self, steps):
        script = Path(__file__).with_name("openenv_server.py")
        command = [sys.executable, script, self.port, steps, SESSIONS, self.counts]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
        self.starts += 1

    def watch(self):
        self.process.wait()
        if not self.ends:
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

    def __enter__(self):
        self.wait()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        self.process.kill()
        self.thread.join()
        self.process.kill()  # one that was started meanwhile
        self.process.wait()


def train(run, root, folder, server):
    """Trains, and returns the recipe and the rows of the metrics without what differs between equal runs."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(root=root, port=server.port))
    done = run("train", recipe, "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return recipe, [{name: row[name] for name in row if not name.startswith(MEASURED + RECONNECTS)} for row in rows]


def test_a_run_survives_the_restart_of_its_server(run, root, tmp_path):
    quiet, disturbed = tmp_path / "quiet", tmp_path / "disturbed"
    quiet.mkdir()
    disturbed.mkdir()
    with Server(quiet, 0) as server:
        recipe, rows = train(run, root, quiet, server)
        assert server.starts == 1 and [row["iteration"] for row in rows] == [0, 1, 2]
        assert max(map(int, server.counts.read_text().split())) == SESSIONS
        # The config decides whether there is an expert, and only a run that imitates needs one.
        model = f"model={{path: {quiet}/run/model}}"
        check = ["train", recipe, "--check", "--set", "env.config.expert=null"]
        done = run(*check, "--set", model, "--set", "warm_start=null")
        assert done.returncode == 0, done.stderr
        done = run(*check)
        assert done.returncode == 2 and "environment `openenv` has no expert" in done.stderr
    # Each of the 32 episodes has its first step by then, and some their second: all are continued in new sessions.
    with Server(disturbed, 40) as server:
        assert train(run, root, disturbed, server)[1] == rows
        assert server.starts == 2
