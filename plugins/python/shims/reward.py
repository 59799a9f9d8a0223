"""A reward function as an environment of one step. Part of Nestor's plugin `python`."""
import copy
import inspect
import math
import numbers

from nestor_shims import common
from nestor_worker import load

# Names of verl's `compute_score`, and of its form for several responses at once.
VERL = {"data_source": "data_sources", "solution_str": "solution_strs", "ground_truth": "ground_truths", "extra_info": "extra_infos"}
OURS = ("prompt", "completion"), ("prompts", "completions")


def parameters(function):
    """The parameters by name; none where Python does not know them, as of some built-in functions."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return None


def form(accepted):
    """The form in which a function wants its arguments: `values`, `lists` (TRL), `verl`, or `verl lists`."""
    if accepted is None:
        return "values"
    if "completions" in accepted:
        return "lists"
    return {"solution_str": "verl", "solution_strs": "verl lists"}.get(
        next((name for name in accepted if name in ("solution_str", "solution_strs")), ""), "values")


def verl(row, completion):
    """verl's arguments from a row in its form: ground truth in `reward_model`, or in a column of its own."""
    given = {"data_source": row.get("data_source", ""), "solution_str": completion, "extra_info": row.get("extra_info")}
    model = row.get("reward_model")
    if isinstance(model, dict) and "ground_truth" in model:
        given["ground_truth"] = model["ground_truth"]
    elif "ground_truth" in row:
        given["ground_truth"] = row["ground_truth"]
    return given


def check(function, name, rows, more=()):
    """Refuses a function with an argument that a row does not give, before a run calls it."""
    if not callable(function):
        raise TypeError(f"`{name}` is {type(function).__name__}, no function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"`{name}` has a `yield`, so it returns no number; use `return`")
    accepted = parameters(function)
    if accepted is None:
        return
    kinds = inspect.Parameter
    required = [p.name for p in accepted.values() if p.default is p.empty and p.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)]
    by_place = [p.name for p in accepted.values() if p.kind is kinds.POSITIONAL_ONLY]
    if by_place:
        raise TypeError(f"`{name}` takes {', '.join(by_place)} by position only; Nestor calls it by name: remove the `/`")
    for split, split_rows in rows.items():
        for number, row in enumerate(split_rows):
            given = arguments(accepted, [(common.prompt_of(row), "", columns(row))]) | dict.fromkeys(more)
            missing = [one for one in required if one not in given]
            where = getattr(row, "source", None) or f"row {number} of split {split}"
            if missing:
                raise TypeError(
                    f"`{name}` needs the argument{'s' * (len(missing) > 1)} {', '.join(missing)}, which {where} does not give; it gives "
                    f"{', '.join(sorted(given))}. Name the parameters after these, give them a default, or add the column to the data")


def columns(row):
    """The columns of a row that a function gets beside the prompt and the completion."""
    return {name: value for name, value in row.items() if name not in ("prompt", "completion")}


def arguments(accepted, items):
    """All arguments that a call can give, from items of prompt, completion and other columns: lists in a form with lists, and those of
    the only item else."""
    wanted = form(accepted)
    each = [values_of(wanted, *item) for item in items]
    if not wanted.endswith("lists"):
        return each[0]
    plural = {"prompt": "prompts", "completion": "completions"} if wanted == "lists" else VERL
    names = dict.fromkeys(name for given in each for name in given)
    return {plural.get(name, name): [given.get(name) for given in each] for name in names}


def values_of(wanted, prompt, completion, others):
    """The arguments of one item, before those of several become lists."""
    if wanted.startswith("verl"):
        given = verl(others, completion)
        return {name: value for name, value in {"prompt": prompt, **others}.items() if name not in given} | given
    if wanted == "lists" and isinstance(prompt, list) and isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    return {**others, "prompt": prompt, "completion": completion}


def call(function, name, items, **more):
    """Rewards of items of prompt, completion and other columns, each with the numbers beside it where the function returns a dict with
    `score`. A function with a parameter `completions` gets all items at once as lists, as in TRL, one with `solution_strs` too; any
    other is called for each item, and the results of an async one are awaited together."""
    accepted = parameters(function)
    lists = form(accepted).endswith("lists")

    def one_call(items):
        # A copy, since a function that changes its arguments would change the next episode of this row.
        given = copy.deepcopy(arguments(accepted, items))
        given |= {key: [value] * len(items) if lists else value for key, value in more.items()}
        if accepted is not None and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            given = {key: value for key, value in given.items() if key in accepted}
        return function(**given)

    if not lists:
        rewards = common.wait_all([one_call([item]) for item in items])
        if any(reward is None for reward in rewards):
            raise TypeError(f"`{name}` returned None; it must return a number")
        return [score(reward, name) for reward in rewards]
    rewards = common.wait(one_call(items))
    if isinstance(rewards, (str, bytes)) or not hasattr(rewards, "__len__") or isinstance(rewards, dict):
        raise TypeError(f"`{name}` returned {type(rewards).__name__}; with lists of arguments it must return a list")
    if len(rewards) != len(items):
        count = "one completion" if len(items) == 1 else f"{len(items)} completions"
        raise ValueError(f"`{name}` returned {len(rewards)} rewards for {count}")
    # `None` in a list is 0, as in TRL.
    return [(0.0, {}) if reward is None else score(reward, name) for reward in rewards]


def score(reward, name):
    """A returned value as the reward and its further numbers. verl's functions may return a dict with `score`."""
    metrics = {}
    if isinstance(reward, dict):
        if "score" not in reward:
            raise TypeError(f"`{name}` returned a dict without `score`; it has {', '.join(map(str, reward)) or 'nothing'}")
        metrics = {str(key): float(value) for key, value in reward.items() if key != "score" and isinstance(value, numbers.Real)}
        reward = reward["score"]
    try:
        if isinstance(reward, (str, bytes, bytearray)):
            raise TypeError
        found = float(reward)
    except (TypeError, ValueError, OverflowError):
        shown = "" if reward is None else f" {str(reward)[:40]!r}"
        raise TypeError(f"`{name}` returned {type(reward).__name__}{shown}, not a number") from None
    if not math.isfinite(found):
        raise ValueError(f"`{name}` returned {found}; a reward must be finite")
    return found, metrics


class Environment:
    """The prompt of a row is the observation, a text or messages; the whole response is the completion."""

    template = "{{ observation }}"

    def __init__(self, rewards, data, held_out=None, columns=None, info=()):
        """`rewards` has the functions, each with `fn`, `weight` and perhaps `name`. `columns` renames those of the file, and `info` names
        those for the info after a step."""
        self.tasks = common.by_split(data, held_out, tuple((columns or {}).items()))
        for rows in self.tasks.values():
            for row in rows:
                if common.prompt_of(row) is None:
                    raise KeyError(f"{row.source}: the row has no `prompt` and no `messages`; it has {', '.join(row) or 'nothing'}. Name "
                                   "the column by config key `columns`: {prompt: …}")
                if missing := [name for name in info if name not in row]:
                    raise KeyError(f"{row.source}: `info` names {', '.join(missing)}, and the row has {', '.join(row)}")
        self.shown = info
        self.rewards = []
        for one in rewards:
            function = load(one["fn"])
            check(function, one["fn"], self.tasks)
            self.rewards.append((function, one["fn"], one["weight"], one["name"] or one["fn"].rpartition(":")[2]))
        names = [name for *_, name in self.rewards]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"several reward functions are called {', '.join(sorted(twice))}; give them a `name`")

    def reset(self, split, task):
        self.row = self.tasks[split][task]
        self.prompt = common.prompt_of(self.row)
        return self.prompt, {"source": self.row.source}

    def parse(self, response):
        return response

    def step(self, completion):
        total, metrics = self.scored([(self.row, completion)])[0]
        return "", total, True, False, self.info(self.row) | ({"metrics": metrics} if metrics else {})

    def info(self, row):
        return {name: row[name] for name in self.shown}

    def score(self, items):
        """Reward and metrics of finished completions together: items of split, task and response."""
        rows = [self.tasks[one["split"]][one["task"]] for one in items]
        scored = self.scored([(row, one["response"]) for row, one in zip(rows, items)])
        return [{"reward": reward, "metrics": metrics, "info": self.info(row)} for row, (reward, metrics) in zip(rows, scored)]

    def scored(self, items):
        """Reward and metrics of rows and their completions."""
        totals, metrics = [0.0] * len(items), [{} for _ in items]
        given = [(common.prompt_of(row), completion, columns(row)) for row, completion in items]
        for function, where, weight, name in self.rewards:
            for at, (reward, more) in enumerate(call(function, where, given)):
                totals[at] += weight * reward
                metrics[at] |= {name: reward, **more} if len(self.rewards) > 1 else more
        return list(zip(totals, metrics))
