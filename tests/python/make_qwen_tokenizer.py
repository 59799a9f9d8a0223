"""Rebuilds Qwen2.5's tokenizer.json without a download from the model hub.

The byte-pair ranks come from the PyPI package dashscope (resources/qwen.tiktoken, Apache-2.0). A rank file lists
tokens in the order of their merges but not their two halves. Those are found by byte-pair encoding of the token with only the
ranks below its own. The result's ids are checked against known ones.

usage: make_qwen_tokenizer.py OUT/tokenizer.json [qwen.tiktoken]
"""
import base64
import importlib.util
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [
    f"<|{name}|>" for name in
    "object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start vision_end vision_pad "
    "image_pad video_pad".split()]
ADDED = ["<tool_call>", "</tool_call>"] + [
    f"<|{name}|>" for name in "fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep".split()]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
KNOWN = {"You are Qwen, created by Alibaba Cloud.": [2610, 525, 1207, 16948, 11, 3465, 553, 54364, 14817, 13],
         "<|im_end|>": [151645], "<|file_sep|>": [151664]}


def byte_letters():
    """The printable letter that stands for each byte in byte-level vocabularies."""
    printable = set(range(ord("!"), ord("~") + 1)) | set(range(ord("¡"), ord("¬") + 1)) | set(range(ord("®"), 256))
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def halves(token, ranks):
    """The two pieces whose merge made a token."""
    own, pieces = ranks[token], [token[i:i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        pairs = [(ranks.get(a + b, own), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:]))]
        rank, i = min(pairs)
        if rank >= own:
            raise ValueError(f"token {own} is not a merge of two others")
        pieces[i:i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


def build(rank_file):
    """The tokenizer of a file with one `base64 rank` per line."""
    lines = (line.split() for line in Path(rank_file).read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = byte_letters()
    spell = lambda token: "".join(letters[byte] for byte in token)
    in_order = sorted(ranks, key=ranks.get)
    merges = [tuple(map(spell, halves(token, ranks))) for token in in_order if len(token) > 1]
    tokenizer = Tokenizer(models.BPE(vocab={spell(token): rank for token, rank in ranks.items()}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    for text, ids in KNOWN.items():
        if tokenizer.encode(text).ids != ids:
            raise ValueError(f"{rank_file}: {text!r} gives {tokenizer.encode(text).ids} instead of {ids}")
    return tokenizer


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if len(sys.argv) == 3:
        rank_file = Path(sys.argv[2])
    else:
        # Found, not imported: importing the package takes long.
        package = importlib.util.find_spec("dashscope")
        if package is None:
            sys.exit("make_qwen_tokenizer.py: the package dashscope is missing; install the group test of pyproject.toml (scripts/setup.sh --test)")
        rank_file = Path(package.origin).parent / "resources" / "qwen.tiktoken"
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    build(rank_file).save(str(out))


if __name__ == "__main__":
    main()
