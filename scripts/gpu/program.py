"""How the checks call the program, and the models and rows that they give it."""
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

from limits import SHAPES

# Types of 16 bits that the program computes in.
HALVES = ["bfloat16", "float16"]


class Hung(SystemExit):
    """A call that wrote no error line for too long. `last` is the one before."""

    def __init__(self, name, last):
        super().__init__(f"{name} hangs after {last!r}")
        self.last = last


class Program:
    def __init__(self, context):
        self.context, self.device = context, context.device
        self.folder, self.scratch = Path(context.folder), Path(context.scratch)
        self.rehearsal = context.rehearsal
        self.left_out = self.folder / "left-out"

    def leave_out(self, kernels):
        """All later calls, of other checks too, do without these kernels."""
        self.left_out.write_text(",".join(f"-{kernel}" for kernel in kernels))

    def call(self, name, *words, silence=None, **variables):
        """Runs a program with these variables and returns its output. Its first error line is the failure's text. With `silence`
        it may write nothing to standard error for that number of seconds at most."""
        command = [str(word) for word in (self.folder / name, *words)]
        without = {"NESTOR_KERNELS": self.left_out.read_text()} if self.left_out.exists() else {}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env={**without, **os.environ, **variables})
            written = 0
            while True:
                try:
                    process.wait(silence)
                    break
                except subprocess.TimeoutExpired:
                    before, written = written, os.fstat(err.fileno()).st_size
                    if written == before:
                        process.kill()
                        process.wait()
                        err.seek(0)
                        raise Hung(name, (err.read().splitlines() or [""])[-1])
            out.seek(0), err.seek(0)
            stdout, stderr = out.read(), err.read()
        if process.returncode != 0:
            said = [line for line in stderr.splitlines() if line.lower().startswith("error")]
            raise SystemExit(said[0] if said else f"{name} ended with {process.returncode}: {stderr.strip()[-500:]}")
        return stdout

    def nestor(self, *words, **variables):
        return json.loads(self.call("nestor", *words, "--json", **variables))

    def bench(self, work, shape, dtype, *words, **variables):
        model = self.model(shape, dtype)
        return self.nestor("bench", work, "--model", model, "--dtype", dtype, "--device", self.device, *words, **variables)

    def model(self, shape, dtype):
        """A model of random weights. A float16 model is the bfloat16 one, which the program converts."""
        stored = "float32" if dtype == "float32" else "bfloat16"
        folder = self.scratch / f"{shape.replace(', ', '-').replace(' ', '-')}-{stored}"
        if not folder.exists():
            name, layers = shape.partition(",")[0], ["--layers", SHAPES[shape].layers] if "," in shape else []
            self.call("nestor", "model", "new", folder, "--shape", name, *layers, "--dtype", stored)
        return folder

    def big(self, shape):
        """A shape, or the tiny one in a rehearsal."""
        return "tiny" if self.rehearsal else shape

    def rows(self, shape, lengths):
        draw = random.Random(1)
        path = self.scratch / f"rows-{shape}.json"
        rows = [[draw.randrange(SHAPES[shape].vocabulary) for _ in range(n)] for n in lengths]
        path.write_text(json.dumps({"rows": rows}))
        return path

    def train(self, recipe, run_dir, *sets):
        """The arguments of `nestor train` for a recipe of recipes/smoke on the device."""
        sets = ["dtype=bfloat16", f"device={self.device}", "warm_start.steps=5", *sets]
        path = Path(__file__).parents[2] / "recipes/smoke" / f"{recipe}.yaml"
        return [path, "--run-dir", run_dir, *(word for value in sets for word in ("--set", value))]


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
