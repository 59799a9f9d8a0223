#!/usr/bin/env python3
"""Steps per second of the plugin webshop and of the original engine, in turn.

    scripts/bench/webshop.py SOURCE [--data DIR] [--steps N] [--rounds N]

SOURCE is a copy of https://github.com/princeton-nlp/WebShop, with empty __init__.py files in web_agent_site/{engine,envs}. Run
this with a Python that has flask, beautifulsoup4, numpy and thefuzz. The original's pages, clicks and rewards are real. Its
search is a table, made before the clock starts, and its tagger takes every word for a noun: both flatter it.
"""
import argparse
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "target/release/nestor-webshop"
QUERIES = 60  # goals of as many queries are played
FOUND = {}


class Searcher:
    """Stands for Lucene."""
    def __init__(self, _):
        pass

    def search(self, query, k):
        return [types.SimpleNamespace(docid=asin) for asin in FOUND[query][:k]]

    def doc(self, asin):
        return types.SimpleNamespace(raw=lambda: json.dumps({"id": asin}))


def stub(name, **names):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(names)


def original(source, data):
    """The original's environment, without the packages that it does not need for play."""
    words = lambda text: [types.SimpleNamespace(text=word, pos_="NOUN") for word in re.findall("[A-Za-z]+", text)]
    for name in ["torch", "cleantext", "pyserini", "pyserini.search"]:
        stub(name)
    stub("spacy", load=lambda _: words)
    stub("gym", Env=object)
    stub("rank_bm25", BM25Okapi=None)
    stub("rich", print=lambda *_: None)
    stub("tqdm", tqdm=lambda items, **_: items)
    stub("pyserini.search.lucene", LuceneSearcher=Searcher)
    sys.path.insert(0, str(source))
    from web_agent_site import utils
    utils.DEFAULT_FILE_PATH, utils.DEFAULT_ATTR_PATH = f"{data}/items_shuffle.json", f"{data}/items_ins_v2.json"
    utils.HUMAN_ATTR_PATH = f"{data}/items_human_ins.json"
    from web_agent_site.envs.web_agent_text_env import WebAgentTextEnv
    return WebAgentTextEnv(observation_mode="text", file_path=utils.DEFAULT_FILE_PATH, human_goals=False)


def query(goal):
    return " ".join([*goal["attributes"], goal["query"], *goal["goal_options"].values()]).lower()


def original_rate(env, steps, rng):
    """Steps per second of random clicks and of searches for the goal."""
    goals, played, seconds = env.server.goals, 0, 0.0
    known = [i for i, goal in enumerate(goals) if query(goal) in FOUND]
    while played < steps:
        index = rng.choice(known)
        env.reset(session=index)
        begin = time.perf_counter()
        for _ in range(15):
            actions = env.get_available_actions()
            choice = rng.choice(["search"] * actions["has_search_bar"] + actions["clickables"])
            action = f"search[{query(goals[index])}]" if choice == "search" else f"click[{choice}]"
            played += 1
            if env.step(action)[2]:
                break
        seconds += time.perf_counter() - begin
    return played / seconds


def tool(*args):
    return json.loads(subprocess.run([TOOL, *args, "--json"], capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--data", type=Path, help="folder of a shop's files; by default the recorded shop of the tests")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    unpacked = tempfile.TemporaryDirectory()
    if args.data is None:
        with tarfile.open(ROOT / "tests/fixtures/webshop/shop.tar.gz") as archive:
            archive.extractall(unpacked.name, filter="data")
        args.data = Path(unpacked.name) / "data"
    env, rng = original(args.source, args.data), random.Random(0)
    for text in sorted({query(goal) for goal in env.server.goals})[:QUERIES]:
        FOUND[text] = [asin for asin, _ in tool("search", "--data", args.data, "--query", text, "--top", "50")]
    for _ in range(args.rounds):
        theirs = original_rate(env, args.steps, rng)
        ours = tool("bench", "--data", args.data, "--steps", str(1000 * args.steps))["steps_per_s"]
        print(f"nestor {ours:.0f} steps/s, the original without Lucene {theirs:.0f}: {ours / theirs:.0f} times")


if __name__ == "__main__":
    main()
