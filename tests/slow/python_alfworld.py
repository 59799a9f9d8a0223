"""Plays the same responses in the original ALFWorld engine, through the plugin `python`, and in the plugin `alfworld`, on freshly
generated games. Compares every step: observation, task, admissible actions, action, validity, reward, won, done.

usage: scripts/alfworld/engine.sh         # once: the Python engine, in .venv-alfworld
       cargo build --release --workspace
       python3 tests/slow/python_alfworld.py [--games 6] [--seed 0]
Each game is played twice: by its winning commands with malformed responses in between, and by random commands.
"""
import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/alfworld"))
from tools import ROOT, make_games, program, run  # noqa: E402

STEPS = 30
FIELDS = ["observation", "task", "admissible", "action", "valid", "reward", "won", "done"]
MALFORMED = ["", "open the fridge", "<action>look</action>", "<think>二</think><action>look</action>", "<think></think><action>fly</action>"]


def said(command):
    return f"<think>I think so.</think> <action>{command}</action>"


def play(args, place, config, responses):
    """The records of `nestor play`."""
    Path(place, "config.json").write_text(json.dumps(config))
    Path(place, "responses.jsonl").write_text("".join(json.dumps(response) + "\n" for response in responses))
    plugin = "python" if "class" in config else "alfworld"
    out = run([args.nestor, "play", plugin, "--config", Path(place, "config.json"), "--actions",
               Path(place, "responses.jsonl"), "--json"])
    return [json.loads(line) for line in out.splitlines()]


def compared(record):
    return {field: sorted(record[field]) if field == "admissible" else record.get(field) for field in FIELDS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=6, help="the six types in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", type=Path, default=ROOT / ".venv-alfworld", help="venv that holds the engine")
    parser.add_argument("--tool", default=ROOT / "target/release/nestor-alfworld", help="the plugin's own tool")
    parser.add_argument("--nestor", default=ROOT / "target/release/nestor")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    args.nestor = program(args.nestor, "run cargo build --release --workspace")
    program(args.engine / "bin/python", "run scripts/alfworld/engine.sh")
    steps = differences = won = 0
    with tempfile.TemporaryDirectory() as place:
        for game in make_games(args, Path(place, "games"), "small", args.games):
            draw = random.Random(f"{args.seed} {game.name}")
            native = {"games": str(game.path)}
            engine = {"class": "alfworld_engine:AlfWorld", "path": [str(ROOT / "plugins/python/examples")],
                      "python": str(args.engine), "kwargs": {"games": str(game.path)}}
            winning = [said(command) for command in json.loads(game.path.read_text())["walkthrough"]]
            first = [part for response in winning for part in (draw.choice(MALFORMED), response)]
            records = play(args, place, native, first)
            commands = sorted({command for record in records for command in record["admissible"]})
            for responses in (first, [said(draw.choice(commands)) for _ in range(STEPS)]):
                ours, theirs = (play(args, place, config, responses) for config in (native, engine))
                steps, won = steps + len(ours) - 1, won + ours[-1]["won"]
                pairs = list(zip(map(compared, ours), map(compared, theirs)))
                wrong = [(step, a, b) for step, (a, b) in enumerate(pairs) if a != b]
                differences += len(wrong) + abs(len(ours) - len(theirs))
                for step, a, b in wrong[:3]:
                    fields = [field for field in FIELDS if a[field] != b[field]]
                    print(f"{game.name}, step {step}: {', '.join(f'{f}: {a[f]!r} and {b[f]!r}' for f in fields)}"[:600])
    print(f"{args.games} games, {2 * args.games} episodes, {won} won, {steps} steps: {differences} differences")
    sys.exit(differences > 0 or won < args.games)


if __name__ == "__main__":
    main()
