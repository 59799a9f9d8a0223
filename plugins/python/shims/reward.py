"""A reward function as an environment of one step. Part of Nestor's plugin `python`."""
import inspect
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


def verl(row, completion, lists):
    """verl's arguments from a row in its form: ground truth in `reward_model`, or in a column of its own."""
    given = {"data_source": row.get("data_source", ""), "solution_str": completion, "extra_info": row.get("extra_info")}
    model = row.get("reward_model")
    if isinstance(model, dict) and "ground_truth" in model:
        given["ground_truth"] = model["ground_truth"]
    elif "ground_truth" in row:
        given["ground_truth"] = row["ground_truth"]
    return {VERL[name]: [value] for name, value in given.items()} if lists else given


def check(function, name, rows, more=()):
    """Refuses a function with an argument that a row does not give, before a run calls it."""
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
            given = arguments(accepted, common.prompt_of(row), "", columns(row)) | dict.fromkeys(more)
            missing = [one for one in required if one not in given]
            if missing:
                where = getattr(row, "source", f"row {number} of split {split}")
                raise TypeError(
                    f"`{name}` needs the argument{'s' * (len(missing) > 1)} {', '.join(missing)}, which {where} does not give; it gives "
                    f"{', '.join(sorted(given))}. Name the parameters after these, give them a default, or add the column to the data")


def columns(row):
    """The columns of a row that a function gets beside the prompt and the completion."""
    return {name: value for name, value in row.items() if name not in ("prompt", "completion")}


def arguments(accepted, prompt, completion, others):
    """All arguments that a call can give."""
    wanted = form(accepted)
    if wanted.startswith("verl"):
        row = others | {"prompt": prompt}
        given = verl(row, completion, wanted == "verl lists")
        return {name: value for name, value in others.items() if name not in given} | given
    if wanted == "lists":
        if isinstance(prompt, list) and isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        return {"prompts": [prompt], "completions": [completion]} | {name: [value] for name, value in others.items()}
    return {"prompt": prompt, "completion": completion, **others}


def call(function, prompt, completion, others, **more):
    """The reward, and the numbers beside it where the function returns a dict with `score`. A function with a parameter
    `completions` gets lists of one, as in TRL; one with `solution_str` gets verl's arguments; any other gets the values."""
    accepted = parameters(function)
    given = arguments(accepted, prompt, completion, others | more)
    if accepted is not None and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        given = {name: value for name, value in given.items() if name in accepted}
    reward = common.wait(function(**given))
    if form(accepted).endswith("lists"):
        if isinstance(reward, (str, bytes)) or not hasattr(reward, "__len__") or isinstance(reward, dict):
            raise TypeError(f"the reward function returned {type(reward).__name__}; with lists of arguments it must return a list")
        if len(reward) != 1:
            raise ValueError(f"the reward function returned {len(reward)} rewards for one completion")
        reward = reward[0]
    return score(reward)


def score(reward):
    """A returned value as the reward and its further numbers. verl's functions may return a dict with `score`."""
    metrics = {}
    if isinstance(reward, dict):
        if "score" not in reward:
            raise TypeError(f"the reward function returned a dict without `score`; it has {', '.join(map(str, reward)) or 'nothing'}")
        metrics = {str(name): float(value) for name, value in reward.items() if name != "score" and isinstance(value, numbers.Real)}
        reward = reward["score"]
    if reward is None:
        return 0.0, metrics
    try:
        return float(reward), metrics
    except (TypeError, ValueError):
        raise TypeError(f"the reward function returned {type(reward).__name__}, not a number") from None


class Environment:
    """The prompt of a row is the observation, a text or messages; the whole response is the completion."""

    template = "{{ observation }}"

    def __init__(self, rewards, data, held_out=None, columns=None):
        """`rewards` has the functions, each with `fn`, `weight` and perhaps `name`. `columns` renames those of the file."""
        self.tasks = common.by_split(data, held_out, tuple((columns or {}).items()))
        self.rewards = []
        for one in rewards:
            function = load(one["fn"])
            if not callable(function):
                raise TypeError(f"`{one['fn']}` is no function")
            check(function, one["fn"], self.tasks)
            self.rewards.append((function, one["weight"], one["name"] or one["fn"].rpartition(":")[2]))
        names = [name for _, _, name in self.rewards]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"several reward functions are called {', '.join(sorted(twice))}; give them a `name`")

    def reset(self, split, task):
        self.row = self.tasks[split][task]
        self.prompt = common.prompt_of(self.row)
        if self.prompt is None:
            raise KeyError(f"row {task} of split {split} has no `prompt` and no `messages`; it has {', '.join(self.row)}")
        source = getattr(self.row, "source", None)
        return self.prompt, {"source": source} if source else {}

    def parse(self, response):
        return response

    def step(self, completion):
        total, metrics = 0.0, {}
        for function, weight, name in self.rewards:
            reward, more = call(function, self.prompt, completion, columns(self.row))
            total += weight * reward
            metrics |= {name: reward, **more} if len(self.rewards) > 1 else more
        return "", total, True, False, {"metrics": metrics} if metrics else {}
