"""Qwen2.5-VL against transformers' Qwen2_5_VLForConditionalGeneration with random weights, float32: log-probs, greedy tokens
with the cache, the new models of `nestor model new`.

The pictures have odd sizes: one token, windows cut at both edges, long strips. Sequences have none, one and several, and two
turns. The processor's patches have tests of their own (test_images.py).
"""
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration
from vision_models import IMAGE, VOCAB, inputs, logits, make_model, picture, save, sequence, write_rows

TOLERANCE, FAULT = 1e-4, 1e-2


def rows():
    g = torch.Generator().manual_seed(1)
    parts = [[12], [5, picture(61, 90, 1), 9], [3, picture(171, 143, 2), 4, picture(20, 300, 3), 1, picture(57, 56, 4), 6],
             # Two turns: text, picture, response, picture, response.
             [7, picture(100, 240, 5), 8, picture(84, 84, 6), 11], [picture(300, 131, 7), 2]]
    return [sequence(g, part) for part in parts]


@torch.no_grad()
def reference(model, rows):
    all_rows = []
    for ids, pictures in rows:
        logp = torch.log_softmax(logits(model, ids, pictures)[:-1].float(), -1)
        all_rows.append(logp.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())
    return all_rows


def largest(got, want):
    assert [len(row) for row in got] == [len(row) for row in want]
    return max(abs(g - w) for gs, ws in zip(got, want) for g, w in zip(gs, ws))


@pytest.fixture
def scored(run_json, tmp_path):
    def call(folder, rows):
        tokens = write_rows(tmp_path, rows)
        return run_json("score", folder, "--tokens", tokens, "--dtype", "float32", "--device", "cpu", "--json")["logprobs"]
    return call


@pytest.mark.parametrize("tied", [True, False])
def test_score_equals_transformers(tied, tmp_path, scored, ops):
    model = make_model(tmp_path / "model", tied)
    assert largest(scored(tmp_path / "model", rows()), reference(model, rows())) <= TOLERANCE


def changed_config(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def other_window(folder):
    changed_config(folder, lambda config: config["vision_config"].update(window_size=112))


def other_full_block(folder):
    changed_config(folder, lambda config: config["vision_config"].update(fullatt_block_indexes=[2]))


def other_sections(folder):
    changed_config(folder, lambda config: config["text_config"]["rope_parameters"].update(mrope_section=[4, 2, 2]))


def other_merger_order(folder):
    """The patches of a square in another order."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("merger.mlp.0.weight"))
    tensors[name] = tensors[name].unflatten(1, (4, -1)).roll(1, 1).flatten(1).contiguous()
    save_file(tensors, path, {"format": "pt"})


def other_mean(folder):
    path = folder / "preprocessor_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"image_mean": [0.5, 0.5, 0.5]}))


@pytest.mark.parametrize("fault", [other_window, other_full_block, other_sections, other_merger_order, other_mean])
def test_score_sees_faults(fault, tmp_path, scored):
    model = make_model(tmp_path / "model")
    fault(tmp_path / "model")
    seen = rows()[2:3]
    assert largest(scored(tmp_path / "model", seen), reference(model, seen)) > FAULT


def test_published_form_of_names_and_configuration(tmp_path, scored):
    model = make_model(tmp_path / "model")
    want = scored(tmp_path / "model", rows())
    path = tmp_path / "model/config.json"
    new = json.loads(path.read_text())
    text = new.pop("text_config")
    rope = text.pop("rope_parameters")
    # As Qwen publishes it: one level, and M-RoPE under its old name.
    flat = new | {k: v for k, v in text.items() if k not in ("model_type", "layer_types")}
    flat |= dict(rope_theta=rope["rope_theta"], rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]))
    flat["vision_config"] = {k: v for k, v in new["vision_config"].items() if k not in ("rope_parameters", "in_channels")}
    flat["vision_config"]["in_chans"] = 3
    path.write_text(json.dumps(flat))
    assert scored(tmp_path / "model", rows()) == want
    # The names of transformers' modules.
    weights = tmp_path / "model/model.safetensors"
    long = lambda n: n.replace("visual.", "model.visual.", 1) if n.startswith("visual.") else n.replace("model.", "model.language_model.", 1)
    save_file({long(name): value for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    assert scored(tmp_path / "model", rows()) == want


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """The folder of a model, prompts and their continuations by transformers."""
    folder = tmp_path_factory.mktemp("continued") / "model"
    model, prompts, want = make_model(folder), rows(), []
    # Siblings that differ in a picture alone: same tokens, other pixels.
    ids, (first, *_) = prompts[1]
    other = picture(*first.size, 99)
    prompts += [(ids, [other]), (ids, [first])]
    for ids, pictures in prompts:
        model.model.rope_deltas = None
        made = model.generate(**inputs(ids, pictures), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
        want.append(made[0, len(ids):].tolist())
    return folder, prompts, want


@pytest.mark.parametrize("decode", ["plain", "recorded"])
def test_greedy_tokens_with_the_cache_equal_transformers(decode, continued, tmp_path, run_json, ops, monkeypatch):
    monkeypatch.setenv("NESTOR_DECODE", decode)
    folder, prompts, want = continued
    done = run_json("generate", folder, "--tokens", write_rows(tmp_path, prompts), "--temperature", "0",
                    "--max-new-tokens", "24", "--dtype", "float32", "--device", "cpu", "--json")
    assert done["tokens"] == want
    assert done["tokens"][1] == done["tokens"][-1] != done["tokens"][-2]


def test_a_new_model_is_what_transformers_reads(tmp_path, run, scored):
    assert run("model", "new", tmp_path / "new", "--shape", "qwen2.5-vl-tiny", "--dtype", "float32").returncode == 0
    model, notes = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(notes.values()), notes
    for name, parameter in model.named_parameters():
        value = parameter.float()
        if "norm" in name or "ln_q" in name:
            assert (value == 1).all()
        elif name.endswith("bias"):
            assert (value == 0).all()
        else:
            assert abs(value.std() / 0.02 - 1) < 0.1, name
    # Its ids of images are others than those of the test's models.
    config = model.config
    shown = [(_relabel(ids, config), pictures) for ids, pictures in rows()[:3]]
    import vision_models
    before = vision_models.IMAGE
    vision_models.IMAGE = config.image_token_id
    try:
        assert largest(scored(tmp_path / "new", shown), reference(model, shown)) <= TOLERANCE
    finally:
        vision_models.IMAGE = before


def _relabel(ids, config):
    return [config.image_token_id if token == IMAGE else token % 500 for token in ids]
