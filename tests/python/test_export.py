"""`nestor export`: what transformers, peft and the Hub read of it."""
import json
import os
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftConfig
from safetensors.torch import load_file
from test_model_names import COMMIT, ID, NAMED, fill_cache, sets, train
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

# Keys of Qwen2.5's config.json that do not shape the network, and one that nobody knows. transformers 5 writes `dtype`.
KEPT = {"bos_token_id": 3, "pad_token_id": 4, "transformers_version": "4.43.1", "max_window_layers": 21, "dtype": "float32",
        "use_cache": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "unknown": {"to": ["everyone"]}}
GENERATION = {"do_sample": True, "eos_token_id": [282, 280], "pad_token_id": 280, "repetition_penalty": 1.05, "top_k": 20}
CARD = "---\nlicense: other\nlicense_name: tiny\nlicense_link: LICENSE\nlanguage: en\n---\n# Tiny\n"


@pytest.fixture(scope="module")
def base(run, root, tmp_path_factory):
    """A model folder with files as the Hub has them."""
    folder = train(run, root, tmp_path_factory.mktemp("base") / "run", "iterations=0", "warm_start.steps=2") / "model"
    config = json.loads((folder / "config.json").read_text()) | KEPT
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "README.md").write_text(CARD)
    (folder / "LICENSE").write_text("Take it.\n")
    return folder


@pytest.fixture(scope="module")
def tuned(base, run, root, tmp_path_factory):
    """A run with adapters in bfloat16 on that model, named by its Hub id; and the Hugging Face home."""
    home = tmp_path_factory.mktemp("hf")
    fill_cache(home / "hub", base)
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_CACHE": ""}
    values = [*NAMED, f"model.path={ID}", "model.lora={rank: 2, alpha: 4}", "dtype=bfloat16", "update.lr=1e-2", "iterations=2"]
    return train(run, root, tmp_path_factory.mktemp("tuned") / "run", *values, env=env), home, env


def export(run, *args, **kwargs):
    done = run("export", *args, **kwargs)
    assert done.returncode == 0, done.stderr
    return args[1]


def test_all_files_of_the_model_are_kept(base, run, root, tmp_path):
    """Every key of config.json has its value, but for the type of the weights."""
    run_dir = train(run, root, tmp_path / "run", *NAMED, f"model.path={base}", "critic={}", "estimator={plugin: ppo}",
                    "update.kl=null")
    folder = export(run, run_dir, tmp_path / "policy", "--dtype", "bfloat16")
    source, exported = (json.loads((folder / "config.json").read_text()) for folder in (base, folder))
    assert exported == source | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    config = AutoConfig.from_pretrained(folder)
    assert (config.bos_token_id, config.pad_token_id, config.dtype) == (3, 4, torch.bfloat16)
    assert config.rope_parameters["rope_theta"] == 1e6
    assert GenerationConfig.from_pretrained(folder).to_diff_dict().items() >= GENERATION.items()
    AutoModelForCausalLM.from_pretrained(folder)
    assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    critic = json.loads((export(run, run_dir, tmp_path / "critic", "--critic") / "config.json").read_text())
    assert critic["architectures"] == ["Qwen2ForTokenClassification"] and critic["unknown"] == KEPT["unknown"]
    # A folder is written in another type; it holds no critic.
    halved = export(run, base, tmp_path / "halved", "--dtype", "bfloat16")
    assert json.loads((halved / "config.json").read_text()) == exported
    for name, value in load_file(base / "model.safetensors").items():
        assert torch.equal(load_file(halved / "model.safetensors")[name], value.bfloat16()), name
    done = run("export", base, tmp_path / "no", "--critic")
    assert done.returncode == 2 and "neither a critic nor adapters" in done.stderr and not (tmp_path / "no").exists()


def test_the_adapter_loads_from_anywhere_and_merges_as_in_peft(base, tuned, run, tmp_path, monkeypatch):
    """The base is the Hub id at its commit, or an absolute folder. The run computed with the base in bfloat16."""
    run_dir, home, env = tuned
    adapter = export(run, run_dir, tmp_path / "adapter", "--adapter", env=env)
    config = PeftConfig.from_pretrained(adapter)
    assert (config.base_model_name_or_path, config.revision) == (ID, COMMIT)
    merged = load_file(export(run, run_dir, tmp_path / "merged", env=env) / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    model = AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=torch.bfloat16, cache_dir=home / "hub")
    want = {name: value for name, value in model.float().merge_and_unload().state_dict().items() if name in merged}
    assert want.keys() == merged.keys()
    before = load_file(base / "model.safetensors")
    assert max((want[name] - before[name]).abs().max() for name in want) > 1e-3
    for name, value in want.items():
        torch.testing.assert_close(merged[name], value, rtol=0, atol=1e-6, msg=name)


def test_a_run_begins_with_the_policy_of_another(tuned, run, root, tmp_path):
    """Of a run with adapters, merged; it trains new adapters, and resumes where the other run is gone."""
    run_dir, _, env = tuned
    other = "runs/other"  # which looks like a Hub id once it is gone
    shutil.copytree(run_dir, tmp_path / other, symlinks=True)
    want = load_file(export(run, run_dir, tmp_path / "policy", env=env) / "model.safetensors")
    own = train(run, root, tmp_path / "own", *NAMED, f"model.path={other}", "model.lora={rank: 2, alpha: 4}", env=env, cwd=tmp_path)
    got = load_file(own / "model/model.safetensors")
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)
    shutil.rmtree(tmp_path / other)
    done = run("train", "--resume", "--run-dir", own, "--set", "iterations=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    export(run, own, tmp_path / "again")


def test_the_card_of_a_warm_start_claims_no_reinforcement_learning(base, run, tmp_path):
    card = ModelCard.load(export(run, base.parent, tmp_path / "imitated") / "README.md")
    assert card.data.tags == ["imitation-learning", "nestor", "numberline"], card.data.tags
    assert "after supervised fine-tuning on episodes of the environment's expert" in card.text and "estimator" not in card.text.split("##")[0]


def test_the_card_states_what_the_run_recorded(tuned, run, tmp_path):
    """Read as the Hub reads it. A checkpoint without its run has no card."""
    run_dir, _, env = tuned
    run_dir = shutil.copytree(run_dir, tmp_path / "run", symlinks=True)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for row, success in zip(rows, (0.25, 0.75, 0.5), strict=True):
        row |= {"eval/success": success, "eval/success_low": success - 0.125, "eval/success_high": success + 0.125}
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_dir / "run.json").write_text(json.dumps({"nestor": "0.1.0", "commit": None, "ranks": 2, "device": "cpu"}))
    folder = export(run, run_dir, tmp_path / "exported", env=env)
    card = ModelCard.load(folder / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "base_model": ID, "license": "other",
        "license_name": "tiny", "license_link": "LICENSE", "tags": ["reinforcement-learning", "nestor", "lora", "numberline", "gigpo"]}
    for line in ("# exported", "| before reinforcement learning | 0 | 0.250 | 0.125 to 0.375 |", "| best | 1 | 0.750 | 0.625 to 0.875 |",
                 "| last | 2 | 0.500 | 0.375 to 0.625 |", f"| base model | `{ID}` at `{COMMIT}` |",
                 "| LoRA | rank 2, alpha 4 |", "| seed | 1 |", "| Nestor | 0.1.0 |", "| ranks | 2 |",
                 "The best evaluation is chosen by its own noise, too. Its bias is not known, since the run holds no outcomes of single tasks."):
        assert line in card.text.splitlines(), card.text
    assert "commit" not in card.text and "split `eval`, tasks: 4" in card.text
    recipe = "".join(line for line in (run_dir / "recipe.yaml").open() if not line.startswith("#"))
    assert f"```yaml\n{recipe}```\n\n</details>" in card.text
    base = next(tuned[1].glob("hub/*/snapshots/*"))
    assert (folder / "LICENSE").read_bytes() == (base / "LICENSE").read_bytes()
    first = export(run, run_dir / "checkpoints/iteration-000001", tmp_path / "first", "--adapter", env=env)
    card = ModelCard.load(first / "README.md")
    assert card.data.library_name == "peft" and "| last | 1 | 0.750" in card.text
    alone = shutil.copytree(run_dir / "checkpoints/iteration-000002", tmp_path / "alone")
    assert not (export(run, alone, tmp_path / "bare", env=env) / "README.md").exists()
