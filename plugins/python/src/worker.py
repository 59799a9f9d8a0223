"""Plays environments of one Python class for Nestor's plugin `python`, many in one process. Standard library only.

The plugin starts this program with a socket as standard input. Requests and replies are frames: the length as four bytes,
most significant first, and that many bytes of JSON. In a reply with images a null byte and their pixels follow the JSON. A
request has an id, the index of an environment, a type and data; its
reply has the id, a type and data. One request is answered before the next one is read. The bodies are those of OpenEnv, with
Nestor's own fields inside.

Two processes run it. The first one, the keeper, is the parent of the worker and outlives it: it ends whatever the worker has
started, also once the trainer is gone. Its standard output is a socket on which the trainer hangs up, or asks it to kill.
"""
import contextlib
import faulthandler
import hashlib
import importlib.util
import inspect
import json
import math
import operator
import os
import select
import signal
import stat
import sys
import time
import traceback
import types
from collections.abc import Iterable, Mapping, Sized

# Bytes of a reply without pixels. The plugin takes no more.
LIMIT = 16 << 20
# Images of a reply, and their pixels together.
MOST_IMAGES, MOST_PIXELS = 64, 16 << 20
# Seconds that a worker has to close its environments once the trainer is gone, and its keeper to end the rest.
FAREWELL, REST = 2, 5
# Seconds between two looks of the keeper for the trainer.
LOOK = 0.5
# prctl's numbers of a signal at the parent's end, and of a process that adopts its descendants' orphans.
PDEATHSIG, SUBREAPER = 1, 36
# The folder of Python's own library and of installed packages.
LIBRARY = os.path.dirname(os.__file__) + os.sep


class Environments:
    """The class, and its instances by index. An instance is made at its first reset."""

    def __init__(self, make, kwargs):
        self.make, self.kwargs = make, kwargs
        self.envs = {}

    def env(self, index):
        if index not in self.envs:
            self.envs[index] = Adapter(self.make(**self.kwargs))
        return self.envs[index]

    def close(self, index):
        adapter = self.envs.pop(index, None)
        close = getattr(adapter and adapter.env, "close", None)
        if callable(close):
            close()

    def close_all(self):
        """Closes what is open, once the trainer is gone and no one waits for the result."""
        for index in list(self.envs):
            try:
                self.close(index)
            except BaseException:  # noqa: BLE001: the others are closed too
                traceback.print_exc()

    def answer(self, index, kind, data):
        """Type and data of the reply, and the pixels of an observation."""
        if kind == "close":
            self.close(index)
            return "done", None
        adapter = self.env(index)
        if kind == "step":
            return "observation", *adapter.step(data)
        if kind == "reset":
            return "observation", *adapter.reset(data)
        if kind == "describe":
            return "description", adapter.describe()
        if kind == "tasks":
            return "count", adapter.tasks(data["split"])
        if kind == "expert":
            return "text", adapter.expert()
        if kind == "response":
            return "text", said(adapter.env.response(data["action"]), "`response`")
        if kind == "save":
            return "state", strict(adapter.env.save())
        if kind == "score":
            return "scores", [checked_score(one) for one in adapter.env.score(data["items"])]
        if kind == "load":
            adapter.env.load(data["state"])
            return "done", None
        raise ValueError(f"unknown request {kind!r}")


class Adapter:
    """One instance of the class, with the names that Nestor asks by."""

    def __init__(self, env):
        self.env = env
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise TypeError(f"{type(env).__name__} has no method `{name}`")
        self.parse, self.anchor, self.admissible = (self.method(name) for name in ("parse", "anchor", "admissible"))
        self.expert_action = self.method("expert_action") or self.method("expert")
        accepted = inspect.signature(env.reset).parameters
        self.any_keyword = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        self.keywords = set(accepted)

    def method(self, name):
        found = getattr(self.env, name, None)
        return found if callable(found) else None

    def describe(self):
        template = getattr(self.env, "template", None)
        template = template() if callable(template) else template
        if not (template is None or isinstance(template, str)):
            raise TypeError(f"`template` is {shown(template)}; it must be a text, or a method that returns one")
        optional = {"parse": self.parse, "expert": self.expert_action}
        optional |= {name: self.method(name) for name in ("response", "save", "load")}
        optional["tools"] = hasattr(self.env, "tools")
        return {"template": template, "has": [name for name, found in optional.items() if found]}

    def tasks(self, split):
        """Number of tasks in a split; null where the class does not say."""
        name = "tasks" if hasattr(self.env, "tasks") else "num_tasks"
        found = getattr(self.env, name, None)
        if callable(found):
            found, name = found(split), f"{name}({split!r})"
        if isinstance(found, dict):
            if split not in found:
                raise ValueError(f"split `{split}` is unknown; known: {', '.join(map(str, found))}")
            found, name = found[split], f"{name}[{split!r}]"
        return None if found is None else count(found, f"`{name}`")

    def reset(self, data):
        given = {**data, "options": {"split": data["split"], "task": data["task"]}}
        # gymnasium's names always go into **kwargs; Nestor's own only where the method names them.
        wanted = self.keywords | ({"seed", "options"} if self.any_keyword else set())
        seen = self.env.reset(**{name: value for name, value in given.items() if name in wanted})
        info = {}
        if isinstance(seen, tuple):
            if len(seen) != 2:
                raise TypeError(f"reset returned {len(seen)} values; it must return the observation, or the observation and info")
            seen, info = seen
        reply, pixels = self.observe(seen, info, 0.0, False, False)
        reply["observation"]["tools"] = self.tools()
        return reply, pixels

    def tools(self):
        """The tools that the policy may call in this episode, as JSON schemas of functions."""
        tools = getattr(self.env, "tools", None)
        tools = tools() if callable(tools) else tools
        return [tool if "function" in tool else {"type": "function", "function": dict(tool)}
                for tool in items([] if tools is None else tools, "`tools`")]

    def step(self, data):
        if "message" in data:
            action, valid = data["message"], data["valid"]
        elif self.parse is None:
            action, valid = data["action"], data["valid"]
        else:
            action = self.parse(data["response"])
            if isinstance(action, tuple) and len(action) != 2:
                raise TypeError(f"parse returned {len(action)} values; it must return the action, or (action, valid)")
            action, valid = action if isinstance(action, tuple) else (action, action is not None)
            action = "" if action is None else action
        result = self.env.step(action)
        length = len(result) if isinstance(result, (tuple, list)) else None
        if length not in (4, 5):
            what = type(result).__name__ if length is None else f"{length} values"
            raise TypeError(f"step returned {what}; it must return observation, reward, terminated, truncated, info")
        seen, reward, terminated, *cut, info = result
        terminated = flag(terminated, "`terminated` of step" if cut else "`done` of step")
        if cut:
            truncated = flag(cut[0], "`truncated` of step")
        else:
            truncated = flag(mapping(info, "info").get("TimeLimit.truncated"), 'info["TimeLimit.truncated"]')
            terminated = terminated and not truncated
        reply, pixels = self.observe(seen, info, number(reward, "the reward"), terminated, truncated and not terminated)
        reply["observation"].update(action=described(action) if "message" in data else str(action), valid=flag(valid, "`valid` of parse"))
        return reply, pixels

    def observe(self, seen, info, reward, terminated, truncated):
        info, images, messages = dict(mapping(info, "info")), [], []
        if isinstance(seen, dict) and "messages" in seen:
            if "text" in seen:
                raise TypeError("an observation has `text` or `messages`, not both")
            messages, seen = list(items(seen["messages"], "`messages` of the observation")), {**seen, "text": ""}
        if isinstance(seen, list):
            if not seen and not (terminated or truncated):
                raise ValueError("the observation is an empty list; it needs at least one message of the user")
            seen, messages = "", seen
        elif isinstance(seen, dict):
            info = {key: seen[key] for key in ("task", "anchor", "admissible") if key in seen} | info
            one, several = seen.get("image"), seen.get("images")
            several = [] if several is None else items(several, "`images` of the observation")
            images = pictures([*([] if one is None else [one]), *several])
            seen = seen.get("text", "" if images else None)
        elif not isinstance(seen, str) and callable(getattr(seen, "tobytes", None)):
            seen, images = "", pictures([seen])
        if not isinstance(seen, str):
            raise TypeError("an observation must be a text, an image, a list of messages, or a dict with `text`, `messages`, "
                            f"`image` or `images`, not {type(seen).__name__}")
        admissible = first(info, "admissible", "admissible_actions", "admissible_commands")
        if self.admissible:
            admissible = self.admissible()
        anchor = info.pop("anchor", None)
        if self.anchor:
            anchor = self.anchor()
        if anchor is None and images:
            seen_as = json.dumps(messages, default=plain) if messages else seen
            sizes = [(width, height) for width, height, _ in images]
            digest = hashlib.sha256(b"".join([repr(sizes).encode(), *(pixels for *_, pixels in images)]))
            anchor = f"{seen_as} {digest.hexdigest()}"
        if anchor is not None:
            anchor = anchor.hex() if isinstance(anchor, bytes) else str(anchor)
        won = first(info, "won", "success", "is_success")
        if won is not None:
            info["won"] = flag(won, "`won` of info")
        metrics = mapping(info.pop("metrics", None), 'info["metrics"]')
        metrics = {str(key): number(value, f'info["metrics"]["{key}"]') for key, value in metrics.items()}
        admissible = [] if admissible is None else items(admissible, "the list of admissible actions")
        task = info.pop("task", None)
        observation = {"text": seen, "messages": messages, "task": "" if task is None else str(task),
                       "admissible": [str(a) for a in admissible], "anchor": anchor, "metrics": metrics, "metadata": info,
                       "images": [[width, height] for width, height, _ in images]}
        reply = {"observation": observation, "reward": reward, "done": terminated or truncated, "truncated": truncated}
        return reply, b"".join(pixels for *_, pixels in images)

    def expert(self):
        if self.expert_action is None:
            raise TypeError(f"{type(self.env).__name__} has no `expert`")
        return said(self.expert_action(), "`expert`")


def described(action):
    """A message as text: its calls, or else its content."""
    calls = [f"{call['name']}({json.dumps(call['arguments'])})" for call in action["tool_calls"]]
    return "; ".join(calls) or action["content"]


def checked_score(one):
    """Reward, metrics and info of one completion that was scored with others."""
    metrics = {str(key): number(value, f'metric "{key}"') for key, value in one["metrics"].items()}
    return {"reward": number(one["reward"], "the reward"), "metrics": metrics, "info": one["info"]}


def shown(value):
    """A value in a message: its type and the start of its text."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:40] + '…'}"


def number(value, name):
    """A finite number as a float. Texts are none, even those that look like one."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {shown(value)}; it must be a number") from None
    if not math.isfinite(found):
        raise ValueError(f"{name} is {found}; it must be finite")
    return found


def flag(value, name):
    """True or false. `None` is false, numbers are as Python has them, and nothing else is a truth value."""
    if value is None or isinstance(value, bool):
        return bool(value)
    return number(value, name) != 0


def count(value, name):
    """A number of tasks: a whole number, or the length of a list."""
    if isinstance(value, Sized) and not isinstance(value, (str, bytes, bytearray)):
        return len(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}; it must be a whole number, a list, or a dict of either by split") from None
    if not 0 <= found < 1 << 63:
        raise ValueError(f"{name} is {found}; it must be at least 1 and below 2^63")
    return found


def mapping(value, name):
    """A dict; an empty one in place of `None`."""
    if value is None or isinstance(value, Mapping):
        return {} if value is None else value
    raise TypeError(f"{name} is {shown(value)}; it must be a dict")


def items(value, name):
    """Something like a list. A text is none, though Python iterates over its characters."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping)):
        return value
    raise TypeError(f"{name} is {shown(value)}; it must be a list")


def said(value, name):
    """An action or a response as text."""
    if value is None:
        raise TypeError(f"{name} returned None; it must return a text")
    return str(value)


def strict(state):
    """The state of an episode, all of whose values JSON has: it is read again later."""
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"`save` returned a state that JSON cannot hold: {error}") from None
    return state


def pictures(images):
    """Width, height and pixels of images."""
    if len(images) > MOST_IMAGES:
        raise ValueError(f"the environment gave {len(images)} images in one call; the limit is {MOST_IMAGES}")
    all_of = [picture(image) for image in images]
    count = sum(width * height for width, height, _ in all_of)
    if count > MOST_PIXELS:
        raise ValueError(f"the images of one call have {count} pixels; the limit is {MOST_PIXELS}: scale them down")
    return all_of


def picture(image):
    """Width, height and RGB bytes of an image of PIL's or an array like numpy's."""
    if callable(getattr(image, "convert", None)):
        image = image.convert("RGB")
        size, pixels = image.size, image.tobytes()
    else:
        shape, kind = getattr(image, "shape", None), getattr(image, "dtype", None)
        if shape is None or len(shape) != 3 or shape[2] != 3 or str(kind) != "uint8":
            what = type(image).__name__ if shape is None else f"an array {tuple(shape)} of {kind}"
            raise TypeError(f"an image must be one of PIL's, or an array (height, width, 3) of uint8, not {what}; "
                            "put observations of other numbers into words")
        size, pixels = (shape[1], shape[0]), image.tobytes()
    if 0 in size:
        raise ValueError(f"an image has {size[0]}x{size[1]} pixels; both sides must be at least 1")
    return int(size[0]), int(size[1]), pixels


def first(info, *names):
    """Removes these names; returns the first value that is there."""
    values = [info.pop(name) for name in names if name in info]
    return next((value for value in values if value is not None), None)


def load(name):
    """The object that `package.module:Name` names."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"`{name}` must have the form package.module:Name")
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        refuse_foreign(".".join(parts[:count]))
    found = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part):
            names = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            raise AttributeError(f"`{module}` has no `{part}`; it has {', '.join(names) or 'no classes or functions'}")
        found = getattr(found, part)
    return found


def refuse_foreign(module):
    """Refuses a module that others could change, by the rule of plugin files (core/host/src/trust.rs)."""
    spec = None if module in sys.modules else importlib.util.find_spec(module)
    if spec is None or not spec.has_location or not os.path.isfile(spec.origin):
        return
    file = os.path.realpath(spec.origin)
    folder = os.path.dirname(file)
    for what, place in [("module", file), ("the folder of a module,", folder)]:
        status = os.stat(place)
        if place == folder and status.st_mode & stat.S_ISVTX:
            continue
        own_group = status.st_gid in (os.getegid(), status.st_uid)
        others = [("every user of this machine", "o-w")] if status.st_mode & stat.S_IWOTH else []
        others += [("all members of its group", "g-w")] if status.st_mode & stat.S_IWGRP and not own_group else []
        for who, change in others:
            raise PermissionError(
                f"{what} {place} can be changed by {who} (mode {status.st_mode & 0o7777:03o}), and nestor would run what they put "
                f"there: chmod {change} {place}")


def message_of(error):
    """An exception as one line: its text, and the last places of its traceback outside this program and Python's own library."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip().replace("\n", " ")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != "<string>" and "importlib" not in f.filename]
    frames = [f for f in frames if not f.filename.startswith(LIBRARY)] or frames
    places = [f"{f.filename}, line {f.lineno}, in {f.name}" + (f": {f.line}" if f.line else "") for f in frames[-3:][::-1]]
    return "; called from ".join([text + " at " + places[0], *places[1:]]) if places else text


def plain(value):
    """A form that json can write: arrays and numbers of numpy become lists and numbers, all else its text."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def finite(value):
    """The value without numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain, separators=(",", ":")).encode


def encoded(reply):
    try:
        try:
            text = ENCODE(reply)
        except ValueError:
            text = ENCODE(finite(json.loads(json.dumps(reply, default=plain))))
    except (TypeError, ValueError, RecursionError) as error:
        # All other fields were checked.
        raise TypeError(f"info cannot be written as JSON: {error}") from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text of the environment holds half a surrogate pair, which is no UTF-8") from None


def send(link, reply, pixels=b""):
    try:
        body = encoded(reply)
        if len(body) > LIMIT:
            raise ValueError(f"the environment gave {len(body)} bytes in one call; the limit is {LIMIT}")
        if pixels:
            body += b"\0" + pixels
    except Exception as error:  # noqa: BLE001: any fault of the values is the environment's error
        body = encoded({"id": reply["id"], "type": "error", "data": {"message": message_of(error), "code": "EXECUTION_ERROR"}})
    rest = memoryview(len(body).to_bytes(4, "big") + body)
    while rest:
        rest = rest[os.write(link, rest):]


def requests(link):
    """Each request of the plugin, until it hangs up."""
    buffer = b""
    while True:
        while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
            part = os.read(link, 1 << 20)
            if not part:
                return
            buffer += part
        end = 4 + int.from_bytes(buffer[:4], "big")
        yield json.loads(buffer[4:end])
        buffer = buffer[end:]


def opened(data):
    """Imports the class as the first request asks."""
    if sys.version_info < (3, 10):
        raise RuntimeError(f"Python {sys.version.split()[0]} is too old; 3.10 or newer is needed")
    sys.path[:0] = data["path"]
    for name, source in data["modules"].items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        exec(compile(source, f"<{name}>", "exec"), module.__dict__)  # noqa: S102: the plugin's own source
    return Environments(load(data["class"]), data["kwargs"])


class Gone(BaseException):
    """The trainer is gone during a call."""


class Worker:
    """Answers requests until the trainer hangs up."""

    def __init__(self, link):
        self.link, self.environments, self.process = link, None, None
        # A call is under way whose reply the trainer waits for.
        self.calling = False

    def look(self, *_):
        """The keeper's signal: leaves a call that no one waits for any more. An environment may send the signal too."""
        if os.getpid() != self.process:  # one that the environment forked
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return os.kill(os.getpid(), signal.SIGTERM)
        poll = select.poll()
        poll.register(self.link, select.POLLRDHUP)
        if self.calling and poll.poll(0):
            self.calling = False
            raise Gone

    def serve(self):
        self.process = os.getpid()
        try:
            for request in requests(self.link):
                reply = self.reply(request)
                if os.getpid() != self.process:
                    os._exit(0)  # the environment forked, and its call returned in the copy too
                send(self.link, *reply)
        except (Gone, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            if self.environments and os.getpid() == self.process:
                self.environments.close_all()

    def reply(self, request):
        index, kind, data = request["env"], request["type"], request["data"]
        try:
            self.calling = kind != "close"
            if kind == "open":
                self.environments = opened(data)
                answer = self.environments.answer(index, "describe", None)
            else:
                answer = self.environments.answer(index, kind, data)
            self.calling = False
            reply = {"id": request["id"], "type": answer[0], "data": answer[1]}
            return reply, answer[2] if len(answer) > 2 else b""
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001: whatever the environment raises is the reply
            self.calling = False
            if not isinstance(error, Exception) and kind != "close":
                raise
            return {"id": request["id"], "type": "error", "data": {"message": message_of(error), "code": "EXECUTION_ERROR"}}, b""


def prctl(option, value):
    """Linux's call of this name; without ctypes, which some interpreters lack, nothing is done."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Keeper:
    """The parent of a worker."""

    def __init__(self, worker, lifeline, trainer):
        self.worker, self.lifeline, self.trainer = worker, lifeline, trainer

    def keep(self):
        """Waits for the worker's end, ends all that it has left, and then ends in the same way."""
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGVTALRM}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        # The trainer knows this process alone.
        signal.signal(signal.SIGVTALRM, lambda *_: self.tell(signal.SIGVTALRM))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ends, wake = os.pipe()
        for each in (ends, wake):
            os.set_blocking(each, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll, late = select.poll(), math.inf
        poll.register(ends, select.POLLIN)
        poll.register(self.lifeline, select.POLLIN)
        while (status := self.reap()) is None:
            left = min(LOOK, max(0.01, late - time.monotonic()))
            for descriptor, _ in poll.poll(math.ceil(left * 1000)):
                if descriptor == ends:
                    with contextlib.suppress(BlockingIOError):
                        os.read(ends, 4096)
                elif self.asked():
                    late = 0
                else:
                    poll.unregister(self.lifeline)
                    self.trainer = None
            if late == math.inf and os.getppid() != self.trainer:
                late = time.monotonic() + FAREWELL
                self.tell(signal.SIGTERM)
            if time.monotonic() >= late:
                self.tell(signal.SIGKILL)
        self.end_rest()
        leave(status)

    def asked(self):
        """True if the trainer asks to kill; false if it hung up."""
        try:
            return bool(os.read(self.lifeline, 1))
        except OSError:
            return False

    def tell(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.worker, number)

    def reap(self):
        """Takes note of processes that ended; the worker's status once it did."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return 0
            if found is None:
                return None
            if found.si_pid == self.worker:
                # Not reaped yet, so the number of its group is still its own.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.worker, signal.SIGKILL)
                # A request for its place that comes too late must not reach another process of its number.
                signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
                return os.waitpid(self.worker, 0)[1]
            os.waitpid(found.si_pid, 0)

    def end_rest(self):
        """Kills all that is left. The orphans of a killed process become children of this one."""
        end = time.monotonic() + REST
        while time.monotonic() < end:
            for child in children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.005)


def children():
    """The process ids of this process's children."""
    own = str(os.getpid())
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            # The name in brackets may hold anything; state and parent follow it.
            if file.read().rpartition(")")[2].split()[1] == own:
                yield int(name)


def leave(status):
    """Ends this process as another one ended."""
    if os.WIFSIGNALED(status):
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xff)


def main():
    link, lifeline, trainer = os.dup(0), os.dup(1), os.getppid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    worker = Worker(link)
    # A signal to all processes of a job is the trainer's to act on. Handlers are not inherited by programs that run here.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, worker.look)
    prctl(SUBREAPER, 1)
    keeper = os.getpid()
    if process := os.fork():
        os.close(link)
        Keeper(process, lifeline, trainer).keep()
    os.close(lifeline)
    os.setsid()
    prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    # The trainer sends this signal to a worker that takes too long, and reads on the socket where it hangs.
    faulthandler.register(signal.SIGVTALRM, file=link, all_threads=False)
    worker.serve()


if __name__ == "__main__":
    sys.modules["nestor_worker"] = sys.modules["__main__"]
    main()
