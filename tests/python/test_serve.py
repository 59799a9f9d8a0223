"""`nestor serve` by OpenAI's client and by curl: answers, streams, errors, adapters, and the end by a signal; and `nestor eval --endpoint`
against `nestor eval`."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager

import openai
import pytest
from conftest import PATIENCE

MESSAGES = [{"role": "user", "content": "target: 3\ncurrent: 1"}]
# The model chooses by the state here, so that answers differ. Both forms of `nestor eval` are in float32.
SETTINGS = ["deterministic=true", "iterations=1", "warm_start.steps=40", "rollout.max_response_tokens=12", "rollout.max_prompt_tokens=188", "eval.temperature=0"]


def sets(*values):
    return [word for value in values for word in ("--set", value)]


@contextmanager
def served(nestor, model, *arguments):
    """A server on a free port: its base URL."""
    command = [str(nestor), "serve", str(model), "--port", "0", "--device", "cpu", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving at http://127.0.0.1:"), process.stderr.read()
        yield line.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")


@pytest.fixture(scope="module")
def runs(run, root, tmp_path_factory):
    """A run, and one that trained adapters of the other's model."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = root / "recipes/smoke/gigpo.yaml"
    lora = [f"model={{path: {folder / 'whole/model'}, lora: {{rank: 4, alpha: 64}}}}", "warm_start.lr=3e-2"]
    for name, more in (("whole", []), ("lora", lora)):
        done = run("train", recipe, *sets(*SETTINGS, *more), "--run-dir", folder / name)
        assert done.returncode == 0, done.stderr
    done = run("export", folder / "lora", folder / "peft", "--adapter")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def url(nestor, runs):
    with served(nestor, runs / "whole/model", "--name", "base", "--adapter", f"lora={runs / 'lora'}",
                "--adapter", f"peft={runs / 'peft'}", "--max-tokens", 200) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(client, model="base", messages=MESSAGES, **settings):
    return client.chat.completions.create(model=model, messages=messages, **{"max_tokens": 24} | settings)


def test_greedy_answers_are_those_of_generate(client, runs, run_json):
    assert [model.id for model in client.models.list()] == ["base", "lora", "peft"]
    answers = {}
    for model, folder in (("base", "whole/model"), ("lora", "lora")):
        want = run_json("generate", runs / folder, "--chat", json.dumps(MESSAGES), "--max-new-tokens", 24, "--temperature", 0,
                        "--device", "cpu", "--json")
        got = ask(client, model, temperature=0, logprobs=True, extra_body={"return_token_ids": True})
        choice = answers[model] = got.choices[0]
        assert (choice.message.content, choice.model_extra["token_ids"]) == (want["text"][0], want["tokens"][0])
        assert choice.finish_reason == {"eos": "stop", "length": "length"}[want["finished"][0]]
        assert [token.logprob for token in choice.logprobs.content] == pytest.approx(want["logprobs"][0], abs=1e-4)
        assert got.usage.completion_tokens == len(want["tokens"][0])
        assert got.usage.prompt_tokens == len(got.model_extra["prompt_token_ids"])
    assert answers["base"].message.content != answers["lora"].message.content, "the adapters would show nothing"
    assert ask(client, "peft", temperature=0).choices[0].message.content == answers["lora"].message.content


def test_streams_choices_seeds_and_stop_texts(client):
    hot = {"temperature": 1.5, "seed": 7, "n": 2}
    whole = ask(client, **hot)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1] and texts[0] != texts[1]
    assert [choice.message.content for choice in ask(client, **hot).choices] == texts
    assert [choice.message.content for choice in ask(client, **hot | {"seed": 8}).choices] != texts

    parts, reasons, usage = ["", ""], {}, None
    events = list(ask(client, **hot, stream=True, stream_options={"include_usage": True}))
    for event in events:
        for choice in event.choices:
            parts[choice.index] += choice.delta.content or ""
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
        usage = event.usage or usage
    assert parts == texts and len(reasons) == 2 and usage == whole.usage
    assert len(events) > 6, "the text comes in parts"

    text = ask(client, temperature=0, max_tokens=12).choices[0].message.content
    stop = text[2:4]
    for stream in (False, True):
        got = ask(client, temperature=0, max_tokens=12, stop=[stop, "never"], stream=stream)
        said = "".join(e.choices[0].delta.content or "" for e in got) if stream else got.choices[0].message.content
        assert said == text.split(stop)[0]
    kept = ask(client, temperature=0, max_tokens=12, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.finish_reason == "stop" and text.startswith(kept.message.content) and stop in kept.message.content


def test_requests_at_once_and_clients_that_leave(client, url):
    """More requests than slots, of several models; and one client that is gone before its answer."""
    alone = {model: ask(client, model, temperature=0).choices[0].message.content for model in ("base", "lora")}
    host, port = re.fullmatch(r"http://(.*):(\d+)/v1", url).groups()
    with socket.create_connection((host, int(port))) as gone:
        body = json.dumps({"model": "base", "messages": MESSAGES, "n": 8}).encode()
        gone.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answers = [None] * 40

    def work(number):
        answers[number] = ask(client, ("base", "lora")[number % 2], temperature=0).choices[0].message.content
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [alone["base"], alone["lora"]] * 20


@pytest.mark.parametrize("settings, error, parts", [
    ({"model": "other"}, openai.NotFoundError, ["`other`", "base, lora, peft"]),
    ({"temperature": -1}, openai.BadRequestError, ["temperature"]),
    ({"max_tokens": 0}, openai.BadRequestError, ["max_tokens"]),
    ({"logit_bias": {"1": 5}}, openai.BadRequestError, ["logit_bias"]),
    ({"messages": [{"role": "user", "content": "x" * 9000}]}, openai.BadRequestError, ["tokens", "context holds 200"]),
    ({"messages": [{"role": "user", "content": "x" * 9000}], "stream": True}, openai.BadRequestError, ["context holds 200"]),
    ({"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}, openai.BadRequestError, ["enable_thinking"]),
])
def test_refusals(client, settings, error, parts):
    with pytest.raises(error) as raised:
        ask(client, **settings)
    assert all(part in raised.value.message for part in parts), raised.value.message


def test_curl_with_a_key(nestor, runs):
    with served(nestor, runs / "whole", "--api-key", "secret", "--max-tokens", 64) as url:
        def curl(path, *arguments):
            command = ["curl", "-s", "--noproxy", "*", "-w", "\n%{http_code}", f"{url}{path}", *arguments]
            body, code = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rsplit("\n", 1)
            return json.loads(body), int(code)
        key = ["-H", "Authorization: Bearer secret"]
        chat = ["-H", "Content-Type: application/json", "-d", json.dumps({"messages": MESSAGES})]
        for wrong in ([], ["-H", "Authorization: Bearer wrong"]):
            body, code = curl("/models", *wrong)
            assert code == 401 and "API key" in body["error"]["message"]
        body, code = curl("/models", *key)
        assert (code, [model["id"] for model in body["data"]]) == (200, ["whole"])
        # The response may take the rest of the context.
        body, code = curl("/chat/completions", *key, *chat)
        assert code == 200 and body["usage"]["total_tokens"] <= 64 and body["object"] == "chat.completion"
        assert curl("/episode/end", *key, "-d", "{}")[1] == 404


def test_a_server_that_cannot_start_says_why(run, runs):
    def refused(*arguments):
        done = run("serve", *arguments, "--device", "cpu")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use; choose another one by --port" in refused(runs / "whole", "--port", port)
    assert "--api-key" in refused(runs / "whole", "--host", "0.0.0.0", "--port", 0)
    # The run changed its model's weights, and adapters belong to the first ones.
    assert "serve it by itself" in refused(runs / "whole/model", "--port", 0, "--adapter", f"a={runs / 'whole'}")
    assert "trained all weights" in refused(runs / "whole", "--port", 0, "--adapter", f"a={runs / 'lora'}")
    assert "no adapters" in refused(runs / "whole/model", "--port", 0, "--adapter", f"a={runs / 'whole/model'}")
    assert "NAME=PATH" in refused(runs / "whole/model", "--port", 0, "--adapter", "a")


def episodes_of(out, report):
    file = out / report["episodes_file"]
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("more", [
    [],
    ["rollout.history={mode: transcript}", "rollout.max_sequence_tokens=200"],
    ["rollout.stop=[</action>, t]", "rollout.system=Be brief."],
], ids=["window", "transcript", "stop"])
def test_eval_by_endpoint_equals_eval_in_process(more, url, runs, run_json, tmp_path):
    recipe = runs / "whole/recipe.yaml"
    command = ["eval", recipe, *sets("eval.tasks=10", "eval.samples=1", *more), "--json"]
    here = run_json(*command, "--model", runs / "lora", "--out", tmp_path / "here")
    there = run_json(*command, "--endpoint", url, "--endpoint-model", "lora", "--out", tmp_path / "there")
    assert there["model"] == f"lora at {url}"
    same = ("success", "interval", "won", "episodes", "tasks", "failed", "return", "length", "valid_action_ratio", "repeated_ratio",
            "clipped_ratio", "response_length", "env", "split", "seed", "temperature")
    assert {key: there[key] for key in same} == {key: here[key] for key in same}
    mine, theirs = episodes_of(tmp_path / "here", here), episodes_of(tmp_path / "there", there)
    kept = ("group", "episode", "task", "seed", "won", "return")
    assert [[one[key] for key in kept] for one in theirs] == [[one[key] for key in kept] for one in mine]
    kept = ("response", "action", "reward", "valid", "terminated", "truncated", "anchor", "response_tokens")
    steps = [[[step[key] for key in kept] for step in one["steps"]] for one in theirs]
    assert steps == [[[step[key] for key in kept] for step in one["steps"]] for one in mine]
    assert len({json.dumps(one) for one in steps}) > 1, "all episodes are alike: the comparison would show nothing"
    assert MESSAGES[0]["content"].split(":")[0] in theirs[0]["steps"][0]["prompt"]


def test_an_endpoint_that_does_not_answer_is_named(run, url, runs, nestor):
    def refused(*arguments, code=2, env=None):
        done = run("eval", runs / "whole", *sets("eval.tasks=2"), *arguments, env=os.environ | (env or {}))
        assert done.returncode == code and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr
    assert "base, lora, peft" in refused("--endpoint", url)
    assert "serves base, lora, peft" in refused("--endpoint", url, "--endpoint-model", "x")
    assert "leave it out" in refused(runs / "lora", "--endpoint", url)
    assert "no URL" in refused("--endpoint", "127.0.0.1:1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        assert f"cannot reach {gone}/models" in refused("--endpoint", gone, code=1)
    with served(nestor, runs / "whole", "--api-key", "secret", "--max-tokens", 32) as locked:
        assert "OPENAI_API_KEY" in refused("--endpoint", locked)
        # The prompts fit no longer.
        message = refused("--endpoint", locked, *sets("rollout.system=" + "x" * 90), env={"OPENAI_API_KEY": "secret"})
        assert "context holds 32" in message and "step 1 of episode" in message
