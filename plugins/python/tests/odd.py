"""Reward functions with one fault each (src/odd_tests.rs). `fine` has none."""
import json
import sys
import time
from decimal import Decimal

number = 5


def fine(prompts, completions, **kwargs):
    prompts.append("a change that no other call sees")
    return [Decimal("0.5") if kwargs["log"] == ["x"] else 0.0 for _ in completions]


async def waits(completion):
    return len(completion)


calls = []


def together(completions, log, **kwargs):
    """Takes a while, so that completions gather. A text `bad` spoils its call."""
    calls.append(len(completions))
    time.sleep(0.3)
    return [{"score": float(text), "calls": len(calls)} for text in completions]


def unknown_argument(prompt, completion, answers):
    return 1.0


def by_place(prompt, completion, /):
    return 1.0


def forgets(completion):
    if completion == "never":
        return 1.0


def text(completion):
    return "0.5"


def one_number(prompts, completions, **kwargs):
    return 1.0


def two_numbers(prompts, completions, **kwargs):
    return [1.0, 2.0]


def list_of_one(completion):
    return [1.0]


def no_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"accuracy": 1.0, "format": 0.0}


def infinite(completion):
    return 1e308 * 10


def not_a_number(completions, **kwargs):
    return [float("nan")]


def yields(completion):
    yield 1.0


def raises(completion):
    return json.loads(completion)["answer"]


def leaves(completion):
    sys.exit("no key")


def hangs(completion):
    time.sleep(1000)


class Judge:
    """Must be made before it can be called."""

    def __init__(self, completion):
        pass
