"""float16: the loss scale of a run, and log-probs beside transformers."""
import json

import pytest
import torch
from test_model import make_model
from test_resume import kill_and_resume, outcome, train
from transformers import AutoModelForCausalLM

# A scale that overflows float16 for some steps, and then no more.
HALF = ["deterministic=true", "dtype=float16", "device=cpu", "iterations=4", "checkpoint.every=1", "eval.tasks=2",
        "update.epochs=3", "update.mini_batch=16", "update.kl={coef: 0.01}", "update.loss_scale=1.0e8", "warm_start.steps=20"]


@pytest.fixture(scope="module")
def finished(run, root, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("half") / "run"
    done = train(run, root / "recipes/smoke/gigpo.yaml", run_dir, settings=HALF)
    assert done.returncode == 0, done.stderr
    return run_dir


def test_an_overflow_skips_the_step_and_halves_the_scale(finished):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()][1:]
    steps = [json.loads(line) for line in (finished / "steps.jsonl").read_text().splitlines()]
    skipped = [step["grad/skipped"] for step in steps]
    assert sum(skipped) == sum(row["grad/skipped"] for row in rows) and 0 in skipped
    for before, after in zip(steps, steps[1:], strict=False):
        assert after["grad/loss_scale"] == before["grad/loss_scale"] / (2 if before["grad/skipped"] else 1)
    assert rows[-1]["grad/norm"] > 0 and rows[-1]["grad/loss_scale"] == steps[-1]["grad/loss_scale"]
    # Those of the warm start too: the first scale of the iterations is less than the recipe's where it overflowed.
    assert steps[-1]["grad/loss_scale"] < 1e8, "nothing overflowed: the test shows nothing"
    state = json.loads((sorted((finished / "checkpoints").glob("iteration-*"))[-1] / "state.json").read_text())
    assert state["policy"]["loss_scale"]["factor"] == steps[-1]["grad/loss_scale"]


def test_killed_and_resumed_with_its_scale(finished, run, root, tmp_path):
    kill_and_resume(run, root / "recipes/smoke/gigpo.yaml", tmp_path / "run", "before-rename:4", HALF, outcome(finished))


@torch.no_grad()
def test_log_probs_are_as_close_as_transformers(run_json, tmp_path):
    """The mean error of float16 against float32 is at most 1.2 times transformers' own, and less than a quarter of bfloat16's."""
    make_model("tiny").save_pretrained(tmp_path / "model")
    ids = torch.randint(0, 512, (4, 60), generator=torch.Generator().manual_seed(1))
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"rows": ids.tolist()}))

    def ours(dtype):
        scores = run_json("score", tmp_path / "model", "--tokens", tokens, "--dtype", dtype, "--device", "cpu", "--json")
        return torch.tensor(scores["logprobs"], dtype=torch.float64)

    def theirs(dtype):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
        logp = torch.log_softmax(model(ids).logits.float(), -1)[:, :-1]
        return logp.gather(-1, ids[:, 1:, None])[..., 0].double()

    exact = theirs(torch.float32)
    error = {dtype: (ours(dtype) - exact).abs().mean() for dtype in ("bfloat16", "float16")}
    assert error["float16"] <= 1.2 * (theirs(torch.float16) - exact).abs().mean()
    assert error["float16"] < error["bfloat16"] / 4
