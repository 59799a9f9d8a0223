"""Runs checks, each in a process of its own with a time limit, so that a hang or a crash costs one check and no more."""
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# Seconds that a killed process may take to disappear.
PATIENCE = 5
# Characters of a failed check's messages that are kept.
TAIL = 1500


@dataclass
class Check:
    """A check as the order of check.py lists it."""
    name: str
    seconds: float  # expected; a check starts only while as many are left
    work: str  # module.function, called with the context and `args`
    args: dict = field(default_factory=dict)
    apart: bool = False  # runs only where it is named

    @property
    def limit(self):
        # Whoever runs the program waits some time for libtorch's CUDA half, more at its first start.
        return 2 * self.seconds + (10 if self.work.startswith(("attention.", "products.")) else 45)


class Planted:
    """The fault that NESTOR_GPU_CHECK_PLANT (hang:NAME or crash:NAME) asks for: the tests see it contained."""

    def __init__(self):
        self.kind, _, self.name = os.environ.get("NESTOR_GPU_CHECK_PLANT", "").partition(":")

    def of(self, check):
        return self.kind if check.name == self.name else ""

    def limit(self, check):
        return 5 if self.of(check) == "hang" else check.limit


def adopt():
    """Makes this process the parent of every process below it whose own parent has ended."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def below(pid):
    """The processes below one, whatever group or session they are in: a launcher's ranks have groups of their own."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(words[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def end(child):
    """Ends a check with everything it started."""
    for pid in below(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        child.wait(PATIENCE)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except (subprocess.TimeoutExpired, ChildProcessError):
        pass  # stuck in the driver, so it cannot be waited for; or nothing is left


def run(check, context, plant, seconds):
    """Runs a check for at most `seconds` and returns its line: name, figure, good, verdict, seconds, details, limit.

    The check's process prints a line {"details": {…}} for each figure as it has it, and {"result": {…}} at its end. So a hang
    or a crash leaves the details that came before."""
    line = {"name": check.name, "figure": "", "good": False, "verdict": "FAILED", "seconds": 0.0, "details": {}, "limit": ""}
    command = [sys.executable, Path(__file__).with_name("one.py"), check.work, json.dumps(context), json.dumps(check.args)]
    env = {**os.environ, "NESTOR_GPU_CHECK_PLANT": plant.of(check), "TOKENIZERS_PARALLELISM": "false"}
    begin = time.monotonic()
    said = Path(context["scratch"]) / "said"
    with said.open("w+b") as out, (Path(context["scratch"]) / "errors").open("w+b") as errors:
        child = subprocess.Popen(list(map(str, command)), stdout=out, stderr=errors, start_new_session=True, env=env)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            line["verdict"] = "HUNG"
            line["figure"] = f"killed after {seconds:.0f} s"
        finally:
            end(child)
        out.seek(0)
        errors.seek(0)
        texts = out.read().decode(errors="replace").splitlines()
        complaint = errors.read().decode(errors="replace").strip()
    result = None
    for text in texts:
        try:
            message = json.loads(text)
        except ValueError:
            continue  # cut by the end of the process, or not from the check
        if isinstance(message, dict):
            line["details"].update(message.get("details", {}))
            result = message.get("result", result)
    line["seconds"] = round(time.monotonic() - begin, 2)
    if line["verdict"] != "HUNG" and result is not None and child.returncode == 0:
        line.update(result)
        line["verdict"] = "ok" if line["good"] else "missed" if line.pop("missed", False) else "FAILED"
    elif line["verdict"] != "HUNG":
        last = complaint.splitlines()[-1] if complaint else ""
        line["figure"] = f"ended with {child.returncode}: {last[:300]}"
    if line["verdict"] in ("FAILED", "HUNG") and complaint:
        line["details"]["stderr"] = complaint[-TAIL:]
    line.pop("missed", None)
    return line
