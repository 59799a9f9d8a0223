"""Fine-tuning on files of chats (`warm_start.data`): losses and weights against PyTorch, resume, ranks, validation, messages."""
import json
import os

import pytest
import torch
import transformers
from safetensors.torch import load_file

STEPS, BATCH, LR = 6, 4, 1e-3
WORDS = ["north", "south", "east", "west"]


def chats(count=22):
    """Chats of one to three turns with a system message, as `messages`."""
    for number in range(count):
        turns = [{"role": "system", "content": "You walk."}]
        for turn in range(1 + number % 3):
            turns += [{"role": "user", "content": f"From {number} in turn {turn}?"},
                      {"role": "assistant", "content": f"go {WORDS[(number + turn) % 4]} {number}"}]
        yield {"messages": turns}


@pytest.fixture(scope="module")
def model(tmp_path_factory, run, root):
    """A small random model whose tokenizer is trained on the number line."""
    folder = tmp_path_factory.mktemp("model") / "run"
    done = run("train", root / "recipes/smoke/gigpo.yaml", "--run-dir", folder, *sets(
        {"iterations": 0, "warm_start": None, "eval.tasks": 2, "device": "cpu", "rollout.max_prompt_tokens": 256}))
    assert done.returncode == 0, done.stderr
    return folder / "model"


def sets(values):
    return [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]


@pytest.fixture
def tune(run, root, model, tmp_path):
    """Fine-tunes on rows and returns the result of the program."""
    def call(name, rows, failpoint=None, launch=(), more=(), **warm_start):
        data = tmp_path / "chats.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        section = {"data": str(data), "steps": STEPS, "batch": BATCH, "lr": LR, **warm_start}
        values = {"iterations": 0, "model": {"path": str(model)}, "dtype": "float32", "device": "cpu", "eval.tasks": "none",
                  "checkpoint.every_minutes": 0, "rollout.max_prompt_tokens": 256,
                  "warm_start": {key: value for key, value in section.items() if value is not None}}
        return run(*launch, "train", root / "recipes/smoke/gigpo.yaml", "--run-dir", tmp_path / name, *sets(values), *more,
                   failpoint=failpoint)
    return call


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "warm_start.jsonl").read_text().splitlines()]


def weights(run, run_dir):
    """The weights of a run, as it exports them."""
    folder = run_dir.with_name(run_dir.name + "-exported")
    done = run("export", run_dir, folder)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "model.safetensors")


def learned(tokenizer, messages):
    """Token ids of a chat up to its last answer, and for each whether it is learned."""
    ids, mask, seen = [], [], ""
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = tokenizer.apply_chat_template(messages[:number], tokenize=False, add_generation_prompt=True)
            for text, learns in ((prompt[len(seen):], 0), (message["content"] + "<|im_end|>", 1)):
                part = tokenizer(text, add_special_tokens=False)["input_ids"]
                ids, mask = ids + part, mask + [learns] * len(part)
            seen = prompt + message["content"] + "<|im_end|>"
    return torch.tensor(ids), torch.tensor(mask, dtype=torch.bool)


def test_losses_and_weights_are_those_of_pytorch(run, tune, model, tmp_path):
    """AdamW of PyTorch on transformers' logits, over the same batches, with a line of a warm-up and a linear schedule."""
    rows = list(chats())
    done = tune("run", rows, shuffle=False, schedule="linear", warmup=2)
    assert done.returncode == 0, done.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    net = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, STEPS)
    losses, per_epoch = [], -(-len(rows) // BATCH)
    for step in range(STEPS):
        part = rows[step % per_epoch * BATCH:][:BATCH]
        nll, count = 0, 0
        for row in part:
            ids, mask = learned(tokenizer, row["messages"])
            logprobs = net(ids[None, :-1]).logits[0].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            nll, count = nll - logprobs[mask[1:]].sum(), count + int(mask[1:].sum())
        loss = nll / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    ours = rows_of(tmp_path / "run")
    assert [row["loss"] for row in ours] == pytest.approx(losses, abs=1e-4)
    assert losses[-1] < losses[0]
    theirs = net.state_dict()
    for name, tensor in weights(run, tmp_path / "run").items():
        assert torch.allclose(tensor.float(), theirs[name], atol=2e-4), name


def test_a_kill_inside_an_epoch_resumes_bit_for_bit_and_ranks_agree(run, tune, tmp_path):
    rows = list(chats())
    settings = dict(epochs=1.5, steps=None, validation_share=0.2, validate_every=2)
    whole = tune("whole", rows, **settings)
    assert whole.returncode == 0, whole.stderr
    want = rows_of(tmp_path / "whole")
    # 18 of 22 chats are learned, in batches of 4, one and a half times.
    assert [row["step"] for row in want] == list(range(1, 9))
    assert [row["step"] for row in want if "validation_loss" in row] == [2, 4, 6, 8]
    assert want[-1]["validation_loss"] < want[1]["validation_loss"]
    # A checkpoint after each step, and a kill after the third one.
    each = ["--set", "checkpoint.every_minutes=1e-9", "--set", "checkpoint.keep=9"]
    killed = tune("killed", rows, failpoint="mid-warm-start:4", more=each, **settings)
    assert killed.returncode != 0
    resumed = run("train", "--resume", "--run-dir", tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert rows_of(tmp_path / "killed") == want
    for name, tensor in weights(run, tmp_path / "whole").items():
        assert torch.equal(tensor, weights_of(run, tmp_path / "killed")[name]), name
    two = tune("two", rows, launch=("launch", "--nproc", "2", "--oversubscribe"), **settings)
    assert two.returncode == 0, two.stderr
    for row, other in zip(want, rows_of(tmp_path / "two"), strict=True):
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-4)


_exported = {}


def weights_of(run, run_dir):
    if run_dir not in _exported:
        _exported[run_dir] = weights(run, run_dir)
    return _exported[run_dir]


def test_other_chats_than_those_of_the_start_are_refused(run, tune, tmp_path):
    rows = list(chats())
    each = ["--set", "checkpoint.every_minutes=1e-9"]
    assert tune("run", rows, failpoint="mid-warm-start:2", more=each).returncode != 0
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    done = run("train", "--resume", "--run-dir", tmp_path / "run")
    assert done.returncode == 2 and "are not those that the run began with" in done.stderr, done.stderr


def test_the_card_says_sft_and_the_end_names_what_to_do_next(run, tune, tmp_path):
    done = tune("run", chats(), validation_share=0.1)
    assert done.returncode == 0 and "held out" in done.stdout and "nestor export" in done.stdout, done.stdout
    weights(run, tmp_path / "run")
    card = (tmp_path / "run-exported/README.md").read_text()
    assert "supervised fine-tuning (SFT) on chats" in card and "- sft\n" in card
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["warm_start/validation_loss"] == rows_of(tmp_path / "run")[-1]["validation_loss"]


@pytest.mark.parametrize("warm_start, message", [
    ({"steps": None}, "`warm_start.epochs` is missing, and so is `warm_start.steps`"),
    ({"epochs": 2}, "`warm_start.epochs` must be left out beside `warm_start.steps`"),
    ({"expert_noise": 0.5}, "`warm_start.expert_noise` belongs to the expert"),
    ({"validation": "a.jsonl", "validation_share": 0.1}, "`warm_start.validation_share` must be left out"),
    ({"validation": "a.jsonl"}, "a.jsonl: "),
    ({"max_tokens": 5}, "none of 22 chats has at most 5 tokens; raise `warm_start.max_tokens`"),
    ({"data": None, "max_tokens": 5}, "`warm_start.max_tokens` belongs to `warm_start.data`"),
    ({"data": ["a.jsonl", 3]}, "`warm_start.data`"),
])
def test_a_section_that_cannot_be_learned_is_refused(tune, tmp_path, warm_start, message):
    done = tune("run", chats(), **warm_start)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (tmp_path / "run").exists() or not os.listdir(tmp_path / "run")


def test_long_chats_are_counted_and_left_out_or_cut(tune, tmp_path):
    rows = [*chats(), {"prompt": "long " * 300, "completion": "yes"}, {"prompt": "short", "completion": "no " * 300}]
    dropped = tune("dropped", rows, max_tokens=250)
    assert dropped.returncode == 0 and "2 chats of the warm start" in dropped.stdout + dropped.stderr
    assert "left out" in dropped.stdout + dropped.stderr
    cut = tune("cut", rows, max_tokens=250, too_long="cut")
    assert cut.returncode == 0 and "and were cut" in cut.stdout + cut.stderr


@pytest.mark.parametrize("history", ["window", "transcript"])
def test_a_run_learns_its_own_episodes(run, root, tmp_path, history):
    """Two commands from a run to a model that learned its episodes; the chats hold what the run played."""
    mode = {"window": {}, "transcript": {"rollout.history": {"mode": "transcript"}, "rollout.max_sequence_tokens": 512}}[history]
    played = tmp_path / "played"
    small = {"device": "cpu", "eval.tasks": "none", **mode}
    done = run("train", root / "recipes/smoke/gigpo.yaml", "--run-dir", played, *sets({"iterations": 2, **small}))
    assert done.returncode == 0, done.stderr
    files = sorted((played / "rollouts").glob("*.jsonl"))
    episodes = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    out = tmp_path / "rows.jsonl"
    done = run("episodes", played, "--where", "steps >= 2", "--out", out)
    whole = [episode for episode in episodes if len(episode["steps"]) >= 2]
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    answers = [step["response"] for episode in whole for step in episode["steps"]]
    if history == "window":
        assert [row["completion"][0]["content"] for row in rows] == answers
    else:
        assert [m["content"] for row in rows for m in row["messages"] if m["role"] == "assistant"] == answers
    few = run("episodes", played, "--where", "steps >= 2", "--dedupe", "--shuffle", "1", "--limit", "3",
              "--out", tmp_path / "few.jsonl")
    assert few.returncode == 0 and len((tmp_path / "few.jsonl").read_text().splitlines()) == 3, few.stderr
    none = run("episodes", played, "--where", "steps > 1000", "--out", tmp_path / "none.jsonl")
    assert none.returncode == 2 and f"none of {len(episodes)} episodes fulfils" in none.stderr
    taught = {"iterations": 0, "model": {"path": str(played)},
              "warm_start": {"data": str(out), "epochs": 1, "batch": 8, "lr": 1e-3}}
    done = run("train", root / "recipes/smoke/gigpo.yaml", "--run-dir", tmp_path / "taught", *sets({**small, **taught}))
    assert done.returncode == 0, done.stderr
