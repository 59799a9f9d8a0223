"""What `nestor train` shows: on a terminal (an emulated one, looked at after every write), in a pipe, as JSON."""
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

ITERATIONS = 14
ROW = re.compile(rf"^\s*(\d+)/{ITERATIONS}\s+\d+%")
BAR = re.compile(r"^([a-z][a-z -]*?) \[[=> ]+\] +(\d+)/(\d+) (episodes|sequences|steps)")
ESCAPE = "\x1b"


class Screen(pyte.HistoryScreen):
    """A terminal that notes where a line did not fit."""

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

    def text(self):
        """All rows that were ever printed, those that have scrolled away first."""
        gone = ["".join(row[x].data for x in range(self.columns)) for row in self.history.top]
        return [row.rstrip() for row in [*gone, *self.display]]


class Terminal:
    """A command on a terminal of its own, which it controls."""

    def __init__(self, command, columns, lines, **variables):
        self.screen = Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.bytes, self.bottoms, self.code = b"", [], None
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
        if columns < self.screen.columns:
            self.resize_pty(self.fd, columns, lines)
            self.read(until=time.monotonic() + 0.3)  # what was written for the old size
        self.screen.resize(lines, columns)
        self.resize_pty(self.fd, columns, lines)

    def read(self, until=None, seen=None, seconds=240):
        """Reads until a time, until `seen(screen)`, or to the end."""
        end = time.monotonic() + seconds
        while not (until and time.monotonic() > until) and not (seen and seen(self.screen)):
            assert time.monotonic() < end, "\n".join(self.screen.display)
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
            self.bottoms.append((time.monotonic(), self.screen.display[self.screen.cursor.y].rstrip()))
        return self

    def bars(self):
        """What the bottom line showed: name, done and planned of phases."""
        found = (BAR.match(bottom) for _, bottom in self.bottoms)
        return [(bar[1], int(bar[2]), int(bar[3])) for bar in found if bar]

    def assert_clean(self, code=0):
        """The command has ended, and left nothing but whole lines."""
        assert self.code == code, "\n".join(self.screen.text())
        assert self.screen.cursor.x == 0 and self.screen.display[self.screen.cursor.y].strip() == ""
        assert not self.screen.cursor.hidden and b"\x1b[?25l" not in self.bytes
        assert not any(BAR.match(row) for row in self.screen.text())


def train(nestor, root, *options):
    return [nestor, "train", root / "recipes/smoke/gigpo.yaml", "--set", f"iterations={ITERATIONS}",
            "--set", "rollout.tasks=40", "--set", "eval.every=5", "--set", "checkpoint.every=7", *options]


@pytest.mark.parametrize("columns, lines", [(80, 24), (200, 50)])
def test_nothing_wraps_or_scrolls_away(nestor, root, tmp_path, columns, lines):
    terminal = Terminal(train(nestor, root, "--run-dir", tmp_path / "run"), columns, lines).read()
    terminal.assert_clean()
    text = terminal.screen.text()
    rows = [row for row in text if ROW.match(row)]
    assert [int(ROW.match(row)[1]) for row in rows] == list(range(ITERATIONS + 1))
    headers = [i for i, row in enumerate(text) if "iteration" in row and "eval" in row]
    assert len(headers) <= 3
    for i, row in enumerate(text):
        if not ROW.match(row) or row in rows[0]:
            continue
        header = text[max(h for h in headers if h < i)]
        for name in ["success", "return", "loss", "to go"] + (["update t/s", "clip", "seconds"] if columns == 200 else []):
            end = header.index(name) + len(name)
            assert row[end - 1:end].strip() and not row[end:end + 1].strip(), (name, header, row)
    assert any(row.startswith("done:") for row in text)
    if columns == 200:  # folded where it is narrower
        assert (tmp_path / "run/log.txt").read_text().splitlines()[0] in text
    # The bar.
    names = {name for name, _, _ in terminal.bars()}
    assert {"rollout", "update"} <= names, names
    played = [done for name, done, planned in terminal.bars() if name == "rollout" and planned == 160]
    assert len(set(played)) > 1, played
    redraws = terminal.bytes.count(b"\r") - terminal.bytes.count(b"\r\n")
    seconds = terminal.bottoms[-1][0] - terminal.bottoms[0][0]
    assert redraws < 12 * seconds + 50, (redraws, seconds)
    # It does not blink: between two sights of one phase it is never blank.
    bottoms = terminal.bottoms
    for (_, before), (_, blank), (_, after) in zip(bottoms, bottoms[1:], bottoms[2:]):
        bars = BAR.match(before), BAR.match(after)
        same = all(bars) and bars[0][1] == bars[1][1] and int(bars[0][2]) < int(bars[1][2])
        assert not (same and blank == ""), (before, after)


def test_a_terminal_may_change_its_size(nestor, root, tmp_path):
    terminal = Terminal(train(nestor, root, "--run-dir", tmp_path / "run"), 200, 50)
    rows = lambda n: lambda screen: sum(bool(ROW.match(row)) for row in screen.text()) >= n  # noqa: E731
    terminal.read(seen=rows(3)).resize(60, 50)
    terminal.read(seen=rows(6)).resize(140, 50)
    terminal.read().assert_clean()
    numbers = [int(ROW.match(row)[1]) for row in terminal.screen.text() if ROW.match(row)]
    assert numbers == list(range(ITERATIONS + 1))
    headers = {row for row in terminal.screen.text() if "iteration" in row and "eval" in row}
    assert len(headers) >= 3, "a header for each width"


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stopped_run_leaves_the_terminal_clean(nestor, root, tmp_path, signals):
    terminal = Terminal(train(nestor, root, "--set", "iterations=1000", "--run-dir", tmp_path / "run"), 80, 24)
    terminal.read(seen=lambda screen: BAR.match(screen.display[screen.cursor.y]) and any("1/1000" in r for r in screen.display))
    os.write(terminal.fd, b"\x03" * signals)  # Ctrl-C
    terminal.read().assert_clean(code=130)
    said = any("stopped by a signal" in row for row in terminal.screen.text())
    assert said or signals == 2


def test_errors_stand_alone(nestor, root, tmp_path):
    """An error while a bar is up: the run directory is gone."""
    terminal = Terminal(train(nestor, root, "--set", "iterations=1000", "--set", "checkpoint.every=1",
                              "--run-dir", tmp_path / "run"), 80, 24)
    terminal.read(seen=lambda screen: any("1/1000" in row for row in screen.display))
    (tmp_path / "run").rename(tmp_path / "gone")
    (tmp_path / "run").write_text("")
    terminal.read().assert_clean(code=1)
    assert any(row.startswith("error: ") for row in terminal.screen.text())


def test_ranks_share_a_terminal(nestor, root, tmp_path):
    command = train(nestor, root, "--set", "iterations=3", "--run-dir", tmp_path / "run")
    terminal = Terminal([nestor, "launch", "--nproc", "2", *command[1:]], 80, 24).read()
    terminal.assert_clean()
    assert any("rank 0 of 2" in bottom for _, bottom in terminal.bottoms)
    assert {planned for name, _, planned in terminal.bars() if name == "rollout"} == {80}, "rank 0 counts its own"


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
    assert events[-1] == {"event": "end", "status": "done", "run_dir": str(dir), "saved": True}
    assert [e["step"] for e in events if e["event"] == "warm_start"] == list(range(6, 61, 6))
    rows = [json.loads(line) for line in (dir / "metrics.jsonl").read_text().splitlines()]
    assert [e for e in events if e["event"] == "iteration"] == [{"event": "iteration", **row} for row in rows]
    assert {e["event"] for e in events} <= {"start", "warm_start", "iteration", "say", "warning", "end"}
    assert (dir / "log.txt").read_text().endswith(f"done: {dir}\n"), "the log has lines all the same"


def test_json_has_errors_too(run, root, tmp_path):
    for command in [["train"], ["launch", "--nproc", 2, "train"]]:
        done = run(*command, tmp_path / "nothing.yaml", "--json")
        assert done.returncode == 2
        [event] = [json.loads(line) for line in done.stdout.splitlines()]
        assert event["event"] == "error" and done.stderr == f"error: {event['message']}\n"


def test_a_killed_rank_is_told_as_json(failpoints, root, tmp_path):
    command = train("", root, "--run-dir", tmp_path / "run", "--json")
    done = failpoints("mid-rollout:900@1", "launch", "--nproc", 2, *command[1:])
    assert done.returncode == 1 and "error: rank 1 was killed by signal 9" in done.stderr, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "error" and "rank 1 was killed by signal 9" in last["message"]
