"""Measures Nestor's ALFWorld plugin beside one process of the Python engine: the same games of the real ones' size, the same
work, one thread each, in alternating rounds.

usage: scripts/alfworld/engine.sh         # once: the Python engine, in .venv-alfworld
       cargo build --release --workspace
       python3 scripts/alfworld/bench.py [--games 102] [--rounds 6] [--steps 20] [--seed 0]
           [--write-result plugins/environments/alfworld/README.md]
A step is a random admissible command; its text and the new list of admissible commands are made. A reset reads a game file
and starts its game: the next reset is of another file, and nothing is kept of files read before. In a round the Python engine
takes its share of the games and makes --steps steps in each (a new episode where one is won); the plugin takes all the games,
ten times over. Prints medians over the rounds (smallest to largest), the ratios of the medians, and the memory of 128
environments of the plugin. The Python engine's own restart of a game that it has loaded is given too.
"""
import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from engine import Engine, EngineError
from tools import ROOT, around_block, make_games, program, run, write_block


def bench_plugin(args, folder):
    """One round of the plugin."""
    return json.loads(run([args.tool, "bench", folder, "--steps", args.plugin_steps, "--resets", 10 * args.games,
                           "--seed", args.seed, "--json"]))


def bench_engine(engine, games, steps, draw):
    """One round of the Python engine: rates of steps, of resets over different files, and of restarts of a loaded game."""
    resets, restarts, played = [], [], []
    for game in games:
        load = engine.ask(op="load", game=str(game.path))["seconds"]
        first = engine.ask(op="reset")
        resets.append(load + first["seconds"])
        last = engine.ask(op="reset")
        restarts.append(last["seconds"])
        for _ in range(steps):
            if last["record"]["done"]:
                last = engine.ask(op="reset")
            last = engine.ask(op="step", command=draw.choice(last["record"]["admissible_commands"]))
            played.append(last["seconds"])
    return {"steps_per_s": len(played) / sum(played), "resets_per_s": len(resets) / sum(resets),
            "restarts_per_s": len(restarts) / sum(restarts)}


def alternate(args, folder, games):
    """The rounds of both, in turn."""
    python = program(args.engine / "bin/python", "run scripts/alfworld/engine.sh")
    draw = random.Random(args.seed)
    ours, theirs = [], []
    with Engine(python) as engine:
        versions = engine.versions()
        for number in range(args.rounds):
            ours.append(bench_plugin(args, folder))
            theirs.append(bench_engine(engine, games[number::args.rounds], args.steps, draw))
            rates = f"{ours[-1]['steps_per_s']:.0f} and {theirs[-1]['steps_per_s']:.1f} steps/s"
            print(f"round {number + 1} of {args.rounds}: plugin and engine {rates}", file=sys.stderr, flush=True)
    return ours, theirs, versions


def spread(rates):
    middle = statistics.median(rates)
    digits = 0 if middle >= 100 else 2
    return f"{middle:,.{digits}f} ({min(rates):,.{digits}f} to {max(rates):,.{digits}f})"


def table(args, ours, theirs, versions):
    """Markdown: what was run, and a row per kind of work."""
    about = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"{args.games} games, {args.rounds} alternated rounds, one thread each, medians (smallest to largest). {about}.",
             "",
             "| per second | plugin | Python engine | plugin / engine |", "|---|---|---|---|"]
    for label, mine, other in (("steps", "steps_per_s", "steps_per_s"),
                               ("resets over different files", "resets_per_s", "resets_per_s"),
                               ("the same, beside restarts of a loaded game", "resets_per_s", "restarts_per_s")):
        a, b = [r[mine] for r in ours], [r[other] for r in theirs]
        ratio = statistics.median(a) / statistics.median(b)
        lines.append(f"| {label} | {spread(a)} | {spread(b)} | {ratio:,.0f} |")
    memory = max(round_["environments_mb"] for round_ in ours)
    peak = max(round_["process_peak_mb"] for round_ in ours)
    lines += ["", f"{ours[0]['environments']} environments of the plugin: {memory:.0f} MB (the whole process at its peak: "
                  f"{peak:.0f} MB)."]
    return "\n".join(lines)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=102, help="how many files of the real games' size")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20, help="of the Python engine in each game")
    parser.add_argument("--plugin-steps", type=int, default=200_000, help="of the plugin in a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", type=Path, default=ROOT / ".venv-alfworld", help="venv that holds the engine")
    parser.add_argument("--tool", default=ROOT / "target/release/nestor-alfworld", help="the plugin's own tool")
    parser.add_argument("--write-result", type=Path, metavar="FILE", help="put the table into FILE's bench block")
    return parser.parse_args()


def main():
    args = parse_args()
    args.tool = program(args.tool, "run cargo build --release --workspace")
    if args.write_result:
        around_block(args.write_result, "bench")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "games")
        games = make_games(args, folder, "real", args.games)
        result = table(args, *alternate(args, folder, games))
    print(result)
    if args.write_result:
        write_block(args.write_result, "bench", result)


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(f"the Python engine: {error}")
