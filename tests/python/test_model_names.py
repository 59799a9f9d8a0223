"""Models by name: folders with `~`, ids in a Hugging Face cache, runs and checkpoints. No test needs the network."""
import hashlib
import json
import os
import shutil

import pytest
from huggingface_hub import snapshot_download

COMMIT, LATER = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567", "f00d" * 10
ID = "Nestor/Tiny-0.1"


def fill_cache(hub, folder, name=ID, commit=COMMIT, **edits):
    """Puts a model folder into a Hugging Face cache as `hf download` does: blobs by checksum, links to them, a ref."""
    entry = hub / f"models--{name.replace('/', '--')}"
    snapshot = entry / "snapshots" / commit
    for made in (entry / "blobs", entry / "refs", snapshot):
        made.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        content = edits.get(file.stem, lambda same: same)(file.read_bytes())
        blob = entry / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (entry / "refs/main").write_text(commit)
    return snapshot


def sets(*values):
    return [word for value in values for word in ("--set", value)]


def train(run, root, run_dir, *values, **more):
    done = run("train", root / "recipes/smoke/gigpo.yaml", *sets("device=cpu", "iterations=1", "eval.tasks=4", *values),
               "--run-dir", run_dir, **more)
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.fixture(scope="module")
def first(run, root, tmp_path_factory):
    """A run that made its model."""
    return train(run, root, tmp_path_factory.mktemp("first") / "run", "warm_start.steps=2")


@pytest.fixture(scope="module")
def cache(first, tmp_path_factory):
    """A Hugging Face home that holds the model of that run; the name is not that of the run's folder."""
    home = tmp_path_factory.mktemp("hf")
    snapshot = fill_cache(home / "hub", first / "model")
    assert snapshot_download(ID, cache_dir=home / "hub", local_files_only=True) == str(snapshot)
    return home


@pytest.fixture
def env(cache, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(cache))


NAMED = ["model.new=null", "warm_start=null"]


def test_a_hub_id_is_the_cached_snapshot(first, cache, env, run, run_json, root, tmp_path):
    """A run keeps the id, records the commit, and says so when the cache has moved to another one."""
    chat = root / "docs/examples/chat.json"
    snapshot = cache / f"hub/models--Nestor--Tiny-0.1/snapshots/{COMMIT}"
    want = run_json("tokenize", first / "model", "--chat", chat, "--json")
    for name in (ID, f"{ID}@main", f"{ID}@{COMMIT}", snapshot):
        assert run_json("tokenize", name, "--chat", chat, "--json") == want, name

    home = shutil.copytree(cache, tmp_path / "hf", symlinks=True)
    own = {"env": {**os.environ, "HF_HOME": str(home)}}
    run_dir = train(run, root, tmp_path / "run", *NAMED, f"model.path={ID}", "model.lora={rank: 2, alpha: 2}", **own)
    recipe = (run_dir / "recipe.yaml").read_text()
    assert f"# model {ID}, revision {COMMIT}\n" in recipe and f"path: {ID}\n" in recipe
    checkpoint = run_dir / "checkpoints/iteration-000001"
    again = ["train", "--resume", "--run-dir", run_dir, *sets("iterations=2")]
    # The same weights under a later commit: a warning. Other weights: the adapters do not belong to them.
    fill_cache(home / "hub", first / "model", commit=LATER)
    done = run(*again, **own)
    assert done.returncode == 0 and f"revision {LATER}: the run began with revision {COMMIT}" in done.stdout + done.stderr, done
    assert f"revision {LATER}" in (run_dir / "recipe.yaml").read_text()
    fill_cache(home / "hub", first / "model", commit="beef" * 10, model=lambda data: data[:-4] + b"\0\0\0?")
    again[-1] = "iterations=3"
    done = run(*again, **own)
    assert done.returncode == 2 and "the weights are not those that the run began with" in done.stderr, done.stderr
    assert checkpoint.exists()


def test_a_model_that_the_cache_lacks(cache, env, run, root, tmp_path):
    def refused(*args):
        done = run(*args)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        return done.stderr

    recipe, hub = root / "recipes/smoke/gigpo.yaml", cache / "hub"
    message = refused("train", recipe, *sets(*NAMED, "model.path=nestor/tiny-0.2"), "--run-dir", tmp_path / "run")
    for word in ("`model.path`", f"cache {hub}", f"(it holds {ID})", "`hf download nestor/tiny-0.2`"):
        assert word in message, message
    assert "`hf download a/b --revision v1`" in refused("generate", "a/b@v1", "--chat", "x")
    assert "revision v1" in refused("generate", f"{ID}@v1", "--chat", "x")
    assert "--shape" in refused("plan", recipe, *sets(*NAMED, "model.path=a/b"))

    home = shutil.copytree(cache, tmp_path / "hf", symlinks=True)
    next(home.glob("hub/*/snapshots/*/model.safetensors")).resolve().unlink()  # as an interrupted download
    done = run("eval", recipe, "--model", ID, env={**os.environ, "HF_HOME": str(home)})
    assert done.returncode == 2 and "model.safetensors is missing" in done.stderr and f"`hf download {ID}`" in done.stderr


def test_a_folder_comes_first_and_tilde_is_home(first, env, run, root, tmp_path):
    """In a recipe as in an argument; a shell does not expand the `~` of `--set model.path=~/x`."""
    shutil.copytree(first / "model", tmp_path / ID)
    (tmp_path / ID / "chat_template.jinja").write_text("own")
    home, chat = {"env": {**os.environ, "HOME": str(tmp_path)}}, root / "docs/examples/chat.json"
    here = run("tokenize", ID, "--chat", chat, cwd=tmp_path)
    assert here.stdout == run("tokenize", f"~/{ID}", "--chat", chat, **home).stdout != run("tokenize", ID, "--chat", chat).stdout
    run_dir = train(run, root, tmp_path / "run", *NAMED, f"model.path=~/{ID}", "rollout.template=null", **home)
    assert f"path: ~/{ID}\n" in (run_dir / "recipe.yaml").read_text()


def test_runs_checkpoints_and_folders_are_models(first, run, run_json, root, tmp_path):
    """All commands take all of them; a run is its newest checkpoint, and an export of it computes the same."""
    checkpoint, exported = first / "checkpoints/iteration-000001", tmp_path / "exported"
    assert run("export", first, exported).returncode == 0
    tokens, chat = root / "docs/examples/tokens.json", root / "docs/examples/chat.json"
    commands = [("score", "--tokens", tokens), ("tokenize", "--chat", chat),
                ("generate", "--chat", "hello", "--max-new-tokens", 4, "--temperature", 0)]
    for command, *options in commands:
        got = [run_json(command, model, *options, "--json") for model in (first, checkpoint, exported)]
        assert got[0] == got[1] == got[2], command
    start = run_json("score", first / "model", "--tokens", tokens, "--json")
    assert start != run_json("score", first, "--tokens", tokens, "--json"), "the run changed nothing: it shows nothing"
    done = run("score", tmp_path, "--tokens", tokens)
    assert done.returncode == 2 and "neither a run directory with a checkpoint" in done.stderr
    done = run("view", checkpoint, "--out", tmp_path / "view.html")
    assert done.returncode == 0, done.stderr


def test_folders_that_are_no_whole_model(first, run, root, tmp_path):
    """Each gets one message with the remedy, where transformers loads something else or refuses too."""
    def check(folder):
        return run("train", root / "recipes/smoke/gigpo.yaml", "--check", "--run-dir", tmp_path / "unused",
                   *sets("model.new=null", f"model.path={folder}", "warm_start=null"))

    def variant(name, change):
        folder = tmp_path / name
        shutil.copytree(first / "model", folder)
        change(folder)
        return check(folder)

    def adapters(folder):
        (folder / "config.json").rename(folder / "adapter_config.json")

    def old_tokenizer(folder):
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text("{}")

    def templates(folder):
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text())
        file.write_text(json.dumps(settings | {"chat_template": [{"name": "rag", "template": settings["chat_template"]}]}))

    def talks_on(folder):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
        for name in ("tokenizer_config.json", "config.json"):
            file = folder / name
            file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if "eos" not in key}))

    for name, change, words in [("adapters", adapters, "merge_and_unload"), ("old", old_tokenizer, "AutoTokenizer"),
                                ("templates", templates, "lists rag")]:
        done = variant(name, change)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert check(first).returncode == 0  # a run is a model to begin with, and a teacher is a folder
    done = run("bench", "score", "--model", first)
    assert done.returncode == 2 and f"nestor export {first} DIR" in done.stderr, done.stderr
    whole, talking = check(first / "model"), variant("talks", talks_on)
    assert whole.returncode == talking.returncode == 0, talking.stderr
    assert "ends no sequence" in talking.stdout + talking.stderr and "ends no sequence" not in whole.stdout + whole.stderr
