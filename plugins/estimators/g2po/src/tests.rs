//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::G2po;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
        "step_weight": params["step_advantage_w"],
        // The success test of that code.
        "success": {"return_equals": 10.0},
    })
}

#[test]
fn g2po_equals_the_reference() {
    cases::compare_family::<G2po>(&cases::load(FILE), "g2po", config);
}

#[test]
fn g2po_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<G2po>(&cases::load(FILE), "g2po", &json!({}));
    cases::check_definition::<G2po>(&cases::load(FILE), "g2po");
}
