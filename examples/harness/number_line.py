"""An agent as it is: a program that asks a chat endpoint by the official client, walks a number line, and says how it went.

Nestor starts it, serves the endpoint, and trains the model behind it (docs/harness.md). Each line of the standard input is an episode.
"""
import json
import sys

from openai import APIStatusError, OpenAI

openai = OpenAI(max_retries=0)
for line in sys.stdin:
    episode = json.loads(line)
    target, current, largest, steps = (episode["task"][key] for key in ("target", "current", "max", "steps"))
    client, said = openai.with_options(api_key=episode["api_key"]), {}
    while current != target and steps > 0:
        seen = f"target: {target}\ncurrent: {current}"
        try:
            asked = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": seen}],
                                                   extra_body={"nestor": {"anchor": seen, **said}})
        except APIStatusError:  # the run has cut the episode
            break
        answer = asked.choices[0].message.content.lower()
        answer = answer[answer.find('"action":'):]
        action = ("+" in answer) - ("-" in answer)
        distance, current = abs(target - current), min(max(current + action, 0), largest)
        steps -= action != 0
        reward = 1.0 if current == target else -1.0 if action and abs(target - current) >= distance else 0.0
        said = {"reward": reward, "valid": action != 0, "action": ["", "+", "-"][action]}
    print(json.dumps({**said, "won": current == target, "truncated": current != target}), flush=True)
