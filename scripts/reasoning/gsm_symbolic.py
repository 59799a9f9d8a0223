#!/usr/bin/env python3
"""Writes word problems like those of GSM8K as files of prompts: FOLDER/train.jsonl and FOLDER/eval.jsonl, with other seeds.

    pip install reasoning-gym==0.1.25      (in an environment of its own; Python 3.11 or newer)
    scripts/reasoning/gsm_symbolic.py runs/gsm [--train 2000] [--eval 200]

The problems are the templates of `gsm_symbolic` in reasoning-gym, with names and numbers drawn anew."""
import argparse
import importlib.metadata
import json
import pathlib
import sys

VERSION = "0.1.25"
SUFFIX = " Give the result as your final answer. Do not include units."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--eval", type=int, default=200)
    args = parser.parse_args()
    try:
        found = importlib.metadata.version("reasoning-gym")
        from reasoning_gym import create_dataset
    except ImportError as error:
        sys.exit(f"gsm_symbolic: {error}; pip install reasoning-gym=={VERSION}")
    if found != VERSION:
        sys.exit(f"gsm_symbolic: reasoning-gym {found} draws other problems than {VERSION}; pip install reasoning-gym=={VERSION}")
    args.folder.mkdir(parents=True, exist_ok=True)
    for split, size, seed in [("train", args.train, 1), ("eval", args.eval, 2)]:
        with open(args.folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for problem in create_dataset("gsm_symbolic", size=size, seed=seed):
                row = {"question": problem["question"].removesuffix(SUFFIX), "answer": problem["answer"]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"wrote {args.folder / split}.jsonl: {size} problems")


if __name__ == "__main__":
    main()
