"""Parts that the shims share: rows of a data set in JSON Lines, texts of prompts, results of async functions."""
import asyncio
import functools
import inspect
import json


@functools.lru_cache
def read(data, held_out):
    """The rows by split. One file: the last `held_out` rows (a tenth, if none) are split `eval`, the others `train`."""
    rows = []
    with open(data, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"{data}, line {number}: {error}") from None
                if not isinstance(rows[-1], dict):
                    raise ValueError(f"{data}, line {number}: a row must be an object, not {line.strip()[:40]}")
    count = max(1, len(rows) // 10) if held_out is None else held_out
    if count < 0 or count >= len(rows):
        raise ValueError(f"{data} has {len(rows)} rows, {count} of them held out: no row is left to train on")
    return {"train": rows[:len(rows) - count], "eval": rows[len(rows) - count:]}


def by_split(data, held_out):
    """The rows of one file, or of a file for each split."""
    if isinstance(data, str):
        return read(data, held_out)
    return {split: read(file, 0)["train"] for split, file in data.items()}


def text_of(prompt):
    """A prompt that is a text, or a list of messages."""
    if isinstance(prompt, str):
        return prompt
    contents = (m["content"] if isinstance(m, dict) else m.content for m in prompt)
    return "\n\n".join(c if isinstance(c, str) else "".join(part.get("text", "") for part in c) for c in contents if c)


@functools.lru_cache
def loop():
    """One event loop for all calls, since clients and locks of an environment belong to theirs."""
    return asyncio.new_event_loop()


def wait(value):
    """The value, or the result of an async function that returned it."""
    return loop().run_until_complete(value) if inspect.isawaitable(value) else value
