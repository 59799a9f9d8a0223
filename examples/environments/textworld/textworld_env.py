"""TextWorld as an environment of Nestor: two rooms, three objects, a quest of four commands, eight turns, as in arXiv 2510.01132.

make_games.py makes the games; scripts/textworld/setup.sh installs the package. README.md explains the keys.
"""
import hashlib
import sys

import tw_games
import tw_text

try:
    import textworld
except ImportError as error:
    raise ImportError(f"{error}, in {sys.executable}; run scripts/textworld/setup.sh, and set `python: .venv/textworld`") from None

INFOS = textworld.EnvInfos(feedback=True, description=True, inventory=True, score=True, won=True, lost=True, objective=True,
                           admissible_commands=True, policy_commands=True, facts=True)

# In a transcript, the first paragraph of an observation is all that a later turn needs: the rest was shown before.
TEMPLATE = """{% if follow_up -%}
{{ observation.split("\n\n")[0] }}
{%- else -%}
You play a text adventure. Answer with the next command alone, such as: open box

Goal: {{ task }}

{{ observation }}
{%- endif %}COMMANDS
{%- for past in history %}{% if loop.first %}

Your last commands:{% endif %}
> {{ past.action }}
{{ past.observation.split("\n\n")[0] }}
{%- endfor %}"""
COMMANDS = """

Possible commands: {{ admissible | join(", ") }}"""


class TextWorld:
    """A task is a game: task 0 of `eval` has seed 1, task 0 of `train` has seed 1001."""

    def __init__(self, games="runs/textworld/games", train=tw_games.COUNT["train"], eval=tw_games.COUNT["eval"], max_steps=8,
                 commands=False, hash=None):
        self.games, self.max_steps = str(games), max_steps
        self.num_tasks = {"train": train, "eval": eval}
        self.template = TEMPLATE.replace("COMMANDS", COMMANDS if commands else "")
        self.game = None
        if not isinstance(hash, dict | None):
            raise tw_games.GamesError("`hash` of kwargs must be a map from splits to hashes, as make_games.py prints them")
        for split, sha256 in (hash or {}).items():
            tw_games.check(self.games, split, self.tasks(split), sha256)

    def tasks(self, split):
        """Number of tasks. A split whose games are not all there is refused."""
        count = len(tw_games.seeds(split, self.num_tasks.get(split)))
        tw_games.check(self.games, split, count)
        return count

    def reset(self, split, task):
        self.close()
        self.seed = tw_games.seed_of(split, task, self.num_tasks.get(split))
        self.game = textworld.start(str(tw_games.game_file(self.games, self.seed)), INFOS)
        self.game.seed(1)  # Without a seed the interpreter would take the clock.
        self.state, self.score, self.steps = self.game.reset(), 0, 0
        self.kind = "walk" if any(command.startswith("go ") for command in self.state.policy_commands) else "stay"
        # The game begins with a banner and the goal; its first news is the room.
        return self.seen(tw_text.short(self.state.description)), self.info()

    def parse(self, response):
        return tw_text.read(response, self.admissible())

    def step(self, action):
        """Gives an admissible command to the game. Others never reach it: it would read several in one line, and `undo` or `quit`."""
        self.steps += 1
        news = "That is not a possible command here."
        if action in self.admissible():
            self.state, self.score, _ = self.game.step(action)
            news = tw_text.short(self.state.feedback)
        over = bool(self.state.won or self.state.lost)
        # As published, a won game is worth 1, though a tenth of the games give a point on the way and so end with a score of 2.
        return self.seen(news), float(self.state.won), over, not over and self.steps >= self.max_steps, self.info()

    def seen(self, news):
        room, inventory = tw_text.short(self.state.description), tw_text.short(self.state.inventory)
        return {"text": tw_text.observation(news, room, inventory), "task": self.state.objective}

    def info(self):
        return {"won": bool(self.state.won), "task_type": self.kind, "score": self.score, "metrics": {"score": self.score}}

    def admissible(self):
        return self.state.admissible_commands

    def anchor(self):
        """The game and a digest of all facts that hold in it, among them room, inventory and the state of doors and containers."""
        facts = sorted(str(fact) for fact in self.state.facts)
        return f"{self.seed} {hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"

    def expert(self):
        """The next command of the game's own winning policy, which a quest that cannot be completed any more does not have."""
        return (self.state.policy_commands or ["look"])[0]

    def close(self):
        if self.game is not None:
            self.game.close()
            self.game = None
