"""Shared by tests/slow/alfworld_differential.py and bench.py: games made by the plugin's tool, and result blocks."""
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TASK_TYPES = ["pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep",
              "pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_two_obj_and_place"]


@dataclass(frozen=True)
class Game:
    """A generated game. `name` is unique among the games of one run, and `size` is small or real."""

    name: str
    path: Path
    task_type: str
    size: str


def program(path, how):
    """The absolute path of a program that must exist. `how` is the remedy in the error message."""
    path = Path(path)
    if not path.is_file():
        sys.exit(f"{path} is missing; {how}")
    return path.absolute()  # not resolved: the python of a venv is a link


def make_games(args, folder, size, count):
    """`count` games of a size, the six types in turn, made in `folder` unless it has them. Uses the options --tool, --engine
    (whose package has domain and grammar) and --seed of `args`."""
    per_type = -(-count // len(TASK_TYPES))
    if not folder.exists():
        package = next(args.engine.glob("lib/python*/site-packages/alfworld"), None)
        if package is None:
            sys.exit(f"{args.engine} holds no package alfworld; run scripts/alfworld/engine.sh")
        half_made = folder.with_name(folder.name + ".part")
        run([args.tool, "games", half_made, "--seed", args.seed, "--per-type", per_type, "--size", size,
             "--package", package])
        half_made.rename(folder)
    by_type = {task_type: [] for task_type in TASK_TYPES}
    for path in sorted(folder.rglob("game.tw-pddl")):
        task_type = json.loads(path.with_name("traj_data.json").read_text())["task_type"]
        name = f"{size}-" + "-".join(path.parent.relative_to(folder).parts)
        by_type[task_type].append(Game(name, path, task_type, size))
    in_turn = [games[i] for i in range(per_type) for games in by_type.values() if i < len(games)]
    if len(in_turn) < count:
        sys.exit(f"{folder} holds {len(in_turn)} games of {count}; delete it and run this again")
    return in_turn[:count]


def run(command):
    """Runs a program to its end and returns its output; its failure ends this program with its message."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"{' '.join(words[:6])} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def around_block(path, name):
    """The text before and after the block between `<!-- name -->` and the next `<!-- end -->` of a Markdown file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, start, rest = text.partition(f"<!-- {name} -->")
    _, end, after = rest.partition("<!-- end -->")
    if not start or not end:
        sys.exit(f"{path} has no block <!-- {name} --> … <!-- end -->; add the two lines where the result belongs")
    return before + start, end + after


def write_block(path, name, text):
    before, after = around_block(path, name)
    path.write_text(f"{before}\n{text.strip()}\n{after}", encoding="utf-8")
