"""An OpenEnv server for tests, on the real package: walk on a line from 0 to 5 to a target, by "-" and "+".

    python openenv_server.py PORT STEPS SESSIONS COUNTS

It allows SESSIONS sessions, and appends the number of open ones to the file COUNTS when one is opened. The process dies, as a
server that crashes, in the STEPS-th step that it plays while all of them are open (0: never).
"""
import os
import random
import sys
from typing import Optional

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

PORT, STEPS, SESSIONS = map(int, sys.argv[1:4])
COUNTS = sys.argv[4]


class Say(Action):
    text: str


class Line(Observation):
    text: str = ""
    moves: list[str] = ["-", "+"]
    best: Optional[str] = None


class Walk(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    open, played = 0, 0

    def __init__(self):
        super().__init__()
        self.target = self.at = self.steps = 0
        Walk.open += 1
        with open(COUNTS, "a") as file:
            print(Walk.open, file=file)

    def close(self):
        Walk.open -= 1

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.target, self.at = random.Random(seed).sample(range(6), 2)
        self.steps = 0
        return self.seen(0.0)

    def step(self, action, timeout_s=None, **kwargs):
        Walk.played += Walk.open == SESSIONS
        if STEPS and Walk.played == STEPS:
            os._exit(1)
        self.steps += 1
        self.at = max(0, min(5, self.at + {"+": 1, "-": -1}.get(action.text, 0)))
        return self.seen(1.0 if self.at == self.target else 0.0)

    def seen(self, reward):
        best = "+" if self.target > self.at else "-"
        text = f"target: {self.target}\ncurrent: {self.at}"
        return Line(text=text, best=best, reward=reward, done=reward > 0)

    @property
    def state(self):
        return State(step_count=self.steps)


if __name__ == "__main__":
    app = create_fastapi_app(Walk, Say, Line, max_concurrent_envs=SESSIONS)
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="error")
