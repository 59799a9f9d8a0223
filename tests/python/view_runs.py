"""Run directories made up for the tests of the page, as long and as wordy as wanted."""
import json
import random

ROOMS = ("cabinet", "drawer", "shelf", "countertop", "microwave", "fridge", "garbagecan", "sinkbasin", "stoveburner", "toaster")
THINGS = ("mug", "apple", "knife", "plate", "egg", "tomato", "spoon", "bread", "lettuce", "pan", "kettle", "cup", "soapbottle")
TYPES = ("pick_and_place", "pick_heat_then_place", "pick_cool_then_place", "look_at_obj_in_light")
RULES = (
    "You are a robot in a house, and you act by text commands. Task: {task}.\n"
    "Steps taken so far: {taken}. The latest observations and what you did then:\n"
    "{history}\nStep {step}. The observation now: {observation}\n"
    "Your possible actions are:\n{actions}\n"
    "Think step by step about the situation within <think> </think>. Then choose the best one of these actions and give exactly one "
    "action within <action> </action>.\n"
)


def observation(rng):
    seen = ", ".join(f"a {rng.choice(THINGS)} {rng.randint(1, 4)}" for _ in range(rng.randint(0, 6))) or "nothing"
    place = f"{rng.choice(ROOMS)} {rng.randint(1, 9)}"
    return place, f"You arrive at {place}. On the {place}, you see {seen}."


def turn(rng, task, number, history, tokens, last):
    place, seen = observation(rng)
    actions = [f"go to {room} {n}" for room in ROOMS for n in range(1, 4)]
    actions += [f"take {rng.choice(THINGS)} {n} from {place}" for n in (1, 2)] + ["inventory", "look"]
    action = rng.choice(actions)
    past = "\n".join(f"[observation {n}: '{what}', action {n}: '{did}']" for n, what, did in history[-5:])
    prompt = RULES.format(task=task, taken=number, history=past, step=number + 1, observation=seen, actions="\n".join(actions))
    history.append((number + 1, seen, action))
    words = [" " + rng.choice((*ROOMS, *THINGS, "the", "I", "should", "look", "in", "then", "so", "next", "is", "to")) for _ in range(tokens)]
    pieces = ["<think>", *words, "</think>", "<action>", action, "</action>", "<|im_end|>"]
    return {
        "prompt": prompt, "response": "".join(pieces[:-1]), "action": action, "admissible": actions,
        "reward": 10.0 if last else 0.0, "valid": rng.random() > 0.05, "terminated": last, "truncated": False,
        "anchor": f"{task}\n{place if number else 'start'}", "response_tokens": len(pieces), "advantage": rng.gauss(0, 1),
        "tokens": pieces, "logprobs": [-rng.expovariate(2.0) ** 2 for _ in pieces],
        "parts": {"episode_advantage": rng.gauss(0, 1), "step_advantage": rng.gauss(0, 1), "step_return": rng.random() * 10},
    }


def episode(rng, number, group_size, turns, tokens):
    group = number // group_size
    won = rng.random() < 0.5
    task = f"put a hot {THINGS[group % len(THINGS)]} in the {ROOMS[group % len(ROOMS)]}"
    length = rng.randint(max(3, turns - 3), turns + 3)
    history = []
    steps = [turn(rng, task, at, history, tokens, won and at == length - 1) for at in range(length)]
    return {"group": group, "episode": number, "task": rng.randrange(3000), "seed": rng.randrange(2**64), "won": won,
            "task_type": TYPES[group % len(TYPES)], "return": 10.0 * won, "steps": steps}


def metrics(iteration, rng, names=60):
    row = {"iteration": iteration, "lr": 1e-6, "grad/norm": None if iteration == 3 else rng.random(),
           "episode/success": min(1.0, iteration / 200 + rng.random() / 5)}
    if iteration % 10 == 0:
        row["eval/success"] = min(1.0, iteration / 250 + rng.random() / 10)
    row.update({f"time/phase_{n}_s": rng.random() for n in range(names - len(row))})
    return row


def write_run(path, iterations=3, episodes=8, group_size=4, turns=4, tokens=12, seed=1, recipe="seed: 1\n"):
    """Writes a run directory and returns its path."""
    rng = random.Random(seed)
    (path / "rollouts").mkdir(parents=True)
    (path / "recipe.yaml").write_text(recipe)
    rows = [metrics(iteration, rng) for iteration in range(iterations + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for iteration in range(1, iterations + 1):
        with open(path / f"rollouts/iteration-{iteration:06}.jsonl", "w") as file:
            for number in range(episodes):
                file.write(json.dumps(episode(rng, number, group_size, turns, tokens)) + "\n")
    return path


def write_rest(path, iterations, seed=1, samples=2):
    """Adds the files that newer runs write: run.json, optimizer steps, warm start, histograms and evaluation episodes."""
    rng = random.Random(seed + 1000)
    info = {"nestor": "0.1.0", "commit": "70b7d0c1234567", "torch": "2.11.0", "state": "running", "started": "2026-11-23T08:00:00Z",
            "updated": "2026-11-23T09:00:00Z", "seconds": 5025.5, "parameters": 1234567, "adapters": None, "dtype": "float32",
            "device": "cpu", "ranks": 2, "environment": "house", "estimator": "gigpo"}
    (path / "run.json").write_text(json.dumps(info))
    lines = lambda name, rows: (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines("steps.jsonl", ({"iteration": i, "loss/total": rng.random(), "grad/norm": rng.random()} for i in range(1, iterations + 1) for _ in range(4)))
    lines("warm_start.jsonl", ({"step": step, "loss": 3 / step} for step in range(1, 51)))
    counts = lambda: {"edges": [k / 8 - 4 for k in range(65)], "counts": [rng.randrange(100) for _ in range(64)]}
    lines("histograms.jsonl", ({"iteration": i, "advantage": counts(), "return": counts(), "length": {"edges": [3, 4], "counts": [8]}}
                               for i in range(1, iterations + 1)))
    rows = [json.loads(line) for line in open(path / "metrics.jsonl")]
    for row in rows:
        row.update({"time/iteration_s": 60.0, "episode/total": 64 * row["iteration"], "tokens/total": 5000 * row["iteration"]})
        row.update({f"episode/success/{kind}": rng.random() for kind in TYPES})
        if "eval/success" in row:
            row.update({"eval/success_low": 0.9 * row["eval/success"], "eval/success_high": 1.1 * row["eval/success"]})
    lines("metrics.jsonl", rows)
    (path / "evaluations").mkdir()
    plays = [episode(rng, number, samples, 4, 12) for number in range(4 * samples)]
    for number, play in enumerate(plays):
        play.update(task=100 + number // samples, sample=number % samples)
        for step in play["steps"]:
            step.pop("advantage", None)
            step.pop("parts", None)
    lines("evaluations/iteration-000010.jsonl", plays)


def read_rollouts(path, iteration):
    """The episodes of an iteration, read from the run directory."""
    return [json.loads(line) for line in open(path / f"rollouts/iteration-{iteration:06}.jsonl")]
