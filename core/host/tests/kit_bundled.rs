//! All bundled plugins pass the kit, and the example in C whose states only a picture shows.

#![allow(clippy::unwrap_used)] // a test may fail so

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use nestor_host::kit::{Budget, Kit, Report, Status};
use serde_json::{Value, json};
use support::workspace;

fn check(file: &Path, config: Value, splits: &[&str], skip: &[&str]) -> Report {
    let texts = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
    let kit = Kit { config, splits: texts(splits), skip: texts(skip), budget: Budget::small(), ..Kit::default() };
    kit.check(file).unwrap()
}

#[test]
fn bundled_plugins_pass() {
    let dir = support::build();
    let both = ["train", "eval"];
    for kind in ["environments", "estimators", "losses"] {
        // A checkout of the core alone has none.
        let Ok(folders) = std::fs::read_dir(workspace().join("plugins").join(kind)) else { continue };
        for folder in folders {
            let name = folder.unwrap().file_name().into_string().unwrap();
            let file = dir.join(format!("libnestor_{name}.so"));
            let report = match name.as_str() {
                "alfworld" => {
                    let package = workspace().join(".venv/alfworld");
                    let generate = json!({ "size": "small", "package": package, "train": 20, "eval": 20 });
                    check(&file, json!({ "generate": generate }), &["train", "eval_in_distribution"], &[])
                }
                "webshop" => {
                    let generate = json!({ "size": "small", "products": 60 });
                    check(&file, json!({ "generate": generate }), &both, &[])
                }
                "search" => {
                    let generate = json!({ "entities": 100, "train": 50, "eval": 20 });
                    check(&file, json!({ "generate": generate }), &both, &[])
                }
                "cards" => {
                    check(&file, json!({ "game": "ezpoints" }), &both, &[]).assert_passed();
                    check(&file, json!({ "game": "points24", "solvable": true }), &both, &[]).assert_passed();
                    check(&file, json!({ "game": "numberline" }), &both, &[]).assert_passed();
                    let seen = json!({ "game": "ezpoints", "observation": "image", "size": 42 });
                    check(&file, seen, &both, &[]).assert_passed();
                    // No expert wins every game of Blackjack.
                    check(&file, json!({ "game": "blackjack" }), &both, &["oracle_max"])
                }
                "sokoban" => {
                    check(&file, json!({ "observation": "image" }), &both, &[]).assert_passed();
                    check(&file, json!({}), &both, &[])
                }
                // gigpo_permuted deals advantages to rows at random: it depends on their order by design.
                "gigpo" => {
                    let failures = check(&file, json!({}), &both, &[]);
                    let failed: Vec<_> = failures.failures().map(|(of, line)| (of.id.as_str(), line.name)).collect();
                    assert_eq!(failed, [("gigpo_permuted", "row_order")], "{failures}");
                    check(&file, json!({}), &both, &["row_order"])
                }
                _ => check(&file, json!({}), &both, &[]),
            };
            report.assert_passed();
        }
    }
    check(&example("counts"), json!({}), &both, &[]).assert_passed();
    let report = check(&example("picture"), json!({}), &both, &[]);
    report.assert_passed();
    // Its texts are all the same: these checks tell states apart by the images.
    for name in ["splits_disjoint", "anchors_shared"] {
        let line = report.sections[0].lines.iter().find(|line| line.name == name).unwrap();
        assert_eq!(line.status, Status::Passed, "{report}");
    }
}

/// An example of plugins/sdk/examples/c, compiled.
fn example(name: &str) -> PathBuf {
    let (sdk, file) =
        (workspace().join("plugins/sdk"), Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so")));
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-O2", "-shared", "-fPIC", "-I"]).arg(&sdk).arg("-o").arg(&file);
    assert!(cc.arg(sdk.join("examples/c").join(format!("{name}.c"))).status().unwrap().success());
    file
}
