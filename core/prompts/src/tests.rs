//! Imports from folders with sentences of our own.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

/// The recorded sums of the reference's prompts, with the fields of each.
const FIXTURE: &str = include_str!("../../../tests/fixtures/reference_prompts.json");

fn fixture() -> Value {
    serde_json::from_str(FIXTURE).unwrap()
}

#[test]
fn the_known_sums_are_the_recorded_ones() {
    let mut recorded = fixture();
    for template in recorded["templates"].as_array_mut().unwrap() {
        let template = template.as_object_mut().unwrap();
        template.retain(|key, _| ["file", "name", "sha256", "rendered_sha256"].contains(&key.as_str()));
    }
    recorded.as_object_mut().unwrap().remove("about");
    assert_eq!(serde_json::from_str::<Value>(REFERENCE).unwrap(), recorded);
}

/// The prompts of the reference that have `<image>`, each once.
const WITH_IMAGE: [&str; 5] = [
    "SOKOBAN_VISUAL_TEMPLATE",
    "GYM_CARDS_NUMBERLINE_TEMPLATE",
    "GYM_CARDS_BLACKJACK_TEMPLATE",
    "GYM_CARDS_EZPOINTS_TEMPLATE",
    "GYM_CARDS_POINTS24_TEMPLATE",
];

/// A sentence of our own with these fields, each on a line, and the place of an image where the reference has one.
fn sentence(name: &str, fields: &Value) -> String {
    let image = if WITH_IMAGE.contains(&name) { "<image>" } else { "" };
    let lines = fields.as_array().unwrap().iter().map(|field| format!("{field}: {{{}}}\n", field.as_str().unwrap()));
    format!("\n{image}{name} says {{{{so}}}}.\n{}", lines.collect::<String>())
}

/// A folder as the reference's, with our own sentences in the fields that the recorded prompts have, and its sums.
struct Reference {
    dir: tempfile::TempDir,
}

impl Reference {
    fn new() -> Self {
        let reference = Self { dir: tempfile::tempdir().unwrap() };
        let folder = reference.folder();
        fs::create_dir_all(&folder).unwrap();
        let (mut sums, recorded) = (Vec::new(), fixture());
        for template in recorded["templates"].as_array().unwrap() {
            let (file, name) = (template["file"].as_str().unwrap(), template["name"].as_str().unwrap());
            let text = sentence(name, &template["fields"]);
            let source = fs::read_to_string(folder.join(file)).unwrap_or_default();
            fs::write(folder.join(file), format!("{source}{name} = \"\"\"{text}\"\"\"\n")).unwrap();
            sums.push(json!({ "file": file, "name": name, "sha256": sha256(&text) }));
        }
        fs::write(reference.sums(), json!({ "templates": sums, "inputs": recorded["inputs"] }).to_string()).unwrap();
        reference
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join(FOLDER)
    }

    fn sums(&self) -> PathBuf {
        self.dir.path().join("sums.json")
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn replace(&self, file: &str, from: &str, to: &str) {
        let path = self.folder().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    fn import(&self, force: bool) -> Result<Report> {
        let (dir, sums) = (self.dir.path().to_owned(), Some(self.sums()));
        import(&ImportArgs { dir, out: self.out(), force, sums, json: false })
    }

    fn render(&self, file: &str, variables: &Value) -> String {
        format::render(&fs::read_to_string(self.out().join(file)).unwrap(), variables).unwrap()
    }
}

/// The variables of a run after `steps` steps, with a window of 2.
fn variables(steps: usize) -> Value {
    let past =
        |step: usize| json!({ "step": step, "observation": format!("seen {step}"), "action": format!("act{step}") });
    let history: Vec<_> = (steps.saturating_sub(2) + 1..=steps).map(past).collect();
    json!({
        "observation": "now", "task": "the task", "admissible": ["go", "help", "look"], "history": history,
        "step": steps + 1, "steps_taken": steps, "follow_up": false, "image": "",
    })
}

#[test]
fn every_prompt_is_equal_and_its_fields_are_filled() {
    let reference = Reference::new();
    let report = reference.import(false).unwrap();
    assert!(report.refusal().is_none() && report.templates.iter().all(|t| t.state == State::Equal), "{report}");
    assert_eq!(report.written.len(), TARGETS.len());
    // AppWorld's fields have no variables, so its prompts are only compared.
    let unused: Vec<_> = report.templates.iter().filter(|t| !t.used).map(|t| t.file.as_str()).collect();
    assert_eq!(unused, ["appworld.py"; 2]);

    let pairs = "[Observation 2: 'seen 2', Action 2: 'act2']\n[Observation 3: 'seen 3', Action 3: 'act3']";
    let first = |name: &str, lines: &str| format!("\n{name} says {{so}}.\n{lines}");
    for (file, name, at_first, at_fourth) in [
        (
            "alfworld.jinja",
            "ALFWORLD_TEMPLATE",
            "\"admissible_actions\": 'go'\n 'look'\n\"current_observation\": now\n",
            format!(
                "\"action_history\": {pairs}\n\"admissible_actions\": 'go'\n 'look'\n\"current_observation\": now\n\
                 \"current_step\": 4\n\"history_length\": 2\n\"step_count\": 3\n\"task_description\": the task\n"
            ),
        ),
        (
            "webshop.jinja",
            "WEBSHOP_TEMPLATE",
            "\"available_actions\": 'go',\n'help',\n'look',\n\"current_observation\": now\n\"task_description\": the task\n",
            format!(
                "\"action_history\": {pairs}\n\"available_actions\": 'go',\n'help',\n'look',\n\"current_observation\": now\n\
                 \"current_step\": 4\n\"history_length\": 2\n\"step_count\": 3\n\"task_description\": the task\n"
            ),
        ),
        (
            "search.jinja",
            "SEARCH_TEMPLATE",
            "\"task_description\": the task\n",
            "\"memory_context\": Step 2:act2 seen 3\n\nStep 3:act3 now\n\n\"step_count\": 3\n\"task_description\": the task\n"
                .into(),
        ),
        (
            "sokoban.jinja",
            "SOKOBAN_TEMPLATE",
            "\"current_observation\": now\n",
            format!(
                "\"action_history\": {}\n\"current_observation\": now\n\"current_step\": 4\n\"history_length\": 2\n\
                 \"step_count\": 3\n",
                pairs.replace("act", "Act")
            ),
        ),
    ] {
        assert_eq!(reference.render(file, &variables(0)), first(&format!("{name}_NO_HIS"), at_first));
        assert_eq!(reference.render(file, &variables(3)), first(name, &at_fourth));
    }
    // The same import again finds its own files.
    assert!(reference.import(false).is_ok());
}

/// In the reference, `<image>` at the place of the image gives way to the model's tokens, and the formula so far is
/// `''.join(str(e) for e in Formula)`. History has no part in these prompts.
#[test]
fn the_image_is_where_the_reference_has_it() {
    let reference = Reference::new();
    reference.import(false).unwrap();
    let render = |file: &str, image: &str, observation: &str| {
        let mut variables = variables(2);
        (variables["image"], variables["observation"]) = (image.into(), observation.into());
        reference.render(file, &variables)
    };
    for (file, name) in [
        ("sokoban_visual.jinja", "SOKOBAN_VISUAL_TEMPLATE"),
        ("cards/numberline.jinja", "GYM_CARDS_NUMBERLINE_TEMPLATE"),
        ("cards/blackjack.jinja", "GYM_CARDS_BLACKJACK_TEMPLATE"),
    ] {
        for image in ["", "<|vision_start|><|image_pad|><|vision_end|>"] {
            // The reference shows these without `str.format`.
            assert_eq!(render(file, image, ""), format!("\n{image}{name} says {{{{so}}}}.\n"));
        }
    }
    let both = "cards: 8 of hearts, 3 of clubs\nformula: 8 * (";
    for (file, name) in [
        ("cards/ezpoints.jinja", "GYM_CARDS_EZPOINTS_TEMPLATE"),
        ("cards/points24.jinja", "GYM_CARDS_POINTS24_TEMPLATE"),
    ] {
        for (image, observation, formula) in [
            ("I", "8*(", "8*("),
            ("I", "", ""),
            ("I", both, "8*("),
            ("I", "cards: 8 of hearts, 3 of clubs\nformula:", ""),
            ("", both, both),
        ] {
            let wanted = format!("\n{image}{name} says {{so}}.\n\"text_formula\": {formula}\n");
            assert_eq!(render(file, image, observation), wanted, "{observation:?}");
        }
    }
}

#[test]
fn a_webshop_prompt_over_13_000_characters_has_no_history() {
    let reference = Reference::new();
    reference.import(false).unwrap();
    let mut variables = variables(3);
    let length = reference.render("webshop.jinja", &variables).chars().count();
    variables["observation"] = format!("now{}", "é".repeat(13_000 - length)).into();
    let full = reference.render("webshop.jinja", &variables);
    assert!(full.chars().count() == 13_000 && full.contains("seen 3"));
    variables["observation"] = format!("now{}", "é".repeat(13_001 - length)).into();
    let short = reference.render("webshop.jinja", &variables);
    assert!(short.contains("NO_HIS") && !short.contains("seen 3"));
}

/// As the reference's branch `paper_version` has them.
#[test]
fn one_file_of_all_prompts_does_as_well() {
    let reference = Reference::new();
    let folder = reference.import(false).unwrap();
    let files =
        fs::read_dir(reference.folder()).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let all: String = files.collect();
    fs::remove_dir_all(reference.folder()).unwrap();
    fs::write(reference.dir.path().join(SINGLE), all).unwrap();
    let single = reference.import(false).unwrap();
    assert!(!single.written.is_empty() && single.written == folder.written, "{single}");
    assert_eq!(single.to_string(), folder.to_string());
}

#[test]
fn a_changed_sentence_that_is_never_written_stops_no_import() {
    let reference = Reference::new();
    reference.replace("appworld.py", "APPWORLD_TEMPLATE says", "APPWORLD_TEMPLATE said");
    let report = reference.import(false).unwrap();
    assert!(report.refusal().is_none() && !report.written.is_empty());
    assert!(report.to_string().contains("CHANGED"), "{report}");
}

#[test]
fn a_changed_sentence_is_named_with_both_sums() {
    let reference = Reference::new();
    reference.replace("webshop.py", "WEBSHOP_TEMPLATE says", "WEBSHOP_TEMPLATE said");
    let report = reference.import(false).unwrap();
    let changed: Vec<_> = report.templates.iter().filter(|t| t.state != State::Equal).collect();
    assert_eq!(
        changed.iter().map(|t| (t.name.as_str(), t.state)).collect::<Vec<_>>(),
        [("WEBSHOP_TEMPLATE", State::Changed)]
    );
    let sums = [changed[0].sha256.clone().unwrap(), changed[0].expected.clone().unwrap()];
    let error = report.refusal().unwrap().to_string();
    assert!(
        ["webshop.py: WEBSHOP_TEMPLATE has changed", &sums[0], &sums[1]].iter().all(|part| error.contains(part)),
        "{error}"
    );
    assert!(!reference.out().exists());

    assert!(reference.import(true).unwrap().refusal().is_none());
    let text = fs::read_to_string(reference.out().join("webshop.jinja")).unwrap();
    assert!(
        text.contains("WEBSHOP_TEMPLATE said")
            && text.contains(&format!("{} CHANGED (known sum {})", sums[0], sums[1]))
    );
    let other = fs::read_to_string(reference.out().join("alfworld.jinja")).unwrap();
    assert!(!other.contains("CHANGED"));
}

/// The renderings of our own sentences have sums that Python computed: `sha256(text.format(**inputs))`.
#[test]
fn a_filled_prompt_is_compared_with_its_sum() {
    let text = "\n{{\"seen\": \"{current_observation}\"}} {action_history}\n";
    let sum = |rendered: &str| Sum {
        file: "f.py".into(),
        name: "N".into(),
        sha256: sha256(text),
        rendered_sha256: Some(rendered.into()),
    };
    let inputs = Sums::read(None).unwrap().inputs;
    let rendered = "cc92bf72a24aac45e1b63b59212b9c14f6f89352e03ade80ae351628800e9ab9";
    assert_eq!(rendering_of(text, &sum(rendered), &inputs), Rendering::Equal);
    assert_eq!(rendering_of(text, &sum(&sha256(text)), &inputs), Rendering::Changed);
}

#[test]
fn other_faults_are_named() {
    let fault = |change: &dyn Fn(&Reference), force: bool| {
        let reference = Reference::new();
        change(&reference);
        let refusal = reference.import(force).map(|report| report.refusal().map(|error| error.to_string()));
        (refusal.unwrap_or_else(|error| Some(format!("{error:#}"))), reference)
    };
    let lost = |r: &Reference| r.replace("sokoban.py", "SOKOBAN_TEMPLATE = ", "SOKOBAN = ");
    let (error, _) = fault(&lost, false);
    assert!(error.unwrap().contains("sokoban.py: SOKOBAN_TEMPLATE is no string constant there"));
    let (error, reference) = fault(&lost, true);
    assert!(
        error.is_none()
            && !reference.out().join("sokoban.jinja").exists()
            && reference.out().join("search.jinja").exists()
    );

    let field = |r: &Reference| r.replace("search.py", "{memory_context}", "{memory}");
    let (error, reference) = fault(&field, true);
    let error = error.unwrap();
    assert!(
        error.contains("search.jinja was not written: search.py: no template variable fills the field {memory}"),
        "{error}"
    );
    assert!(reference.out().join("webshop.jinja").exists() && !reference.out().join("search.jinja").exists());

    let there = |r: &Reference| {
        fs::create_dir(r.out()).unwrap();
        fs::write(r.out().join("webshop.jinja"), "mine").unwrap();
    };
    let (error, reference) = fault(&there, false);
    assert!(
        error.unwrap().contains("is there with another content") && !reference.out().join("alfworld.jinja").exists()
    );
    assert!(fault(&there, true).0.is_none());

    for (change, part) in [
        (
            &(|r: &Reference| fs::remove_dir_all(r.folder()).unwrap()) as &dyn Fn(&Reference),
            "has no prompts such as alfworld.py",
        ),
        (&|r| fs::write(r.sums(), "{\"templates\": [{\"file\": 1}]}").unwrap(), "sums.json: invalid type"),
        (&|r| fs::write(r.folder().join("search.py"), "A = 'x").unwrap(), "search.py:1: this string is not closed"),
    ] {
        let (error, _) = fault(change, false);
        assert!(error.as_deref().is_some_and(|error| error.contains(part)), "{part}: {error:?}");
    }
    let args = |dir: &Path| ImportArgs { dir: dir.into(), out: "x".into(), force: false, sums: None, json: false };
    assert!(import(&args(&Reference::new().folder())).unwrap().differs(), "our own sentences are not the reference's");
}
