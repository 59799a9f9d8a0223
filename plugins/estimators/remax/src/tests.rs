//! Compares with recorded results; `tests/fixtures/estimator_family.json` explains their origin.

use nestor_plugin::recorded::{NamedCells, Recorded, RecordedRow, cases};
use nestor_plugin::{Estimator, Scores};
use serde_json::{Value, json};

use super::Remax;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

#[test]
fn remax_equals_the_reference() {
    cases::compare_family::<Remax>(&cases::load(FILE), "remax", |_| json!({}));
}

/// `remax_random` of `tests/fixtures/advantage_cases.json`: rewards on any token.
#[test]
fn every_token_has_the_rewards_that_follow_it() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json")).value;
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let numbers = |value: &Value| list(value).iter().filter_map(Value::as_f64).collect::<Vec<f64>>();
    for case in list(&file["remax_random"]) {
        let by_row = |key: &str| list(&case[key]).iter().map(numbers).collect::<Vec<_>>();
        let lengths: Vec<usize> =
            by_row("response_mask").iter().map(|mask| mask.iter().filter(|&&m| m == 1.0).count()).collect();
        let rows = by_row("token_level_rewards").into_iter().zip(numbers(&case["reward_baselines"])).zip(&lengths);
        let rows = rows.enumerate().map(|(number, ((rewards, baseline), &length))| RecordedRow {
            traj: number.to_string(),
            valid: true,
            resp_len: length as u32,
            token_rewards: Some(rewards[..length].to_vec()),
            named: NamedCells { greedy_return: Some(baseline), ..NamedCells::default() },
            ..RecordedRow::default()
        });
        let columns = Recorded { rows: rows.collect(), ..Recorded::default() }.columns().expect("sound rows");
        let tokens = columns.token_rewards.len();
        let (mut advantages, mut returns) = (vec![0.0; tokens], vec![0.0; tokens]);
        let asked = columns.asked();
        Remax.score(&columns.view_with(&asked), &mut Scores::new(&mut advantages, &mut returns)).expect("scores");
        for (key, got) in [("adv", advantages), ("returns", returns)] {
            let want = by_row(key).into_iter().zip(&lengths).flat_map(|(row, &n)| row.into_iter().take(n));
            for (got, want) in got.into_iter().zip(want) {
                // The reference adds in float32.
                assert!((f64::from(got) - want).abs() <= 1e-6 * (1.0 + want.abs()), "{key}: {got}, {want}");
            }
        }
    }
}
