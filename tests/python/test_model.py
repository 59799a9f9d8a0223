"""`nestor score`, `nestor model new` and safetensors in and out against transformers' Qwen2, Qwen3 and Llama.

Weights are random with projections four times larger than the usual initialisation, random biases and norms, so that
every part of the network moves the result; float32 noise is then about 2e-5.
"""
import json
import os
import re
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TOLERANCE, FAULT = 1e-4, 1e-2
COMMON = dict(rope_theta=1e6, rms_norm_eps=1e-6)
QWEN2, QWEN3, LLAMA = (dict(max_position_embeddings=most) for most in (32768, 40960, 8192))
SHAPES = {
    "tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True, **QWEN2),
    "0.5b": dict(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                 num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, **QWEN2),
    "7b-2-layers": dict(vocab_size=4000, hidden_size=3584, intermediate_size=18944, num_hidden_layers=2,
                        num_attention_heads=28, num_key_value_heads=4, tie_word_embeddings=False, **QWEN2),
    # Heads are of a size of their own: larger and smaller than hidden_size / num_attention_heads.
    "qwen3-tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2, head_dim=32,
                       num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **QWEN3),
    "qwen3-untied": dict(vocab_size=4000, hidden_size=320, intermediate_size=640, num_hidden_layers=3, head_dim=48,
                         num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=False, **QWEN3),
    "qwen3-0.6b": dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, head_dim=128,
                       num_attention_heads=16, num_key_value_heads=8, tie_word_embeddings=True, **QWEN3),
    "llama-tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, tie_word_embeddings=True, **LLAMA),
    "llama-biased": dict(vocab_size=4000, hidden_size=320, intermediate_size=640, num_hidden_layers=3, num_attention_heads=5,
                         num_key_value_heads=1, tie_word_embeddings=False, attention_bias=True, mlp_bias=True, **LLAMA),
}
LENGTHS = {"tiny": [1, 2, 7, 33, 4200, 260, 34, 1000], "0.5b": [5, 40, 17], "7b-2-layers": [3, 120, 41, 40, 1],
           "qwen3-tiny": [1, 2, 7, 33, 4200, 260, 34, 1000], "qwen3-untied": [3, 120, 41, 40, 1],
           "qwen3-0.6b": [5, 40, 17],
           "llama-tiny": [1, 2, 7, 33, 4200, 260, 34, 1000], "llama-biased": [3, 120, 41, 40, 1]}


def classes(shape):
    known = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    return known.get(shape.split("-")[0], (Qwen2Config, Qwen2ForCausalLM))


def make_model(shape, **changes):
    generator = torch.Generator().manual_seed(0)
    config, network = classes(shape)
    with torch.device("meta"):
        model = network(config(**COMMON, **SHAPES[shape] | changes))
    # Without the initial values that would only be overwritten; the rotary frequencies are not parameters.
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.normal_(1.0, 0.1, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
            else:
                parameter.normal_(0.0, 0.08, generator=generator)
    return model.eval()


def make_rows(shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, SHAPES[shape]["vocab_size"], (n,), generator=generator).tolist() for n in LENGTHS[shape]]


@torch.no_grad()
def reference(model, rows):
    """Log-probs by transformers, one row at a time, the head on 512 positions at a time."""
    result = []
    for row in rows:
        ids = torch.tensor(row)
        states = model.model(ids[None], use_cache=False).last_hidden_state[0, :-1]
        parts = [torch.log_softmax(model.lm_head(part).float(), -1).gather(-1, ids[1 + at:][:len(part), None])[:, 0]
                 for at, part in zip(range(0, len(row), 512), states.split(512))]
        result.append(torch.cat(parts).tolist() if len(row) > 1 else [])
    return result


def largest(got, want):
    assert [len(row) for row in got] == [len(row) for row in want]
    return max(abs(g - w) for gs, ws in zip(got, want) for g, w in zip(gs, ws))


# The tensors that the faults change have a small file of their own, so that a faulty model shares the large one.
DAMAGED, WHOLE = "damaged.safetensors", "whole.safetensors"
TOUCHED = re.compile(r"(q_proj\.bias|[qk]_norm\.weight|[kv]_proj\.(weight|bias))$")


def save_in_two_files(model, folder):
    model.config.save_pretrained(folder)
    tensors = {name: value for name, value in model.state_dict().items()
               if not (name == "lm_head.weight" and model.config.tie_word_embeddings)}
    places = {name: DAMAGED if TOUCHED.search(name) else WHOLE for name in tensors}
    for file in (DAMAGED, WHOLE):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_query_bias(tensors, config):
    return {name: value * 0 if name.endswith("q_proj.bias") else value for name, value in tensors.items()}


def with_exchanged_head_norms(tensors, config):
    other = lambda name: name.replace("q_norm", "k_norm") if "q_norm" in name else name.replace("k_norm", "q_norm")
    return {name: tensors[other(name)] for name in tensors}


def with_other_key_value_heads(tensors, config):
    """In one layer alone, each group of query heads meets its neighbour's keys and values."""
    turn = lambda tensor: tensor.unflatten(0, (config["num_key_value_heads"], -1)).roll(1, 0).flatten(0, 1).contiguous()
    return {name: turn(value) if re.search(r"layers\.0\..*[kv]_proj", name) else value for name, value in tensors.items()}


def with_other_rope_theta(tensors, config):
    config["rope_parameters"]["rope_theta"] = 1e4
    return tensors


@contextmanager
def damaged(folder, fault):
    """A model with a fault, beside the sound one it shares a file with."""
    faulty = folder.with_name(fault.__name__)
    faulty.mkdir()
    config = json.loads((folder / "config.json").read_text())
    save_file(fault(load_file(folder / DAMAGED), config), faulty / DAMAGED, {"format": "pt"})
    (faulty / "config.json").write_text(json.dumps(config))
    for name in (WHOLE, "model.safetensors.index.json"):
        os.link(folder / name, faulty / name)
    yield faulty
    shutil.rmtree(faulty)


@pytest.fixture(scope="module")
def sound(request, tmp_path_factory):
    """A model of a shape, the rows to score, and transformers' log-probs: made once for both kinds of operations."""
    model, rows, folder = make_model(request.param), make_rows(request.param), tmp_path_factory.mktemp("sound") / "model"
    save_in_two_files(model, folder)
    want = reference(model, rows)
    del model
    yield folder, rows, want
    shutil.rmtree(folder)


@pytest.mark.parametrize("sound, faults", [
    ("tiny", (without_query_bias, with_other_key_value_heads, with_other_rope_theta)),
    pytest.param("7b-2-layers", (without_query_bias, with_other_key_value_heads, with_other_rope_theta),
                 marks=pytest.mark.slow),
    ("0.5b", ()),
    ("qwen3-tiny", (with_exchanged_head_norms, with_other_key_value_heads, with_other_rope_theta)),
    ("qwen3-untied", (with_exchanged_head_norms, with_other_key_value_heads, with_other_rope_theta)),
    pytest.param("qwen3-0.6b", (), marks=pytest.mark.slow),
    ("llama-tiny", (with_other_key_value_heads, with_other_rope_theta)),
    ("llama-biased", (with_other_rope_theta,)),
], indirect=["sound"], scope="module")  # tests of one model follow each other
def test_score_equals_transformers_and_sees_faults(sound, faults, score, ops):
    folder, rows, want = sound
    assert largest(score(folder, rows), want) <= TOLERANCE

    # The same comparison must notice each fault. One row is enough to see it.
    one = max(range(len(rows)), key=lambda i: len(rows[i]) if len(rows[i]) < 1000 else 0)
    for fault in faults:
        with damaged(folder, fault) as faulty:
            assert largest(score(faulty, [rows[one]]), [want[one]]) > FAULT, fault.__name__


def test_positions_beyond_4096(tmp_path, score):
    model, folder = make_model("0.5b", num_hidden_layers=2, vocab_size=8000), tmp_path / "model"
    model.save_pretrained(folder)
    rows = [torch.randint(0, 8000, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (4200, 9)]
    assert largest(score(folder, rows), reference(model, rows)) <= TOLERANCE
    shutil.rmtree(folder)


@pytest.mark.parametrize("shape", ["tiny", "qwen3-tiny"])
def test_bfloat16_score_is_as_near_to_float32_as_transformers(shape, tmp_path, score, ops):
    model, rows, folder = make_model(shape), make_rows(shape), tmp_path / "model"
    model.save_pretrained(folder)
    # Loaded, not converted: `model.to` would round the rotary frequencies too.
    half = classes(shape)[1].from_pretrained(folder, dtype=torch.bfloat16)
    exact = [p for row in reference(model, rows) for p in row]
    theirs = [p for row in reference(half, rows) for p in row]
    ours = [p for row in score(folder, rows, "bfloat16") for p in row]
    mean = lambda a, b: sum(abs(x - y) for x, y in zip(a, b)) / len(a)
    assert 0.1 * mean(theirs, exact) < mean(ours, exact) < 1.5 * mean(theirs, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sharded_and_single_files_of_every_type_score_the_same(dtype, tmp_path, score):
    model, rows = make_model("tiny").to(dtype), make_rows("tiny")[:4]
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one = score(tmp_path / "one", rows)
    assert one == score(tmp_path / "many", rows)
    wide = Qwen2ForCausalLM.from_pretrained(tmp_path / "one", dtype=torch.float32)
    assert largest(one, reference(wide, rows)) <= TOLERANCE


def test_a_tied_model_may_carry_its_head(tmp_path, score):
    model, rows = make_model("tiny"), make_rows("tiny")[:4]
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert largest(score(tmp_path, rows), reference(model, rows)) <= TOLERANCE


@pytest.mark.parametrize("shape", ["tiny", "qwen3-tiny"])
def test_old_and_new_forms_of_the_configuration_are_the_same_model(shape, tmp_path, score):
    make_model(shape).save_pretrained(tmp_path)
    rows, path = make_rows(shape)[:4], tmp_path / "config.json"
    new = json.loads(path.read_text())
    assert new["rope_parameters"]["rope_theta"] == 1e6
    want = score(tmp_path, rows)
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types", "dtype")}
    path.write_text(json.dumps(old | {"rope_theta": 1e6, "rope_scaling": None, "torch_dtype": "float32"}))
    assert score(tmp_path, rows) == want


SCALINGS = [
    dict(rope_type="linear", factor=4.0),
    dict(rope_type="dynamic", factor=4.0),
    dict(rope_type="yarn", factor=4.0),
    dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=400, mscale=1.5, mscale_all_dim=0.5, beta_fast=16.0,
         beta_slow=2.0, truncate=False),
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512, attention_factor=0.8),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=512),
]


@pytest.mark.parametrize("shape, scaling", [(shape, it) for it in SCALINGS for shape in ("qwen3-tiny", "llama-tiny")
                                            if shape == "qwen3-tiny" or it is SCALINGS[0] or it is SCALINGS[-1]],
                         ids=lambda it: it if isinstance(it, str) else f"{it['rope_type']}{len(it)}")
def test_scaled_rotary_frequencies_in_both_forms_of_the_configuration(shape, scaling, tmp_path, score):
    """Rows below the original length, at most some times as long, and beyond the scaled one. They grow, because dynamic
    scaling of transformers remembers the longest one."""
    model = make_model(shape, rope_scaling=dict(scaling), max_position_embeddings=512 if len(scaling) == 2 else 2048)
    rows, path = sorted(make_rows(shape), key=len), tmp_path / "config.json"
    model.save_pretrained(tmp_path)
    want, new = reference(model, rows), json.loads(path.read_text())
    assert scaling.items() <= new["rope_parameters"].items() and new.get("rope_scaling") is None
    assert largest(score(tmp_path, rows), want) <= TOLERANCE
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    old["rope_theta"] = new["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(old | {"rope_scaling": scaling}))
    assert largest(score(tmp_path, rows), want) <= TOLERANCE
    path.write_text(json.dumps(old))
    assert largest(score(tmp_path, rows), want) > FAULT


def test_generation_beyond_the_length_of_dynamic_scaling_is_refused(tmp_path, run):
    model = make_model("qwen3-tiny", rope_scaling=dict(rope_type="dynamic", factor=2.0), max_position_embeddings=64)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "tokens.json").write_text(json.dumps({"rows": [[1, 2, 3]]}))
    generate = lambda most: run("generate", tmp_path / "model", "--tokens", tmp_path / "tokens.json", "--max-new-tokens", most)
    assert generate("61").returncode == 0
    refused = generate("62")
    assert refused.returncode == 2 and "65 tokens" in refused.stderr and "dynamic" in refused.stderr


@pytest.mark.parametrize("shape, dtype", [("tiny", "float32"), ("tiny", "bfloat16"), ("qwen3-tiny", "bfloat16")])
def test_a_new_model_is_what_transformers_would_make(shape, dtype, tmp_path, score, run):
    folder, (config, network) = tmp_path / "new", classes(shape)
    make = lambda name, seed: run("model", "new", tmp_path / name, "--shape", shape, "--seed", seed, "--dtype", dtype)
    assert make("new", 5).returncode == 0
    model, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, network) and not any(notes.values()), notes
    assert model.dtype == getattr(torch, dtype)
    want = config(**COMMON, **SHAPES[shape])
    for key in SHAPES[shape] | dict(rope_parameters=0, rms_norm_eps=0):
        assert getattr(model.config, key) == getattr(want, key), key
    for name, parameter in model.named_parameters():
        value = parameter.float()
        if name.endswith("norm.weight"):
            assert (value == 1).all()
        elif name.endswith("bias"):
            assert (value == 0).all()
        else:
            assert abs(value.std() / 0.02 - 1) < 0.05 and abs(value.mean()) < 0.002, name
            # Even the smallest matrix has 2,048 entries: its largest lies beyond 2.5 standard deviations.
            assert 2.5 < value.abs().max() / 0.02 < 6, name
    rows = make_rows(shape)[:4]
    wide = network.from_pretrained(folder, dtype=torch.float32)
    assert largest(score(folder, rows), reference(wide, rows)) <= TOLERANCE

    assert make("again", 5).returncode == make("other", 6).returncode == 0
    read = lambda name: (tmp_path / name / "model.safetensors").read_bytes()
    assert read("new") == read("again") != read("other")


def test_refusals_name_file_tensor_and_shapes(tmp_path, run):
    whole = tmp_path / "whole"
    make_model("tiny").save_pretrained(whole)
    GenerationConfig(eos_token_id=[3, 4]).save_pretrained(whole)
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"rows": [[1, 2, 3]]}))

    def message(damage):
        folder = tmp_path / "damaged"
        shutil.copytree(whole, folder)
        damage(folder)
        done = run("score", folder, "--tokens", tokens, "--json")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        shutil.rmtree(folder)
        return done.stderr

    def edit_config(**changes):
        def damage(folder):
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return damage

    weights = "model.safetensors"
    assert "config.json: no such file" in message(lambda f: (f / "config.json").unlink())
    assert f"{weights}: no such file" in message(lambda f: (f / weights).unlink())
    assert f"{weights}: truncated" in message(lambda f: (f / weights).write_bytes((f / weights).read_bytes()[:-9]))
    shapes = message(edit_config(intermediate_size=177))
    assert all(word in shapes for word in (weights, "model.layers.0.mlp", "[64, 176]", "[64, 177]", "config.json")), shapes
    assert "MambaForCausalLM" in message(edit_config(architectures=["MambaForCausalLM"], model_type="mamba"))
    assert "lm_head.weight" in message(edit_config(tie_word_embeddings=False))
    assert "rope_parameters" in message(edit_config(rope_parameters={"rope_type": "longrope", "factor": 4.0}))
    tokens.write_text(json.dumps({"rows": [[1, 512]]}))
    assert "512" in message(lambda f: None)


def test_a_stored_head_that_differs_from_the_embedding_is_used(tmp_path, score, run):
    model, rows, folder = make_model("tiny"), make_rows("tiny")[1:4], tmp_path / "model"
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors", {"format": "pt"})
    assert largest(score(folder, rows), reference(model, rows)) <= TOLERANCE
    head = tensors["model.embed_tokens.weight"] + 0.05 * torch.randn(512, 64, generator=torch.Generator().manual_seed(4))
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    theirs = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    want = reference(theirs, rows)
    assert largest(want, reference(model, rows)) > FAULT
    assert largest(score(folder, rows), want) <= TOLERANCE
    done = run("export", folder, tmp_path / "exported")
    assert done.returncode == 0
    assert torch.equal(load_file(tmp_path / "exported/model.safetensors")["lm_head.weight"], head)
    assert json.loads((tmp_path / "exported/config.json").read_text())["tie_word_embeddings"] is False
    assert score(tmp_path / "exported", rows) == score(folder, rows)
    (tmp_path / "tokens.json").write_text(json.dumps({"rows": rows}))
    said = run("score", folder, "--tokens", tmp_path / "tokens.json").stderr
    assert said.count("lm_head.weight that differs from the embedding") == 1


def test_one_file_comes_before_shards(tmp_path, score, run):
    """As in transformers, whose `save_pretrained` leaves an old index where it is."""
    old, new, rows = make_model("tiny"), make_model("tiny"), make_rows("tiny")[1:4]
    with torch.no_grad():
        new.model.layers[0].mlp.up_proj.weight.mul_(-1)
    old.save_pretrained(tmp_path, max_shard_size="100KB")
    new.save_pretrained(tmp_path / "new")
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "new" / file, tmp_path / file)
    want = reference(new, rows)
    assert largest(want, reference(old, rows)) > FAULT
    assert largest(score(tmp_path, rows), want) <= TOLERANCE
    (tmp_path / "tokens.json").write_text(json.dumps({"rows": rows}))
    warned = lambda: "is read, as in transformers" in run("score", tmp_path, "--tokens", tmp_path / "tokens.json").stderr
    assert warned()
    next(tmp_path.glob("model-00001*")).unlink()
    assert largest(score(tmp_path, rows), want) <= TOLERANCE and not warned()
