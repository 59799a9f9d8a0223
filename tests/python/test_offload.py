"""Runs whose optimizer's tensors rest in the host's memory (`update.offload`): to the last bit those whose tensors stay, on two ranks, with
a critic and with Muon; and a resumed run may change where they rest."""
import pytest
from conftest import run_ranks
from measured import MEASURED
from rank_runs import NESTOR, ROOT, rows

SETTINGS = ["deterministic=true", "device=cpu", "dtype=bfloat16", "rollout.tasks=4", "eval.every=0", "checkpoint.every=1", "warm_start.steps=4"]


def train(recipe, run_dir, iterations, *settings, resume=()):
    sets = [word for key in [*SETTINGS, f"iterations={iterations}", *settings] for word in ("--set", key)]
    run_ranks(2, [NESTOR, "train", ROOT / "recipes/smoke" / recipe, "--run-dir", run_dir, *resume, *sets])
    last = run_dir / f"checkpoints/iteration-{iterations:06}"
    metrics = [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows(run_dir / "metrics.jsonl")]
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}, metrics


@pytest.mark.parametrize("recipe, settings", [
    ("ppo.yaml", ["sharding=grad_op", "update.offload=all"]),
    ("gigpo.yaml", ["sharding=full", "update.offload=all", "update.optimizer.name=muon"]),
])
def test_two_ranks_with_tensors_on_the_host(recipe, settings, tmp_path):
    stays = [setting for setting in settings if "offload" not in setting]
    want = train(recipe, tmp_path / "stays", 2, *stays)
    assert train(recipe, tmp_path / "rests", 2, *settings) == want
    # Begun without, continued with; its first part ended with an evaluation.
    train(recipe, tmp_path / "changed", 1, *stays)
    tensors, _ = train(recipe, tmp_path / "changed", 2, *settings, resume=["--resume"])
    assert tensors == want[0]
