"""The tables and curves of docs/study.md and docs/textworld.md, from the records in docs/study alone.

    .venv/bin/python scripts/study/tables.py            prints every block
    .venv/bin/python scripts/study/tables.py --write    puts them into the pages and docs/img
    .venv/bin/python scripts/study/tables.py --check    exit code 1 if they differ from what is there

A record is one line for each run, which `nestor compare --save` wrote: recipe, panel, outcomes of every task, metrics. The success
tables are those of `nestor compare`. The others are means over the iterations of a run, then over the seeds of a group.
"""
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE, TEXTWORLD = ROOT / "docs/study.md", ROOT / "docs/textworld.md"
NESTOR = ROOT / "target/release/nestor"
MAIN = ["grpo", "gigpo", "rloo", "ppo"]
# Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
COLORS = {"grpo": "#888888", "gigpo": "#d1495b", "rloo": "#2e86ab", "ppo": "#7fb069", "gigpo_permuted": "#9b6a3c"}


def records(*names):
    """The runs of some record files, by group: the folder that held a run's directory."""
    groups = defaultdict(list)
    for name in names:
        path = ROOT / f"docs/study/{name}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            run = json.loads(line)
            groups[run["name"].split("/")[-2]].append(run)
    return groups


def compared(groups, against, *options):
    """The report of `nestor compare`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(run) + "\n" for runs in groups.values() for run in runs)
        file.flush()
        command = [NESTOR, "compare", file.name, "--by-folder", "--against", against, "--markdown", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def short(report):
    """A report of `nestor compare` without its tables by kind of task and of what was used, and without the recipes' differences."""
    parts = re.split(r"\n\n(?=\*\*|- )", report)
    long = ("**Success by kind", "**Used in training", "- The recipes differ")
    return "\n\n".join(part for part in parts if not part.startswith(long))


def values(run, name):
    """A metric by iteration, without row 0."""
    column = run["metrics"]["columns"].get(name, [])
    return [value for iteration, value in zip(run["metrics"]["iterations"], column) if iteration > 0 and value is not None]


def mean(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers) if numbers else math.nan


def over_seeds(runs, of):
    """The mean over seeds, and half of its 95 % interval."""
    each = [of(run) for run in runs]
    center = mean(each)
    if len(each) < 2:
        return center, math.nan
    spread = math.sqrt(sum((value - center) ** 2 for value in each) / (len(each) - 1))
    return center, T95[min(len(each) - 2, len(T95) - 1)] * spread / math.sqrt(len(each))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def shown(center, digits):
    return "–" if math.isnan(center) else f"{center:.{digits}f}"


def leads(*rows):
    """GiGPO's lead in points: the runs of one machine in a row, each a name, groups, and the group without a step level."""
    def window(run):
        last = sorted(run["outcomes"], key=int)[-3:]
        return 100 * mean(sum(map(int, run["outcomes"][at])) for at in last) / (run["panel"]["tasks"] * run["panel"]["samples"])

    def by_seed(runs):
        return {run["name"].split("/")[-1]: window(run) for run in runs}
    lines, all_pairs = [], []
    for name, groups, other in rows:
        own, others = by_seed(groups["gigpo"]), by_seed(groups[other])
        pairs = [own[seed] - others[seed] for seed in sorted(own.keys() & others.keys())]
        lines.append((name, pairs))
        all_pairs += pairs
    lines.append(("both", all_pairs))
    cells = []
    for name, pairs in lines:
        center, spread = over_seeds(pairs, lambda pair: pair)
        each = ", ".join(f"{pair:+.1f}" for pair in pairs)
        cells.append([name, str(len(pairs)), f"{center:+.1f}", f"{center - spread:+.1f} to {center + spread:+.1f}", each])
    return table(["runs", "pairs", "gigpo leads by", "95 %", "each pair"], cells)


def states(groups):
    """Where the parts of an advantage reach, and how the policy behaves."""
    share = lambda name: lambda run: 100 * mean(values(run, name))
    columns = [
        ("rows alone in their state, %", 1, share("anchor/singleton_ratio")),
        ("rows of a state", 1, lambda run: mean(values(run, "anchor/size_mean"))),
        ("rows with an episode part, %", 1, share("estimator/episode_advantage_share")),
        ("rows with a step part, %", 1, share("estimator/step_advantage_share")),
        ("rows without any advantage, %", 1, share("advantage/zero_ratio")),
        ("entropy of the first 5 iterations", 3, lambda run: mean(values(run, "policy/entropy")[:5])),
        ("of the last 5", 3, lambda run: mean(values(run, "policy/entropy")[-5:])),
        ("steps of the last 5", 1, lambda run: mean(values(run, "episode/length")[-5:])),
    ]
    rows = [[group, *[shown(over_seeds(runs, of)[0], digits) for _, digits, of in columns]] for group, runs in groups.items()]
    return table(["group", *[name for name, _, _ in columns]], rows)


def habits(groups):
    """The policy in the evaluations before reinforcement learning and at the end, and in training."""
    def evaluated(name, at):
        return lambda run: run["metrics"]["columns"][name][{"before": 0, "after": -1}[at]]
    percent = lambda of: lambda run: 100 * of(run)
    last = lambda name: lambda run: mean(values(run, name)[-5:])
    columns = [
        ("possible commands before, %", 1, percent(evaluated("eval/valid_action_ratio", "before"))),
        ("after", 1, percent(evaluated("eval/valid_action_ratio", "after"))),
        ("repeated before, %", 1, percent(evaluated("eval/repeated_ratio", "before"))),
        ("after", 1, percent(evaluated("eval/repeated_ratio", "after"))),
        ("cut after, %", 1, percent(evaluated("eval/clipped_ratio", "after"))),
        ("tokens of a command before", 1, evaluated("eval/response_length", "before")),
        ("after", 1, evaluated("eval/response_length", "after")),
        ("KL of the last 5", 3, last("loss/kl")),
        ("tokens in all, thousands", 0, lambda run: run["metrics"]["columns"]["tokens/total"][-1] / 1e3),
        ("hours", 2, lambda run: sum(values(run, "time/iteration_s")) / 3600),
    ]
    rows = [[group, *[shown(over_seeds(runs, of)[0], digits) for _, digits, of in columns]] for group, runs in groups.items()]
    return table(["group", *[name for name, _, _ in columns]], rows)


def costs(groups):
    """Time of the advantage, and peak memory."""
    def advantage(run):
        return 100 * sum(values(run, "time/advantage_s")) / sum(values(run, "time/iteration_s"))

    def memory(run):
        return max(values(run, "memory/peak_rss_bytes")) / 2**20
    base = over_seeds(groups["grpo"], memory)[0]
    rows = []
    for group, runs in groups.items():
        (share, spread), peak = over_seeds(runs, advantage), over_seeds(runs, memory)[0]
        rows.append([group, f"{share:.3f} ± {spread:.3f}", f"{peak:.0f}", f"{100 * (peak / base - 1):+.2f}"])
    return table(["group", "advantages, % of an iteration (95 %)", "peak memory, MiB", "against grpo, %"], rows)


def curve(groups, title):
    """An SVG of success on the panel: the mean over seeds, and its 95 % interval where there are three seeds or more."""
    width, height, left, bottom, top = 640, 320, 48, 36, 28
    points = {}
    for group, runs in groups.items():
        episodes = runs[0]["panel"]["tasks"] * runs[0]["panel"]["samples"]
        points[group] = {int(at): over_seeds(runs, lambda run, at=at: sum(map(int, run["outcomes"][at])) / episodes)
                         for at in runs[0]["outcomes"]}
        if len(runs) < 3:  # t's interval of two is wider than the picture
            points[group] = {at: (center, 0.0) for at, (center, _) in points[group].items()}
    last = max(at for line in points.values() for at in line)
    edges = [center + sign * spread for line in points.values() for center, spread in line.values() for sign in (-1, 1)]
    low, high = max(math.floor(min(edges) * 10) / 10, 0.0), min(math.ceil(max(edges) * 10) / 10, 1.0)
    x = lambda at: left + (width - left - 96) * at / last
    y = lambda success: height - bottom - (height - bottom - top) * (success - low) / (high - low)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>', f'<text x="{left}" y="18">{title}</text>']
    for tick in range(round(low * 10), round(high * 10) + 1):
        at = y(tick / 10)
        parts.append(f'<path d="M{left} {at:.1f}H{width - 96}" stroke="#e4e4e4"/><text x="8" y="{at + 4:.1f}">{10 * tick} %</text>')
    for at in sorted(next(iter(points.values()))):
        parts.append(f'<text x="{x(at):.1f}" y="{height - 14}" text-anchor="middle">{at}</text>')
    for number, (group, line) in enumerate(points.items()):
        color, ordered = COLORS.get(group, "#444444"), sorted(line.items())
        band = [f"{x(at):.1f},{y(min(center + spread, high)):.1f}" for at, (center, spread) in ordered]
        band += [f"{x(at):.1f},{y(max(center - spread, low)):.1f}" for at, (center, spread) in reversed(ordered)]
        path = " ".join(f"{x(at):.1f},{y(center):.1f}" for at, (center, _) in ordered)
        parts += [f'<polygon points="{" ".join(band)}" fill="{color}" opacity="0.13"/>',
                  f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>',
                  f'<text x="{width - 88}" y="{top + 16 + 18 * number}" fill="{color}">{group}</text>']
    return "\n".join([*parts, "</svg>"]) + "\n"


def blocks():
    """The generated blocks of the page by name, and the pictures by file name."""
    found, pictures = {}, {}
    for world, title in [("alfworld", "ALFWorld"), ("webshop", "WebShop")]:
        groups = records(world)
        main = {group: groups[group] for group in MAIN if group in groups}
        if not main:
            continue
        found[world] = compared(main, "grpo")
        found[f"{world} states"] = states(main)
        found[f"{world} costs"] = costs(main)
        pictures[f"study_{world}.svg"] = curve(main, f"{title}: success on held-out tasks by iteration, mean and 95 % interval over seeds")
        rest = records(f"{world}_rest")
        # Runs of another processor have runs of gigpo beside them: its rounding gives another warm start.
        variants = {"gigpo": rest.get("gigpo", groups["gigpo"])}
        variants |= {group: runs for group, runs in {**groups, **rest}.items() if group not in MAIN}
        if len(variants) > 1:
            found[f"{world} variants"] = short(compared(variants, "gigpo"))
            found[f"{world} variants states"] = states(variants)
        if "gigpo" in rest and "gigpo_w0.0" in rest:
            found[f"{world} leads"] = leads(("main table", groups, "grpo"), ("second machine", rest, "gigpo_w0.0"))
        cause = records(f"{world}_cause")
        if cause:
            both = {"grpo": groups["grpo"], "gigpo": groups["gigpo"], **cause}
            found[f"{world} cause"] = short(compared(both, "grpo"))
            found[f"{world} cause states"] = states(both)
    return found, pictures


def textworld_blocks():
    """The same of the page on TextWorld."""
    found, pictures = {}, {}
    for model, title in [("smollm2", "SmolLM2-135M"), ("qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B")]:
        recorded = records(f"textworld_{model}")
        groups = {group: recorded[group] for group in [*MAIN, "gigpo_permuted"] if group in recorded}
        if "grpo" not in groups or len(groups) < 2:
            continue
        found[model] = short(compared(groups, "grpo", "--window", "3"))  # as its plan says
        found[f"{model} states"] = states(groups)
        found[f"{model} habits"] = habits(groups)
        pictures[f"textworld_{model}.svg"] = curve(groups, f"{title} on TextWorld: success on held-out games by iteration")
    return found, pictures


def main():
    made = {PAGE: blocks(), TEXTWORLD: textworld_blocks()}
    found = {name: block for blocks, _ in made.values() for name, block in blocks.items()}
    if "--write" not in sys.argv and "--check" not in sys.argv:
        print("\n\n".join(f"## {name}\n\n{block}" for name, block in found.items()))
        return
    files = {}
    for path, (own, pictures) in made.items():
        page = path.read_text()
        for name, block in own.items():
            pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
            if not pattern.search(page):
                sys.exit(f"{path.relative_to(ROOT)} has no place for the table `{name}`")
            page = pattern.sub(lambda place, block=block: f"{place[1]}\n{block}\n\n{place[2]}", page)
        files |= {path: page, **{ROOT / "docs/img" / name: svg for name, svg in pictures.items()}}
    stale = [str(path.relative_to(ROOT)) for path, text in files.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(stale)}; run scripts/study/tables.py --write" if stale else 0)
    for path, text in files.items():
        path.write_text(text)
    print(f"wrote {', '.join(stale) or 'nothing new'}")


if __name__ == "__main__":
    main()
