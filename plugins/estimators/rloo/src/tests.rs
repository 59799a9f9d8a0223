//! Compares with the reference implementation; `tests/fixtures/advantage_cases.json` explains the origin of its
//! numbers.

use nestor_plugin::recorded::cases;
use serde_json::json;

use super::Rloo;

#[test]
fn all_reference_cases() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    let mut compared = 0;
    for case in file.scored() {
        for (name, expected) in case["rloo"].as_object().expect("rloo") {
            let weighting = if name.contains("dedup") { "episode" } else { "row" };
            compared += cases::compare::<Rloo>(&case["case"], &json!({ "weighting": weighting }), expected);
        }
    }
    // 370 rows; two settings each.
    assert_eq!(compared, 2 * 370);
}
