//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::Empg;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["norm_by_std"] == true { "std" } else { "none" },
        "k": params["k"],
        "k_next": params["k_f"],
        "bonus": params["zeta"],
    })
}

#[test]
fn empg_equals_the_reference() {
    cases::compare_family::<Empg>(&cases::load(FILE), "empg", config);
}

#[test]
fn empg_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<Empg>(&cases::load(FILE), "empg", &json!({}));
}
