"""Tokenizer and chat template against transformers, with the real Qwen2.5 tokenizer and the templates of Qwen2.5 and Qwen3."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from chats import CHATS, TEXTS, chat
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "core/model/src/tokenizer" / "qwen2.5_chat_template.jinja"
QWEN3_TEMPLATE = ROOT / "core/model/src/tokenizer" / "qwen3_chat_template.jinja"
# Tokens that Qwen3 adds to Qwen2.5's, from its published tokenizer_config.json.
QWEN3_ADDED = ["<tool_response>", "</tool_response>", "<think>", "</think>"]
THOUGHTS = [
    chat("Which way?", "<think>\nThe box is left.\n</think>\n\ngo left", "And now?"),
    chat("Which way?", "<think>\n\n</think>\n\ngo left"),
    chat("Which way?", "<think>\nOne.\n", "Think on.", "Two.\n</think>\n\n\nright", system="Be brief."),
    chat("<tool_response>\n3\n</tool_response>", "<think>four</think> 4", "<tool_response>5</tool_response>"),
]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A folder as Qwen2.5-Instruct's, without weights."""
    folder = tmp_path_factory.mktemp("qwen")
    script = ROOT / "tests/python/make_qwen_tokenizer.py"
    subprocess.run([sys.executable, script, folder / "tokenizer.json"], check=True)
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                "bos_token": None, "unk_token": None, "add_prefix_space": False, "chat_template": TEMPLATE.read_text()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643]}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": 151645}))
    return folder


@pytest.fixture(scope="module")
def qwen3(qwen, tmp_path_factory):
    """A folder as Qwen3's, without weights: Qwen2.5's tokenizer with four more tokens, and Qwen3's template."""
    folder = tmp_path_factory.mktemp("qwen3")
    tokenizer = RustTokenizer.from_file(str(qwen / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN3_ADDED])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((qwen / "tokenizer_config.json").read_text())
    settings["chat_template"] = QWEN3_TEMPLATE.read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def by_transformers(folder, chats, **switches):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False, **switches)
            for chat in chats]


def render(driver, folder, chats, scratch, *thinking):
    """Ids of many chats, by the function that `nestor tokenize` calls."""
    file = scratch / "chats.json"
    file.write_text(json.dumps(chats))
    return json.loads(driver("tokens", "--chats", folder, file, *thinking))


def inspect(driver, folder, texts, scratch):
    file = scratch / "texts.json"
    file.write_text(json.dumps(texts))
    return json.loads(driver("tokens", folder, file))


def test_twenty_chats_are_transformers_token_for_token(qwen, tmp_path, driver, run_json):
    assert len(CHATS) == 20
    want = by_transformers(qwen, CHATS)
    for chat, ours, theirs in zip(CHATS, render(driver, qwen, CHATS, tmp_path), want, strict=True):
        assert ours == theirs, chat
    (tmp_path / "chat.json").write_text(json.dumps(CHATS[3]))
    assert run_json("tokenize", qwen, "--chat", tmp_path / "chat.json", "--json")["ids"] == want[3]


def test_thinking_is_switched_as_in_transformers(qwen3, tmp_path, driver, run_json):
    chats, rendered = CHATS + THOUGHTS, {}
    for words, switches in (((), {}), (("true",), {"enable_thinking": True}), (("false",), {"enable_thinking": False})):
        want = by_transformers(qwen3, chats, **switches)
        rendered[words] = want
        for chat, ours, theirs in zip(chats, render(driver, qwen3, chats, tmp_path, *words), want, strict=True):
            assert ours == theirs, (words, chat)
    assert rendered[()] == rendered[("true",)] != rendered[("false",)]
    assert rendered[("false",)][0][-4:] == [151667, 271, 151668, 271]  # <think>, two lines, </think>, two lines

    file = tmp_path / "chat.json"
    file.write_text(json.dumps(THOUGHTS[0]))
    for value, want in (("true", rendered[("true",)]), ("false", rendered[("false",)])):
        got = run_json("tokenize", qwen3, "--chat", file, "--thinking", value, "--json")["ids"]
        assert got == want[len(CHATS)]


def test_a_thinking_switch_that_would_be_ignored_is_refused(qwen, tmp_path, run):
    (tmp_path / "chat.json").write_text(json.dumps(CHATS[0]))
    done = run("tokenize", qwen, "--chat", tmp_path / "chat.json", "--thinking", "false")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "thinking cannot be set to false" in done.stderr and "enable_thinking" in done.stderr
    done = run("generate", qwen, "--prompt", "x", "--thinking", "false")
    assert done.returncode == 2 and "'--prompt <TEXT>' cannot be used with '--thinking" in done.stderr


@pytest.mark.parametrize("template", [
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n[U] {{ m['content'] | trim }}\n  {% else %}\n"
    "[{{ m.role.upper() }}]{{ m | tojson }}\n  {% endif %}\n{% endfor %}{{ eos_token }}\n",
    "{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if ns.n > 3 %}{% break %}"
    "{% endif %}{{ m.content.split('\\n')[-1].strip() + '|' }}{% endfor %}{{ messages | tojson(indent=2) }}",
    "{% for m in messages %}\n  {%- if m.role == 'assistant' %}\n    {% generation -%}\n  {% set x = 1 %}[{{ m.content }}]{{ '{% generation %}' }}"
    "\n  {%- endgeneration %}\n{{ x }}{# {% generation %} #}{% raw %}{% generation %}{% endraw %}\n  {% else %}\n{{ m.content }};{% endif %}\n"
    "{% endfor %}\n{{ '%s|%d' % (messages[0].role, 3) }}",
    "{% for m in messages %}\r\n  {% if m.role == 'user' %}\r\n[U] {{ m['content'] }}\r\n  {% endif %}\r\n{% endfor %}\r\nend\r\n",
], ids=["trimmed blocks", "loop controls", "generation", "lines of Windows"])
def test_other_templates_render_as_in_transformers(qwen, template, tmp_path, driver):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((qwen / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes(template.encode())
    assert render(driver, tmp_path, CHATS, tmp_path) == by_transformers(tmp_path, CHATS)


TOOLS = [{"type": "function", "function": {"name": "add", "description": 'é <b> "q"', "parameters": {
    "type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number", "default": 1.5}}, "required": ["b", "a"]}}}]
CALLED = [
    {"messages": chat("Hello"), "tools": TOOLS},
    {"messages": [*chat("3 + 4?", system="Add."), {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"b": 4, "a": [3, None, True, "é"]}}}]},
        {"role": "tool", "content": "7", "name": "add"}, {"role": "tool", "content": "8"}], "tools": TOOLS},
    {"messages": [*chat("Which?"), {"role": "assistant", "reasoning": "hm", "content": "it"}, *chat("So?")]},
]


@pytest.mark.parametrize("name", ["qwen", "qwen3"])
def test_tools_and_their_calls_are_transformers(name, request, tmp_path, run_json, run):
    folder = request.getfixturevalue(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    want = [tokenizer.apply_chat_template(one["messages"], tools=one.get("tools"), add_generation_prompt=True, return_dict=False)
            for one in CALLED]
    # One meaning of --chat: JSON, a file of one or of several chats, or a text.
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in CALLED))
    assert run_json("tokenize", folder, "--chat", tmp_path / "chats.jsonl", "--json")["ids"] == want
    assert run_json("tokenize", folder, "--chat", json.dumps(CALLED), "--json")["ids"] == want
    assert run_json("tokenize", folder, "--chat", json.dumps(CALLED[1]), "--json")["ids"] == want[1]
    assert run_json("tokenize", folder, "--chat", "Hello", "--json")["ids"] == by_transformers(folder, [chat("Hello")])[0]
    done = run("tokenize", folder, "--chat", '[{"role": "user"}]')
    assert done.returncode == 2 and "message 1: missing field `content`" in done.stderr, done.stderr


def test_special_tokens_of_their_own_file_are_read(qwen, tmp_path, driver):
    (tmp_path / "tokenizer.json").write_bytes((qwen / "tokenizer.json").read_bytes())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|im_start|>", "lstrip": False},
                                                                  "eos_token": "<|endoftext|>"}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    assert render(driver, tmp_path, CHATS, tmp_path) == by_transformers(tmp_path, CHATS)


def test_a_template_that_refuses_a_chat_says_why(qwen, tmp_path, run):
    (tmp_path / "tokenizer.json").write_bytes((qwen / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    (tmp_path / "chat.json").write_text(json.dumps(CHATS[0]))
    done = run("tokenize", tmp_path, "--chat", tmp_path / "chat.json", "--json")
    assert done.returncode == 2 and "roles must alternate" in done.stderr, done


def test_encoding_and_decoding_equal_tokenizers(qwen, tmp_path, driver):
    ours = inspect(driver, qwen, TEXTS, tmp_path)
    theirs = AutoTokenizer.from_pretrained(qwen)
    for text, got in zip(TEXTS, ours["texts"], strict=True):
        ids = theirs.encode(text, add_special_tokens=False)
        assert got["ids"] == ids, text
        assert got["decoded"] == theirs.decode(ids), text
        assert got["plain"] == theirs.decode(ids, skip_special_tokens=True), text
    assert ours["eos"] == [151645, 151643]
    assert ours["vocab_size"] == 151665


def test_a_new_model_takes_the_tokenizer_if_it_fits(qwen, tmp_path, driver, run):
    done = run("model", "new", tmp_path / "no", "--shape", "tiny", "--tokenizer", qwen / "tokenizer.json")
    assert done.returncode == 2 and "151665" in done.stderr and "vocab_size is 512" in done.stderr, done
    assert not list(tmp_path.iterdir())

    (tmp_path / "small").mkdir()
    (tmp_path / "corpus.json").write_text(json.dumps(TEXTS))
    driver("tokens", "--train", tmp_path / "small", tmp_path / "corpus.json", 500)
    folder, small = tmp_path / "new", tmp_path / "small" / "tokenizer.json"
    assert run("model", "new", folder, "--shape", "tiny", "--tokenizer", small, "--seed", 1).returncode == 0
    config, generation = AutoConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    assert (config.eos_token_id, generation.eos_token_id, generation.pad_token_id) == (499, [499, 497], 497)
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE.read_text()
    assert render(driver, folder, CHATS, tmp_path) == by_transformers(folder, CHATS)


def test_a_new_qwen3_model_has_its_template(qwen3, tmp_path, driver, run, run_json):
    """The small tokenizer has Qwen3's tokens, so the folder gets Qwen3's template, and `generate --chat` the switch."""
    (tmp_path / "small").mkdir()
    (tmp_path / "corpus.json").write_text(json.dumps(TEXTS))
    driver("tokens", "--train", tmp_path / "small", tmp_path / "corpus.json", 500)
    small, folder = tmp_path / "small" / "tokenizer.json", tmp_path / "new"
    tokenizer = RustTokenizer.from_file(str(small))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN3_ADDED])
    tokenizer.save(str(small))
    assert run("model", "new", folder, "--shape", "qwen3-tiny", "--tokenizer", small, "--dtype", "float32").returncode == 0
    assert AutoTokenizer.from_pretrained(folder).chat_template == QWEN3_TEMPLATE.read_text()
    assert AutoConfig.from_pretrained(folder).model_type == "qwen3"
    continued = {}
    for value in ("true", "false"):
        want = by_transformers(folder, [CHATS[0]], enable_thinking=value == "true")
        (tmp_path / "rows.json").write_text(json.dumps({"rows": want}))
        options = ["--max-new-tokens", 8, "--temperature", 0, "--json"]
        continued[value] = run_json("generate", folder, "--chat", CHATS[0][0]["content"], "--thinking", value, *options)
        assert continued[value] == run_json("generate", folder, "--tokens", tmp_path / "rows.json", *options)
    assert continued["true"]["tokens"] != continued["false"]["tokens"]


def test_a_trained_tokenizer_is_the_same_in_transformers(tmp_path, driver):
    folder = tmp_path / "trained"
    folder.mkdir()
    (tmp_path / "corpus.json").write_text(json.dumps(TEXTS * 3))
    driver("tokens", "--train", folder, tmp_path / "corpus.json", 500)
    ours = inspect(driver, folder, TEXTS, tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [497, 498, 499]
    assert (ours["eos"], ours["vocab_size"]) == ([499, 497], 500)
    assert theirs.eos_token_id == 499
    for text, got in zip(TEXTS, ours["texts"], strict=True):
        ids = theirs.encode(text, add_special_tokens=False)
        assert got["ids"] == ids, text
        assert got["decoded"] == theirs.decode(ids), text
    assert render(driver, folder, CHATS, tmp_path) == by_transformers(folder, CHATS)
    again = tmp_path / "again"
    again.mkdir()
    driver("tokens", "--train", again, tmp_path / "corpus.json", 500)
    assert (folder / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
