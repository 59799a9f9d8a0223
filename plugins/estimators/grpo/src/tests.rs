//! Compares with the reference implementation; `tests/fixtures/advantage_cases.json` explains the origin of its
//! numbers.

use nestor_plugin::recorded::{Recorded, cases};
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

#[test]
fn grpo_pass_at_k_equals_the_reference() {
    let file = cases::load(include_str!("../../../../tests/fixtures/estimator_family.json"));
    cases::compare_family::<Grpo>(&file, "grpo_passk", |params| {
        json!({
            "norm": if params["norm_by_std"] == true { "std" } else { "none" },
            "pass_at_k": if params["per_row"] == true { "row" } else { "first_step" },
        })
    });
    cases::check_properties::<Grpo>(&file, "grpo_passk", &json!({ "pass_at_k": "episode" }));
    // Other cases of the same code, in float32.
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    for case in file.value["grpo_passk_random"].as_array().unwrap() {
        for (name, norm) in [("std", "std"), ("no_std", "none")] {
            cases::compare::<Grpo>(&case["case"], &json!({ "norm": norm, "pass_at_k": "row" }), &case[name]);
        }
    }
}

/// By hand: scores 4, 1 and 1 have standard deviation sqrt(3), and the best episode leads by 3.
#[test]
fn grpo_pass_at_k_reaches_all_steps_of_the_best_episode() {
    let row = |traj: &str, reward: f64| json!({ "group": 0, "traj": traj, "anchor": "s", "reward": reward, "valid": true, "resp_len": 1 });
    let rows = [row("a", 1.0), row("b", 0.0), row("b", 4.0), row("c", 1.0)];
    let recorded: Recorded = serde_json::from_value(json!({ "rows": rows })).unwrap();
    let got = cases::score::<Grpo>(&recorded.columns().unwrap(), &json!({ "pass_at_k": "episode" }));
    assert_eq!(got[0] + got[3], 0.0);
    assert!(got[1] == got[2] && (got[1] - 3f32.sqrt()).abs() < 1e-5, "{got:?}");
}
