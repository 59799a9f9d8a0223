//! Compares `nestor advantage` and the bundled estimators, through the loader, with numbers of the reference implementation;
//! `tests/fixtures/advantage_cases.json` records their origin. The plugins' own tests compare every setting.

#![allow(clippy::unwrap_used)] // a test may fail so

use crate::support;
use nestor_host::Plugins;
use nestor_host::advantage::advantage;
use serde_json::{Value, json};

/// The bundled estimators and the recorded cases; none in a checkout without the plugins.
fn bundled() -> Option<(Plugins, Value)> {
    if !support::workspace().join("plugins/estimators/gigpo").exists() {
        return None;
    }
    let built = support::build(&[]);
    let file = support::workspace().join("tests/fixtures/advantage_cases.json");
    let file = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    Some((Plugins::in_dir(built).unwrap(), file))
}

/// Output of `nestor advantage` for recorded rows.
fn scored(plugins: &Plugins, estimator: &str, config: &Value, rows: &Value) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    std::fs::write(&file, rows.to_string()).unwrap();
    advantage(plugins, estimator, &config.to_string(), &file).unwrap()
}

#[test]
fn bundled_estimators_reproduce_the_recorded_cases() {
    let Some((plugins, file)) = bundled() else { return };
    let random = file["random_trajectory_cases"].as_array().unwrap().iter();
    let mut tokens = 0;
    for case in random.chain([&file["worked_example"]]) {
        for (estimator, config, expected) in settings(case) {
            tokens += compare(&plugins, (estimator, config), &case["case"], expected);
        }
    }
    assert_eq!(tokens, 8736);
}

/// Numbers per token, of estimators that whiten. The reference whitens in float32, hence the tolerance 3e-4.
#[test]
fn estimators_of_tokens_reproduce_the_recorded_cases() {
    let Some((plugins, file)) = bundled() else { return };
    let mut tokens = 0;
    let mut compare = |what: &str, got: &Value, want: &Value| {
        for (got, want) in got.as_array().unwrap().iter().zip(want.as_array().unwrap()) {
            for (got, want) in got.as_array().unwrap().iter().zip(want.as_array().unwrap()) {
                let (got, want) = (got.as_f64().unwrap(), want.as_f64().unwrap());
                assert!((got - want).abs() <= 3e-4 * (1.0 + want.abs()), "{what}: {got}, the reference has {want}");
                tokens += 1;
            }
        }
    };
    let random = file["random_trajectory_cases"].as_array().unwrap().iter();
    for case in random.chain([&file["worked_example"]]) {
        let expected = &case["reinforce_plus_plus"];
        let config = json!({ "gamma": expected["gamma"] });
        let got = scored(&plugins, "reinforce_pp", &config, &case["case"]);
        compare("reinforce_pp advantages", &got["advantages"], &expected["adv_tokens"]);
        compare("reinforce_pp returns", &got["returns"], &expected["returns_tokens"]);
    }
    for name in ["gae_worked", "gae_random"] {
        for case in file[name].as_array().unwrap() {
            let config = json!({ "gamma": case["gamma"], "lambda": case["lam"] });
            let got = scored(&plugins, "ppo", &config, &gae_rows(case));
            compare("ppo advantages", &got["advantages"], &case["adv"]);
            compare("ppo returns", &got["returns"], &case["returns"]);
        }
    }
    assert_eq!(tokens, 3096);
}

/// A padded case of GAE as recorded rows; after a response that fills the padded row the reference takes the value 0.
fn gae_rows(case: &Value) -> Value {
    let rows = case["response_mask"].as_array().unwrap().iter().enumerate().map(|(i, mask)| {
        let length = mask.as_array().unwrap().iter().filter(|m| m.as_f64() == Some(1.0)).count();
        let values = case["values"][i].as_array().unwrap().iter().chain([&Value::Null]).take(length + 1);
        json!({
            "group": 0, "traj": i.to_string(), "anchor": "", "reward": 0.0, "episode_reward": 0.0, "valid": true,
            "resp_len": length,
            "values": values.map(|v| v.as_f64().unwrap_or(0.0)).collect::<Vec<_>>(),
            "token_rewards": case["token_level_rewards"][i].as_array().unwrap()[..length],
        })
    });
    json!({ "rows": rows.collect::<Vec<_>>() })
}

/// Estimators, their configs, and the expected numbers. `gamma` comes from the recorded rows.
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
    let scored = scored(plugins, estimator, &config, rows);
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
