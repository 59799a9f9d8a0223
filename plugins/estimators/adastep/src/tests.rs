//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::AdaStep;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
        "gamma": params["gamma"],
    })
}

#[test]
fn adastep_equals_the_reference() {
    cases::compare_family::<AdaStep>(&cases::load(FILE), "adastep", config);
}

#[test]
fn adastep_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<AdaStep>(&cases::load(FILE), "adastep", &json!({}));
    cases::check_definition::<AdaStep>(&cases::load(FILE), "adastep");
}
