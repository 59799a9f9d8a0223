"""The published search recipes, on generated questions and passages, and with random networks."""
import http.server
import json
import subprocess
import threading

import pytest
from measured import MEASURED

RECIPES = ["gigpo_qwen2.5_7b", "gigpo_qwen2.5_3b", "grpo_qwen2.5_7b", "grpo_qwen2.5_3b"]
SOURCES = ["nq", "hotpotqa", "triviaqa", "popqa", "2wikimultihopqa", "musique", "bamboogle"]
WORLD = "{generate: {entities: 200, train: 100, eval: 40, size: small}}"
MODEL = "{hidden_size: 32, intermediate_size: 64, layers: 1, heads: 4, kv_heads: 2, vocab_size: 512}"


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as Search-R1's server, with passages that name the query."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        passage = {"document": {"id": "7", "contents": '"A title"\nText.'}, "score": 1.0}
        reply = json.dumps({"result": [[passage] * request["topk"] for _ in request["queries"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """Files of 90 questions of each data set, in verl's form for training."""
    folder = tmp_path_factory.mktemp("questions")
    rows = [{"question": f"what is number {n} of {source}?", "golden_answers": [str(n)], "data_source": source}
            for n in range(90) for source in SOURCES]
    verl = [{"env_kwargs": {"question": row["question"]}, "data_source": "searchR1_" + row["data_source"],
             "reward_model": {"ground_truth": {"target": row["golden_answers"]}}} for row in rows]
    for name, lines in [("train", verl), ("test", rows)]:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def as_arguments(sets):
    return [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def random_model(root, run, tmp_path_factory):
    """A tiny random model with a tokenizer of the generated world's texts, in the form of a published one."""
    folder = tmp_path_factory.mktemp("model")
    sets = {"model.path": "null", "model.new": MODEL, "device": "cpu", "env.config": WORLD, "iterations": 0, "update.warmup": 0,
            "eval.tasks": 1}
    done = run("train", root / "recipes/search/gigpo_qwen2.5_3b.yaml", *as_arguments(sets), "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    tokenizer = folder / "run/model/tokenizer.json"
    done = run("model", "new", folder / "tiny", "--shape", "tiny", "--layers", 2, "--tokenizer", tokenizer)
    assert done.returncode == 0, done.stderr
    return folder / "tiny"


def filled_in(model, questions, server):
    """The keys that a user fills in."""
    return {"model.path": model, "env.config.questions.train": questions / "train.jsonl",
            "env.config.questions.eval": questions / "test.jsonl",
            "env.config.retriever.http.url": f"http://127.0.0.1:{server.server_port}"}


@pytest.mark.parametrize("name", RECIPES)
def test_published_recipes_pass_the_check(name, root, run_json, random_model, questions, server, tmp_path):
    recipe = root / f"recipes/search/{name}.yaml"
    assert recipe.read_text().count(f"recipes/search/{name}.yaml") == 1  # its own command
    sets = filled_in(random_model, questions, server)
    verdict = run_json("train", recipe, *as_arguments(sets), "--check", "--json", "--run-dir", tmp_path / "run")
    assert verdict["passes"] and not (tmp_path / "run").exists()
    assert verdict["eval_tasks"] == 90 * len(SOURCES) and 0 < verdict["prompt"]["tokens"] <= 4096
    text = verdict["prompt"]["text"]
    assert "what is number" in text and "<search> </search>" in text and "<answer> </answer>" in text
    # Training questions are those of NQ and HotpotQA alone.
    assert any(f"of {source}?" in text for source in ["nq", "hotpotqa"])


# The 3B recipes repeat those of 7B with another model.
@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("7b")])
def test_published_recipes_start(name, root, run, tmp_path):
    """One iteration of each, with a tiny random model in place of the real one, fewer episodes and a generated corpus."""
    sets = {"model.path": "null", "model.new": MODEL, "device": "cpu", "env.config": WORLD, "iterations": 1, "update.warmup": 0, "eval.tasks": 2,
            "rollout.tasks": 2, "rollout.group_size": 2, "rollout.max_response_tokens": 8, "update.mini_batch": 4}
    done = run("train", root / f"recipes/search/{name}.yaml", *as_arguments(sets), "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["iteration"] == 1 and "loss/policy" in metrics[-1] and "eval/success" in metrics[0]
    assert {"env/searches", "env/measured_cache_hits", "env/f1"} <= metrics[-1].keys()


def test_a_corpus_in_a_file_gives_the_run_of_the_world_in_memory(root, run, tmp_path):
    """A warm start and an iteration that searches a BM25 index on disk: every number is that of the run that holds the same
    passages in memory."""
    size = {"entities": 200, "train": 100, "eval": 40}
    options = [word for key, value in size.items() for word in (f"--{key}", str(value))]
    tool = [root / "target/release/nestor-search", "world", tmp_path / "world", "--size", "small", *options]
    subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
    sets = {"iterations": 1, "deterministic": "true", "warm_start.steps": 60, "rollout.tasks": 4, "eval.tasks": 20, "update.mini_batch": 32,
            "env.config.generate": json.dumps({**size, "size": "small", "choices": True})}
    runs = {}
    for name, retriever in [("memory", "null"), ("file", json.dumps({"bm25": {"corpus": str(tmp_path / "world/corpus.jsonl")}}))]:
        folder = tmp_path / name
        done = run("train", root / "recipes/search/cpu.yaml", *as_arguments({**sets, "env.config.retriever": retriever}),
                   "--run-dir", folder)
        assert done.returncode == 0, done.stderr
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        runs[name] = [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in metrics]
    assert runs["memory"][-1]["env/searches"] > 0 and (tmp_path / "world/corpus.jsonl.bm25").is_dir()
    assert runs["file"] == runs["memory"]
