"""Plays the same commands in the Python ALFWorld engine and in Nestor's plugin, on freshly generated games, and compares
every record: observation, admissible commands, won, done, reward (the plugin's is 10 where the engine's is 1).

usage: scripts/alfworld/engine.sh         # once: the Python engine, in .venv-alfworld
       cargo build --release --workspace
       python3 tests/slow/alfworld_differential.py [--games 200] [--steps 20000] [--seed 0] [--jobs 2]
           [--keep DIR | --replay DIR] [--write-result plugins/environments/alfworld/README.md]
Three games in ten are of the real games' size. Each game is played by its own winning commands first (it must win), then in
turn by `mixed` (these, with random steps and commands that the game must not understand in between) and by `random`
(admissible commands) until its share of the steps is used up. An episode ends when it is won.

Prints one line per difference and a summary; the exit code is 0 only without a difference. The engine makes 10 to 40 steps a
second: 20,000 take about 20 minutes on two idle cores. With --keep, the games and the engine's answers stay in DIR: an
interrupted run resumes there, and --replay DIR compares the plugin with them again, without the engine.
"""
import argparse
import itertools
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/alfworld"))
from engine import Engine, EngineError  # noqa: E402
from tools import ROOT, TASK_TYPES, around_block, make_games, program, write_block  # noqa: E402

REAL_SHARE = 0.3
WIN = 10  # the plugin's reward where the engine's is 1

# Commands that no game understands, whatever its state.
NONSENSE = ["", " ", "\t\n", "go to", "take from", "examine", "wait", "help me", "go to {r}", "look\nlook", "look\0",
            "\ufefflook", '"look"', "<action>look</action>", "/look", "去 冰箱 1", "\U0001f34e", "\x1b[31mlook", "look " * 2000]

# Ways to spoil or decorate an admissible command. The engine ignores white space around it, Unicode's included.
TWISTS = [
    str.upper, str.title, lambda c: f"  {c} ", lambda c: f"\t{c}\r\n", lambda c: f"\u00a0{c}\u2003",
    lambda c: f"\x1c{c}\x1f", lambda c: f"\x85{c}\u2028", lambda c: f"\u200b{c}", lambda c: f"\0{c}",
    lambda c: c.replace(" ", "  ", 1), lambda c: c.replace(" ", "\u00a0", 1), lambda c: c.replace(" ", "", 1),
    lambda c: c[:-1], lambda c: c + ".", lambda c: c + "0", lambda c: f"{c} {c}", lambda c: f"{c}, then look",
    lambda c: c.replace("e", "é", 1),
]


class Policies:
    """The commands for one game, drawn from `draw`. `walkthrough` is the game's own list of winning commands."""

    def __init__(self, draw, walkthrough):
        self.draw = draw
        self.walkthrough = walkthrough
        self.met = {}  # every command that was admissible at some time, in order

    def start(self, policy):
        """A function from the admissible commands to the next command, for one episode."""
        if policy == "expert":
            commands = iter(self.walkthrough)
            return lambda _: next(commands)
        if policy == "random":
            return self.random
        ahead = list(self.walkthrough)
        return lambda admissible: self.mixed(ahead, admissible)

    def random(self, admissible):
        """Half of the time any command, else one of any verb: most commands only walk."""
        if self.draw.random() < 0.5:
            return self.draw.choice(admissible)
        verb = self.draw.choice(sorted({command.split()[0] for command in admissible}))
        return self.draw.choice([command for command in admissible if command.split()[0] == verb])

    def mixed(self, ahead, admissible):
        self.met.update(dict.fromkeys(admissible))
        kind = self.draw.random()
        if kind < 0.5 and ahead:
            return self.expert(ahead, admissible)
        if kind < 0.75:
            return self.random(admissible)
        if kind < 0.85:
            return self.draw.choice([c for c in self.met if c not in admissible] or NONSENSE)
        if kind < 0.95:
            return self.draw.choice(TWISTS)(self.draw.choice(admissible))
        return self.draw.choice(NONSENSE)

    def expert(self, ahead, admissible):
        """The next command of the walkthrough, after its last walk if random steps led away from it."""
        if ahead[0] not in admissible:
            done = self.walkthrough[:len(self.walkthrough) - len(ahead)]
            walks = [command for command in done if command.startswith("go to")]
            if walks and walks[-1] in admissible:
                return walks[-1]
        return ahead.pop(0)


def play(engine, choose, limit):
    """Plays the engine's game from a reset until it is won, for at most `limit` steps; returns the records."""
    records = [engine.reset()]
    while len(records) <= limit and not records[-1]["done"]:
        records.append(engine.step(choose(records[-1]["admissible_commands"])))
    return records


def record_game(engine, game, steps, seed):
    """Episodes of about `steps` steps in all."""
    walkthrough = json.loads(game.path.read_text(encoding="utf-8"))["walkthrough"]
    policies = Policies(random.Random(f"{seed} {game.name}"), walkthrough)
    engine.load(game.path)
    episodes = [{"policy": "expert", "records": play(engine, policies.start("expert"), len(walkthrough))}]
    for policy in itertools.cycle(["mixed", "random"]):
        left = steps - sum(len(episode["records"]) - 1 for episode in episodes)
        if left <= 0:
            return episodes
        limit = -(-left // 2) if policy == "mixed" else left
        episodes.append({"policy": policy, "records": play(engine, policies.start(policy), limit)})


def recording_of(folder, game):
    return folder / "recorded" / f"{game.name}.json"


def record_all(games, folder, args, python):
    """Plays games without a recording, in --jobs processes of the engine."""
    todo = queue.SimpleQueue()
    # The large ones first, so that no process ends long after the others.
    missing = [game for game in games if not recording_of(folder, game).exists()]
    missing.sort(key=lambda game: game.size != "real")
    for game in missing:
        todo.put(game)
    share = -(-args.steps // len(games))
    begin = time.monotonic()

    def work():
        with Engine(python) as engine:
            while True:
                try:
                    game = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    episodes = record_game(engine, game, share, args.seed)
                except EngineError as error:
                    while not todo.empty():  # the other processes end after their current games
                        todo.get_nowait()
                    raise EngineError(f"{game.path}: {error}") from None
                path = recording_of(folder, game)
                part = path.with_suffix(".part")
                part.write_text(json.dumps(episodes), encoding="utf-8")
                part.rename(path)
                seconds = time.monotonic() - begin
                print(f"engine: {game.name}, {todo.qsize()} more games, {seconds:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        for worker in [pool.submit(work) for _ in range(args.jobs)]:
            worker.result()


def play_plugin(args, game, commands):
    """The plugin's records of the same commands, or one line with the reason why there are none."""
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "config.json")
        config.write_text(json.dumps({"games": str(game.path), "raw_commands": True}))
        actions = Path(place, "actions.jsonl")
        actions.write_text("".join(json.dumps(command) + "\n" for command in commands))
        done = subprocess.run([args.nestor, "play", args.plugin, "--config", config, "--actions", actions, "--json"],
                              capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        return f"nestor play ended with code {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}"
    return [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]


def differences(theirs, ours):
    """The differences between two records: field and both values."""
    pairs = [("observation", theirs["observation"], ours["observation"]),
             ("admissible", theirs["admissible_commands"], sorted(ours["admissible"])),
             ("won", theirs["won"], ours["won"]), ("done", theirs["done"], ours["done"]),
             ("reward", theirs["reward"] * WIN, ours["reward"])]
    return [(field, a, b) for field, a, b in pairs if a != b]


def show(field, engine, plugin):
    """Both values of a difference: elements that only one list has, or long texts from their first difference on."""
    if field == "admissible":
        only_engine, only_plugin = [c for c in engine if c not in plugin], [c for c in plugin if c not in engine]
        return f"only engine {json.dumps(only_engine)}, only plugin {json.dumps(only_plugin)}"
    if field == "observation":
        at = max(0, len(os.path.commonprefix([engine, plugin])) - 30)
        engine, plugin = engine[at:at + 200], plugin[at:at + 200]
    return f"engine {json.dumps(engine)}, plugin {json.dumps(plugin)}"


def compare_game(args, folder, game):
    """Plays a recording in the plugin. Returns the lines to print and the counts for the summary."""
    lines, counts = [], Counter(games=1)
    episodes = json.loads(recording_of(folder, game).read_text(encoding="utf-8"))
    if not episodes[0]["records"][-1]["won"]:
        lines.append(f"{game.name}: its walkthrough does not win in the engine")
    for number, episode in enumerate(episodes):
        theirs = episode["records"]
        name = f"{game.name}, episode {number} ({episode['policy']})"
        counts.update(episodes=1, records=len(theirs), steps=len(theirs) - 1, won=theirs[-1]["won"])
        counts["not understood"] += sum(record["observation"] == "Nothing happens." for record in theirs)
        ours = play_plugin(args, game, [record["command"] for record in theirs[1:]])
        if isinstance(ours, str):
            lines.append(f"{name}: {ours}")
            continue
        if len(ours) != len(theirs):
            lines.append(f"{name}: the engine made {len(theirs) - 1} steps, the plugin {len(ours) - 1}")
        for step, (a, b) in enumerate(zip(theirs, ours)):
            for field, engine, plugin in differences(a, b):
                command = json.dumps(a["command"])[:120]
                lines.append(f"{name}, step {step}, command {command}: {field}: {show(field, engine, plugin)}")
    counts["differences"] = len(lines)
    return lines, counts


def compare_all(args, folder, games):
    """Prints every difference; returns the counts of each type and size."""
    counts = {(task_type, size): Counter() for task_type in TASK_TYPES for size in ("small", "real")}
    with ThreadPoolExecutor(args.jobs) as pool:
        for game, (lines, count) in zip(games, pool.map(lambda game: compare_game(args, folder, game), games)):
            counts[game.task_type, game.size].update(count)
            for line in lines:
                print(line, flush=True)
    return counts


def summary(run, counts, seconds):
    """Markdown: one line with everything, and a table by type and size."""
    total = sum(counts.values(), Counter())
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    columns = ["games", "episodes", "steps", "won", "differences"]
    lines = [f"{total['games']} games of seed {run['seed']}, {total['episodes']:,} episodes, {total['steps']:,} steps "
             f"({total['not understood']:,} of them not understood), {total['records']:,} records compared: "
             f"{total['differences']} differences. {versions}; {seconds:.0f} s.", "",
             "| task type | size | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for (task_type, size), count in counts.items():
        lines.append(f"| {task_type} | {size} | " + " | ".join(str(count[column]) for column in columns) + " |")
    return "\n".join(lines)


def prepare(args, folder):
    """Makes the games and plays them in the engine; returns the games and the run's description (run.json)."""
    python = program(args.engine / "bin/python", "run scripts/alfworld/engine.sh")
    with Engine(python) as engine:
        run = {"games": args.games, "steps": args.steps, "seed": args.seed, "versions": engine.versions()}
    about = folder / "run.json"
    if about.exists() and json.loads(about.read_text()) != run:
        sys.exit(f"{about} is of another run; give its --games, --steps and --seed, or another --keep")
    (folder / "recorded").mkdir(parents=True, exist_ok=True)
    about.write_text(json.dumps(run))
    games = all_games(args, folder)
    record_all(games, folder, args, python)
    return games, run


def recorded(args, folder):
    """The games and the run of an earlier --keep."""
    about = folder / "run.json"
    if not about.exists():
        sys.exit(f"{folder} holds no run (run.json); make one with --keep")
    run = json.loads(about.read_text())
    args.games, args.seed = run["games"], run["seed"]
    games = all_games(args, folder)
    missing = sum(not recording_of(folder, game).exists() for game in games)
    if missing:
        sys.exit(f"{folder} lacks the recordings of {missing} games; finish them with --keep and the options of {about}")
    return games, run


def all_games(args, folder):
    real = round(args.games * REAL_SHARE)
    return [game for size, count in (("small", args.games - real), ("real", real))
            for game in make_games(args, folder / "games" / size, size, count)]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=200, help="how many, the six types in turn")
    parser.add_argument("--steps", type=int, default=20000, help="over all games")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes of the engine")
    parser.add_argument("--engine", type=Path, default=ROOT / ".venv-alfworld", help="venv that holds the engine")
    parser.add_argument("--tool", default=ROOT / "target/release/nestor-alfworld", help="the plugin's own tool")
    parser.add_argument("--nestor", default=ROOT / "target/release/nestor")
    parser.add_argument("--plugin", default="alfworld", help="id or file of the plugin")
    parser.add_argument("--write-result", type=Path, metavar="FILE", help="put the summary into FILE's differential block")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--keep", type=Path, metavar="DIR", help="keep games and recordings; resume an interrupted run")
    place.add_argument("--replay", type=Path, metavar="DIR", help="compare with the recordings of an earlier --keep")
    return parser.parse_args()


def main():
    args = parse_args()
    build = "run cargo build --release --workspace"
    args.nestor, args.tool = program(args.nestor, build), program(args.tool, build)
    if args.write_result:
        around_block(args.write_result, "differential")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = args.keep or args.replay or Path(place)
        if args.replay:
            games, run = recorded(args, folder)
        else:
            games, run = prepare(args, folder)
        counts = compare_all(args, folder, games)
    result = summary(run, counts, time.monotonic() - begin)
    print(result)
    if args.write_result:
        write_block(args.write_result, "differential", result)
    sys.exit(sum(count["differences"] for count in counts.values()) > 0)


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(f"the Python engine: {error}")
