//! `nestor advantage` with the bundled estimators, through the loader, on what the reference implementation computed;
//! `tests/fixtures/advantage_cases.json` says how. The plugins' own tests compare every setting; these the whole way.

#![allow(clippy::unwrap_used)] // a test may fail so

mod support;

use nestor::plugin::Plugins;
use nestor::plugin::advantage::advantage;
use serde_json::{Value, json};

#[test]
fn bundled_estimators_reproduce_the_recorded_cases() {
    // Core stands without the bundled plugins; then there is nothing to test.
    if !support::workspace().join("plugins/gigpo").exists() {
        return;
    }
    let built = support::build(&[
        "-p",
        "nestor-gigpo",
        "-p",
        "nestor-grpo",
        "-p",
        "nestor-rloo",
        "-p",
        "nestor-ppo",
        "-p",
        "nestor-reinforce-pp",
    ]);
    let plugins = Plugins::in_dir(built).unwrap();
    let file = support::workspace().join("tests/fixtures/advantage_cases.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let random = file["random_trajectory_cases"].as_array().unwrap().iter();
    let mut tokens = 0;
    for case in random.chain([&file["worked_example"]]) {
        for (estimator, config, expected) in settings(case) {
            tokens += compare(&plugins, (estimator, config), &case["case"], expected);
        }
    }
    assert_eq!(tokens, 8736);
}

/// Estimators, their configs, and where the expected numbers stand. `gamma` comes from the recorded rows.
fn settings(case: &Value) -> Vec<(&'static str, Value, &Value)> {
    let gigpo = case["gigpo"].as_array().unwrap().iter().map(|expected| {
        let params = &expected["params"];
        let config = json!({
            "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
            "step_weight": params["step_advantage_w"],
            "similarity": if params["enable_similarity"] == true { &params["similarity_thresh"] } else { &Value::Null },
        });
        ("gigpo", config, expected)
    });
    let others = [("grpo", json!({}), &case["grpo"]["std"]), ("rloo", json!({}), &case["rloo"]["default"])];
    gigpo.chain(others).collect()
}

fn compare(plugins: &Plugins, (estimator, config): (&str, Value), rows: &Value, expected: &Value) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    std::fs::write(&file, rows.to_string()).unwrap();
    let scored = advantage(plugins, estimator, &config.to_string(), &file).unwrap();
    let mut tokens = 0;
    for (row, got) in scored["advantages"].as_array().unwrap().iter().enumerate() {
        let got = got.as_array().unwrap();
        assert_eq!(json!(got.len()), rows["rows"][row]["resp_len"]);
        let want = expected["adv"][row].as_f64().unwrap();
        for x in got {
            let close = (x.as_f64().unwrap() - want).abs() <= 1e-4 * (1.0 + want.abs());
            assert!(close, "{estimator} {config} row {row}: {x}, the reference has {want}");
        }
        tokens += got.len();
    }
    tokens
}
