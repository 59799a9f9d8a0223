"""Real language models (scripts/models/get.py) against transformers and PyTorch. SmolLM2-135M is tested in CI, and larger models
by `pytest -m real`. A model that is not there leaves its tests out.

The texts are this project's own pages. Weights of a trained network have activations of very different sizes, which random ones
have not.
"""
import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from chats import CHATS, chat
from conftest import ROOT
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from test_gradients import padded_stats, reference_loss, with_old_and_ref
from test_model import largest, reference
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = ["smollm2-135m", *(pytest.param(f"qwen2.5-coder-{size}", marks=pytest.mark.real) for size in ("0.5b", "1.5b"))]
PAGES = ["README.md", "docs/architecture.md", "docs/rollout.md", "docs/estimator.md", "docs/checkpoints.md", "docs/c_plugins.md"]
LENGTHS = [1200, 1, 300, 17, 130, 2]  # one row for each page
THINGS = ["a river", "the moon", "copper", "a violin", "bread", "gravity", "a spider", "Paris", "a volcano", "paper"]
ASKED = ["What is {}?", "Name three facts about {}.", "Write one line of Python that prints the word for {}.",
         "Translate the name of {} into French."]
PROMPTS = [asked.format(thing) for thing in THINGS for asked in ASKED]


@pytest.fixture(scope="module", params=MODELS)
def real(request):
    """The folder of a model, and its tokenizer in transformers."""
    folder = ROOT / "models" / request.param
    if not (folder / "model.safetensors").exists():
        pytest.skip(f"there is no {folder.relative_to(ROOT)}: run scripts/models/get.py {request.param}")
    return folder, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def wide(real):
    """The model in float32."""
    return AutoModelForCausalLM.from_pretrained(real[0], dtype=torch.float32).eval()


def make_rows(tokenizer, lengths=LENGTHS):
    texts = [(ROOT / page).read_text() for page in PAGES]
    return [tokenizer(text)["input_ids"][:length] for text, length in zip(texts, lengths)]


@pytest.mark.real
def test_log_probs_of_4000_tokens(real, wide, score):
    rows = make_rows(real[1], [4000])
    assert largest(score(real[0], rows), reference(wide, rows)) <= 1e-4


def test_log_probs(real, wide, score):
    folder, tokenizer = real
    rows = make_rows(tokenizer)
    exact = reference(wide, rows)
    assert largest(score(folder, rows), exact) <= 1e-4
    # bfloat16 moves log-probs about as far as in transformers. It is slow on most CPUs, so without the longest rows.
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact, theirs, ours = ([p for row in rows for p in row] for rows in
                           (exact[3:], reference(half, rows[3:]), score(folder, rows[3:], "bfloat16")))
    mean = lambda of: sum(abs(x - y) for x, y in zip(of, exact)) / len(exact)
    assert mean(ours) < 1.2 * mean(theirs)


@torch.no_grad()
def test_greedy_texts(real, wide, run_json, tmp_path):
    """40 prompts in one batch of ours, with a shared beginning, and one by one in transformers."""
    folder, tokenizer = real
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(chat(prompt)) + "\n" for prompt in PROMPTS))
    got = run_json("generate", folder, "--chat", file, "--temperature", "0", "--max-new-tokens", "12", "--device", "cpu", "--json")
    for prompt, ours in zip(PROMPTS, got["tokens"], strict=True):
        ids = tokenizer.apply_chat_template(chat(prompt), add_generation_prompt=True, return_tensors="pt", return_dict=False)
        done = wide.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=1.0,
                             max_new_tokens=12, pad_token_id=0)
        assert ours == done[0, ids.shape[1]:].tolist(), prompt


def test_chats(real, run_json, tmp_path):
    folder, tokenizer = real
    chats, file = CHATS + [chat(prompt) for prompt in PROMPTS[::2]], tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in chats))
    got = run_json("tokenize", folder, "--chat", file, "--json")["ids"]
    for one, ids in zip(chats, got, strict=True):
        assert ids == tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False), one


@torch.no_grad()
def test_frequencies_of_sampled_tokens(real, wide, run_json, tmp_path):
    """1,000 draws of one token against softmax: Pearson's chi-square, whose cube root is nearly normal (Wilson and Hilferty)."""
    folder, tokenizer = real
    prompt, draws = tokenizer("The capital of")["input_ids"], 1000
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"rows": [prompt] * draws}))
    got = run_json("generate", folder, "--tokens", file, "--max-new-tokens", "1", "--seed", "5", "--device", "cpu", "--json")
    counts = torch.bincount(torch.tensor([row[0] for row in got["tokens"]]), minlength=wide.config.vocab_size).double()
    want = draws * torch.softmax(wide(torch.tensor([prompt])).logits[0, -1].double(), -1)
    often = want >= 5
    counts, want = (torch.cat([all[often], all[~often].sum()[None]]) for all in (counts, want))
    free = len(want) - 1
    assert free > 20
    pearson = ((counts - want) ** 2 / want).sum().item()
    normal = ((pearson / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    assert abs(normal) < 4


def test_shared_prefixes(real, run_json, score, tmp_path):
    """Prompts that share pages of the cache are continued as each one alone, with the log-probs of a whole pass."""
    folder, tokenizer = real
    page = tokenizer((ROOT / PAGES[1]).read_text())["input_ids"]
    rows = [page[:300] + page[400 + 10 * i:][:5 * i + 1] for i in range(8)] + [page[:300]]

    def generate(rows):
        file = tmp_path / "rows.json"
        file.write_text(json.dumps({"rows": rows}))
        return run_json("generate", folder, "--tokens", file, "--max-new-tokens", "8", "--temperature", "0", "--device", "cpu",
                        "--json")

    together = generate(rows)
    for at in (0, 4, 8):
        assert generate([rows[at]])["tokens"] == [together["tokens"][at]]
    scores = score(folder, [row + new for row, new in zip(rows, together["tokens"])])
    ends = [row[-len(new):] for row, new in zip(scores, together["tokens"])]
    assert largest(together["logprobs"], ends) <= 1e-4


class Wide(torch.nn.Module):
    """A part of a model that computes in another type, without gradients. It keeps its last inputs."""

    def __init__(self, part, dtype):
        super().__init__()
        self.part, self.dtype, self.inputs = part, dtype, None

    def copy(self):
        return copy.deepcopy(self.part).to(self.dtype)

    def forward(self, x, *args, **kwargs):
        self.inputs = x, args, kwargs
        return self.copy()(x, *args, **kwargs)


class ByBlock:
    """A model whose weights are in this type one block at a time, so that a model in float64 needs the memory of one in bfloat16."""

    def __init__(self, folder, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        inner, wide = self.model.model, lambda part: Wide(part, dtype)
        inner.embed_tokens, inner.norm, self.model.lm_head = map(wide, (inner.embed_tokens, inner.norm, self.model.lm_head))
        inner.layers = torch.nn.ModuleList(map(wide, inner.layers))

    @torch.no_grad()
    def __call__(self, *args, **kwargs):
        return self.model(*args, **kwargs)

    def gradients(self, loss_of):
        """The name and gradient of each parameter by autograd, from the head down."""
        loss_of(self)
        inner = self.model.model
        states = inner.norm.inputs[0].requires_grad_(True)
        norm, head = inner.norm.copy(), self.model.lm_head.copy()
        loss_of(lambda *_, **__: SimpleNamespace(logits=head(norm(states)))).backward()
        yield "model.norm.weight", norm.weight.grad
        of_head, grad = head.weight.grad, states.grad
        del head, norm
        for number, layer in reversed(list(enumerate(inner.layers))):
            block, (x, args, kwargs) = layer.copy(), layer.inputs
            block(x.requires_grad_(True), *args, **kwargs).backward(grad)
            grad = x.grad
            yield from ((f"model.layers.{number}.{name}", p.grad) for name, p in block.named_parameters())
        embedding = inner.embed_tokens.copy()
        embedding(inner.embed_tokens.inputs[0]).backward(grad)
        if self.model.config.tie_word_embeddings:
            of_head += embedding.weight.grad
            yield "model.embed_tokens.weight", of_head
        else:
            yield "lm_head.weight", of_head
            yield "model.embed_tokens.weight", embedding.weight.grad


def test_gradients(real, driver, tmp_path):
    """Packed and block by block, against autograd in float64: as near to it as autograd in float32, whose sums of large terms of
    both signs have an error of 3e-5 with SmolLM2."""
    folder, tokenizer = real
    # Weights, gradients and momentum of the program in float32, twice as wide as in the file.
    needed = 6.5 * (folder / "model.safetensors").stat().st_size
    free = next(int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    if free < needed:
        pytest.skip(f"gradients take {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
    text = tokenizer((ROOT / PAGES[2]).read_text())["input_ids"]
    cut = lambda start, prompt, response, advantage: {
        "prompt": text[start:start + prompt], "response": text[start + prompt:][:response], "advantage": advantage}
    sequences = [[cut(0, 30, 10, 1.5)], [cut(50, 7, 1, -2.0)], [cut(80, 12, 20, 0.7), cut(120, 5, 4, -0.3)]]
    rows = with_old_and_ref(ByBlock(folder, torch.float64), sequences, 0.3, 0.5)
    update = {"mini_batch": len(rows), "lr": 1e-3, "micro_batch_tokens": 60, "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0,
              "entropy": 0.01, "recompute": 4, "kl": {"coef": 0.05, "kind": "k3"}, "optimizer": {"name": "muon"}}
    (tmp_path / "batch.json").write_text(json.dumps({"sequences": sequences, "update": update, "temperature": 0.9}))
    driver("gradients", folder, tmp_path / "batch.json", tmp_path / "gradients.safetensors")

    loss_of = lambda model: reference_loss(padded_stats(model, sequences), rows)[0]
    exact, theirs = (ByBlock(folder, dtype).gradients(loss_of) for dtype in (torch.float64, torch.float32))
    mine, other, size = {}, {}, {}
    with safe_open(tmp_path / "gradients.safetensors", "pt") as ours:
        for (name, want), (_, autograd) in zip(exact, theirs, strict=True):
            square = lambda x: x.double().square().sum().item()
            mine[name], other[name], size[name] = square(ours.get_tensor(name) - want), square(autograd - want), square(want)
        assert set(ours.keys()) == set(mine)
    # In float32 some gradients are sums whose terms cancel: autograd itself is off by 1.6e-4 in a tensor of 0.5B, and by 6.6e-4 in
    # the embedding of 1.5B.
    assert all(mine[name] <= max(1e-8 * size[name], 1.5**2 * other[name]) for name in mine)
    assert sum(mine.values()) <= max(1e-8 * sum(size.values()), 1.5**2 * sum(other.values()))
    print(f"relative error {(sum(mine.values()) / sum(size.values()))**0.5:.1e}, in float32 autograd "
          f"{(sum(other.values()) / sum(size.values()))**0.5:.1e}")


def test_an_export_is_the_model(real, run, score, tmp_path):
    folder, tokenizer = real
    done = run("export", folder, tmp_path / "copy", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    ours, theirs = load_file(tmp_path / "copy/model.safetensors"), load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = AutoTokenizer.from_pretrained(tmp_path / "copy")
    text = (ROOT / PAGES[3]).read_text()
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.chat_template == tokenizer.chat_template
    AutoModelForCausalLM.from_pretrained(tmp_path / "copy", dtype=torch.bfloat16)


@pytest.mark.real
@torch.no_grad()
def test_runs_agree_and_peft_has_their_policy(real, run, run_json, score, tmp_path):
    """Adapters trained twice, killed and resumed, and on two ranks; then peft's log-probs of the trained policy."""
    folder, tokenizer = real
    settings = [f"model={{path: {folder}, lora: {{rank: 8, alpha: 16}}}}", "dtype=float32", "rollout.tasks=2", "rollout.max_steps=4",
                "warm_start=null", "update.mini_batch=8", "eval.tasks=none"]
    report = run_json("verify", ROOT / "recipes/real/smollm2.yaml", "--out", tmp_path / "out", "--kill-at", "0.5", "--json",
                      *(word for key in settings for word in ("--set", key)))
    assert report["agrees"] and report["not_run"] == []
    assert 0 < report["logprob_diff_max"] < 1e-4
    trained = tmp_path / "out/first"
    done = run("export", trained, tmp_path / "adapter", "--adapter")
    assert done.returncode == 0, done.stderr
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter").get_base_model()
    rows = make_rows(tokenizer, LENGTHS[2:])
    assert largest(score(trained, rows), reference(model, rows)) <= 1e-4
    assert largest(score(trained, rows), score(folder, rows)) > 1e-3
