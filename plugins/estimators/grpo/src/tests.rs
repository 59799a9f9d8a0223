//! Compares with the reference implementation; `tests/fixtures/advantage_cases.json` explains the origin of its
//! numbers.

use nestor_plugin::recorded::cases;
use serde_json::json;

use super::Grpo;

#[test]
fn all_reference_cases() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    let mut compared = 0;
    for case in file.scored() {
        for (name, expected) in case["grpo"].as_object().expect("grpo") {
            let norm = if name.starts_with("std") { "std" } else { "none" };
            let weighting = if name.contains("dedup") { "episode" } else { "row" };
            let config = json!({ "norm": norm, "weighting": weighting });
            // One row is an invalid response in a group whose episodes all score the same: the reference divides its
            // penalty by 0 + 1e-6 and gets -10000. A group of equal scores has nothing to compare; ours is 0.
            let mut expected = expected.clone();
            for adv in expected["adv"].as_array_mut().expect("adv").iter_mut().filter(|a| **a == -10000.0) {
                assert_eq!((norm, weighting), ("std", "episode"));
                *adv = json!(0.0);
            }
            compared += cases::compare::<Grpo>(&case["case"], &config, &expected);
        }
    }
    // 370 rows; three settings each.
    assert_eq!(compared, 3 * 370);
}
