//! A thousand valid recipes, each damaged at one random key, yield a recipe or one error that names the place.

#![allow(clippy::unwrap_used)] // a test may fail so

use crate::support;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use nestor_host::Plugins;
use nestor_model::error::{InputError, message};
use nestor_recipe::{Recipe, load_with};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_yaml::{Mapping, Value};

const DAMAGES: usize = 1_000;
/// The program reads one in this many refused recipes too.
const SAMPLE: usize = 60;

/// Values that replace a value of the recipe.
const GARBAGE: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1",
    "0.5",
    "-0.5",
    "1e308",
    "1e-308",
    "4294967295",
    "9223372036854775807",
    "18446744073709551615",
    "-9223372036854775808",
    "1e400",
    ".nan",
    "''",
    "x",
    "\"two\\nlines\\u0000\"",
    "[]",
    "[1, x]",
    "{}",
    "{a: {b: c}}",
    "../..",
    "2026-01-01",
];

/// Drops or renames a random key, moves it to the top, or replaces its value. Returns a description.
fn damage(recipe: &mut Value, rng: &mut ChaCha8Rng) -> String {
    let path = keys(recipe, &[]).choose(rng).unwrap().clone();
    let (key, section) = path.split_last().unwrap();
    let top = recipe.as_mapping_mut().unwrap();
    let map = section.iter().fold(top, |map, key| map[key].as_mapping_mut().unwrap());
    let damage = match rng.random_range(0..5) {
        0 => {
            map.remove(key);
            "dropped".to_string()
        }
        1 => {
            let mut name: Vec<char> = key.as_str().unwrap().chars().collect();
            let at = rng.random_range(0..name.len());
            match rng.random_range(0..3) {
                0 => drop(name.remove(at)),
                1 => name.insert(at, '\u{fc}'),
                _ => name[at] = 'q',
            }
            let (name, value): (String, _) = (name.into_iter().collect(), map.remove(key).unwrap());
            map.insert(name.clone().into(), value);
            format!("renamed to {name}")
        }
        2 => {
            let value = map.remove(key).unwrap();
            recipe.as_mapping_mut().unwrap().insert(key.clone(), value);
            "moved to the top".to_string()
        }
        _ => {
            let garbage = *GARBAGE.choose(rng).unwrap();
            map.insert(key.clone(), serde_yaml::from_str(garbage).unwrap());
            format!("set to {garbage}")
        }
    };
    format!("{path:?} {damage}")
}

/// The paths of all keys.
fn keys(value: &Value, path: &[Value]) -> Vec<Vec<Value>> {
    let empty = Mapping::new();
    let below = |(key, value): (&Value, &Value)| {
        let path = [path, std::slice::from_ref(key)].concat();
        [vec![path.clone()], keys(value, &path)].concat()
    };
    value.as_mapping().unwrap_or(&empty).iter().flat_map(below).collect()
}

/// The message of an error, which must be the user's mistake, and one line unless it lists several problems.
fn refusal<T>(result: Result<T>, what: &str) -> Option<String> {
    let error = result.err()?;
    assert!(error.chain().any(|cause| cause.is::<InputError>()), "{what}: {error:#}");
    let is_item = |line: &str| line.starts_with("  (");
    Some(message(&error)).inspect(|text| assert!(text.lines().skip(1).all(is_item), "{what}: {text}"))
}

#[test]
fn a_damaged_recipe_gives_one_message_with_its_place() -> Result<()> {
    let plugins = Plugins::in_dir(support::build(&[]))?;
    let recipes = ["recipes/quickstart.yaml", "recipes/smoke/gigpo.yaml", "recipes/sokoban.yaml"];
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("r.yaml");
    let (mut refused, mut plugins_refused) = (0, 0);
    for number in 0..DAMAGES {
        let text = std::fs::read_to_string(support::workspace().join(recipes[number % recipes.len()]))?;
        let mut yaml: Value = serde_yaml::from_str(&text)?;
        let what = damage(&mut yaml, &mut rng);
        let text = serde_yaml::to_string(&yaml)?;
        let read: Result<Recipe> = load_with(&file, &[], &|path| Ok((path.into(), text.clone())));
        if let Ok(recipe) = &read {
            let env = refusal(plugins.environment(&recipe.env.all()[0].choice()), &what);
            plugins_refused +=
                usize::from(env.or(refusal(plugins.estimator(&recipe.estimator.choice()), &what)).is_some());
        }
        let Some(text_of_error) = refusal(read, &what) else { continue };
        let first = text_of_error.split_once(" problems:\n  (1) ").map_or(&*text_of_error, |(_, first)| first);
        assert!(first.starts_with(&format!("{}:", file.display())), "{what}: {text_of_error}");
        refused += 1;
        if refused % SAMPLE == 0 {
            std::fs::write(&file, &text)?;
            by_the_program(&file, &text_of_error);
        }
    }
    println!("{refused} of {DAMAGES} refused by the reader, {plugins_refused} by a plugin");
    assert!(refused > DAMAGES / 2 && plugins_refused > DAMAGES / 100, "{refused}, {plugins_refused}");
    Ok(())
}

/// The program prints the same message as the reader, and nothing else.
fn by_the_program(recipe: &Path, text: &str) {
    let mut nestor = Command::new(env!("CARGO_BIN_EXE_nestor-torch"));
    let out = nestor.arg("train").arg(recipe).arg("--run-dir").arg(recipe.with_extension("run")).output().unwrap();
    assert_eq!(
        (out.status.code(), String::from_utf8_lossy(&out.stderr).trim_end()),
        (Some(2), &*format!("error: {text}"))
    );
}
