"""An agent with a tool: it answers questions of arithmetic, and may call a calculator (docs/harness.md).

It knows nothing of Nestor but the form of its input and output: an ordinary loop over the calls of a chat endpoint.
"""
import json
import random
import sys

from openai import APIStatusError, OpenAI

TOOLS = [{"type": "function", "function": {
    "name": "calculate", "description": "Computes one product or sum of two whole numbers.",
    "parameters": {"type": "object", "required": ["a", "operator", "b"],
                   "properties": {"a": {"type": "integer"}, "operator": {"enum": ["+", "*"]}, "b": {"type": "integer"}}}}}]
TURNS = 4


def calculate(arguments):
    """The result as text, or what is wrong."""
    try:
        a, operator, b = int(arguments["a"]), arguments["operator"], int(arguments["b"])
        return str({"+": a + b, "*": a * b}[operator])
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {type(error).__name__} {error}"


def answered(client, question, answer):
    """The reward: 1 for the right number at the end of the conversation."""
    messages = [{"role": "user", "content": question}]
    for _ in range(TURNS):
        message = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            said = "".join(c if c.isdigit() else " " for c in (message.content or "").replace(",", "")).split()
            return float(bool(said) and said[-1] == str(answer))
        for call in message.tool_calls:
            content = calculate(json.loads(call.function.arguments)) if call.function.name == "calculate" else "error: no such tool"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return 0.0


openai = OpenAI(max_retries=0)
for line in sys.stdin:
    episode = json.loads(line)
    dice = random.Random(f"{episode['split']} {episode['number']}")
    a, b = dice.randint(101, 999), dice.randint(101, 999)
    try:
        reward = answered(openai.with_options(api_key=episode["api_key"]), f"How much is {a} * {b}?", a * b)
    except APIStatusError:  # the run has cut the episode, and waits for its line
        reward = 0.0
    print(json.dumps({"reward": reward, "won": reward > 0}), flush=True)
