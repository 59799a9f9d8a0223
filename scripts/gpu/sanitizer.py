"""compute-sanitizer over the test of the own kernels. first_run.sh brings the program, since few machines have it."""
import os
import re
import subprocess

from one import details
from program import Program


def run(context, tool, only=""):
    """One of its tools. `only` is the start of the names of kernels that are tested; all where it is empty."""
    p = Program(context)
    program = p.folder / "sanitizer/compute-sanitizer"
    if p.rehearsal:
        return {"figure": "needs a GPU", "good": True}
    if not program.exists():
        return {"figure": f"there is no {program}: scripts/gpu/first_run.sh brings it", "good": False}
    # libtorch's allocator makes a call that is refused, and expects it.
    command = [program, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", "--print-limit", "20"]
    command += ["--kernel-name", f"regex:{only}"] if only else []
    done = subprocess.run([*map(str, command), p.folder / "nestor", "bench", "kernels", "--device", "cuda", "--json"],
                          capture_output=True, text=True, env=dict(os.environ))
    said = done.stdout + done.stderr
    found = [line.removeprefix("========= ") for line in said.splitlines() if line.startswith("=========")]
    details(said=found[:40])
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", said)
    figure = summary[0] if summary else f"ended with {done.returncode}: {said.strip()[-300:]}"
    return {"figure": figure, "good": done.returncode == 0 and summary is not None}
