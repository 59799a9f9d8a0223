"""Rewards of gsm_symbolic.yaml, in TRL's form."""
import re

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def right(completions, answer, **kwargs):
    """1 where the number behind the last `####` is the answer."""
    return [1.0 if final(text) == float(wanted) else 0.0 for text, wanted in zip(completions, answer)]


def form(completions, **kwargs):
    """1 where there is one `####` with a number and nothing behind it."""
    return [1.0 if re.fullmatch(r"[^#]*####\s*-?[\d,.]+\s*", text) else 0.0 for text in completions]


def final(text):
    _, mark, end = text.rpartition("####")
    number = NUMBER.search(end) if mark else None
    return float(number.group().replace(",", "")) if number else None
