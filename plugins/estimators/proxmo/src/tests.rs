//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::Proxmo;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
        "soft": params["mode"] == "soft_grouping",
        "gamma": params["gamma"],
        "step_weight": params["step_advantage_w"],
        "modulation": params["enable_psc"],
        "alpha": params["psc_alpha"],
        "beta": params["psc_beta"],
        // The success test of that code.
        "rate": "score",
    })
}

#[test]
fn proxmo_equals_the_reference() {
    cases::compare_family::<Proxmo>(&cases::load(FILE), "proxmo", config);
}

#[test]
fn proxmo_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<Proxmo>(&cases::load(FILE), "proxmo", &json!({}));
    cases::check_definition::<Proxmo>(&cases::load(FILE), "proxmo");
}
