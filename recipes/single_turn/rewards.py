"""Rewards of gsm_symbolic.yaml and reverse_text.yaml, in TRL's form."""
import re
from difflib import SequenceMatcher

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def right(completions, answer, **kwargs):
    """1 where the last number is the answer."""
    return [1.0 if final(text) == float(wanted) else 0.0 for text, wanted in zip(completions, answer)]


def form(completions, **kwargs):
    """1 where there are calculations alone, the last one with its result."""
    return [1.0 if re.fullmatch(r"[\d\s.,+*/=()%-]*=\s*-?[\d,.]+\s*", text) else 0.0 for text in completions]


def final(text):
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def likeness(completions, answer, **kwargs):
    """The ratio of difflib between the response and the answer: 1 where they are equal."""
    texts = [text[-1]["content"] if isinstance(text, list) else text for text in completions]
    return [SequenceMatcher(None, text.strip(), wanted).ratio() for text, wanted in zip(texts, answer)]
