"""Files and processes that are not trusted: model folders, the store of all ranks, names with control characters."""
import json
import os
import signal
from pathlib import Path

import pytest
import torch.distributed as dist
from test_launch import LONG, ranks_of, start, until
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set x = namespace(s='ab') %}{% for i in range(60) %}{% set x.s = x.s + x.s %}{% endfor %}{{ x.s }}"
TEMPLATES = [
    (LOOP, "more than 5000000 instructions"),
    (DOUBLED, "the template takes more than 1 "),
    ("{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", "longer than 64 MiB"),
    ("{{ [1] | tojson(indent=10**10) }}", "an indent of 10000000000"),
    ("{{ '%999999999999s' | format('a') }}", "a width of 999999999999"),
    ("{{ 'a\nb' | indent(10**12) }}", "an indent of 1000000000000"),
    ("{{ 'a\nb' | indent(width=10**12) }}", "an indent of 1000000000000"),
    ("{{ [1] | batch(10**12, 1) | list }}", "a batch of 1000000000000"),
    ("{{ [1] | slice(10**12, 1) | list }}", "a slice of 1000000000000"),
]


def tokenizer(**parts):
    made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "x": 2}, merges=[]))
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def tokenize(run, folder):
    chat = folder / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "a" * 40 + "!"}]))
    return run("tokenize", folder, "--chat", chat)


@pytest.mark.parametrize("template, words", TEMPLATES)
def test_a_template_has_limits(template, words, run, tmp_path):
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    done = tokenize(run, tmp_path)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("file, folder, remedy", [
    (0o644, 0o755, None), (0o664, 0o775, None), (0o644, 0o1777, None), (0o646, 0o755, "chmod o-w {}/walk.py"), (0o644, 0o777, "chmod o-w {}\n"),
])
def test_a_python_environment_that_others_can_change_is_refused(file, folder, remedy, run, tmp_path):
    """By the rule of plugin files, before any of it runs."""
    source = tmp_path / "walk.py"
    source.write_text("print('it ran', flush=True)\nclass Walk:\n    def reset(self, seed): return 'here', {}\n"
                      "    def step(self, action): return 'here', 0.0, True, False, {}\n")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"class": "walk:Walk", "path": [str(tmp_path)]}))
    (tmp_path / "actions.txt").write_text("")
    source.chmod(file)
    tmp_path.chmod(folder)
    done = run("play", "python", "--config", config, "--actions", tmp_path / "actions.txt")
    if remedy is None:
        assert "here" in done.stdout, done.stderr
    else:
        assert done.returncode == 2 and remedy.format(tmp_path) in done.stderr + "\n" and "it ran" not in done.stdout + done.stderr, done.stderr


def test_a_regular_expression_that_backtracks_is_refused(run, tmp_path):
    tokenizer(pre_tokenizer=pre_tokenizers.Split(Regex(r"(a+)+$|(\w+\s?)*!\n"), "isolated")).save(str(tmp_path / "tokenizer.json"))
    done = tokenize(run, tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "internal error" not in done.stderr, done.stderr
    assert "tokenizer.json" in done.stderr


@pytest.mark.parametrize("setting", ["update.lr=1e-300", "update.clip_high=1e300", "rollout.invalid_action_penalty=1e300"])
def test_numbers_that_float32_cannot_hold(setting, run, root):
    done = run("plan", root / "recipes/smoke/gigpo.yaml", "--set", setting)
    key = setting.split("=")[0]
    assert done.returncode == 2 and f"`{key}` must fit into float32" in done.stderr, done.stderr


def test_sizes_beyond_any_machine(run, root):
    done = run("train", root / "recipes/smoke/gigpo.yaml", env={**os.environ, "RANK": "0", "WORLD_SIZE": str(10**12)})
    assert done.returncode == 2 and "at most 65536" in done.stderr
    done = run("bench", "score", "--model", root, "--batch", 10**6, "--prompt", 10**6)
    assert done.returncode == 2 and "more than 268435456 tokens" in done.stderr


def test_names_have_no_control_characters(run, root, tmp_path):
    run_dir = tmp_path / "esc\x1b[31mred"
    sets = ["iterations=1", "warm_start=null", "eval.tasks=1", "rollout.tasks=1", "update.mini_batch=8"]
    done = run("train", root / "recipes/smoke/gigpo.yaml", "--run-dir", run_dir, *[word for key in sets for word in ("--set", key)])
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr, (run_dir / "log.txt").read_text()):
        assert "\x1b" not in text and "esc" in done.stdout


def listening(pid):
    """Addresses and ports on which a process listens, from /proc: hexadecimal, bytes in the machine's order."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except OSError:
            continue
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def test_a_stranger_neither_reaches_nor_ends_a_run(nestor):
    """Only this machine hears the store, and what a stranger of this machine writes into it changes nothing."""
    launcher = start([nestor, "launch", "--nproc", "2", *LONG])
    try:
        ranks = ranks_of(launcher, 2)
        found = [address for rank in ranks for address in listening(rank)]
        assert found and all(address in ("0100007F", f"{1 << 24:032X}") for address, _ in found), found
        variables = dict(v.split(b"=", 1) for v in Path(f"/proc/{ranks[0]}/environ").read_bytes().split(b"\0") if b"=" in v)
        port = int(variables[b"MASTER_PORT"])
        assert f"{port:04X}" in [port for _, port in listening(ranks[0])]
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        beat = until(lambda: [key for key in store.list_keys() if key.endswith("/beat/1")])[0]
        prefix = beat.removesuffix("beat/1")
        assert len(prefix) > 32, "the keys of ranks have a part that cannot be guessed"
        before = store.get(beat)
        for key in (f"{prefix}verdict", "nestor/verdict", "verdict", beat):
            store.set(key, "HACKED \x1b[31m")
        until(lambda: store.get(beat) not in (before, b"HACKED \x1b[31m"))
        count = store.get(beat)
        until(lambda: store.get(beat) != count)
        assert launcher.poll() is None
    finally:
        launcher.send_signal(signal.SIGKILL)
        output = "".join(launcher.communicate())
    assert "HACKED" not in output
