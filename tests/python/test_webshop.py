"""WebShop through the programs: traces, searches and ratios of the original engine (tests/fixtures/webshop), and refusals."""
import json
import math
import shutil
import subprocess
import tarfile

import pytest
from conftest import PATIENCE, ROOT

FIXTURES = ROOT / "tests/fixtures/webshop"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of the recorded shop and traces."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(FIXTURES / "shop.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def recorded_shop(recorded):
    """The keys of `env.config` for it."""
    return {"data": str(recorded / "data"), "goals": str(recorded / "goals.json"), "prices": str(recorded / "prices.json")}


@pytest.fixture(scope="module")
def tool(root):
    def call(*args):
        command = [root / "target/release/nestor-webshop", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return call


@pytest.fixture
def play(run, tmp_path):
    """`nestor play webshop`: one object per step, or the error."""
    def call(config, actions):
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "actions.jsonl").write_text("".join(json.dumps(action) + "\n" for action in actions))
        return run("play", "webshop", "--config", tmp_path / "config.json", "--actions", tmp_path / "actions.jsonl", "--json")
    return call


@pytest.mark.parametrize("number", range(6))
def test_recorded_traces_through_the_program(number, play, recorded, recorded_shop):
    trace = json.loads((recorded / f"traces/trace_{number:02}.json").read_text())
    steps = trace["steps"]
    config = {**recorded_shop, "goal": trace["goal_index"], "raw_commands": True, "max_steps": len(steps)}
    done = play(config, [step["action"] for step in steps[1:]])
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) == len(steps)
    for got, step in zip(seen, steps):
        assert (got["observation"], got["done"]) == (step["observation"], step["done"])
        assert got["info"]["available_actions"] == step["available_actions"]
        assert math.isclose(got["info"]["task_score"], step["reward"], abs_tol=1e-6)
        assert got["reward"] == 10.0 * (got["info"]["task_score"] == 1)
    # A trace without a purchase has no parts.
    for name, part in (trace["reward_info"] or {}).items():
        assert part is got["info"].get(name) or math.isclose(part, got["info"][name], abs_tol=1e-6), name
    if seen[-1]["done"]:
        assert (got["info"]["bought"], got["info"]["options"]) == (trace["asin"], trace["options"])


def test_searches_equal_those_of_lucene(tool, recorded):
    for case in json.loads((FIXTURES / "lucene_hits.json").read_text()):
        found = tool("search", "--data", recorded / "data", "--query", case["query"], "--top", len(case["hits"]), "--json")
        assert found.returncode == 0, found.stderr
        asins, scores = zip(*json.loads(found.stdout))
        assert list(asins) == [asin for asin, _ in case["hits"]], case["query"]
        assert scores == pytest.approx([score for _, score in case["hits"]], abs=1e-5), case["query"]


def test_ratios_equal_those_of_thefuzz(tool, recorded):
    for a, b, ratio in json.loads((recorded / "token_set_ratio.json").read_text()):
        assert tool("ratio", "--", a, b).stdout == f"{ratio}\n", (a, b)
    # Odd texts need no `--`, unless they look like an option.
    assert [tool("ratio", *texts).stdout for texts in [("", ""), ("a -b", "-"), ("--", "--help", "--help")]] == ["0\n", "0\n", "100\n"]


PRODUCT = {"asin": "B000000001", "name": "Red shoe", "pricing": "$10.00", "customization_options": {}}
INSTRUCTIONS = {"B000000001": {"attributes": ["soft"], "instruction": "Find a shoe", "instruction_attributes": ["soft"]}}


def many(options, values):
    return {f"option {n}": [{"value": f"value {m}"} for m in range(values)] for n in range(options)}


@pytest.fixture
def shop(tmp_path):
    """Writes the files of a shop; a text or bytes as they are, else JSON."""
    def write(items=(PRODUCT,), instructions=INSTRUCTIONS):
        for name, content in [("items_shuffle", items), ("items_ins_v2", instructions), ("items_human_ins", {})]:
            content = content if isinstance(content, (str, bytes)) else json.dumps(content)
            (tmp_path / f"{name}.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path
    return write


def refused(done, *parts):
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and len(done.stderr) < 500, done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


@pytest.mark.parametrize("items, part", [
    ('[\n {"asin": "B000000001",\n  "name": }]', "items_shuffle.json: product 0, field `name`: expected value at line 3 column 11"),
    ('[{"asin": "B000000001", "pricing": NaN}]', "items_shuffle.json: product 0, field `pricing`: invalid type"),
    (b'[{"asin": "B000000001", "name": "\xff"}]', "items_shuffle.json: product 0, field `name`: invalid unicode code point at line 1"),
    (b"\xef\xbb\xbf[]", "items_shuffle.json: the file starts with a byte order mark: save it as UTF-8"),
    ('[{"asin": "B000000001", "customization_options": ' + '{"a": ' * 10_000, "recursion limit exceeded at line 1 column"),
    ("[null]", "invalid type: null, expected a product at line 1"),
    ([{**PRODUCT, "pricing": "a lot\n" * 1000}], 'product 0 ("B000000001"): the price "a lot\\na lot\\n'),
    ([{**PRODUCT, "asin": "Features"}], "its ASIN is the text of a button"),
    ([{**PRODUCT, "customization_options": many(options=10, values=9)}], "more than 1000000 combinations"),
    ([{**PRODUCT, "customization_options": many(options=40, values=3)}], "more than 1000000 combinations"),
])
def test_products_are_refused(items, part, shop, tool):
    refused(tool("search", "--data", shop(items), "--query", "shoe"), part)


def test_folders_and_sizes_are_refused(shop, tool, tmp_path):
    data = shop()
    query = ["--query", "shoe"]
    refused(tool("search", "--data", data / "items_shuffle.json", *query), "there is no such folder")
    refused(tool("search", "--data", data, "--index", data / "none", *query), "none: make the index again", "No such file")
    refused(tool("index", "--data", data, "--index", data), "is no part of an index: give a folder of its own")
    assert (data / "items_shuffle.json").exists()
    for products in [0, 10**12]:
        refused(tool("catalogue", tmp_path / "made", "--products", products), f"{products} products cannot be generated: ask for 1 to")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("more, part", [
    ({"generate": {"products": 5}}, "data and generate exclude each other"),
    ({"human_goals": True, "goals": "goals.json"}, "goals and human_goals exclude each other"),
    ({"goal": -1}, "config key `goal`: invalid value: integer `-1`"),
])
def test_configs_are_refused(more, part, shop, play):
    refused(play({"data": str(shop()), **more}, []), part)


def test_odd_products_and_actions_are_answered_as_by_the_engine(shop, play):
    """A product without price and options, one of an enormous and one of a tiny price, actions of any text and length."""
    others = [{**PRODUCT, "asin": f"B{n}", "pricing": price} for n, price in enumerate(["$1e999", "$" + "9" * 21, "$0.00001"])]
    data = shop([{"asin": "B000000001", "name": "Red shoe", "unknown": {"very": ["deep"]}}, *others])
    long = "click[" + "x" * 100_000 + "]"
    actions = ["search[shoe]", "\0", "\x1b[2J", "click[\u202e]", long, "click[b000000001]", "click[buy now]"]
    done = play({"data": str(data), "goal": 0, "raw_commands": True}, actions)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    # Python prints these prices so.
    for price in ["$100.0", "$1999.0", "$1e+21", "$1e-05"]:
        assert f" [SEP] {price}" in seen[1]["observation"]
    assert all(step["observation"] == seen[1]["observation"] for step in seen[2:6])
    assert (seen[-1]["reward"], seen[-1]["done"], seen[-1]["info"]["options"]) == (10, True, {})
