"""`nestor import-prompts` on a folder laid out as the reference's, with sentences of our own. Python reads them, fills them and
computes their sums; the reference's own sentences are not part of this repository, only their sums and fields."""
import hashlib
import json

import pytest

FOLDER = "agent_system/environments/prompts"
# Literals of one text each, in the forms that Python allows.
FORMS = [
    '"""\nOne {{"text"}}: {{%% √ \\u00e9 \\x41\\t\'quoted\' {fields}\n"""',
    "r'''\nRaw \\n \"{{%% {fields} #}}\n'''",
    '("\\nIn " \'parts \'\n    "\\"{fields}\\" \\\nand {{# on\\n\\n")  # not "this"',
    "'''\n\\\n{fields} -%% {{{{'''",
]


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def reference(root, tmp_path):
    """The folder, the file of its sums, and its prompts by name as Python reads them."""
    recorded = json.loads((root / "tests/fixtures/reference_prompts.json").read_text())
    folder, inputs, prompts, sums = tmp_path / "reference" / FOLDER, recorded["inputs"], {}, []
    folder.mkdir(parents=True)
    for number, entry in enumerate(recorded["templates"]):
        fields = " ".join(f"{name}={{{name}}}" for name in entry["fields"])
        literal = FORMS[number % len(FORMS)].replace("{fields}", f"{entry['name'].lower()} {fields}").replace("%%", "%")
        with (folder / entry["file"]).open("a") as file:
            file.write(f'"""Not {entry["name"]} = "this"."""\n{entry["name"]} = {literal}\n\n')
    for entry in recorded["templates"]:
        text = constants_of(folder / entry["file"])[entry["name"]]
        prompts[entry["name"]] = text
        sums.append({"file": entry["file"], "name": entry["name"], "sha256": sha256(text)})
        if set(entry["fields"]) <= set(inputs):
            sums[-1]["rendered_sha256"] = sha256(text.format(**inputs))
    (tmp_path / "sums.json").write_text(json.dumps({"templates": sums, "inputs": inputs}))
    return tmp_path / "reference", tmp_path / "sums.json", prompts


def constants_of(path):
    names = {}
    exec(path.read_text(), names)
    return names


def test_all_sums_are_equal_and_a_run_renders_what_python_formats(root, reference, run_json, tmp_path):
    folder, sums, prompts = reference
    out = tmp_path / "prompts"
    report = run_json("import-prompts", folder, "--sums", sums, "--out", out, "--json")
    found = {entry["name"]: entry["sha256"] for entry in report["templates"]}
    assert found == {name: sha256(text) for name, text in prompts.items()}
    assert {entry["state"] for entry in report["templates"]} == {"equal"}
    unchecked = {entry["name"] for entry in report["templates"] if entry["rendering"] == "unchecked"}
    assert all(entry["rendering"] in ("equal", "unchecked") for entry in report["templates"])
    assert unchecked == {"GYM_CARDS_EZPOINTS_TEMPLATE", "GYM_CARDS_POINTS24_TEMPLATE", "APPWORLD_TEMPLATE_NO_HIS",
                         "APPWORLD_TEMPLATE"}
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    cards = {f"cards/{game}.jinja" for game in ("numberline", "blackjack", "ezpoints", "points24")}
    assert written == {"alfworld.jinja", "webshop.jinja", "search.jinja", "sokoban.jinja", "sokoban_visual.jinja", *cards}

    # The folder of the prompts does as well; a recipe beside the templates names one.
    again = run_json("import-prompts", folder / FOLDER, "--sums", sums, "--out", out, "--json")
    assert again["templates"] == report["templates"]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"extends: {root}/recipes/sokoban.yaml\nrollout: {{template: {{file: prompts/sokoban.jinja}}}}\n")
    verdict = run_json("train", recipe, "--set", "rollout.max_prompt_tokens=512", "--set", "env.config.raw_commands=false",
                       "--check", "--json", "--run-dir", tmp_path / "run")
    before, after = prompts["SOKOBAN_TEMPLATE_NO_HIS"].split("{current_observation}")
    assert before.format() in verdict["prompt"]["text"] and after.format() in verdict["prompt"]["text"]


def test_a_changed_sentence_is_told(reference, run, tmp_path):
    folder, sums, prompts = reference
    path = folder / FOLDER / "alfworld.py"
    path.write_text(path.read_text().replace("alfworld_template ", "alfworld_template! "))
    changed = sha256(constants_of(path)["ALFWORLD_TEMPLATE"])
    command = ["import-prompts", folder, "--sums", sums, "--out", tmp_path / "prompts"]
    done = run(*command)
    assert done.returncode == 2 and "ALFWORLD_TEMPLATE " in done.stderr and done.stderr.count("has changed") == 1, done.stderr
    assert changed in done.stderr and sha256(prompts["ALFWORLD_TEMPLATE"]) in done.stderr and not (tmp_path / "prompts").exists()
    done = run(*command, "--force")
    assert done.returncode == 0 and done.stdout.count("CHANGED") == 1, done.stdout
    assert f"{changed} CHANGED" in (tmp_path / "prompts/alfworld.jinja").read_text()
    # Sentences of our own are not the reference's.
    assert run("import-prompts", folder, "--out", tmp_path / "other").returncode == 2
