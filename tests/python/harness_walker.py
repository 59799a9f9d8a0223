"""The number line as a worker that speaks HTTP by the standard library, over one connection (tests/slow/harness_speed.py)."""
import http.client
import json
import os
import sys

connection = http.client.HTTPConnection(os.environ["OPENAI_BASE_URL"].split("/")[2])
for line in sys.stdin:
    episode = json.loads(line)
    target, current, largest, steps = (episode["task"][key] for key in ("target", "current", "max", "steps"))
    said = {}
    while current != target and steps > 0:
        seen = f"target: {target}\ncurrent: {current}"
        body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": seen}], "nestor": {"anchor": seen, **said}})
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {episode['api_key']}"})
        answer = connection.getresponse()
        got = json.loads(answer.read())
        if answer.status != 200:
            break
        answer = got["choices"][0]["message"]["content"].lower()
        answer = answer[answer.find('"action":'):]
        action = ("+" in answer) - ("-" in answer)
        distance, current = abs(target - current), min(max(current + action, 0), largest)
        steps -= action != 0
        reward = 1.0 if current == target else -1.0 if action and abs(target - current) >= distance else 0.0
        said = {"reward": reward, "valid": action != 0, "action": ["", "+", "-"][action]}
    print(json.dumps({**said, "won": current == target, "truncated": current != target}), flush=True)
