"""Parts that the shims share: rows of a data set, messages of prompts, results of async functions."""
import asyncio
import functools
import gzip
import inspect
import io
import json
import os
import stat
import zlib

# Beginnings of files that are no text.
MAGIC = {b"PAR1": "a Parquet file: its name must end with .parquet", b"PK\x03\x04": "a zip archive; unpack it",
         b"ARROW1": "an Arrow file; write it as Parquet", b"\x28\xb5\x2f\xfd": "compressed by zstd; use gzip, or unpack it"}
ROLES = ("system", "user", "assistant", "tool")


class Row(dict):
    """A row of a data set, with its place in the file."""

    source = None


@functools.lru_cache
def read(data, name, unit, renamed=()):
    """The rows of one file. `name` and `unit` are for messages; `renamed` has pairs of names: a column's new one, and that in the
    file."""
    rows = []
    for number, row in parsed(data, name, unit):
        where = f"{name}, {unit} {number}"
        try:
            if not isinstance(row, dict):
                raise ValueError(f"a row must be an object, not {shortened(json.dumps(row))}")
            for new, old in renamed:
                if old not in row:
                    raise ValueError(f"config key `columns` names {old}, and the row has {', '.join(row) or 'nothing'}")
                row[new] = row.pop(old)
            check(prompt_of(row))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        rows.append(Row(row))
        rows[-1].source = where
    return rows


def parsed(data, name, unit):
    """Number and value of each row of a file: JSON Lines, or one JSON list; compressed by gzip or not."""
    text = text_of(data, name)
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            pass  # perhaps lines that are lists, which have a message of their own
        else:
            yield from enumerate(values, 1)
            return
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                found = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
                hint = "; a CSV file must be written as JSON Lines or Parquet" if number == 1 and line.strip()[0] not in "{[" else ""
                raise ValueError(f"{name}, {unit} {number} is not JSON ({found}): {shortened(line.strip())}{hint}") from None
            except RecursionError:
                raise ValueError(f"{name}, {unit} {number}: its values are nested too deep") from None


def text_of(data, name):
    """The text of a regular file in UTF-8."""
    if not stat.S_ISREG(os.stat(data).st_mode):
        raise ValueError(f"{name} is no regular file" + ("; name the files in it" if os.path.isdir(data) else ""))
    with open(data, "rb") as file:
        raw = file.read()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{name} is a damaged gzip file, copy or write it again: {error}") from None
    for magic, kind in MAGIC.items():
        if raw.startswith(magic):
            raise ValueError(f"{name} is {kind}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line}: byte {raw[error.start]:#04x} is not UTF-8; write the file in UTF-8") from None


def shortened(text):
    return text if len(text) <= 40 else text[:40] + "…"


def by_split(data, held_out, renamed=()):
    """The rows by split: of a file, a list of files, or either of these for each split. A Parquet file comes as its rows in JSON Lines
    and its name. Without splits the last `held_out` rows (a tenth, if none) are split `eval`, the others `train`."""
    if isinstance(data, dict) and not {"rows", "of"} <= data.keys():
        return {split: rows_of(files, renamed, f" of split {split}") for split, files in data.items()}
    rows = rows_of(data, renamed)
    count = max(1, len(rows) // 10) if held_out is None else held_out
    if count < 0 or count >= len(rows):
        raise ValueError(f"{named(data)} has {len(rows)} rows, {count} of them held out: no row is left to train on")
    return {"train": rows[:len(rows) - count], "eval": rows[len(rows) - count:]}


def rows_of(data, renamed=(), split=""):
    """The rows of a file or of several, one after the other."""
    rows = []
    for file in data if isinstance(data, list) else [data]:
        rows += read(file, file, "line", renamed) if isinstance(file, str) else read(file["rows"], file["of"], "row", renamed)
    if not rows:
        raise ValueError(f"{named(data)}{split} has no rows")
    return rows


def named(data):
    files = data if isinstance(data, list) else [data]
    return ", ".join(file if isinstance(file, str) else file["of"] for file in files) or "the list of files"


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


def wait_all(values):
    """The values, or the results of async functions that returned them, which run side by side."""
    async def gathered():
        return await asyncio.gather(*values)
    return loop().run_until_complete(gathered()) if values and all(map(inspect.isawaitable, values)) else values


def wait(value):
    """The value, or the result of an async function that returned it."""
    return loop().run_until_complete(value) if inspect.isawaitable(value) else value
