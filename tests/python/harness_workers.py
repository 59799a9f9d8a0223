"""A worker that misbehaves as its task says (test_harness.py). It speaks HTTP by the standard library, so that it starts fast."""
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time

HOST = os.environ.get("OPENAI_BASE_URL", "///").split("/")[2]
TOKEN = os.environ.get("OPENAI_API_KEY")
HELLO = [{"role": "user", "content": "hello"}]


def call(path="chat/completions", token=TOKEN, body=None, timeout=60, **keys):
    """Status and JSON of an answer."""
    connection = http.client.HTTPConnection(HOST, timeout=timeout)
    body = json.dumps({"model": "policy", "messages": HELLO, **keys}) if body is None else body
    try:
        connection.request("POST", f"/v1/{path}", body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
    except BrokenPipeError:  # the answer came before the whole body was sent
        pass
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or "null")


def end(reward=0.0, **more):
    print(json.dumps({"reward": reward, **more}), flush=True)


def refused(status, word, **keys):
    """Asks for what is refused. The reward says if it was, in the words expected."""
    assert call()[0] == 200
    got, body = call(**keys)
    end(1.0 if got == status and word in body["error"]["message"] else -1.0)


def two_at_once():
    others = [threading.Thread(target=call) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()


def gives_up():
    call()
    try:
        call(timeout=0.0001)
    except (TimeoutError, socket.timeout):
        pass
    time.sleep(60)


def after_the_end():
    call()
    first = call("episode/end", body=json.dumps({"reward": 1.0}))
    assert first == (200, {"ended": True}), first
    assert call()[0] == 401 and call("episode/end", body=json.dumps({"reward": 5.0}))[0] == 401


def killed():
    call()
    os.kill(os.getpid(), signal.SIGKILL)


def raises():
    call()
    raise RuntimeError("the agent is broken")


def floods():
    call()
    while call(temperature=2)[0] == 400:
        pass


def shouts():
    call()
    sys.stdout.buffer.write(b"\xff\xfe" + b"x" * (3 << 20) + b"\n" + b"{\"no\": 1}\n" * 2000)
    sys.stdout.flush()
    end(1.0)


def asks(**keys):
    status, body = call(**keys)
    assert status == 200, body
    return body["choices"][0]["message"]


def said_and_died():
    call()
    end(1.0)
    sys.exit(4)


TASKS = {
    # These end their episode by a failure with these words.
    "leaves": (lambda: sys.exit(3), "ended with code 3 without ending the episode"),
    "leaves later": (call, "ended with code 0 without ending the episode"),
    "raises": (raises, "RuntimeError: the agent is broken"),
    "says and dies": (said_and_died, "printed a reward, and then ended with code 4"),
    "hangs first": (lambda: time.sleep(60), "made no request within 3 s (config key `start_timeout_s`)"),
    "hangs": (lambda: (call(), time.sleep(60)), "did not end the episode within 3 s (config key `timeout_s`)"),
    "is killed": (killed, "ended with code 137 without"),
    "ends at once": (lambda: end(1.0), "ended the episode before its first request"),
    "ends by a request at once": (lambda: call("episode/end", body='{"reward": 1}'), "ended the episode before its first request"),
    "lies": (lambda: (call(), end("high")), "reward is \"high\"; it must be a number"),
    "says more": (lambda: (call(), end(1.0, prize=3)), "prize is unknown"),
    "two at once": (two_at_once, "a second request before the first was answered"),
    "gives up": (gives_up, "closed its request before the answer came"),
    "floods": (floods, "32 requests that were refused, the last because the request sets `temperature`"),
    # These are refused, and the worker has the words.
    "another token": (lambda: refused(401, "no episode under way", token="sk-other"), None),
    "two choices": (lambda: refused(400, "`n` is 2", n=2), None),
    "temperature": (lambda: refused(400, "`temperature`, which the recipe decides", temperature=0.1), None),
    "no JSON": (lambda: refused(400, "no JSON object", body="{"), None),
    "no messages": (lambda: refused(400, "`messages`", body="{}"), None),
    "a system message late": (lambda: refused(400, "system", messages=HELLO + [{"role": "system", "content": "x"}]), None),
    "a forced call": (lambda: refused(400, "tool_choice", tool_choice="required"), None),
    "an unknown key": (lambda: refused(400, "`wish`", wish=1), None),
    "a large body": (lambda: refused(413, "", body="x" * (5 << 20)), None),
    "another path": (lambda: refused(404, "/v1/completions", path="completions"), None),
    "a wrong note": (lambda: refused(400, "nestor.reward", nestor={"reward": "high"}), None),
    # These are no faults.
    "calls after the end": (after_the_end, None),
    "shouts": (shouts, None),
}

if __name__ == "__main__":
    TASKS[json.loads(os.environ["NESTOR_TASK"])["fault"]][0]()
