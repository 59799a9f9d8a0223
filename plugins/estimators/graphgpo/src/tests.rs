//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use serde_json::{Value, json};

use super::GraphGpo;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

fn config(params: &Value) -> Value {
    json!({
        "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
        "gamma": params["gamma"],
        "normalize_distance": params["normalize_distance"],
        "step_weight": params["step_advantage_w"],
        "episode_weight": params["episode_advantage_w"],
        "similarity": if params["enable_similarity"] == true { &params["similarity_thresh"] } else { &Value::Null },
        // The success test of that code.
        "success": {"return_above": 0.0},
    })
}

#[test]
fn graphgpo_equals_the_reference() {
    cases::compare_family::<GraphGpo>(&cases::load(FILE), "graphgpo", config);
}

#[test]
fn graphgpo_gives_0_to_equal_episodes_in_any_order() {
    cases::check_properties::<GraphGpo>(&cases::load(FILE), "graphgpo", &json!({}));
    cases::check_definition::<GraphGpo>(&cases::load(FILE), "graphgpo");
}
