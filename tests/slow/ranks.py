"""Trains a smoke recipe at 1, 2 and 4 ranks and prints the differences between the runs (a minute or two; not in CI).

usage: .venv/bin/python tests/slow/ranks.py [RECIPE.yaml of recipes/smoke] [--iterations 20] [--set KEY=VALUE]...
Exit code 1 if episodes differ, or a number by more than its target.
"""
import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from rank_runs import TARGETS, apart, episodes, train, warm_start  # noqa: E402


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    p.add_argument("recipe", nargs="?", default="gigpo.yaml")
    p.add_argument("--iterations", type=int, default=20)
    p.add_argument("--set", action="append", default=[])
    a = p.parse_args()
    met = True
    with tempfile.TemporaryDirectory() as scratch:
        settings = [*warm_start(1, Path(scratch) / "start"), *a.set]
        one = train(1, "full", a.recipe, Path(scratch) / "1", a.iterations, *settings)
        for world in (2, 4):
            for sharding in ("full", "grad_op"):
                other = train(world, sharding, a.recipe, Path(scratch) / f"{world}-{sharding}", a.iterations, *settings)
                same, figures = episodes(one) == episodes(other), apart(one, other)
                met &= same and all(figures[name] <= TARGETS[name] for name in TARGETS)
                printed = ", ".join(f"{name} {figures[name]:.1e} (target {TARGETS[name]:.0e})" for name in TARGETS)
                print(f"{world} ranks, {sharding}: {'the same' if same else 'OTHER'} episodes, apart: {printed}", flush=True)
    sys.exit(not met)


if __name__ == "__main__":
    main()
