"""Training on a real OpenEnv server (the package of PyPI), with one session per slot, and through a restart of the server."""
import json
import re
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
deterministic: true
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

    def __init__(self, folder, steps, sessions=SESSIONS):
        self.sessions = sessions
        self.port, self.counts, self.starts, self.ends = free_port(), folder / "counts", 0, False
        self.folder = folder
        self.start(steps)
        self.thread = threading.Thread(target=self.watch)

    def start(self, steps):
        script = Path(__file__).with_name("openenv_server.py")
        command = [sys.executable, script, self.port, steps, self.sessions, self.counts]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
        self.starts += 1

    def watch(self):
        self.process.wait()
        if not self.ends:
            self.start(0)

    def __enter__(self):
        wait_for(self.process, self.port, self.folder / "server.log")
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        self.process.kill()
        self.thread.join()
        self.process.kill()  # one that was started meanwhile
        self.process.wait()


def wait_for(process, port, log):
    """Waits until a server answers."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


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


def test_a_check_opens_a_session_for_each_slot(run, root, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    with Server(tmp_path, 0, sessions=8) as server:
        recipe.write_text(RECIPE.format(root=root, port=server.port))
        check = ["train", recipe, "--check", "--set", "env.config.connect_timeout_s=1", "--run-dir", tmp_path / "run"]
        done = run(*check)
        assert done.returncode == 2 and "instances for rollout.slots (32) are open" in done.stderr, done.stderr
        assert "raise its max_concurrent_envs" in done.stderr, done.stderr
        done = run(*check, "--set", "rollout.slots=8")
        assert done.returncode == 0, (done.stdout, done.stderr)


def test_the_server_of_the_page_plays(run, root, tmp_path):
    """The kit and a recipe take minutes on a server this slow, so the page's commands are not run."""
    folder, page = root / "plugins/openenv/examples", (root / "docs/openenv.md").read_text()
    _, _, code = (folder / "walk_server.py").read_text().split('"""', 2)
    assert f"```python\n{code.lstrip()}```" in page
    port, log, config = free_port(), tmp_path / "server.log", tmp_path / "walk.json"
    config.write_text(re.search(r"^echo '(.+)' > runs/walk.json$", page, re.MULTILINE)[1].replace(":8000", f":{port}"))
    (tmp_path / "said.txt").write_text("left\nright\n" * 4)
    command = [sys.executable, "-m", "uvicorn", "--app-dir", folder, "walk_server:app", "--port", port, "--log-level", "error"]
    with open(log, "w") as file:
        server = subprocess.Popen([*map(str, command)], stdout=file, stderr=file)
    try:
        wait_for(server, port, log)
        done = run("play", "openenv", "--config", config, "--actions", tmp_path / "said.txt", "--json")
        assert done.returncode == 0, done.stderr
        played = [json.loads(line) for line in done.stdout.splitlines()]
        assert played[0]["admissible"] == ["left", "right"] and played[-1]["done"], played
    finally:
        server.kill()
        server.wait()
