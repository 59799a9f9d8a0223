"""`nestor bench` on scripts and scripts/bench/bench_peers.py on a tiny model: both do the work of the script, and wrong input
gives one message."""
import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import PATIENCE
from transformers import Qwen2Config, Qwen2ForCausalLM

SMALL = ["--envs", 8, "--group-size", 4, "--turns", 3]


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "model"
    assert run("model", "new", folder, "--shape", "tiny", "--dtype", "float32").returncode == 0
    return folder


@pytest.fixture(scope="module")
def bench(run_json, model, root):
    def call(what, *args):
        return run_json("bench", what, "--model", model, "--device", "cpu", "--json", *args, cwd=root)
    return call


@pytest.mark.parametrize("history", ["window", "transcript"])
def test_a_rollout_is_its_script(history, bench, tmp_path):
    script, responses = tmp_path / "script.json", tmp_path / "responses.json"
    args = [*SMALL, "--history", history, "--repeats", 1, "--warm-up", 0, "--script-out", script]
    measured = bench("rollout", *args, "--responses-out", responses)
    episodes = [episode["turns"] for episode in json.loads(script.read_text())["episodes"]]
    played = json.loads(responses.read_text())["episodes"]
    assert [[len(r) for r in e] for e in played] == [[t["response"] for t in e] for e in episodes]
    prompts = 0
    for turns in episodes:
        for number, turn in enumerate(turns):
            before = turns[:number] if history == "transcript" else []
            prompts += sum(len(t["prompt"]) + t["response"] for t in before) + len(turn["prompt"])
    assert measured["prompt_tokens"] == prompts == measured["prefilled"] + measured["shared"]
    assert measured["tokens"] == sum(turn["response"] for turns in episodes for turn in turns)
    assert measured["turns"] == sum(map(len, episodes)) and measured["seconds"] > 0
    # Slow environments change the times and nothing else.
    waited = bench("rollout", *args, "--env-ms", 10, "--slots", 3)
    assert all(waited[key] == measured[key] for key in ("tokens", "turns", "prompt_tokens"))
    assert any(turn["env_ms"] > 10 for e in json.loads(script.read_text())["episodes"] for turn in e["turns"])


@pytest.mark.parametrize("workload, phases", [
    ("multi-turn", ["rollout", "pack", "advantage", "update"]),
    ("alfworld-1.5b", ["rollout", "pack", "reference", "advantage", "update"]),
])
def test_an_iteration_trains_on_all_of_its_script(workload, phases, bench, tmp_path):
    script = tmp_path / "script.json"
    measured = bench("iteration", "--workload", workload, *SMALL, "--repeats", 2, "--warm-up", 0, "--mini-batch", 12,
                     "--micro-batch-tokens", 2048, "--recompute", 1, "--script-out", script)
    turns = [turn for episode in json.loads(script.read_text())["episodes"] for turn in episode["turns"]]
    assert list(measured["phases"]) == phases
    assert measured["tokens"] == sum(len(turn["prompt"]) + turn["response"] for turn in turns)
    assert measured["optimizer_steps"] == -(-len(turns) // 12)
    assert len(measured["seconds_all"]) == 2 and 0 < measured["logprob_diff_max"] < 1e-4
    assert measured["peak_of"] == "host" and measured["peak_bytes"] > 1e8


def test_generate_counts_its_passes_and_the_context_of_decoding(bench):
    """The four prompts fill one pass, which draws the first token; seven passes decode, over 17 to 23 tokens a row."""
    measured = bench("generate", "--batch", 4, "--prompt", 16, "--new", 8, "--repeats", 2, "--profile")
    assert measured["passes"] == 8 and len(measured["seconds_all"]) == 2 and measured["warm_up_s"] > 0
    decode = measured["decode"]
    assert (decode["passes"], decode["rows"], decode["context"]) == (2 * 7, 4, 4 * 20)
    total = sum(measured["seconds_all"])
    assert measured["ms_per_pass"] == pytest.approx(1e3 * total / 16) and decode["ms"] * 14 <= 1e3 * total
    profile = measured["profile"]
    assert profile["passes"] == 8 and profile["launches_per_pass"] * 8 == profile["launches"] > 8
    dearest = [entry["ms"] for entry in profile["dearest"]]
    assert 5 < len(dearest) <= 15 and dearest == sorted(dearest, reverse=True) and sum(dearest) <= profile["busy_ms"] * 1.001
    assert profile["busy_ms"] <= profile["ms"]


@pytest.mark.parametrize("work", ["generate", "update"])
def test_ragged_work_is_as_long_in_every_repetition(work, bench):
    sizes = ["--batch", 6, "--prompt", 40, "--new", 10, "--ragged", "--repeats", 2]
    measured = bench(work, *sizes)
    new = [round(10 * (0.1 + 0.9 * i / 5)) for i in range(6)]
    prompt = [round(40 * (0.1 + 0.9 * i / 5)) for i in range(6)]
    assert measured["tokens"] == sum(new) + (sum(prompt) if work == "update" else 0)
    if work == "update":
        lengths = sorted(map(tuple, measured["lengths"]))
        assert measured["passes"] == 1 and sum(map(sum, lengths)) == measured["tokens"]
        assert lengths != sorted(zip(prompt, new)), "the repetition has lengths of its own"


def test_a_workload_is_a_file(run, root, bench, tmp_path):
    text = (root / "recipes/bench/multi-turn.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("envs: 32", "envs: 8"))
    measured = bench("rollout", "--workload", own, "--group-size", 4, "--repeats", 1, "--warm-up", 0)
    assert measured["envs"] == 8 and measured["turns"] == 8 * 5
    own.write_text(text.replace("envs: 32", "environments: 8"))
    done = run("bench", "rollout", "--workload", own, "--model", tmp_path)
    assert done.returncode == 2 and f"{own}:4:1: unknown key `environments`" in done.stderr, done.stderr


def test_the_logprob_difference_shows_what_half_the_bits_cost(run_json, tmp_path, monkeypatch):
    torch.manual_seed(0)
    sharp = Qwen2ForCausalLM(Qwen2Config(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                                         num_key_value_heads=2, vocab_size=512, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in sharp.parameters():
            parameter *= 4 if parameter.dim() == 2 else 1
    sharp.to(torch.bfloat16).save_pretrained(tmp_path)
    args = ["bench", "logprob-diff", "--model", tmp_path, "--batch", 20, "--prompt", 24, "--new", 12, "--json"]
    types = run_json(*args)["types"]
    full, bfloat, half = (types[dtype] for dtype in ("float32", "bfloat16", "float16"))
    assert 1e-6 < bfloat["mean"] < bfloat["max"] < 1
    assert full["mean"] < 1e-6 and full["max"] < 1e-4
    # float16 has three more bits, seen where both are computed by the same operations.
    monkeypatch.setenv("NESTOR_OPS", "generic")
    assert 1e-6 < half["mean"] < run_json(*args, "--dtype", "bfloat16")["types"]["bfloat16"]["mean"] / 3


@pytest.mark.parametrize("args, parts", [
    (["rollout", "--model", "MODEL", "--envs", 12], ["--envs is 12", "--group-size (8)"]),
    (["rollout", "--model", "MODEL", "--turns", 0], ["--turns"]),
    (["rollout", "--model", "MODEL", "--slots", 0], ["--slots"]),
    (["rollout", "--model", "MODEL", "--temperature", "nan"], ["--temperature"]),
    (["rollout", "--model", "MODEL", "--turns", 900, "--history", "transcript"], ["max_position_embeddings", "--turns"]),
    (["iteration", "--workload", "multi-turn"], ["--model"]),
    (["iteration", "--workload", "nothing", "--model", "MODEL"], ["recipes/bench/nothing.yaml", "alfworld-1.5b, alfworld-no-history, multi-turn"]),
    (["rollout", "--workload", "./none.yaml", "--model", "MODEL"], ["--workload ./none.yaml", "path"]),
    (["iteration", "--workload", "multi-turn", "--model", "MODEL", "--mini-batch", 0], ["--mini-batch"]),
    (["iteration", "--workload", "multi-turn", "--model", "MODEL", "--kl=-1"], ["--kl"]),
    (["logprob-diff", "--model", "MODEL", "--new", 0], ["--new"]),
], ids=lambda value: " ".join(map(str, value[1:])) if "--" in str(value) else "")
def test_wrong_input_is_one_message(args, parts, run, model, root):
    done = run("bench", *[model if arg == "MODEL" else arg for arg in args], cwd=root)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert all(part in lines[0] for part in parts), lines[0]


def test_rows_of_the_table_beside_their_peers(root):
    """A rehearsal of every row that needs no more than the tests do (TRL's does)."""
    rows = ["generate-27m", "rollout-27m", "logprob-diff", "deterministic"]
    done = subprocess.run([sys.executable, root / "scripts/bench/bench_peers.py", *rows, "--small", "--repeat", "1", "--threads",
                           "1"], capture_output=True, text=True, timeout=PATIENCE, env=os.environ)
    assert done.returncode == 0, done.stderr
    for row in rows:
        assert f"{row}: " in done.stdout
    assert done.stdout.count("greedy in float32: ") == 2 and "DIFFER" not in done.stdout
    assert "bit-identical: met" in done.stdout


def test_the_greedy_check_finds_a_wrong_token(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "scripts/bench")
    from peers import play
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                                         num_key_value_heads=1, vocab_size=64)).eval()
    prompts = [[1, 2, 3], [4, 5]]
    ids = [torch.tensor([prompt]) for prompt in prompts]
    greedy = play.settings(4, do_sample=False, temperature=None, top_k=None, top_p=None)
    right = [model.generate(i, attention_mask=torch.ones_like(i), generation_config=greedy)[0, i.shape[1]:].tolist()
             for i in ids]
    text, sound = play.compare_greedy(model, prompts, right)
    assert sound and "8 tokens of 2 prompts" in text
    text, sound = play.compare_greedy(model, prompts, [right[0], right[1][:2] + [63 - right[1][2], 0]])
    assert not sound and "prompts [1] DIFFER" in text


def test_the_soak_measures_a_slope():
    from soak import slope
    assert slope([(i, 1000 + i) for i in range(1, 1000)]) == pytest.approx(1e5 / 1500)


def test_lockstep_keeps_finished_rows_and_pads_left(root, monkeypatch):
    """Greedily decoded, the lock-step batch has the tokens of each prompt alone."""
    monkeypatch.syspath_prepend(root / "scripts/bench")
    from peers import play
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                                         num_key_value_heads=1, vocab_size=64)).eval()
    whole = play.settings
    greedy = dict(do_sample=False, temperature=None, top_k=None, top_p=None)
    monkeypatch.setattr(play, "settings", lambda new, **more: whole(new, **greedy | more))
    widths = []
    generate = model.generate
    model.generate = lambda ids, **kwargs: widths.append(ids.shape) or generate(ids, **kwargs)
    turn = lambda prompt, response: {"prompt": prompt, "response": response, "env_ms": 0}
    script = {"history": "window", "episodes": [
        {"turns": [turn([1, 2, 3], 4)]},
        {"turns": [turn([4, 5, 6, 7, 8], 2), turn([9], 6)]}]}
    played = play.lockstep(model, script)
    assert widths == [(2, 5), (2, 3)]
    assert [[len(response) for _, response in episode] for episode in played] == [[4], [2, 6]]
    pairs = [pair for episode in played for pair in episode]
    text, sound = play.compare_greedy(model, *zip(*pairs))
    assert sound and "12 tokens of 3 prompts" in text, text


def test_the_table_goes_between_its_marks(root, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(root / "scripts/bench")
    from peers import report
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    for row, times, met in [("b", "1.50 ×", False), ("a", "4.20 ×", True)]:
        report.Result(row, f"work {row}", "peer", "1 s", "2 s", times, "2 ×", met, [f"note {row}"], "a machine").keep()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.MARKS[0]}\nold\n{report.MARKS[1]}\nafter\n")
    report.write(page, ["a", "b", "c"])
    text = page.read_text()
    assert text.startswith(f"before\n{report.MARKS[0]}\n| work") and text.endswith(f"{report.MARKS[1]}\nafter\n")
    assert "old" not in text and text.index("| work a | peer | 1 s | 2 s | 4.20 × | 2 × | met |") < text.index("| missed |")
    assert "- `b`: note b" in text and "Measured on a machine." in text
    report.refuse_to_drop(page, ["a", "b", "c"], ["c"])
    (tmp_path / "results/b.json").unlink()
    with pytest.raises(SystemExit, match="has 2 rows"):
        report.refuse_to_drop(page, ["a", "b", "c"], ["a"])
    report.refuse_to_drop(page, ["a", "b", "c"], ["b"])
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        report.write(page, ["a"])
    assert all(mark in (root / "docs/benchmarks.md").read_text() for mark in report.MARKS)


def test_the_padded_update_has_the_gradient_of_the_sequences(root, monkeypatch):
    """Padding only costs the peer work: each sequence alone, without padding, adds up to the same gradient."""
    monkeypatch.syspath_prepend(root / "scripts/bench")
    from peers.learn import PlainUpdate
    torch.manual_seed(2)
    model = Qwen2ForCausalLM(Qwen2Config(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                         num_key_value_heads=1, vocab_size=64))
    lengths = [(6, 3), (2, 1), (9, 5), (3, 5), (1, 2)]
    update = PlainUpdate(model, lengths)
    tokens = sum(response for _, response in lengths)
    for (prompt, response), row, advantage in zip(lengths, update.rows, update.advantages):
        row = row[None, :prompt + response]
        logp = torch.log_softmax(model(row, use_cache=False).logits[:, prompt - 1:-1].float(), -1)
        logp = logp.gather(-1, row[:, prompt:, None])
        (-(torch.exp(logp - logp.detach()) * advantage).sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    want = [parameter.grad.clone() for parameter in model.parameters()]
    update()
    for got, wanted in zip(model.parameters(), want):
        torch.testing.assert_close(got.grad, wanted, rtol=1e-4, atol=1e-6)
