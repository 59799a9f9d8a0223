"""Dynamic sampling, followed from outside: the scripted environment writes down every episode that a run plays."""
import json

import pytest

TASKS, GROUP_SIZE, ROUNDS, ITERATIONS = 3, 4, 3, 200
RECIPE = """\
iterations: {iterations}
device: cpu
dtype: float32
deterministic: true
model:
  new: {{hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 280}}
env: {{plugin: {plugin}, config: {{log: {log}}}}}
estimator: {{plugin: grpo}}
rollout:
  tasks: {tasks}
  group_size: {group_size}
  max_steps: 1
  max_prompt_tokens: 64
  max_response_tokens: 4
{more}
update: {{mini_batch: 12, lr: 1e-4}}
eval: {{tasks: 1}}
"""


@pytest.fixture
def play(root, run, tmp_path):
    """Runs the recipe; returns the rows of metrics, each iteration's saved episodes, and all episodes played."""
    def call(name, iterations, more=""):
        plugin = root / "target/release/examples/libwitness.so"
        assert plugin.exists(), "build first: cargo build --release --examples --workspace"
        recipe, log, run_dir = tmp_path / f"{name}.yaml", tmp_path / f"{name}.log", tmp_path / name
        recipe.write_text(RECIPE.format(iterations=iterations, plugin=plugin, log=log, tasks=TASKS,
                                        group_size=GROUP_SIZE, more=more))
        done = run("train", recipe, "--run-dir", run_dir)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][1:]
        saved = [[json.loads(line) for line in path.read_text().splitlines()]
                 for path in sorted((run_dir / "rollouts").glob("*.jsonl"))]
        played = [episode for episode in map(json.loads, log.read_text().splitlines()) if episode["split"] == "train"]
        assert len(rows) == len(saved) == iterations
        return rows, saved, played
    return call


def groups_of(episodes):
    """Returns by task and seed, in the order first seen; which of the siblings answered first does not matter."""
    groups = {}
    for episode in episodes:
        groups.setdefault((episode["task"], episode["seed"]), []).append(episode["return"])
    assert all(len(returns) == GROUP_SIZE for returns in groups.values())
    return {key: sorted(returns) for key, returns in groups.items()}


def test_200_iterations_train_on_the_exact_number_of_groups(play):
    rows, saved, played = play("run", ITERATIONS, f"  dynamic_sampling: {{rounds: {ROUNDS}}}")
    early = used_up = kept_unfiltered = 0
    for row, episodes in zip(rows, saved):
        count = int(row["rollout/groups_played"]) * GROUP_SIZE
        groups, played = groups_of(played[:count]), played[count:]
        trained = groups_of(episodes)
        assert len(trained) == TASKS and len({e["episode"] for e in episodes}) == TASKS * GROUP_SIZE
        dropped = {key: returns for key, returns in groups.items() if key not in trained}
        assert all(len(set(returns)) == 1 for returns in dropped.values())

        # The same selection, made here from all episodes played.
        kept, left, rounds = {}, list(groups.items()), 0
        while len(kept) < TASKS:
            rounds += 1
            missing = TASKS - len(kept)
            now, left = left[:missing], left[missing:]
            kept |= {key: returns for key, returns in now if rounds == ROUNDS or len(set(returns)) > 1}
        assert (trained, left) == (kept, [])
        assert (row["rollout/rounds"], row["rollout/groups_dropped"]) == (rounds, len(dropped))
        won = sum(outcome >= 1 for returns in groups.values() for outcome in returns)
        assert row["rollout/success"] == pytest.approx(won / count)
        early += rounds < ROUNDS
        used_up += rounds == ROUNDS
        kept_unfiltered += any(len(set(returns)) == 1 for returns in trained.values())
    assert played == []
    assert min(early, used_up, kept_unfiltered) >= 5, (early, used_up, kept_unfiltered)


def test_the_first_round_is_what_a_run_without_it_plays(play):
    def first_round(episodes):
        steps = ("prompt", "response", "reward", "valid")
        return {e["episode"]: [e["group"], e["task"], e["seed"], [[s[key] for key in steps] for s in e["steps"]]]
                for e in episodes if e["group"] < TASKS}

    (_, (plain,), _), (_, (sampled,), played) = play("plain", 1), play("sampled", 1, "  dynamic_sampling: {rounds: 9}")
    want, got = first_round(plain), first_round(sampled)
    assert 0 < len(got) < len(want) and all(want[number] == episode for number, episode in got.items())
    everything = groups_of(played)
    assert all(everything[key] == returns for key, returns in groups_of(plain).items())
