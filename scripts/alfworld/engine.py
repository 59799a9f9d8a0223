"""The Python ALFWorld engine behind a pipe: a worker that runs inside .venv-alfworld, and `Engine`, which starts one.

usage: .venv-alfworld/bin/python scripts/alfworld/engine.py
Reads one JSON object per line on standard input and answers each with one on standard output:
    {"op": "versions"}                  -> {"python": .., "alfworld": .., "textworld": .., "fast_downward_textworld": ..}
    {"op": "load", "game": PATH}        -> {"seconds": ..}
    {"op": "reset"}                     -> {"record": RECORD, "seconds": ..}
    {"op": "step", "command": TEXT}     -> {"record": RECORD, "seconds": ..}
or {"error": TEXT}. A RECORD holds command (null for a reset), observation, admissible_commands (sorted), won, reward and
done. `seconds` is the time in the engine itself, without the pipe.
"""
import json
import os
import subprocess
import sys
import time


class EngineError(Exception):
    """The worker answered with an error, or not at all."""


class Engine:
    """One worker process and the game it has loaded. `python` is the interpreter of a venv that holds the engine."""

    def __init__(self, python):
        try:
            self.process = subprocess.Popen([str(python), __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            text=True, encoding="utf-8")
        except OSError as error:
            raise EngineError(f"{python} does not start ({error.strerror}); run scripts/alfworld/engine.sh") from None

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"the engine's process ended with code {self.process.wait()} at {str(request)[:200]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def versions(self):
        return self.ask(op="versions")

    def load(self, game):
        """Reads a game file; returns the seconds that it took."""
        return self.ask(op="load", game=str(game))["seconds"]

    def reset(self):
        return self.ask(op="reset")["record"]

    def step(self, command):
        return self.ask(op="step", command=command)["record"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Worker:
    """Answers requests with the engine that this interpreter has installed."""

    def __init__(self):
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        self.infos = textworld.EnvInfos(feedback=True, won=True, admissible_commands=True)
        self.wrappers = [AlfredDemangler()]
        self.textworld = textworld
        self.env = None

    def versions(self):
        from importlib.metadata import version

        packages = {name: version(name) for name in ("alfworld", "textworld", "fast_downward_textworld")}
        return {"python": sys.version.split()[0], **packages}

    def load(self, game):
        """A new game gets a new copy of the planner's library, which holds one game in its globals."""
        self.unload()
        begin = time.perf_counter()
        self.env = self.textworld.start(game, self.infos, self.wrappers)
        return {"seconds": time.perf_counter() - begin}

    def unload(self):
        """Gives back the copy of the library, which nothing else would ever unload."""
        if self.env is not None:
            import fast_downward

            fast_downward.close_lib(self.env.unwrapped.downward_lib)
            self.env = None

    def reset(self):
        begin = time.perf_counter()
        state = self.env.reset()
        return self.answer(None, state, 0, False, time.perf_counter() - begin)

    def step(self, command):
        begin = time.perf_counter()
        state, reward, done = self.env.step(command)
        return self.answer(command, state, reward, done, time.perf_counter() - begin)

    def answer(self, command, state, reward, done, seconds):
        record = {"command": command, "observation": state.feedback, "admissible_commands": state.admissible_commands,
                  "won": state.won, "reward": reward, "done": done}
        return {"record": record, "seconds": seconds}


def serve():
    # The planner's library and its translator write to standard output and change sys.argv: answers get a copy of the
    # stream, and the stream itself becomes standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("op"))(**request)
        except Exception as error:  # noqa: BLE001: whatever the engine raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
