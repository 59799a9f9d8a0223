"""examples/environments/textworld without the package: commands, prompts, seeds, sums, and episodes of a game made here.

tests/slow/textworld_differential.py plays real games beside the package."""
import importlib
import json
import sys
import types

import jinja2
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "examples/environments/textworld"))
import make_games  # noqa: E402
import tw_games  # noqa: E402
import tw_text  # noqa: E402

ADMISSIBLE = ["go north", "look", "take Quote of the Day Calendar from type J chest"]
QUOTE = ADMISSIBLE[2]


@pytest.mark.parametrize("response, action", [
    ("go north", ("go north", True)),
    ("  Go  NORTH.  ", ("go north", True)),
    ("> look", ("look", True)),
    ('"look"', ("look", True)),
    ("I should read it.\n\nTake the quote of the day calendar from the type J chest.\n \n", (QUOTE, True)),
    ("<think>north?</think><action>go north</action>", ("go north", True)),
    ("<ACTION>look</ACTION> or <action>\ngo north\n</action> then", ("go north", True)),
    ("look\nthen go north", ("then go north", False)),
    ("look. go north", ("look. go north", False)),
    ("<action></action> go north", None),
    ("", None),
    (" \n\t\n", None),
    ("the", None),
    ("\0", ("\0", False)),
    pytest.param("x" * 10_000_000, ("x" * tw_text.LONGEST, False), id="long"),
])
def test_a_response_is_a_command(response, action):
    assert tw_text.read(response, ADMISSIBLE) == action


def test_the_screen_becomes_short():
    status = "\n\n>" + " " * 60 + "-= Spare Room =-0/1"
    assert tw_text.short("\n-= Spare Room =-\nA room.\n\n\n You see a safe. \n" + status) == (
        "You are now in the spare room.\nA room.\nYou see a safe.")
    end = "\nYou eat it.\n\n\n     *** The End ***\n\nYou scored 1 out of a possible 1, in 6 turns.\n\nWould you like to RESTART?\n>"
    assert tw_text.short(end) == "You eat it.\n*** The End ***"
    assert tw_text.short("You are carrying nothing.") == "You are carrying nothing."


def test_an_observation_says_nothing_twice():
    assert tw_text.observation("Taken.", "A room.", "A key.") == "Taken.\n\nA room.\n\nA key."
    assert tw_text.observation("A room.", "A room.", "A key.") == "A room.\n\nA key."
    assert tw_text.observation("A key.", "A room.", "A key.") == "A key.\n\nA room."


def test_seeds_of_splits():
    assert [tw_games.seed_of("eval", task, 100) for task in (0, 99)] == [1, 100]
    assert [tw_games.seed_of("train", task, 400) for task in (0, 399)] == [1001, 1400]
    assert set(tw_games.seeds("eval", 1000)).isdisjoint(tw_games.seeds("train", 5000))
    for call, why in [(("test", 0, 5), "split `test` is unknown; known: eval, train"), (("eval", 5, 5), "no task 5"),
                      (("eval", -1, 5), "no task -1"), (("eval", 0, 1001), "at most 1000"), (("train", 0, 0), "at least 1")]:
        with pytest.raises(tw_games.GamesError, match=why):
            tw_games.seed_of(*call)


def put(folder, seed, text="a goal", date=b"261127"):
    """A game's files, as small as can be."""
    file = tw_games.game_file(folder, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"v" * 18 + date + text.encode())
    file.with_suffix(".json").write_text(json.dumps({"objective": text, "version": 1}))


def test_a_sum_knows_the_game_and_not_its_date(tmp_path):
    for folder, change in [("a", {}), ("b", {"date": b"300101"}), ("c", {"text": "another goal"})]:
        put(tmp_path / folder, 1, **change)
    (tmp_path / "b/w2-o3-q4-1/game.json").write_text('{"version": 1,\n "objective": "a goal"}')
    a, b, c = (tw_games.sum_of(tmp_path / folder, 1) for folder in "abc")
    assert a == b != c
    # sha256 of "1 x\n2 y\n", by sha256sum
    assert tw_games.hash_of({2: "y", 1: "x"}) == "dc462c835651f97b5f1a08abda83bc5ed6baf4813b7603ec1b0576bbfc5dab72"


def test_games_are_made_once_and_again_if_damaged(tmp_path, monkeypatch, capsys):
    made = []

    def make(folder, seed):
        made.append(seed)
        put(folder, seed, f"goal {seed}")
        return tw_games.sum_of(folder, seed)

    def run(*words):
        made.clear()
        monkeypatch.setattr(sys, "argv", ["make_games.py", "--games", str(tmp_path), "--jobs", "2", *words])
        make_games.main()
        return sorted(made), capsys.readouterr().out.splitlines()[-1].split()[-1]

    monkeypatch.setattr(make_games, "make", make)
    monkeypatch.setattr(make_games.importlib.metadata, "version", lambda name: tw_games.VERSION)
    first, three = run("--split", "eval", "--count", "3")
    assert first == [1, 2, 3] and run("--split", "eval", "--count", "3") == ([], three)
    assert run("--split", "eval,train", "--count", "4")[0] == [4, 1001, 1002, 1003, 1004]
    put(tmp_path, 2, "damaged")
    tw_games.game_file(tmp_path, 3).unlink()
    assert run("--split", "eval", "--count", "3") == ([2, 3], three)
    manifest = tw_games.read_manifest(tmp_path)
    assert manifest["textworld"] == "1.7.0" and len(manifest["games"]) == 8
    assert manifest["splits"]["eval"] == {"first": 1, "count": 3, "sha256": three}
    # A killed run leaves games without a manifest: they are kept.
    (tmp_path / "manifest.json").write_text("{")
    assert run("--split", "eval", "--count", "3") == ([], three)
    monkeypatch.setattr(make_games.importlib.metadata, "version", lambda name: "1.8.0")
    with pytest.raises(SystemExit, match="textworld 1.8.0 makes other games than 1.7.0"):
        run()


def test_missing_and_other_games_are_refused(tmp_path):
    for seed in (1, 2, 3):
        put(tmp_path, seed)
    sha256 = tw_games.hash_of({seed: tw_games.sum_of(tmp_path, seed) for seed in (1, 2, 3)})
    tw_games.check(str(tmp_path), "eval", 3, sha256)
    with pytest.raises(tw_games.GamesError, match=r"2 of 5 games of split eval are missing in .*, the first is w2-o3-q4-4; make them: "
                                                  r".*make_games.py --games .* --split eval --count 5$"):
        tw_games.check(str(tmp_path), "eval", 5)
    with pytest.raises(tw_games.GamesError, match=f"differ from the recorded ones: their hash is {sha256}, and `hash` of kwargs says x"):
        tw_games.check(str(tmp_path), "eval", 3, "x")


class Game:
    """Stands in for the package's player: a room with a door to the north, behind which the game is won."""

    def __init__(self):
        self.said = []

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        return self.state("", False)

    def step(self, command):
        self.said.append(command)
        won = command == "go north"
        return self.state("-= Hall =-\nYou made it." if won else "A chest.", won), int(won), won

    def state(self, feedback, won):
        return types.SimpleNamespace(
            feedback=feedback, description=f"-= {'Hall' if won else 'Attic'} =-\nSmall.", inventory="You carry nothing.",
            objective="Go north.", won=won, lost=False, facts=["open(door)", "at(P, hall)" if won else "at(P, attic)"],
            admissible_commands=["go north", "look"], policy_commands=[] if won else ["go north"])

    def close(self):
        pass


@pytest.fixture
def env(tmp_path, monkeypatch):
    """The environment, with games of that kind."""
    package = types.SimpleNamespace(EnvInfos=lambda **infos: infos, start=lambda path, infos: Game())
    monkeypatch.setitem(sys.modules, "textworld", package)
    monkeypatch.delitem(sys.modules, "textworld_env", raising=False)
    for seed in (1, 2, 1001):
        put(tmp_path, seed)
    made = importlib.import_module("textworld_env").TextWorld(str(tmp_path), train=1, eval=2, max_steps=3)
    yield made
    sys.modules.pop("textworld_env", None)


def play(env, response):
    read = env.parse(response)
    return env.step("" if read is None else read[0])


def test_an_episode(env):
    assert (env.tasks("eval"), env.tasks("train")) == (2, 1)
    seen, info = env.reset("eval", 1)
    assert seen == {"text": "You are now in the attic.\nSmall.\n\nYou carry nothing.", "task": "Go north."}
    assert info == {"won": False, "task_type": "walk", "score": 0, "metrics": {"score": 0}} and env.game.seeded
    start = env.anchor()
    seen, reward, terminated, truncated, info = play(env, "LOOK.")
    assert seen["text"].startswith("A chest.\n\n") and not (reward or terminated or truncated) and env.anchor() == start
    seen, reward, terminated, truncated, info = play(env, env.expert())
    assert (reward, terminated, truncated, info["won"], info["score"]) == (1.0, True, False, True, 1)
    assert env.anchor() != start and env.expert() == "look"
    env.reset("eval", 0)
    assert env.anchor() != start


def test_only_admissible_commands_reach_the_game(env):
    env.reset("train", 0)
    ends = []
    for response in ("undo", "", "look. go north"):
        seen, reward, terminated, truncated, info = play(env, response)
        assert seen["text"].startswith("That is not a possible command here.\n\nYou are now in the attic.") and not (reward or terminated)
        ends.append(truncated)
    assert ends == [False, False, True] and env.game.said == []


def test_later_turns_of_a_transcript_have_the_news_alone(env, tmp_path):
    def render(made, **values):
        values = {"task": "Go north.", "observation": "Taken.\n\nA room.\n\nA key.", "admissible": ["look", "go north"], "history": [],
                  "follow_up": False} | values
        return jinja2.Template(made.template, undefined=jinja2.StrictUndefined).render(values)

    first = render(env)
    assert "\n\nGoal: Go north.\n\nTaken.\n\nA room.\n\nA key." in first and first.endswith("A key.")
    assert render(env, follow_up=True) == "Taken."
    past = [{"action": "look", "observation": "A hall.\n\nA key."}, {"action": "go north", "observation": "Shut.\n\nA hall."}]
    assert render(env, history=past) == first + "\n\nYour last commands:\n> look\nA hall.\n> go north\nShut."
    listed = type(env)(str(tmp_path), train=1, eval=2, commands=True)
    assert render(listed, follow_up=True) == "Taken.\n\nPossible commands: look, go north"
    assert render(listed) == first + "\n\nPossible commands: look, go north"


def test_config_errors(env, tmp_path, monkeypatch):
    with pytest.raises(tw_games.GamesError, match="differ from the recorded ones"):
        type(env)(str(tmp_path), eval=2, hash={"eval": "x"})
    with pytest.raises(tw_games.GamesError, match="`hash` of kwargs must be a map"):
        type(env)(str(tmp_path), hash="x")
    with pytest.raises(tw_games.GamesError, match="split `test` is unknown"):
        env.tasks("test")
    monkeypatch.setitem(sys.modules, "textworld", None)
    monkeypatch.delitem(sys.modules, "textworld_env")
    with pytest.raises(ImportError, match="run scripts/textworld/setup.sh, and set `python: .venv/textworld`"):
        importlib.import_module("textworld_env")
