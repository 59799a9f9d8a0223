"""A small OpenEnv server: walk on a line to a target, by "left" and "right". See docs/openenv.md."""
import random

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    text: str


class Seen(Observation):
    text: str = ""
    moves: list[str] = ["left", "right"]
    best: str = ""


class Walk(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.at, self.target = random.Random(seed).sample(range(5), 2)
        return self.seen()

    def step(self, action, timeout_s=None, **kwargs):
        self.at += {"left": -1, "right": 1}.get(action.text, 0)
        return self.seen()

    def seen(self):
        won = self.at == self.target
        text = f"You are at {self.at}. Go to {self.target}."
        return Seen(text=text, best="right" if self.at < self.target else "left", reward=float(won), done=won)

    @property
    def state(self):
        return State()


app = create_fastapi_app(Walk, Say, Seen, max_concurrent_envs=128)
