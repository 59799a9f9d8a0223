"""`nestor compare` on planted run directories: groups, refusals by name, JSON, and record files that stand for the runs."""
import json

import pytest
from planted_runs import plant, plant_example


@pytest.fixture
def runs(tmp_path):
    """Two estimators with five seeds each, far apart."""
    places = {"near": 0.0, "far": 1.6}
    return [plant(tmp_path / f"runs/{name}-{seed}", name, seed, at) for name, at in places.items() for seed in range(1, 6)]


def refusal(done, *parts):
    assert done.returncode == 2 and not done.stdout, (done.stdout, done.stderr)
    for part in parts:
        assert part in done.stderr, done.stderr


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_groups_and_their_difference(run_json, run, runs):
    result = run_json("compare", *runs, "--json")
    assert result["comparable"] and result["against"] == "near"
    near, far = result["groups"]
    assert (near["name"], far["name"]) == ("near", "far") and near["seeds"] == [1, 2, 3, 4, 5]
    # By hand from the files: the last evaluation, and the mean of the last three of six.
    outcomes = [[json.loads(line) for line in (path / "outcomes.jsonl").read_text().splitlines()] for path in runs]
    rates = [[sum(row["won"]) / 40 for row in rows] for rows in outcomes]
    assert near["last"]["values"] == pytest.approx([rate[-1] for rate in rates[:5]])
    assert far["window"]["values"] == pytest.approx([sum(rate[-3:]) / 3 for rate in rates[5:]])
    areas = [sum(rate[1:-1]) / 6 + (rate[0] + rate[-1]) / 12 for rate in rates]
    assert near["area"]["values"] == pytest.approx(areas[:5])
    reached = [next((row["iteration"] for row, rate in zip(rows, at) if rate >= 0.5), None) for rows, at in zip(outcomes, rates)]
    assert far["threshold"] == {"seeds": 5, "of": 5, "median": sorted(reached[5:])[2]}
    assert far["used"]["episodes"] == 1920 and far["best"]["bias"] >= 0
    heat = [sum(sum(row["won"][1::4]) for row in rows[-3:]) / 30 for rows in outcomes]
    assert far["types"]["heat"]["values"] == pytest.approx(heat[5:])

    [difference] = result["differences"]
    assert difference["paired"] and difference["seeds"] == [5, 5] and difference["exceeds_noise"]
    low, high = difference["interval"]
    assert 0 < low < difference["window"] < high
    assert "far leads near by" in difference["words"] and "more than replicate noise" in difference["words"]
    last = [(a, b) for near, far in zip(outcomes[:5], outcomes[5:]) for a, b in zip(far[-1]["won"], near[-1]["won"])]
    assert difference["discordant"] == [sum(a > b for a, b in last), sum(a < b for a, b in last)]

    text = run("compare", *runs)
    assert text.returncode == 0 and difference["words"] in " ".join(text.stdout.split()), text.stderr
    markdown = run("compare", *runs, "--markdown").stdout
    assert "| far |" in markdown and f"- {difference['words']}" in markdown
    turned = run_json("compare", *runs, "--json", "--against", "far")["differences"][0]
    assert turned["window"] == pytest.approx(-difference["window"])
    assert "no group is called `x`; the groups are near, far" in run("compare", *runs, "--against", "x").stderr


def test_groups_of_one_estimator_are_named_by_what_differs(run_json, tmp_path):
    runs = [plant(tmp_path / f"a{weight}/{seed}", "stars", seed, 0.0, config={"step_weight": weight})
            for weight in (1.0, 0.5) for seed in (1, 2)]
    names = [group["name"] for group in run_json("compare", *runs, "--json")["groups"]]
    assert names == ["stars", "stars step_weight=0.5"]
    names = [group["name"] for group in run_json("compare", *runs, "--json", "--by-folder")["groups"]]
    assert names == ["a1.0", "a0.5"]


def test_a_folder_stands_for_its_runs(run, runs):
    """A folder's runs come in the order of their names."""
    assert run("compare", runs[0].parent).stdout == run("compare", *sorted(runs)).stdout


def test_seeds_that_are_not_shared_are_not_paired(run_json, tmp_path):
    runs = [plant(tmp_path / name / str(seed), name, seed, 0.0) for name, seeds in (("one", (1, 2, 3)), ("two", (4, 5))) for seed in seeds]
    for path in runs:
        edit(path / "run.json", lambda facts: facts.update(start_weights="5a" * 32))
    [difference] = run_json("compare", *runs, "--json")["differences"]
    assert not difference["paired"] and difference["seeds"] == [2, 3] and difference["discordant"] is None


@pytest.mark.parametrize("change, says", [
    ({"rollout__max_steps": 20}, "rollout.max_steps differs: 20 in"),
    ({"env__config": {"size": 6}}, "env.config.size differs: 6 in"),
    ({"evaluations": 5}, "iterations finished differs: 50 in"),
    ({"tasks": 24}, "evaluation panel differs: maze/eval/24"),
    ({"samples": 1}, "samples per evaluation task differs: 1 in"),
])
def test_incomparable_runs_are_refused_by_name(run, run_json, runs, tmp_path, change, says):
    odd = plant(tmp_path / "runs/odd", "odd", 1, 0.0, **change)
    refusal(run("compare", *runs, odd), "error: not comparable: ", says, "runs/odd", "in the other 10 runs")
    answer = run("compare", *runs, odd, "--json")
    assert answer.returncode == 2
    answer = json.loads(answer.stdout)
    assert answer["comparable"] is False and any(says in obstacle for obstacle in answer["obstacles"])
    anyway = run("compare", *runs, odd, "--anyway")
    assert anyway.returncode == 0 and says in " ".join(anyway.stdout.split())


def test_other_start_weights_are_refused(run, runs):
    edit(runs[7] / "run.json", lambda facts: facts.update(start_weights="ab" * 32))
    refusal(run("compare", *runs), "start weights of seed 3 differ: ", "abababab in runs/far-3", "runs/near-3")


def test_runs_that_cannot_be_read_are_refused_by_name(run, runs, tmp_path):
    refusal(run("compare", runs[0], runs[0]), "have the same seed 1: give one of them")
    (runs[0] / "outcomes.jsonl").rename(runs[0] / "kept")
    refusal(run("compare", *runs), "runs/near-1 has no outcomes.jsonl: it has made no evaluation")
    edit(runs[0] / "run.json", lambda facts: facts.pop("start_weights"))
    refusal(run("compare", *runs), "runs/near-1 has no outcomes.jsonl: it is of an older version; run it again")
    text = (runs[1] / "outcomes.jsonl").read_text()
    (runs[1] / "outcomes.jsonl").write_text(text.replace('"won": [', '"won": [9, '))
    refusal(run("compare", runs[1]), "runs/near-2: outcomes.jsonl: an evaluation does not have at most 2 won samples of each of 20 tasks")
    edit(runs[2] / "panel.json", lambda panel: panel.update(sha256="0"))
    refusal(run("compare", runs[2]), "runs/near-3: outcomes.jsonl: an evaluation played another panel than panel.json names")
    (tmp_path / "empty").mkdir()
    refusal(run("compare", tmp_path / "empty"), "empty: not a run directory")
    (runs[0] / "run.json").unlink()
    refusal(run("compare", *runs), "runs/near-1 has no run.json: it is of an older version; run it again")


def test_a_torn_last_line_is_left_out(run_json, runs):
    whole = run_json("compare", *runs, "--json")
    with open(runs[0] / "outcomes.jsonl", "a") as file:
        file.write('{"iteration": 70, "panel": "4')
    assert run_json("compare", *runs, "--json") == whole


def test_records_stand_for_the_runs(run, runs, tmp_path):
    for form in ([], ["--json"], ["--markdown"]):
        record = tmp_path / f"record{len(form)}.jsonl"
        direct = run("compare", *runs, "--save", record, *form)
        assert direct.returncode == 0, direct.stderr
        assert run("compare", record, *form).stdout == direct.stdout
        again = tmp_path / "again.jsonl"
        run("compare", record, "--save", again)
        assert again.read_text() == record.read_text()
    lines = record.read_text().splitlines()
    assert len(lines) == len(runs) and json.loads(lines[0])["name"] == "runs/near-1"
    record.write_text("\n".join(lines[:3]))
    assert run("compare", record, *runs[3:]).stdout == run("compare", *runs).stdout
    record.write_text(lines[0].replace('"60":"', '"60":"0'))
    refusal(run("compare", record), f"{record}:1: not a record of `nestor compare --save`: its outcomes, panel and metrics do not fit together")


def test_a_record_of_sixty_iterations_is_small(run, tmp_path):
    path = plant(tmp_path / "run", "stars", 1, 0.0, tasks=120)
    record = tmp_path / "record.jsonl"
    assert run("compare", path, "--save", record).returncode == 0
    assert record.stat().st_size < 30_000


def test_the_example_of_the_docs_is_the_planted_one(run, root, tmp_path):
    record = tmp_path / "compare.jsonl"
    printed = run("compare", *plant_example(tmp_path), "--save", record).stdout
    assert record.read_text() == (root / "docs/examples/compare.jsonl").read_text()
    remedy = "run tests/python/planted_runs.py, and put the output into docs/compare.md"
    assert f"```text\n{printed}```\n" in (root / "docs/compare.md").read_text(), remedy
