//! `rollout.template: {file: PATH}`.

use anyhow::Result;

use super::{Folder, WHOLE};
use crate::load_resolved;

const TEXT: &str = "\n{{ task }}\n  √ \"x\" #\n\n";

/// The whole recipe with a template, on line 11.
fn with(template: &str) -> String {
    WHOLE.replace("rollout:\n", &format!("rollout:\n  template: {template}\n"))
}

#[test]
fn a_file_is_found_from_the_recipe_that_names_it() -> Result<()> {
    let folder = Folder::default();
    folder.write("recipes/prompts/p.jinja", TEXT);
    folder.write("elsewhere.jinja", "other");
    let base = folder.write("recipes/base.yaml", &with("{file: prompts/p.jinja}"));
    let over = folder.write("over.yaml", "extends: recipes/base.yaml\n");
    for path in [&base, &over] {
        let recipe = folder.load(path, &[])?;
        assert_eq!(recipe.rollout.template.as_deref(), Some(TEXT));
        // The run keeps the text, so that it needs no file.
        assert_eq!(load_resolved("run", &recipe.to_yaml()?)?, recipe);
    }
    // An argument's path is that of the shell; a file that is replaced is not read.
    for set in
        ["rollout.template.file=elsewhere.jinja", "rollout.template={file: elsewhere.jinja}", "rollout.template=other"]
    {
        assert_eq!(folder.load(&over, &[set])?.rollout.template.as_deref(), Some("other"), "{set}");
    }
    folder.write("recipes/s.txt", "be\r\nbrief\n");
    let system = WHOLE.replace("rollout:\n", "rollout:\n  system: {file: s.txt}\n");
    let base = folder.write("recipes/base.yaml", &system);
    assert_eq!(folder.load(&base, &[])?.rollout.system.as_deref(), Some("be\nbrief\n"));
    let teacher = "estimator: {plugin: stars, teacher: {path: m, template: {file: s.txt}}}";
    let base = folder.write("recipes/base.yaml", &format!("extends: whole.yaml\n{teacher}\n"));
    folder.write("recipes/whole.yaml", WHOLE);
    let teacher = folder.load(&base, &[])?.estimator.teacher.expect("a teacher");
    assert_eq!(teacher.template.as_deref(), Some("be\nbrief\n"));
    let over = folder.write("over.yaml", &with("{file: nowhere}").replace("iterations: 20", "iterations: 21"));
    assert_eq!(folder.load(&over, &["rollout.template=null"])?.rollout.template, None);
    Ok(())
}

#[test]
fn a_wrong_section_is_named_with_its_place() {
    let folder = Folder::default();
    for (template, parts) in [
        (
            "{file: nowhere.jinja}",
            ["r.yaml:11:14: could not read nowhere.jinja of `rollout.template`", "relative to the recipe"],
        ),
        ("{fil: p.jinja}", ["r.yaml:11:3: `rollout.template` must be text or a section", "{file: prompt.jinja}"]),
        ("{file: p.jinja, more: 1}", ["r.yaml:11:3", "one key `file`"]),
        ("{file: [p.jinja]}", ["r.yaml:11:3", "one key `file`"]),
        ("[p.jinja]", ["r.yaml:11:3", "`rollout.template` must be text or a section `file`, but is a list of 1"]),
    ] {
        let error = folder.error(&with(template), &[]);
        assert!(parts.iter().all(|part| error.contains(part)), "{template}: {error}");
    }
}
