"""`nestor score`, `nestor model new` and safetensors in and out against transformers' Qwen2ForCausalLM.

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
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

TOLERANCE, FAULT = 1e-4, 1e-2
COMMON = dict(max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6)
SHAPES = {
    "tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True),
    "0.5b": dict(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                 num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True),
    "7b-2-layers": dict(vocab_size=4000, hidden_size=3584, intermediate_size=18944, num_hidden_layers=2,
                        num_attention_heads=28, num_key_value_heads=4, tie_word_embeddings=False),
}
LENGTHS = {"tiny": [1, 2, 7, 33, 4200, 260, 34, 1000], "0.5b": [5, 40, 17], "7b-2-layers": [3, 120, 41, 40, 1]}


def make_model(shape, **changes):
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**COMMON, **SHAPES[shape] | changes))
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


# What the faults touch is a small file of its own, so that a faulty model shares the large one.
DAMAGED, WHOLE = "damaged.safetensors", "whole.safetensors"
TOUCHED = re.compile(r"(q_proj\.bias|[kv]_proj\.(weight|bias))$")


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


@pytest.mark.parametrize("shape, faults", [
    ("tiny", (without_query_bias, with_other_key_value_heads, with_other_rope_theta)),
    ("7b-2-layers", (without_query_bias, with_other_key_value_heads, with_other_rope_theta)),
    ("0.5b", ()),
])
def test_score_equals_transformers_and_sees_faults(shape, faults, tmp_path, score):
    model, rows, folder = make_model(shape), make_rows(shape), tmp_path / "model"
    save_in_two_files(model, folder)
    want = reference(model, rows)
    del model
    assert largest(score(folder, rows), want) <= TOLERANCE

    # The same comparison must notice each fault. One row is enough to see it.
    one = max(range(len(rows)), key=lambda i: len(rows[i]) if len(rows[i]) < 1000 else 0)
    for fault in faults:
        with damaged(folder, fault) as faulty:
            assert largest(score(faulty, [rows[one]]), [want[one]]) > FAULT, fault.__name__
    shutil.rmtree(folder)


def test_positions_beyond_4096(tmp_path, score):
    model, folder = make_model("0.5b", num_hidden_layers=2, vocab_size=8000), tmp_path / "model"
    model.save_pretrained(folder)
    rows = [torch.randint(0, 8000, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (4200, 9)]
    assert largest(score(folder, rows), reference(model, rows)) <= TOLERANCE
    shutil.rmtree(folder)


def test_bfloat16_score_is_as_near_to_float32_as_transformers(tmp_path, score):
    model, rows, folder = make_model("tiny"), make_rows("tiny"), tmp_path / "model"
    model.save_pretrained(folder)
    # Loaded, not converted: `model.to` would round the rotary frequencies too.
    half = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
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


def test_old_and_new_forms_of_the_configuration_are_the_same_model(tmp_path, score):
    make_model("tiny").save_pretrained(tmp_path)
    rows, path = make_rows("tiny")[:4], tmp_path / "config.json"
    new = json.loads(path.read_text())
    assert new["rope_parameters"]["rope_theta"] == 1e6
    want = score(tmp_path, rows)
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types", "dtype")}
    path.write_text(json.dumps(old | {"rope_theta": 1e6, "rope_scaling": None, "torch_dtype": "float32"}))
    assert score(tmp_path, rows) == want


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_new_model_is_what_transformers_would_make(dtype, tmp_path, score, run):
    folder = tmp_path / "new"
    assert run("model", "new", folder, "--shape", "tiny", "--seed", 5, "--dtype", dtype).returncode == 0
    model, notes = Qwen2ForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(notes.values()), notes
    assert model.dtype == getattr(torch, dtype)
    want = Qwen2Config(**COMMON, **SHAPES["tiny"])
    for key in SHAPES["tiny"] | dict(rope_parameters=0, rms_norm_eps=0, max_position_embeddings=0):
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
    rows = make_rows("tiny")[:4]
    wide = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert largest(score(folder, rows), reference(wide, rows)) <= TOLERANCE

    assert run("model", "new", tmp_path / "again", "--shape", "tiny", "--seed", 5, "--dtype", dtype).returncode == 0
    assert run("model", "new", tmp_path / "other", "--shape", "tiny", "--seed", 6, "--dtype", dtype).returncode == 0
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
    assert "LlamaForCausalLM" in message(edit_config(architectures=["LlamaForCausalLM"], model_type="llama"))
    assert "lm_head.weight" in message(edit_config(tie_word_embeddings=False))
    assert "rope_parameters" in message(edit_config(rope_parameters={"rope_type": "yarn", "factor": 4.0}))
    tokens.write_text(json.dumps({"rows": [[1, 512]]}))
    assert "512" in message(lambda f: None)
