"""The folder of TextWorld games: seeds, files and sums. It imports the standard library alone.

A game is a folder `w2-o3-q4-SEED` with `game.z8`, which is played, and `game.json`, which describes it. `manifest.json` beside them
has the sum of each game, the hash of each split, and the version of TextWorld.
"""
import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

# Other versions of the package make other games of the same seed.
VERSION = "1.7.0"
# Rooms, objects and length of the quest, as in arXiv 2510.01132.
ROOMS, OBJECTS, LENGTH = 2, 3, 4
NAME = f"w{ROOMS}-o{OBJECTS}-q{LENGTH}"
# The seed of each split's first game, and the number of its games. The seeds 1 to 1000 are held out.
FIRST = {"eval": 1, "train": 1001}
COUNT = {"eval": 100, "train": 400}
# A compiled game has the date of its making in these bytes. Two makes of a seed differ in nothing else.
DATE = slice(18, 24)


class GamesError(ValueError):
    """A sentence for the user."""


def seeds(split, count):
    """The seeds of a split with `count` games."""
    if split not in FIRST:
        raise GamesError(f"split `{split}` is unknown; known: {', '.join(FIRST)}")
    most = FIRST["train"] - FIRST["eval"] if split == "eval" else None
    if count < 1 or (most and count > most):
        raise GamesError(f"split {split} cannot have {count} games; it has at least 1" + (f" and at most {most}" if most else ""))
    return range(FIRST[split], FIRST[split] + count)


def seed_of(split, task, count):
    """The seed of a task's game."""
    all_of = seeds(split, count)
    if not 0 <= task < count:
        raise GamesError(f"split {split} has no task {task}; it has {count}")
    return all_of[task]


def game_file(games, seed):
    return Path(games, f"{NAME}-{seed}", "game.z8")


def has(games, seed):
    """True if the game is there. It is renamed into its place as a whole."""
    return game_file(games, seed).is_file() and game_file(games, seed).with_suffix(".json").is_file()


def sum_of(games, seed):
    """SHA-256 over the game's description and its compiled form without the date."""
    file = game_file(games, seed)
    compiled = bytearray(file.read_bytes())
    compiled[DATE] = bytes(6)
    described = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode() + b"\n" + compiled).hexdigest()


def hash_of(sums):
    """SHA-256 over the sums of games by seed."""
    return hashlib.sha256("".join(f"{seed} {sums[seed]}\n" for seed in sorted(sums)).encode()).hexdigest()


def read_manifest(games):
    """The manifest, with seeds as numbers; an empty one where there is none, or a damaged one."""
    try:
        found = json.loads(Path(games, "manifest.json").read_text(encoding="utf-8"))
        found["games"] = {int(seed): one for seed, one in found["games"].items()}
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {"textworld": VERSION, "name": NAME, "games": {}, "splits": {}}


def write_manifest(games, sums, splits):
    """Adds games and splits, given as {name: count}, to the manifest. The file changes at once or not at all."""
    manifest = read_manifest(games)
    manifest["textworld"] = VERSION
    manifest["games"] = dict(sorted((manifest["games"] | sums).items()))
    for split, count in splits.items():
        among = seeds(split, count)
        sha256 = hash_of({seed: manifest["games"][seed] for seed in among})
        manifest["splits"][split] = {"first": among[0], "count": count, "sha256": sha256}
    new = Path(games, f"manifest.json.{os.getpid()}")
    new.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    new.replace(Path(games, "manifest.json"))
    return manifest


def remedy(games, split, count):
    """The command that makes what is missing."""
    return f".venv/textworld/bin/python examples/environments/textworld/make_games.py --games {games} --split {split} --count {count}"


@lru_cache(maxsize=None)
def check(games, split, count, sha256=None):
    """Refuses a split with missing games, or with other games than those of the hash. One process looks once."""
    missing = [seed for seed in seeds(split, count) if not has(games, seed)]
    if missing:
        raise GamesError(f"{len(missing)} of {count} games of split {split} are missing in {games}, the first is "
                         f"{NAME}-{missing[0]}; make them: {remedy(games, split, count)}")
    if sha256 is None:
        return
    try:
        found = hash_of({seed: sum_of(games, seed) for seed in seeds(split, count)})
    except (OSError, ValueError) as error:
        found = f"none ({error})"
    if found != sha256:
        raise GamesError(f"the {count} games of split {split} in {games} differ from the recorded ones: their hash is {found}, "
                         f"and `hash` of kwargs says {sha256}; delete the folder and make them again: {remedy(games, split, count)}")
