//! Core names no bundled estimator and no bundled environment: both are plugins, and all plugins are equal.
//!
//! The rule: no identifier and no string literal in the sources of the crates of `CHECKED` contains the name of a folder of
//! plugins/estimators or plugins/environments. Comments may cite an algorithm's paper. `ppo` is exempt, since core has
//! PPO's clipped loss, and so is the text of `--help`, whose examples must run.

use crate::support;
use std::path::PathBuf;

/// Folders of core.
const CHECKED: [&str; 6] = ["args", "cli", "model", "nestor", "recipe", "tools"];
const EXEMPT: &str = "ppo";
/// Ids that are ordinary words, too: they count as a whole literal or as the name of a crate.
const WORDS: [&str; 2] = ["cards", "search"];
/// Help texts, and names of other programs: of their settings and values, in the table and in the recipes that try it.
const EXCEPT: [&str; 3] = ["core/args/src", "core/recipe/src/foreign.rs", "core/recipe/src/tests/mistakes.rs"];

/// The source without its comments.
fn code(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else {
            let end = literal(rest).unwrap_or(c.len_utf8());
            code.push_str(&rest[..end]);
            end
        };
        rest = &rest[end..];
    }
    code
}

/// The length of the literal at the start of the source, if there is one that may hold `//` or `"`.
fn literal(rest: &str) -> Option<usize> {
    if ["'\"'", "'\\\"'", "'/'"].iter().any(|quote| rest.starts_with(quote)) {
        return rest[1..].find('\'').map(|at| at + 2);
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.chars().take_while(|c| *c == '#').count();
        if raw[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let begin = 1 + hashes + 1;
            return rest[begin..].find(&close).map(|at| begin + at + close.len());
        }
        return None;
    }
    let mut escaped = false;
    let mut chars = rest.strip_prefix('"')?.char_indices();
    chars.find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 2)
    })
}

/// The plugins that the source names outside comments.
fn named<'a>(source: &str, plugins: &'a [String]) -> Vec<&'a str> {
    let code = code(source).to_lowercase();
    let is_named = |plugin: &str| match WORDS.contains(&plugin) {
        true => ["\"{}\"", "nestor_{}", "nestor-{}"].iter().any(|form| code.contains(&form.replace("{}", plugin))),
        false => code.contains(plugin),
    };
    plugins.iter().map(String::as_str).filter(|plugin| is_named(plugin)).collect()
}

#[test]
fn core_names_no_plugin() {
    let mut plugins = [support::bundled_plugins("estimators"), support::bundled_plugins("environments")].concat();
    if plugins.is_empty() {
        return; // a checkout without the plugins
    }
    plugins.retain(|plugin| plugin != EXEMPT);
    assert!(plugins.len() >= 7, "{plugins:?}");
    let folders = CHECKED.map(|name| support::workspace().join("core").join(name).join("src"));
    let except = EXCEPT.map(|path| support::workspace().join(path));
    let mut found = Vec::new();
    let is_checked = |path: &PathBuf| !except.iter().any(|except| path.starts_with(except));
    for path in folders.iter().flat_map(|folder| support::rust_files(folder)).filter(is_checked) {
        let source = std::fs::read_to_string(&path).expect("a source file");
        found.extend(named(&source, &plugins).into_iter().map(|plugin| format!("{} names {plugin}", path.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn comments_are_excepted_and_literals_are_not() {
    let plugins = ["maze".to_string(), "search".to_string()];
    for (source, names) in [
        ("fn search() { /* \"search\" */ }", false),
        ("let id = \"search\";", true),
        ("use nestor_search::Play;", true),
        ("// a maze\nfn f() {}", false),
        ("/// `maze`\n//! maze\nlet x = 1; // maze", false),
        ("/* maze */ let x = 1;", false),
        ("let x = \"maze\";", true),
        ("let url = \"http://maze\";", true),
        ("let x = \"a \\\" // maze\";", true),
        ("let x = '\"'; // \" maze", false),
        ("let x = r#\"a \" // maze\"#;", true),
        ("struct Maze2;", true),
        ("let x = \"a\"; // \" maze \"", false),
    ] {
        assert_eq!(!named(source, &plugins).is_empty(), names, "{source}");
    }
}
