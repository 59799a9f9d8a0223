"""Writes a GGUF file as a Hugging Face folder in bfloat16: weights, config, tokenizer and chat template.

    .venv/bin/python scripts/models/from_gguf.py FILE DIR

The architectures are Llama, Qwen2 and Qwen3, with byte-level BPE tokenizers. The package `gguf`, which llama.cpp's
developers publish, reads the file and dequantises each tensor.
"""
import argparse
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

# The architecture's name in GGUF: its class in transformers, and whether llama.cpp stores queries and keys with the two
# halves of a head's rotary pairs interleaved.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", True),
    "qwen2": ("Qwen2ForCausalLM", False),
    "qwen3": ("Qwen3ForCausalLM", False),
}
# A tensor's name in GGUF and in transformers; BLOCK is the number of a block.
OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The divisors of Llama 3.1's rotary frequencies.
FREQUENCIES = "rope_freqs.weight"
# Two matrices that differ by less than this share are one matrix, quantised twice. Four bits differ by about a tenth.
SAME = 0.3

# How a text is cut into words before BPE, by `tokenizer.ggml.pre`, as the tokenizer.json of the published models has it.
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
PRE = {
    "qwen2": [{"type": "Split", "pattern": {"Regex": WORDS % r"\p{N}"}, "behavior": "Isolated", "invert": False}, BYTES],
    "llama-bpe": [
        {"type": "Split", "pattern": {"Regex": WORDS % r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}, BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, {**BYTES, "use_regex": True}],
    "gpt-2": [{**BYTES, "use_regex": True}],
}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens


class InputError(Exception):
    """A file that cannot be converted, in a sentence for the user."""


class Fields:
    """The file's metadata."""

    def __init__(self, reader, path):
        self.fields, self.path = reader.fields, path

    def get(self, key, default=None):
        field = self.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key):
        if (value := self.get(key)) is None:
            raise InputError(f"{self.path} has no `{key}`")
        return value


def convert(path, folder, generation=None, card=None):
    """Writes the folder whole or not at all. `generation` is added to generation_config.json; `card` is the README."""
    folder, partial = Path(folder), Path(f"{folder}.converting")
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as err:
        raise InputError(f"{path} is not a GGUF file, or a damaged one: {err}") from err
    fields = Fields(reader, path)
    name = fields.need("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise InputError(f"{path} has the architecture `{name}`; the known ones are {known}")
    tokenizer, settings = read_tokenizer(fields)
    weights = read_weights(reader, fields, name)
    config = read_config(reader, fields, name, weights)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    texts = {
        "config.json": config,
        "generation_config.json": {**ends, **(generation or {})},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
    }
    for file, value in texts.items():
        (partial / file).write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    if template := fields.get("tokenizer.chat_template"):
        (partial / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    # save_file gives the file to its owner alone.
    shutil.copymode(partial / "config.json", partial / "model.safetensors")
    origin = f"Converted from `{Path(path).name}` by scripts/models/from_gguf.py.\n"
    (partial / "README.md").write_text(card or origin, encoding="utf-8")
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    try:
        os.rename(partial, folder)
    except OSError:
        shutil.rmtree(partial)
        raise InputError(f"{folder} exists; remove it first") from None


def read_weights(reader, fields, name):
    """Every tensor in bfloat16 under transformers' name. One tensor at a time is in float32."""
    heads = fields.need(f"{name}.attention.head_count")
    kv_heads = fields.get(f"{name}.attention.head_count_kv", heads)
    interleaved = ARCHITECTURES[name][1]
    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name != FREQUENCIES}
    weights = {}
    for tensor in tensors.values():
        place, _, kind = tensor.name.rpartition(".")
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)", place)
        to = BLOCK.get(block[2]) if block else OUTER.get(place)
        if to is None or kind not in ("weight", "bias"):
            raise InputError(f"{fields.path} has the tensor `{tensor.name}`, which {name} has not")
        value = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        if interleaved and block and block[2] in ("attn_q", "attn_k"):
            value = halves(value, heads if block[2] == "attn_q" else kv_heads)
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{to}.{kind}"] = value.bfloat16().contiguous()
    tie(weights, tensors)
    return weights


def halves(value, heads):
    """Rows of a head as transformers has them, first all first halves of the rotary pairs, from llama.cpp's pairs."""
    return value.view(heads, -1, 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)


def tie(weights, tensors):
    """A head that is the embedding is stored once, from the copy with more bits."""
    head, embedding = weights.get("lm_head.weight"), weights["model.embed_tokens.weight"]
    if head is None or head.shape != embedding.shape:
        return
    some = torch.linspace(0, len(head) - 1, min(len(head), 1000)).long()
    a, b = head[some].float(), embedding[some].float()
    if (a - b).norm() > SAME * b.norm():
        return
    finer = max("output.weight", "token_embd.weight", key=lambda name: tensors[name].n_bytes)
    weights["model.embed_tokens.weight"] = head if finer == "output.weight" else embedding
    del weights["lm_head.weight"]


def llama3(factor, base, dim):
    """The division of each rotary frequency by Llama 3.1's rope scaling, of which GGUF has the result alone."""
    wave = 2 * math.pi * base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    smooth = ((8192 / wave - 1) / 3).clamp(0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def rope_scaling(reader, fields, name):
    """`rope_scaling` of config.json, or none."""
    for tensor in reader.tensors:
        if tensor.name == FREQUENCIES:
            divisors, base = torch.from_numpy(np.array(tensor.data)).double(), fields.get(f"{name}.rope.freq_base", 1e4)
            for factor in (8.0, 32.0):
                if torch.allclose(divisors, llama3(factor, base, 2 * len(divisors)), rtol=1e-4):
                    return {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 8192}
            raise InputError(f"{fields.path} has rotary frequencies that are not those of Llama 3 with factor 8 or 32")
    kind = fields.get(f"{name}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise InputError(f"{fields.path} has the rope scaling `{kind}`; linear and yarn are known")
    scaling = {"rope_type": kind, "factor": fields.need(f"{name}.rope.scaling.factor")}
    if original := fields.get(f"{name}.rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = original
    return scaling


def short(value):
    """A float32 as the shortest decimal that gives it again: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def read_config(reader, fields, name, weights):
    heads = fields.need(f"{name}.attention.head_count")
    width = fields.need(f"{name}.embedding_length")
    config = {
        "architectures": [ARCHITECTURES[name][0]],
        "model_type": name,
        "vocab_size": len(weights["model.embed_tokens.weight"]),
        "hidden_size": width,
        "intermediate_size": fields.need(f"{name}.feed_forward_length"),
        "num_hidden_layers": fields.need(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get(f"{name}.attention.head_count_kv", heads),
        "head_dim": fields.get(f"{name}.attention.key_length", width // heads),
        "hidden_act": "silu",
        "max_position_embeddings": fields.need(f"{name}.context_length"),
        "rope_theta": short(fields.get(f"{name}.rope.freq_base", 1e4)),
        "rms_norm_eps": short(fields.need(f"{name}.attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "attention_bias": name == "llama" and "model.layers.0.self_attn.q_proj.bias" in weights,
        "torch_dtype": "bfloat16",
    }
    if name == "llama":
        config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in weights
    if name == "qwen2":
        del config["head_dim"], config["attention_bias"]  # always width / heads, always a bias
    if scaling := rope_scaling(reader, fields, name):
        config["rope_scaling"] = scaling
    for key in ("bos", "eos", "pad"):
        token = fields.get(f"tokenizer.ggml.{'padding' if key == 'pad' else key}_token_id")
        if token is not None:
            config[f"{key}_token_id"] = token
    return config


def read_tokenizer(fields):
    """`tokenizer.json` and `tokenizer_config.json`."""
    model, pre = fields.need("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in PRE:
        raise InputError(
            f"{fields.path} has a tokenizer of kind `{model}` with words by `{pre}`; kind `gpt2` with words by "
            f"{', '.join(PRE)} is known")
    tokens = fields.need("tokenizer.ggml.tokens")
    types = fields.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    added = [
        {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": kind == CONTROL}
        for id, (token, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER_DEFINED)
    ]
    words = {"type": "Sequence", "pretokenizers": PRE[pre]} if len(PRE[pre]) > 1 else PRE[pre][0]
    begin = fields.get("tokenizer.ggml.add_bos_token", False) and fields.get("tokenizer.ggml.bos_token_id")
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": words,
        "post_processor": {**BYTES} if begin is False or begin is None else begins_with(tokens[begin], begin),
        "decoder": {**BYTES},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            # Llama's and SmolLM2's special tokens are in their vocabulary; Qwen's are beside it, as transformers writes them.
            "vocab": {token: id for id, (token, kind) in enumerate(zip(tokens, types)) if in_vocabulary(kind, pre)},
            "merges": [pair.split(" ", 1) for pair in fields.need("tokenizer.ggml.merges")],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings["model_max_length"] = fields.need(f"{fields.need('general.architecture')}.context_length")
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")):
        id = fields.get(f"tokenizer.ggml.{key}_token_id")
        if id is not None and not (name == "bos_token" and pre == "qwen2"):  # Qwen's texts have no begin
            settings[name] = tokens[id]
    return tokenizer, settings


def in_vocabulary(kind, pre):
    return kind == NORMAL or (pre != "qwen2" and kind != UNUSED)


def begins_with(token, id):
    """A post-processor that puts the token before a text."""
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}, special, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }


def main():
    parser = argparse.ArgumentParser(description="Writes a GGUF file as a Hugging Face folder in bfloat16.")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        if args.folder.exists():
            raise InputError(f"{args.folder} exists; remove it first, or name another folder")
        convert(args.file, args.folder)
    except InputError as err:
        print(f"from_gguf: {err}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
