#!/usr/bin/env python3
"""Makes TextWorld games by seed, those of `tw-make custom --world-size 2 --nb-objects 3 --quest-length 4 --seed N`.

    .venv/textworld/bin/python examples/environments/textworld/make_games.py --split eval,train --count 200 --jobs 2

Split `eval` has the seeds from 1 on, `train` those from 1001 on. Without --count they have 100 and 400 games. Games that are there
and have the sum of the manifest are kept, so a second run continues the first. It prints the hash of each split.
"""
import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import tw_games as games


def make(folder, seed):
    """Makes a game in a folder beside its place, and renames that folder. A process of its own makes each: none sees another's state."""
    place = games.game_file(folder, seed).parent
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=folder))
    call = [Path(sys.executable).with_name("tw-make"), "custom", "--world-size", games.ROOMS, "--nb-objects", games.OBJECTS,
            "--quest-length", games.LENGTH, "--seed", seed, "--output", scratch / "game.z8", "--silent"]
    try:
        scratch.chmod(0o755)
        done = subprocess.run([str(word) for word in call], capture_output=True, text=True)
        if done.returncode != 0:
            raise games.GamesError(f"game {seed} cannot be made: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        (scratch / "game.ni").unlink()  # the source in Inform, which nobody reads again
        shutil.rmtree(place, ignore_errors=True)
        scratch.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return games.sum_of(folder, seed)


def good(folder, seed, recorded):
    """The sum of a game that is there; none if its sum is another one than the recorded one."""
    try:
        found = games.sum_of(folder, seed)
    except (OSError, ValueError):
        return None
    return found if recorded in (None, found) else None


def make_all(folder, wanted, jobs):
    """Sums of the wanted games by seed. Those that are missing or damaged are made."""
    recorded = games.read_manifest(folder)["games"]
    sums = {seed: good(folder, seed, recorded.get(seed)) for seed in wanted}
    todo = [seed for seed in wanted if sums[seed] is None]
    print(f"{len(wanted) - len(todo)} games are there, {len(todo)} are made with {jobs} jobs", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(make, folder, seed): seed for seed in todo}
        try:
            for done, future in enumerate(as_completed(waiting), 1):
                sums[waiting[future]] = future.result()
                if done % 20 == 0 or done == len(todo):
                    print(f"{done} of {len(todo)}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="eval,train", help="splits, separated by commas (default: %(default)s)")
    parser.add_argument("--count", type=int, help="games of each split (default: 100 in eval, 400 in train)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="games made at once (default: one for each core)")
    parser.add_argument("--games", type=Path, default=Path("runs/textworld/games"), help="folder (default: %(default)s)")
    args = parser.parse_args()
    try:
        found = importlib.metadata.version("textworld")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("make_games: textworld is missing; run scripts/textworld/setup.sh, and this with .venv/textworld/bin/python")
    if found != games.VERSION:
        sys.exit(f"make_games: textworld {found} makes other games than {games.VERSION}; run scripts/textworld/setup.sh")
    try:
        splits = {split: args.count or games.COUNT.get(split, 1) for split in args.split.split(",")}
        wanted = [seed for split, count in splits.items() for seed in games.seeds(split, count)]
    except games.GamesError as error:
        sys.exit(f"make_games: {error}")
    args.games.mkdir(parents=True, exist_ok=True)
    try:
        manifest = games.write_manifest(args.games, make_all(args.games, wanted, max(args.jobs, 1)), splits)
    except games.GamesError as error:
        sys.exit(f"make_games: {error}")
    for split in splits:
        print(f"{split}: {splits[split]} games, hash {manifest['splits'][split]['sha256']}")


if __name__ == "__main__":
    main()
