//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::cases;
use nestor_plugin::serde_json::json;

use super::AdaStep;

#[test]
fn equals_the_reference() {
    let file = cases::load(include_str!("../../../../tests/fixtures/estimator_family.json"));
    let compared = cases::compare_family::<AdaStep>(
        &file,
        "adastep",
        |params| json!({ "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" }, "gamma": params["gamma"] }),
    );
    assert_eq!(Some(compared as u64), file.value["rows"]["adastep"].as_u64());
}
