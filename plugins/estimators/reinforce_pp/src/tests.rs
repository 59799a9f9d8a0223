//! Compares with the reference implementation; `tests/fixtures/advantage_cases.json` explains the origin of its
//! numbers.

use nestor_plugin::recorded::{Recorded, cases};
use nestor_plugin::{Estimator, Scores, parse_config};
use serde_json::{Value, json};

use super::ReinforcePp;

/// Advantages and returns, a list of tokens per row.
fn score(case: &Value, config: &Value) -> [Vec<Vec<f32>>; 2] {
    let recorded: Recorded = serde_json::from_value(case.clone()).expect("recorded steps");
    let columns = recorded.columns().expect("sound rows");
    let tokens = columns.token_rewards.len();
    let (mut advantages, mut returns) = (vec![f32::NAN; tokens], vec![f32::NAN; tokens]);
    let rows = columns.view();
    let mut estimator = parse_config(&config.to_string()).and_then(ReinforcePp::open).expect("a sound config");
    estimator.score(&rows, &mut Scores::new(&mut advantages, &mut returns)).expect("scores");
    [advantages, returns].map(|column| (0..rows.len()).map(|row| column[rows.tokens(row)].to_vec()).collect())
}

/// The reference whitens in float32: 3e-4.
fn assert_close(what: &str, got: f32, want: f64) {
    assert!((f64::from(got) - want).abs() <= 3e-4 * (1.0 + want.abs()), "{what}: {got}, the reference has {want}");
}

#[test]
fn all_reference_cases() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    let (mut tokens, mut rows) = (0, 0);
    for case in file.scored() {
        let expected = &case["reinforce_plus_plus"];
        let [advantages, returns] = score(&case["case"], &json!({ "gamma": expected["gamma"] }));
        for (name, got) in [("adv_tokens", advantages), ("returns_tokens", returns)] {
            for (row, got) in got.iter().enumerate() {
                for (k, got) in got.iter().enumerate() {
                    assert_close(name, *got, expected[name][row][k].as_f64().expect("a number"));
                    tokens += 1;
                }
            }
        }
        let [advantages, _] = score(&case["case"], &json!({ "baseline": "group" }));
        for (row, got) in advantages.iter().enumerate() {
            let want = case["reinforce_plus_plus_baseline"]["adv"][row].as_f64().expect("a number");
            got.iter().for_each(|got| assert_close("baseline", *got, want));
            rows += 1;
        }
    }
    assert_eq!(rows, 370);
    assert!(tokens > 2 * 1000, "{tokens}");
}
