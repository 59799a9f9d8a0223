//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::Hgpo;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
        "gamma": params["gamma"],
        "history": params["history_length"],
        "alpha": params["length_weight_alpha"],
        "base_group": params["base_group"],
    })
}

#[test]
fn hgpo_equals_the_reference() {
    cases::compare_family::<Hgpo>(&cases::load(FILE), "hgpo", config);
}

#[test]
fn hgpo_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<Hgpo>(&cases::load(FILE), "hgpo", &json!({}));
    cases::check_definition::<Hgpo>(&cases::load(FILE), "hgpo");
}

/// Other cases of the same code, in float32.
#[test]
fn hgpo_equals_the_reference_in_float32() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    let mut compared = 0;
    for case in file.value["hgpo_random"].as_array().unwrap() {
        let mut config = config(&case["params"]);
        config["gamma"] = case["case"]["gamma"].clone();
        compared += cases::compare::<Hgpo>(&case["case"], &config, case);
    }
    assert!(compared > 0);
}
