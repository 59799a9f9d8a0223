//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::Gagpo;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
        "gamma": params["gamma"],
        "lambda": params["gae_lambda"],
    })
}

#[test]
fn gagpo_equals_the_reference() {
    cases::compare_family::<Gagpo>(&cases::load(FILE), "gagpo", config);
}

#[test]
fn gagpo_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<Gagpo>(&cases::load(FILE), "gagpo", &json!({}));
    cases::check_definition::<Gagpo>(&cases::load(FILE), "gagpo");
}
