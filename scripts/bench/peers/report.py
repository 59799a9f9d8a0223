"""Prints rows, keeps them, and writes their table into docs/benchmarks.md."""
import json
import os
import re
import statistics
from dataclasses import asdict, dataclass, field

from .program import ROOT, run

RESULTS = ROOT / "target/bench/results"
MARKS = ("<!-- scripts/bench.sh writes this -->", "<!-- scripts/bench.sh wrote this -->")


@dataclass
class Result:
    """A row of the table."""
    row: str
    work: str
    peer: str
    ours: str
    theirs: str
    ratio: str
    target: str
    met: bool
    notes: list = field(default_factory=list)
    machine: str = ""

    def print(self):
        print(f"{self.row}: {self.work}\n  machine: {self.machine}\n  nestor: {self.ours}\n  {self.peer}: {self.theirs}\n"
              f"  ratio: {self.ratio}, target {self.target}: {'met' if self.met else 'MISSED'}")
        for note in self.notes:
            print(f"  {note}")
        print(flush=True)

    def keep(self):
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{self.row}.json").write_text(json.dumps(asdict(self), indent=1))


def spread(seconds):
    """Formats the median, and of several values the smallest and the largest."""
    middle = f"{statistics.median(seconds):.2f} s"
    return middle if len(seconds) == 1 else f"{middle} ({min(seconds):.2f} to {max(seconds):.2f})"


def ratio(ours, theirs):
    return statistics.median(theirs) / statistics.median(ours)


def machine(threads):
    """Describes the machine and the versions of the programs."""
    import importlib.metadata as metadata
    import torch
    text = open("/proc/cpuinfo").read()
    cpu = re.search(r"model name\s*: (.*)", text).group(1)
    amx = ", AMX" if " amx_bf16" in text else ""
    memory = int(re.search(r"MemTotal:\s*(\d+)", open("/proc/meminfo").read()).group(1)) / 2**20
    versions = [f"torch {torch.__version__}"]
    for package in ("transformers", "trl"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    commit = run(["git", "rev-parse", "--short", "HEAD"]).strip()
    # Documents do not affect a measurement.
    changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--", "core", "plugins", "scripts", "Cargo.lock"])
    commit += " with changes" if changed.strip() else ""
    return (f"{cpu}{amx}, {os.cpu_count()} cores, {memory:.0f} GiB; {threads} threads; {', '.join(versions)}; "
            f"nestor {commit}")


def table(results):
    """Returns the table in Markdown, with the checks and the machines of its rows."""
    lines = ["| work | peer | Nestor | peer's figure | ratio | target | |", "|---|---|---|---|---|---|---|"]
    for r in results:
        met = "met" if r["met"] else "missed"
        lines.append(f"| {r['work']} | {r['peer']} | {r['ours']} | {r['theirs']} | {r['ratio']} | {r['target']} | {met} |")
    notes = [f"- `{r['row']}`: {'; '.join(r['notes'])}" for r in results if r["notes"]]
    places = {}
    for r in results:
        places.setdefault(r["machine"], []).append(r["row"])
    where = [f"Measured on {place}" + ("." if len(places) == 1 else f" ({', '.join(rows)}).")
             for place, rows in places.items()]
    return "\n".join([*lines, "", *notes, "", *where])


def refuse_to_drop(path, order, measured):
    """A page has rows of other days. Their results are in RESULTS only on the machine that measured them."""
    kept = [row for row in order if row in measured or (RESULTS / f"{row}.json").exists()]
    _, _, rest = path.read_text().partition(MARKS[0])
    rows = sum(line.startswith("| ") for line in rest.partition(MARKS[1])[0].splitlines()) - 1
    if len(kept) < rows:
        raise SystemExit(f"bench: {path} has {rows} rows, and {RESULTS} will have {len(kept)}: --write would drop the others; name "
                         "all, or leave --write out")


def write(path, order):
    """Writes the table of all kept rows between the marks of a Markdown file."""
    kept = {row: json.loads((RESULTS / f"{row}.json").read_text()) for row in order
            if (RESULTS / f"{row}.json").exists()}
    text = path.read_text()
    before, begin, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (begin and end):
        raise SystemExit(f"bench: {path} has no lines {MARKS[0]} and {MARKS[1]}, between which the table belongs")
    path.write_text(f"{before}{begin}\n{table(kept.values())}\n{end}{after}")
