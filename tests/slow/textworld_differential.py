"""Plays the same commands through the plugin `python` with examples/environments/textworld, and in the gym interface of the package
textworld. Compares at every step: observation, admissible commands, score, won, validity. One game of each split is played
again with a worker that is killed before every command: Nestor plays the episode again in a new one, and it must stay as it is.

usage: scripts/textworld/setup.sh         # once: the package, in .venv/textworld
       .venv/textworld/bin/python examples/environments/textworld/make_games.py --count 12
       .venv/textworld/bin/python tests/slow/textworld_differential.py [--games 24] [--seed 0]
Each game gets random commands, those of the expert and impossible ones, then those of the expert until it is won. Takes a minute or two.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import textworld
import textworld.gym

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/environments/textworld"
INFOS = textworld.EnvInfos(description=True, inventory=True, won=True, objective=True, admissible_commands=True, policy_commands=True)
# Steps of the mixed part, and most steps of an episode.
MIXED, MOST = 30, 60
# The game refuses these, and they change nothing in it. It would obey the others, so the environment keeps them from it.
REFUSED = ["", "dance", "take moon", "open", "go up", "xyzzy", "unlock player with floor", "take take"]
KEPT = ["undo", "restart", "quit", "look. look", "x me", "tw-print state", "wait"]
LEAST = 520


def text(screen):
    """The lines of a screen, but for the prompt and the count of turns. A room's title is the sentence that the environment makes of it."""
    lines = [line.strip() for line in screen.split("\n")]
    ends = [at for at, line in enumerate(lines) if line.startswith((">", "You scored"))]
    lines = [line for line in lines[:min(ends, default=len(lines))] if line]
    return [f"You are now in the {line[3:-3].lower()}." if line.startswith("-=") else line for line in lines]


def expected(news, infos):
    """The paragraphs of an observation. Room and inventory are left out where the news have them."""
    parts = [news]
    for part in (text(infos["description"]), text(infos["inventory"])):
        if "\n".join(part) not in "\n".join(news):
            parts.append(part)
    return "\n\n".join("\n".join(part) for part in parts)


def dressed(command, draw):
    """A response that carries the command."""
    form = draw.choice(["{}", "{}", "<action>{}</action>", "I think so.\n> {}.\n"])
    return form.format(draw.choice([command, command.upper()]))


def package_plays(path, draw):
    """Responses, and what the package makes of their commands: a record for the reset and each step."""
    name = textworld.gym.register_game(str(path), INFOS, max_episode_steps=10 * MOST)
    env = textworld.gym.make(name)
    env.seed(1)
    _, infos = env.reset()
    responses, score, won = [], 0, False
    records = [record(expected(text(infos["description"]), infos), infos, 0)]
    while not won and len(responses) < MOST:
        kind = draw.choices(["random", "expert", "refused", "kept"], [8, 2, 3, 1])[0] if len(responses) < MIXED else "expert"
        if kind in ("random", "expert"):
            command = draw.choice(infos["admissible_commands"]) if kind == "random" else infos["policy_commands"][0]
            screen, score, _, infos = env.step(command)
            news = text(screen)
        else:
            command = draw.choice(REFUSED if kind == "refused" else KEPT)
            before = (infos["admissible_commands"], infos["description"], infos["inventory"], score)
            if kind == "refused":
                _, score, _, infos = env.step(command)
            assert before == (infos["admissible_commands"], infos["description"], infos["inventory"], score), command
            news = ["That is not a possible command here."]
        won = infos["won"]
        responses.append(dressed(command, draw))
        records.append(record(expected(news, infos), infos, score, kind in ("random", "expert")))
    env.close()
    return responses, records


def record(observation, infos, score, valid=True):
    return {"observation": observation, "task": infos["objective"], "admissible": infos["admissible_commands"], "score": score,
            "won": infos["won"], "valid": valid}


def call(args, place, split, task):
    """The command that plays a task, and its config."""
    kwargs = {"games": str(args.folder), "train": args.games, "eval": args.games, "max_steps": 10 * MOST}
    config = {"class": "textworld_env:TextWorld", "path": [str(FOLDER)], "python": sys.prefix, "workers": 1, "kwargs": kwargs}
    Path(place, "config.json").write_text(json.dumps(config))
    return [args.nestor, "play", "python", "--config", f"{place}/config.json", "--split", split, "--task", str(task), "--json"]


def nestor_plays(args, place, split, task, responses):
    """The records of `nestor play`."""
    Path(place, "responses.jsonl").write_text("".join(json.dumps(response) + "\n" for response in responses))
    done = subprocess.run([*call(args, place, split, task), "--actions", f"{place}/responses.jsonl"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{split} {task}: {done.stderr.strip()[-600:]}")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    keys = ("observation", "task", "admissible", "won", "valid", "action")
    return [{key: one[key] for key in keys} | {"score": one["info"]["score"]} for one in records]


def children(pid):
    """The children of all threads of a process."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def kill_worker(pid):
    """Kills the worker below a process of Nestor, the last one in the line of its children, and waits for its end."""
    line = [pid]
    while children(line[-1]):
        line.append(children(line[-1])[0])
    assert len(line) > 1, "nestor has no child"
    os.kill(line[-1], signal.SIGKILL)
    while Path(f"/proc/{line[-1]}").exists():
        time.sleep(0.1)


def survives(args, place, split, task, commands):
    """True if an episode stays as it is although its worker is killed before each command."""
    def play(killing):
        playing = subprocess.Popen(call(args, place, split, task), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   text=True)
        lines = [playing.stdout.readline()]
        for command in commands:
            if killing:
                kill_worker(playing.pid)
            playing.stdin.write(command + "\n")
            playing.stdin.flush()
            lines.append(playing.stdout.readline())
        playing.stdin.close()
        return playing.wait(), lines

    whole = play(killing=False)
    return whole[0] == 0 and "" not in whole[1] and whole == play(killing=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=24, help="half of them of each split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/textworld/games", help="the games")
    parser.add_argument("--nestor", default=str(ROOT / "target/release/nestor"))
    args = parser.parse_args()
    steps = differences = won = invalid = killed = 0
    each = args.games = (args.games + 1) // 2
    with tempfile.TemporaryDirectory() as place:
        for split, first in (("eval", 1), ("train", 1001)):
            for task in range(each):
                path = args.folder / f"w2-o3-q4-{first + task}" / "game.z8"
                if not path.is_file():
                    sys.exit(f"{path} is missing; make it: examples/environments/textworld/make_games.py --count {each}")
                responses, theirs = package_plays(path, random.Random(f"{args.seed} {split} {task}"))
                ours = nestor_plays(args, place, split, task, responses)
                steps, won = steps + len(ours) - 1, won + ours[-1]["won"]
                invalid += sum(not one["valid"] for one in ours)
                wrong = [(step, key) for step, (a, b) in enumerate(zip(ours, theirs)) for key in b if a[key] != b[key]]
                differences += len(wrong) + abs(len(ours) - len(theirs))
                for step, key in wrong[:3]:
                    print(f"{split} {task}, step {step}, {key}: {ours[step][key]!r} and {theirs[step][key]!r}"[:700])
            commands = [one["action"] for one in ours if one["valid"] and one["action"]]
            if not survives(args, place, split, task, commands):
                sys.exit(f"{split} {task}: an episode of {len(commands)} commands whose worker is killed before each is another one")
            killed += len(commands)
    print(f"{2 * each} games, {won} won, {steps} steps, {invalid} of them not valid: {differences} differences; {killed} workers killed")
    sys.exit(differences > 0 or won < 2 * each or (each >= 12 and steps < LEAST))


if __name__ == "__main__":
    main()
