"""Text between the game and the policy: the game's screen made short, and a response read as a command. It imports the standard
library alone."""
import re

# The game prints its prompt and a status line after each turn, and after the last one a count of turns and a question.
STATUS = re.compile(r"\n>[^\n]*\s*$")
FAREWELL = "\nYou scored "
TITLE = re.compile(r"^-= (.+) =-$")
TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
ARTICLES = {"a", "an", "the"}
# Longer texts are no command of any game.
LONGEST = 100


def short(screen):
    """A text of the game without empty lines, status line and farewell. A room's title becomes a sentence."""
    lines = STATUS.sub("", screen).partition(FAREWELL)[0].splitlines()
    lines = [TITLE.sub(lambda title: f"You are now in the {title[1].lower()}.", line.strip()) for line in lines]
    return "\n".join(line for line in lines if line)


def observation(feedback, room, inventory):
    """Paragraphs: first the news, then the room and the inventory, where the news does not have them. No paragraph has an empty line,
    so that a template can show the news alone."""
    parts = [part for part in (feedback, room, inventory) if part]
    return "\n\n".join(part for at, part in enumerate(parts) if not any(part in earlier for earlier in parts[:at]))


def plain(command):
    """A command without what makes no difference: case, articles, a prompt before it, quotes and a full stop around it."""
    words = command[-2 * LONGEST:].lower().lstrip("> ").strip(" \t.!\"'`*").split()
    return " ".join(word for word in words if word not in ARTICLES)


def command_of(response):
    """The command in a response: the last tagged text, or else the last line that is not empty. `None`: there is none."""
    tagged = TAGGED.findall(response)
    lines = [line for line in (tagged[-1:] or [response])[0].splitlines() if line.strip()]
    return plain(lines[-1]) or None if lines else None


def read(response, admissible):
    """The admissible command that a response is, and True. Otherwise the start of the text that was read, and False."""
    command = command_of(response)
    if command is None:
        return None
    known = {plain(one): one for one in admissible}
    return (known[command], True) if command in known else (command[:LONGEST], False)
