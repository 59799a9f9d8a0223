"""The output of `nestor train`: on an emulated terminal, which is examined frame by frame, in a pipe, and as JSON."""
import fcntl
import json
import os
import pty
import re
import select
import struct
import termios
import time

import pyte
import pytest
from conftest import PATIENCE

ITERATIONS = 14
ROW = re.compile(r"^\s*(\d+)/\d+\s+\d+%")
BAR = re.compile(r"^([a-z][a-z -]*?) \[[=> ]+\] +(\d+)/(\d+) (episodes|sequences|steps)")
ESCAPE = "\x1b"


class Screen(pyte.HistoryScreen):
    """A terminal that records every line that did not fit."""

    def __init__(self, columns, lines):
        self.wrapped, self.drawing = [], False
        super().__init__(columns, lines, history=10_000, ratio=0.5)

    def draw(self, data):
        self.drawing = True
        super().draw(data)
        self.drawing = False

    def linefeed(self):
        if self.drawing:
            self.wrapped.append(self.display[self.cursor.y])
        super().linefeed()

    def bottom(self):
        """The row of the cursor."""
        return self.display[self.cursor.y].rstrip()

    def header(self):
        """The newest header of the table."""
        return [row for row in self.text() if "iteration" in row and "eval" in row][-1]

    def text(self):
        """All rows ever printed, beginning with those that have scrolled away."""
        gone = ["".join(row[x].data for x in range(self.columns)) for row in self.history.top]
        return [row.rstrip() for row in [*gone, *self.display]]


class Terminal:
    """A command on a terminal of its own, which it controls."""

    def __init__(self, command, columns, lines, **variables):
        self.size = columns, lines
        self.screen = Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.bytes, self.code, self.seconds = b"", None, 0.0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            self.resize_pty(0, columns, lines)
            env = {**os.environ, "TERM": "xterm-256color", **variables}
            os.execve(command[0], [str(word) for word in command], env)
        self.resize_pty(self.fd, columns, lines)

    @staticmethod
    def resize_pty(fd, columns, lines):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        """Changes the size and reads until a header of the table fits it."""
        narrower = columns < self.screen.columns
        self.resize_pty(self.fd, columns, lines)
        if not narrower:
            self.screen.resize(lines, columns)
        self.read(seen=lambda screen: columns / 2 < len(screen.header()) < columns)
        if narrower:  # until now lines of the old width were on their way
            self.screen.resize(lines, columns)

    def read(self, seen=lambda screen: False):
        """Reads until `seen(screen)`, or to the end."""
        begin = time.monotonic()
        while not seen(self.screen):
            assert time.monotonic() - begin < PATIENCE, "\n".join(self.screen.display)
            if not select.select([self.fd], [], [], 0.05)[0]:
                continue
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                chunk = b""
            if not chunk:
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                break
            self.bytes += chunk
            self.stream.feed(chunk)
            assert not self.screen.wrapped, self.screen.wrapped
        self.seconds += time.monotonic() - begin
        return self

    def bottoms(self):
        """The bottom row after each frame. A frame begins with a carriage return, so this list depends on the
        bytes alone, not on when they were read."""
        screen = Screen(*self.size)
        stream = pyte.ByteStream(screen)
        bottoms = []
        for frame in re.split(rb"(?=\r[^\r\n])", self.bytes):
            stream.feed(frame)
            bottoms.append(screen.bottom())
        return bottoms

    def bars(self):
        """The bars shown in the bottom row: phase, units done and units planned."""
        found = map(BAR.match, self.bottoms())
        return [(bar[1], int(bar[2]), int(bar[3])) for bar in found if bar]

    def assert_clean(self, code=0):
        """The command has ended and left only complete lines."""
        assert self.code == code, "\n".join(self.screen.text())
        assert self.screen.cursor.x == 0 and self.screen.bottom() == ""
        assert not self.screen.cursor.hidden and b"\x1b[?25l" not in self.bytes
        assert not any(BAR.match(row) for row in self.screen.text())


def rows(n):
    """The condition that a screen shows n rows of the table."""
    return lambda screen: sum(bool(ROW.match(row)) for row in screen.text()) >= n


def train(nestor, root, *options):
    return [nestor, "train", root / "recipes/smoke/gigpo.yaml", "--set", f"iterations={ITERATIONS}",
            "--set", "rollout.tasks=40", "--set", "eval.every=5", "--set", "checkpoint.every=7", *options]


@pytest.fixture
def slow(root, tmp_path):
    """Settings under which a rollout lasts on any machine: 160 steps of 20 ms, two at a time. A taught policy would answer as
    the expert does, whose steps take no time."""
    plugin = root / "target/release/examples/libwitness.so"
    assert plugin.exists(), "build first: cargo build --release --examples --workspace"
    config = f"{{log: {tmp_path}/log, delay_ms: 20}}"
    return ["--set", f"env={{plugin: {plugin}, config: {config}}}", "--set", "rollout.env_threads=2",
            "--set", "warm_start=null"]


@pytest.mark.parametrize("columns, lines", [(80, 24), (200, 50)])
def test_nothing_wraps_or_scrolls_away(nestor, root, tmp_path, columns, lines):
    terminal = Terminal(train(nestor, root, "--run-dir", tmp_path / "run"), columns, lines).read()
    terminal.assert_clean()
    text = terminal.screen.text()
    table = [row for row in text if ROW.match(row)]
    assert [int(ROW.match(row)[1]) for row in table] == list(range(ITERATIONS + 1))
    headers = [i for i, row in enumerate(text) if "iteration" in row and "eval" in row]
    assert len(headers) <= 3
    for i, row in enumerate(text):
        if not ROW.match(row) or row in table[0]:
            continue
        header = text[max(h for h in headers if h < i)]
        for name in ["success", "return", "loss", "to go"] + (["update t/s", "clip", "seconds"] if columns == 200 else []):
            end = header.index(name) + len(name)
            assert row[end - 1:end].strip() and not row[end:end + 1].strip(), (name, header, row)
    assert any(row.startswith("done:") for row in text)
    if columns == 200:  # folded where it is narrower
        assert (tmp_path / "run/log.txt").read_text().splitlines()[0] in text


@pytest.mark.parametrize("columns, lines", [(80, 24), (200, 50)])
def test_a_long_phase_has_a_bar(nestor, root, tmp_path, slow, columns, lines):
    """Phases show after 0.2 s. The environment delays the rollout; epochs double until an update lasts for a second."""
    for epochs in (64 << i for i in range(12)):
        run_dir = tmp_path / f"run-{epochs}"
        sets = ["iterations=1", f"update.epochs={epochs}", "update.lr=1e-9"]
        command = train(nestor, root, *slow, *(word for key in sets for word in ("--set", key)), "--run-dir", run_dir)
        terminal = Terminal(command, columns, lines).read()
        terminal.assert_clean()
        if json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["time/update_s"] > 1:
            break
    bars = terminal.bars()
    for phase, planned in [("rollout", 160), ("update", 160 * epochs)]:
        done = [done for name, done, total in bars if name == phase and total == planned]
        assert len(set(done)) > 1 and done == sorted(done), (phase, bars)
    redraws = terminal.bytes.count(b"\r") - terminal.bytes.count(b"\r\n")
    assert redraws < 12 * terminal.seconds + 50, (redraws, terminal.seconds)
    # It does not blink: between two frames of one phase no frame is blank.
    bottoms = terminal.bottoms()
    for before, blank, after in zip(bottoms, bottoms[1:], bottoms[2:]):
        ends = BAR.match(before), BAR.match(after)
        same = all(ends) and ends[0][1] == ends[1][1] and int(ends[0][2]) < int(ends[1][2])
        assert not (same and blank == ""), (before, after)


def test_a_terminal_may_change_its_size(nestor, root, tmp_path):
    """Each width has a header of its own."""
    terminal = Terminal(train(nestor, root, "--set", "iterations=1000", "--run-dir", tmp_path / "run"), 200, 50)
    terminal.read(seen=rows(3))
    assert 100 < len(terminal.screen.header()) < 200
    terminal.resize(60, 50)
    terminal.resize(100, 50)
    os.write(terminal.fd, b"\x03")  # Ctrl-C
    terminal.read().assert_clean(code=130)
    numbers = [int(ROW.match(row)[1]) for row in terminal.screen.text() if ROW.match(row)]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stopped_run_leaves_the_terminal_clean(nestor, root, tmp_path, slow, signals):
    command = train(nestor, root, *slow, "--set", "iterations=1000", "--run-dir", tmp_path / "run")
    terminal = Terminal(command, 80, 24)
    terminal.read(seen=lambda screen: BAR.match(screen.bottom()) and any("1/1000" in row for row in screen.display))
    os.write(terminal.fd, b"\x03")  # Ctrl-C
    terminal.read(seen=lambda screen: "again: exit without saving" in " ".join(map(str.strip, screen.display)))
    if signals == 2:
        os.write(terminal.fd, b"\x03")
    terminal.read()
    text = terminal.screen.text()
    stopped = any("stopped by a signal" in row for row in text)  # or the second signal was faster than the run
    terminal.assert_clean(code=130 if stopped else 1)
    assert stopped or signals == 2 and any("exit without saving: the work since" in row for row in text), text


def test_errors_stand_alone(nestor, root, tmp_path):
    """An error while a bar is up: the run directory is gone."""
    terminal = Terminal(train(nestor, root, "--set", "iterations=1000", "--set", "checkpoint.every=1",
                              "--run-dir", tmp_path / "run"), 80, 24)
    terminal.read(seen=lambda screen: any("1/1000" in row for row in screen.display))
    (tmp_path / "run").rename(tmp_path / "gone")
    (tmp_path / "run").write_text("")
    terminal.read().assert_clean(code=1)
    assert any(row.startswith("error: ") for row in terminal.screen.text())


def test_ranks_share_a_terminal(nestor, root, tmp_path, slow):
    command = train(nestor, root, *slow, "--set", "iterations=1", "--run-dir", tmp_path / "run")
    terminal = Terminal([nestor, "launch", "--nproc", "2", *command[1:]], 80, 24).read()
    terminal.assert_clean()
    assert any("rank 0 of 2" in bottom for bottom in terminal.bottoms())
    assert {planned for name, _, planned in terminal.bars() if name == "rollout"} == {80}, "rank 0 counts its own share"


@pytest.mark.parametrize("variables, escapes", [({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)])
def test_colours_and_escapes_may_be_unwanted(nestor, root, tmp_path, variables, escapes):
    command = train(nestor, root, "--set", "iterations=2", "--run-dir", tmp_path / "run")
    terminal = Terminal(command, 80, 24, **variables).read()
    assert terminal.code == 0
    assert re.findall(rb"\x1b\[[0-9;]*m", terminal.bytes) == []
    assert (b"\x1b" in terminal.bytes) == escapes


def test_a_pipe_gets_what_the_log_gets(run, root, tmp_path):
    done = run(*train("", root, "--set", "iterations=2", "--run-dir", tmp_path / "run")[1:])
    assert done.returncode == 0 and ESCAPE not in done.stdout + done.stderr and "\r" not in done.stdout
    assert done.stdout == (tmp_path / "run/log.txt").read_text()
    assert re.search(r"^1/2  50 % \| success \d\.\d{3} \| return .* \| \d+\.\d s \| \d+ s to go$", done.stdout, re.M)


def test_json_is_one_object_a_line(run, root, tmp_path):
    dir = tmp_path / "run"
    done = run(*train("", root, "--set", "iterations=2", "--run-dir", dir, "--json")[1:])
    assert done.returncode == 0 and done.stderr == "", done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "start" and events[0]["run_dir"] == str(dir) and events[0]["world"] == 1
    assert events[-1] == {"event": "end", "status": "done", "run_dir": str(dir)}
    assert [e["step"] for e in events if e["event"] == "warm_start"] == list(range(6, 61, 6))
    rows = [json.loads(line) for line in (dir / "metrics.jsonl").read_text().splitlines()]
    assert [e for e in events if e["event"] == "iteration"] == [{"event": "iteration", **row} for row in rows]
    assert {e["event"] for e in events} <= {"start", "warm_start", "iteration", "say", "warning", "end"}
    assert (dir / "log.txt").read_text().endswith(f"nestor export {dir} MODEL\n"), "the log has lines all the same"


def test_json_has_errors_too(run, root, tmp_path):
    for command in [["train"], ["launch", "--nproc", 2, "train"]]:
        done = run(*command, tmp_path / "nothing.yaml", "--json")
        assert done.returncode == 2
        [event] = [json.loads(line) for line in done.stdout.splitlines()]
        assert event["event"] == "error" and done.stderr == f"error: {event['message']}\n"


def test_a_killed_rank_is_reported_as_json(failpoints, root, tmp_path):
    command = train("", root, "--run-dir", tmp_path / "run", "--json")
    done = failpoints("mid-rollout:900@1", "launch", "--nproc", 2, *command[1:])
    assert done.returncode == 1 and "error: rank 1 was killed by signal 9" in done.stderr, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "error" and "rank 1 was killed by signal 9" in last["message"]
