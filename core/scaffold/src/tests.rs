#![allow(clippy::unwrap_used)] // a test may fail so

use std::collections::BTreeSet;

use clap::ValueEnum;
use nestor_recipe::InputError;

use super::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn args(name: &str, kind: Kind, lang: Language) -> NewArgs {
    NewArgs { name: name.into(), kind, lang, dir: ".".into(), sdk: None }
}

/// The message of an input error.
fn refusal<T>(result: Result<T>) -> String {
    let error = result.err().expect("refused");
    assert!(error.is::<InputError>(), "{error:#}");
    error.to_string()
}

#[test]
fn projects_have_the_name_in_every_place() {
    for (kind, lang) in [(Kind::Env, Language::Rust), (Kind::Env, Language::C), (Kind::Env, Language::Python)]
        .into_iter()
        .chain([Kind::Estimator, Kind::Loss].into_iter().flat_map(|kind| [(kind, Language::Rust), (kind, Language::C)]))
    {
        let files = files(&args("far_away", kind, lang)).unwrap();
        for file in ["README.md", "recipe.yaml", ".gitignore"] {
            assert!(files.contains_key(Path::new(file)), "{kind:?} {lang:?}: no {file}");
        }
        let named: Vec<_> = files.iter().filter(|(_, text)| text.contains("far_away")).collect();
        assert!(named.len() >= 3, "{kind:?} {lang:?}");
        for (path, text) in
            files.iter().filter(|(path, _)| !path.starts_with("vendor") && !path.ends_with("Cargo.lock"))
        {
            let left = ["my_plugin", "@LIBRARY@", "@SOURCE@", "@BUILD@", "@SDK@", "@ENV@"]
                .iter()
                .find(|word| text.contains(*word));
            assert!(left.is_none() && !path.to_string_lossy().contains("my_plugin"), "{}: {left:?}", path.display());
        }
    }
}

#[test]
fn the_copy_of_the_sdk_is_whole() {
    let copied: BTreeSet<PathBuf> = vendored_sdk().unwrap().into_iter().map(|(path, _)| path).collect();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(ROOT).join("plugins/sdk").join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            match Path::new(ROOT).join("plugins/sdk").join(&path).is_dir() {
                true => folders.push(path),
                false => assert!(copied.contains(&Path::new(VENDORED).join(&path)), "{} is not copied", path.display()),
            }
        }
    }
    // A package of its own: nothing is inherited, and no target is named that is not there.
    assert!(!SDK_MANIFEST.contains("workspace = true"), "plugins/sdk/Cargo.toml inherits from the workspace");
    let (manifest, _) = SDK_MANIFEST.split_once(NOT_COPIED).unwrap();
    assert!(manifest.contains("[dependencies]") && !manifest.contains("[[example]]"));
}

/// The docs show each environment whole.
#[test]
fn the_docs_show_the_templates() {
    for (file, page) in [
        ("env/rust/src/lib.rs", "docs/environment.md"),
        ("env/c/my_plugin.c", "docs/c_plugins.md"),
        ("env/python/my_plugin.py", "docs/plugins.md"),
    ] {
        let text = TEMPLATES.get_file(file).unwrap().contents_utf8().unwrap().replace(PLACEHOLDER, "walk");
        let shows = fs::read_to_string(Path::new(ROOT).join(page)).unwrap().contains(&text);
        assert!(shows, "{page} does not show core/scaffold/templates/{file} with the name walk");
    }
}

#[test]
fn wrong_arguments_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let new = |name: &str, kind, lang, sdk: Option<&str>| {
        create(&NewArgs { dir: dir.path().into(), sdk: sdk.map(Into::into), ..args(name, kind, lang) })
    };
    for name in ["", "Walk", "my-env", "1st", "_a", "ä", "a/b", &"a".repeat(65)] {
        assert!(refusal(new(name, Kind::Env, Language::C, None)).contains("lower case letters"), "{name}");
    }
    for name in ["fn", "lambda", "nestor_plugin"] {
        assert!(refusal(new(name, Kind::Env, Language::Rust, None)).contains("reserved"), "{name}");
    }
    for kind in [Kind::Estimator, Kind::Loss] {
        assert!(refusal(new("a", kind, Language::Python, None)).contains("cannot be written in Python"));
    }
    assert!(refusal(new("a", Kind::Env, Language::C, Some(ROOT))).contains("--sdk is for --lang rust"));
    assert!(refusal(new("a", Kind::Env, Language::Rust, Some("/nowhere"))).contains("plugins/sdk of a checkout"));
    assert!(refusal(new("a", Kind::Env, Language::Rust, Some(ROOT))).contains("is not the SDK"));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::create_dir(dir.path().join("taken")).unwrap();
    assert!(refusal(new("taken", Kind::Env, Language::C, None)).contains("is there already"));
    assert_eq!(fs::read_dir(dir.path().join("taken")).unwrap().count(), 0);
    assert_eq!((Kind::value_variants().len(), Language::value_variants().len()), (3, 3)); // all are tried above
}
