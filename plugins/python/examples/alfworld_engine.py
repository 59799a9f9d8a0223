"""The original ALFWorld engine (packages alfworld and textworld) as an environment of Nestor, for comparison with the
plugin `alfworld`: same games, same rewards, same limit of steps. scripts/alfworld/engine.sh installs the engine."""
from pathlib import Path

import fast_downward
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

INFOS = textworld.EnvInfos(feedback=True, won=True, admissible_commands=True)


class AlfWorld:
    """`games` is a game file or a folder of them; each is a task."""

    def __init__(self, games, max_steps=50):
        found = sorted(Path(games).rglob("game.tw-pddl"))
        self.games, self.max_steps, self.env = found or [Path(games)], max_steps, None

    def tasks(self, split):
        return self.games

    def reset(self, task):
        self.close()
        self.env, self.steps = textworld.start(str(self.games[task]), INFOS, [AlfredDemangler()]), 0
        state = self.env.reset()
        self.task = state.feedback.partition("Your task is to: ")[2].strip()
        return self.seen(state)

    def step(self, action):
        state, _, _ = self.env.step(action)
        self.steps += 1
        return self.seen(state), 10.0 * state.won, state.won, self.steps >= self.max_steps, {"won": state.won}

    def seen(self, state):
        return {"text": state.feedback, "task": self.task, "admissible": state.admissible_commands}

    def close(self):
        if self.env is not None:
            # A game has a copy of the planner's library of its own, which nothing else unloads.
            fast_downward.close_lib(self.env.unwrapped.downward_lib)
            self.env = None
