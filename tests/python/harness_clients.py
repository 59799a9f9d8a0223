"""Workers that ask by other people's clients (test_harness.py; LangChain's in tests/slow/harness_clients.py). The reward is 1 where all held."""
import json
import os
import sys

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}}]
HELLO = [{"role": "user", "content": "hello"}]


def plain(openai):
    """Log-probs and token ids; the second request continues the tokens of the first."""
    ask = dict(model="policy", logprobs=True, extra_body={"return_token_ids": True})
    first = openai.chat.completions.create(messages=HELLO, **ask)
    said, prompt = first.choices[0], first.prompt_token_ids
    assert len(said.token_ids) == len(said.logprobs.content) == first.usage.completion_tokens
    assert all(entry.logprob <= 0 for entry in said.logprobs.content) and first.usage.prompt_tokens == len(prompt)
    messages = [*HELLO, said.message.model_dump(exclude_none=True), {"role": "user", "content": "and?"}]
    second = openai.chat.completions.create(messages=messages, **ask)
    assert second.prompt_token_ids[:len(prompt) + len(said.token_ids)] == prompt + said.token_ids


def stream(openai):
    """The same text in parts."""
    parts = list(openai.chat.completions.create(model="policy", messages=HELLO, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert parts[-1].usage.prompt_tokens > 0 and parts[-2].choices[0].finish_reason in ("stop", "length")
    messages = [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]
    assert openai.chat.completions.create(model="policy", messages=messages).choices[0].message.role == "assistant"


def tools(openai):
    """Tools are described to the policy; the answer is text or calls."""
    assert [model.id for model in openai.models.list()] == ["policy"]
    with_tools = openai.chat.completions.create(model="policy", messages=HELLO, tools=TOOLS)
    message = with_tools.choices[0].message
    assert message.content is not None or message.tool_calls


def langchain(_):
    """A chat model of LangChain with a tool bound to it, unchanged."""
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(model="policy").bind_tools(TOOLS)
    first = chat.invoke("hello")
    second = chat.invoke([("user", "hello"), first, ("user", "and?")])
    assert second.type == "ai" and "".join(part.text for part in chat.stream("hello")) is not None


if __name__ == "__main__":
    from openai import OpenAI
    name = json.loads(os.environ["NESTOR_TASK"])["client"]
    {"plain": plain, "stream": stream, "tools": tools, "langchain": langchain}[name](OpenAI(max_retries=0))
    print(json.dumps({"reward": 1.0}))
    sys.stdout.flush()
    os._exit(0)
