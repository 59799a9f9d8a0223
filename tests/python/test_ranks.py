"""A run shared by two ranks is the run of one: the same episodes, and numbers that differ by rounding alone. Other numbers
of ranks, and whole copies of the weights, are in tests/slow/ranks.py."""
import collections

import pytest
from rank_runs import TARGETS, apart, episodes, export, parameters_apart, rows, train, warm_start


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Settings with which a run begins with the smoke model after its warm start."""
    return warm_start(1, tmp_path_factory.mktemp("start") / "run")


def check(one, two, *which):
    assert episodes(one) == episodes(two)
    figures = apart(one, two, *which)
    assert all(figures[name] <= TARGETS[name] for name in TARGETS), figures


def test_two_ranks_train_as_one(start, tmp_path):
    one, two = (train(world, "full", "gigpo.yaml", tmp_path / str(world), 20, *start) for world in (1, 2))
    steps = collections.Counter(row["iteration"] for row in rows(one / "steps.jsonl"))
    assert len(steps) == len(episodes(one)) == 20 and min(steps.values()) >= 2
    check(one, two)
    # Totals and histograms are those of all ranks.
    totals, counts = [], []
    for run in (one, two):
        totals.append([(row["episode/total"], row["tokens/total"]) for row in rows(run / "metrics.jsonl")])
        counts.append([(row["return"], row["length"], sum(row["advantage"]["counts"])) for row in rows(run / "histograms.jsonl")])
    assert totals[0] == totals[1] and counts[0] == counts[1] and len(counts[0]) == 20


def test_a_curriculum_draws_as_on_one_rank(start, tmp_path):
    settings = [*start, "rollout.curriculum={floor: 0.05}", "rollout.dynamic_sampling={rounds: 2}"]
    one, two = (train(world, "full", "gigpo.yaml", tmp_path / str(world), 8, *settings) for world in (1, 2))
    check(one, two)
    weights, others = ([row["curriculum/weight"] for row in rows(run / "metrics.jsonl")[1:]] for run in (one, two))
    assert weights == others and min(weights) < 0.8, weights


@pytest.mark.parametrize("sharding", ["full", "grad_op"])
@pytest.mark.parametrize("recipe, settings, what", [
    ("ppo.yaml", ["critic={lr: 1.0e-4, warmup: 1}"], "--critic"),
    ("gigpo.yaml", ["model.lora={rank: 4, alpha: 8}"], "--adapter"),
])
def test_critics_and_adapters_too(recipe, settings, what, sharding, start, tmp_path):
    one, two = (train(world, sharding, recipe, tmp_path / str(world), 3, *start, *settings) for world in (1, 2))
    check(one, two)
    check(one, two, what)


def test_a_warm_start_shared_by_ranks(tmp_path):
    for world in (1, 2):
        warm_start(world, tmp_path / str(world))
    one, two = (rows(tmp_path / str(world) / "metrics.jsonl")[0]["warm_start/loss"] for world in (1, 2))
    assert one == pytest.approx(two, abs=TARGETS["loss"], rel=0)
    folders = [export(tmp_path / str(world), 0) for world in (1, 2)]
    # A key's bias that RoPE turns slowly moves all scores of a query alike. Its gradient is rounding, which AdamW scales to
    # whole steps.
    assert parameters_apart(*folders, without=("k_proj.bias",)) <= TARGETS["parameters"]
