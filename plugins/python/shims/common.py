"""Parts that the shims share: rows of a data set in JSON Lines, messages of prompts, results of async functions."""
import asyncio
import functools
import inspect
import json

ROLES = ("system", "user", "assistant", "tool")


class Row(dict):
    """A row of a data set, with its place in the file."""

    source = None


@functools.lru_cache
def read(data, held_out, name, unit, renamed=()):
    """The rows by split. One file: the last `held_out` rows (a tenth, if none) are split `eval`, the others `train`. `renamed`
    has pairs of names: a column's new one, and that in the file."""
    rows = []
    with open(data, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                    if not isinstance(rows[-1], dict):
                        raise ValueError(f"a row must be an object, not {line.strip()[:40]}")
                    for new, old in renamed:
                        if old not in rows[-1]:
                            raise ValueError(f"config key `columns` names {old}, and the row has {', '.join(rows[-1]) or 'nothing'}")
                        rows[-1][new] = rows[-1].pop(old)
                    check(prompt_of(rows[-1]))
                except ValueError as error:
                    raise ValueError(f"{name}, {unit} {number}: {error}") from None
                rows[-1] = Row(rows[-1])
                rows[-1].source = f"{name}, {unit} {number}"
    count = max(1, len(rows) // 10) if held_out is None else held_out
    if count < 0 or count >= len(rows):
        raise ValueError(f"{name} has {len(rows)} rows, {count} of them held out: no row is left to train on")
    return {"train": rows[:len(rows) - count], "eval": rows[len(rows) - count:]}


def by_split(data, held_out, renamed=()):
    """The rows of one file, or of a file for each split. A Parquet file comes as its rows in JSON Lines and its name."""
    if isinstance(data, str):
        return read(data, held_out, data, "line", renamed)
    if "rows" in data and "of" in data:
        return read(data["rows"], held_out, data["of"], "row", renamed)
    return {split: by_split(file, 0, renamed)["train"] for split, file in data.items()}


def prompt_of(row):
    """The prompt of a row: `prompt`, or else `messages`; none if it has neither."""
    return row["prompt"] if "prompt" in row else row.get("messages")


def check(prompt):
    """Refuses a prompt that is neither a text nor a list of messages that asks for a response."""
    if prompt is None:
        return
    if isinstance(prompt, str):
        if prompt.lstrip().startswith("[{") and is_chat_text(prompt):
            raise ValueError("the prompt is the JSON text of a list of messages; write the list itself")
        return
    if not isinstance(prompt, list):
        raise ValueError(f"the prompt must be a text or a list of messages, not {kind(prompt)}")
    for number, message in enumerate(prompt, 1):
        if problem := problem_of(message, number):
            raise ValueError(f"message {number} of {len(prompt)} in the prompt: {problem}")
    if not prompt:
        raise ValueError("the prompt is an empty list; it needs at least one message of the user")
    if prompt[-1]["role"] not in ("user", "tool"):
        raise ValueError(f"the last of {len(prompt)} messages in the prompt is the {prompt[-1]['role']}'s; the policy answers a "
                         "message of the user or of a tool")


def problem_of(message, number):
    """The rule that a message breaks, as the plugin border has them; none if there is none."""
    if not isinstance(message, dict):
        return f"a message is an object with `role` and `content`, not {kind(message)}; a list must not mix forms"
    if "role" not in message:
        return "it has no `role`" + ("; write `from` and `value` as `role` and `content`" if "from" in message else "")
    role, content = message["role"], message.get("content")
    if role not in ROLES:
        return f"the role {json.dumps(role)} is unknown; known: {', '.join(ROLES)}"
    if role == "system" and number > 1:
        return "it is a second system message or a late one; only the first message may be the system's"
    if "content" not in message and not message.get("tool_calls"):
        return f"the message of role `{role}` has no `content`"
    if content is None:
        return None if message.get("tool_calls") else "the content is null; it must be a text"
    if isinstance(content, list):
        others = [part for part in content if not isinstance(part, dict) or not isinstance(part.get("text"), str)
                  or part.get("type", "text") != "text"]
        if others or not content:
            what = others[0].get("type", "unknown") if others and isinstance(others[0], dict) else "unknown"
            return f"the content has a part of type `{what}`; only a text, or parts of type `text`, are read"
    elif not isinstance(content, str):
        return f"the content is {kind(content)}; it must be a text"
    return None


def is_chat_text(text):
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value)


def kind(value):
    names = {type(None): "null", bool: "a bool", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def plain(messages):
    """Messages of any kind as dicts: those of verifiers are objects."""
    return [dict(m) if isinstance(m, dict) else m.model_dump(exclude_none=True) for m in messages]


def with_text(prompt, text):
    """The prompt with a text behind its last message, or behind the prompt that is a text."""
    if not isinstance(prompt, list):
        return ((prompt or "") + text).strip()
    content = prompt[-1].get("content") or ""
    content = content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]
    return [*prompt[:-1], {**prompt[-1], "content": content}] if text else prompt


@functools.lru_cache
def loop():
    """One event loop for all calls, since clients and locks of an environment belong to theirs."""
    return asyncio.new_event_loop()


def wait(value):
    """The value, or the result of an async function that returned it."""
    return loop().run_until_complete(value) if inspect.isawaitable(value) else value
