"""WebShop's reward against a direct transcription in Python, which uses the libraries of the original engine (thefuzz). Only the
nouns come from Nestor's rule, because the original's tagger is a model."""
import json
import random
import subprocess
import tarfile

import pytest
from conftest import PATIENCE
from thefuzz import fuzz

CHOICES = 2000
# Texts with a meaning of their own for one of the rules: colours, Latin-1, escapes, special lower case, blanks, category signs.
ODD = ["red", "tan", "dark blue", "grey/gray", "naïve", "café au lait", "İstanbul", "ΟΔΟΣ", "日本 lamp", "it's", 'a "b" c',
       "a'b\"c", "back\\slash", "line\nbreak", "tab\tulator", "\x1b[0m", "soft\xadhyphen", "no\xa0break", "zero\u200bwidth", "\u2028",
       "\U000e0001", "🙂", "under_score", "", " ", "’", "x", "›", " › ", "\x1f", "new", "A", "the", "2-Pack", "x1b", "n", "u200b"]
NO_NOUNS = set("a an and are as at be but by can for from has have in into is it its new no nor not of on onto or our per s so t "
               "than that the their these this those to via was we which will with without you your".split())


def nouns(product, title):
    """Those of the file, or all words of letters but the short list's."""
    words = "".join(c if c.isalpha() else " " for c in title.lower()).split()
    return product.get("nouns", [word for word in words if word not in NO_NOUNS])


def normalize(option, colors):
    # Text in a text, or in a tuple of two.
    return next((color for color in colors if color in option), option)


def hits(wanted, offered):
    return sum(any(fuzz.token_set_ratio(text, goal) > 85 for text in offered) for goal in wanted)


def reward(shop, colors, goal, asin, options):
    """All parts of the reward and the total."""
    product, target = shop["items"][asin], shop["items"][goal["asin"]]
    had = nouns(product, product["name"])
    sought = nouns(target, goal["name"])
    title_score = len(set(had) & set(sought)) / len(sought) if sought else 0.2
    query_match = product["query"].lower().strip() == goal["query"]
    paths = [{part.strip() for part in path.split("›")} for path in (product["product_category"], goal["product_category"])]
    category_match = len(paths[0] & paths[1]) >= 2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0:
        r_type = 0.0

    bullets = product["small_description"]
    texts = [product["name"], " ".join(bullets if isinstance(bullets, list) else [bullets]), product["full_description"]]
    offered = shop["instructions"][asin].get("attributes", ["DUMMY_ATTR"])
    attributes = sum(bool(hits([attribute], offered)) or any(attribute in text.lower() for text in texts)
                     for attribute in goal["attributes"])
    wanted = goal["goal_options"]
    # Pairs stay tuples: so the engine has them, and their likeness depends on it.
    pairs = list(wanted.items()) if isinstance(wanted, dict) else wanted
    option = hits([normalize(pair, colors) for pair in pairs], [normalize(value, colors) for value in options.values()])
    price = shop["prices"][asin] <= goal["price_upper"]
    total = len(goal["attributes"]) + len(wanted) + 1
    parts = {
        "r_type": r_type, "query_match": query_match, "category_match": category_match, "title_score": title_score,
        "r_att": attributes / len(goal["attributes"]), "w_att": len(goal["attributes"]) / total,
        "r_price": price, "w_price": 1 / total, "score": (attributes + option + price) / total * r_type,
    }
    if wanted:
        parts |= {"r_option": option / len(wanted), "w_option": len(wanted) / total}
    return parts


def odd_text(rng, text):
    """`text` with up to three changes: words dropped, swapped, put in capitals, or odd ones put in."""
    words = text.split(" ")
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(words) + 1)
        match rng.randrange(4):
            case 0 if len(words) > 1:
                words.pop(place - 1)
            case 1:
                rng.shuffle(words)
            case 2:
                words[place - 1] = words[place - 1].upper()
            case _:
                words.insert(place, rng.choice(ODD))
    return " ".join(words)


@pytest.fixture(scope="module")
def colors(root):
    """The list of colours: data that the transcription shares with the program."""
    found = (root / "plugins/environments/webshop/src/reward/colors.txt").read_text().split()
    assert len(found) == 102
    return found


@pytest.fixture(scope="module")
def shop(root):
    """The recorded catalogue with odd texts put into half of its products, lists of nouns into some."""
    rng = random.Random(1)
    archive = tarfile.open(root / "tests/fixtures/webshop/shop.tar.gz")
    read = lambda name: json.load(archive.extractfile(name))
    items = read("data/items_shuffle.json")
    instructions = read("data/items_ins_v2.json")
    for item in items[::2]:
        for field in ["name", "full_description", "query", "product_category"]:
            item[field] = odd_text(rng, item[field])
        item["small_description"] = [odd_text(rng, bullet) for bullet in item["small_description"]]
        entry = instructions[item["asin"]]
        entry["attributes"] = [odd_text(rng, attribute) for attribute in entry["attributes"]]
    for item in items[::3]:
        # Two or three categories, so that each counts; Python also strips the separators of ASCII.
        item["product_category"] = "\x1f›\x1c".join(item["product_category"].split("›")[:rng.randrange(2, 4)])
    for item in items[::5]:
        item["nouns"] = item["name"].lower().split()[-rng.randrange(4):]
    for item in items[::7]:
        item["small_description"] = item["small_description"][0]
    for item in items[::11]:
        del instructions[item["asin"]]["attributes"]
    return {"items": {item["asin"]: item for item in items}, "instructions": instructions, "prices": read("prices.json"),
            "goals": read("goals.json"), "human": read("data/items_human_ins.json")}


def option_values(item):
    """Options and values of a product as the shop shows them."""
    return {name.lower(): [entry["value"].strip().replace("/", " | ").lower() for entry in entries]
            for name, entries in item["customization_options"].items() if entries}


def choice(rng, shop):
    """A goal that the catalogue or chance made, a product, and some options."""
    goal = dict(rng.choice(shop["goals"]))
    item = shop["items"][goal["asin"]]
    goal |= {"query": item["query"].lower().strip(), "name": item["name"], "product_category": item["product_category"]}
    if rng.random() < 0.3 and goal["asin"] in shop["human"]:
        human = rng.choice(shop["human"][goal["asin"]])
        goal |= {"attributes": human["instruction_attributes"], "goal_options": human["instruction_options"]}
    if rng.random() < 0.5:
        goal["attributes"] = [odd_text(rng, attribute) for attribute in goal["attributes"]] + rng.sample(ODD, rng.randrange(3))
        goal["price_upper"] = rng.choice([10.0, 50.0, shop["prices"][goal["asin"]], 1000000])
        if isinstance(goal["goal_options"], dict):
            goal["goal_options"] = {odd_text(rng, name): odd_text(rng, value) for name, value in goal["goal_options"].items()}
        else:
            goal["goal_options"] = [odd_text(rng, value) for value in goal["goal_options"]]
    bullets = item["small_description"]
    if rng.random() < 0.1 and isinstance(bullets, list):
        # A text over the border of two features.
        goal["attributes"] = [" ".join(bullets).lower()[len(bullets[0]) - 5:len(bullets[0]) + 6]]
    if rng.random() < 0.1 and isinstance(goal["goal_options"], dict):
        goal["goal_options"] = {rng.choice(["red", "tan"]): rng.choice(["large", "pack"])}
    if rng.random() < 0.05:
        goal["name"] = "New 2 in 1 for you"
    elif rng.random() < 0.2:
        # So long a title that one common noun is less than a tenth.
        goal["name"] += " " + " ".join(rng.choice(shop["goals"])["name"] for _ in range(rng.randrange(1, 4)))
    goal["attributes"] = goal["attributes"] or ["new"]

    asin = goal["asin"] if rng.random() < 0.3 else rng.choice(list(shop["items"]))
    options = {name: rng.choice(values) for name, values in option_values(shop["items"][asin]).items() if rng.random() < 0.7}
    if isinstance(goal["goal_options"], dict) and rng.random() < 0.4:
        options |= {name: value for name, value in goal["goal_options"].items() if rng.random() < 0.7}
    if rng.random() < 0.3:
        options = {name: odd_text(rng, value) for name, value in options.items()}
    return {"goal": goal, "asin": asin, "options": options}


def test_the_reward_equals_its_transcription(root, shop, colors, tmp_path):
    rng = random.Random(2)
    choices = [choice(rng, shop) for _ in range(CHOICES)]
    expected = [reward(shop, colors, **case) for case in choices]
    # The choices reach every rule.
    assert {parts["r_type"] for parts in expected} == {0.0, 0.1, 0.5, 1.0}
    for name in ["r_att", "r_option", "score"]:
        values = {parts.get(name) for parts in expected} - {None}
        assert {0.0, 1.0} < values, name
    assert len(set(map(frozenset, expected))) == 2, "with and without options"

    data = tmp_path / "data"
    data.mkdir()
    (data / "items_shuffle.json").write_text(json.dumps(list(shop["items"].values())))
    (data / "items_ins_v2.json").write_text(json.dumps(shop["instructions"]))
    (data / "items_human_ins.json").write_text(json.dumps(shop["human"]))
    (tmp_path / "prices.json").write_text(json.dumps(shop["prices"]))
    done = subprocess.run(
        [root / "target/release/nestor-webshop", "reward", "--data", data, "--prices", tmp_path / "prices.json"],
        input="".join(json.dumps(case) + "\n" for case in choices), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    scored = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(scored) == CHOICES
    for case, parts, transcribed in zip(choices, scored, expected):
        assert parts == pytest.approx(transcribed, abs=1e-6), case
