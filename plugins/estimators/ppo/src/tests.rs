//! Compares with the reference implementation; `tests/fixtures/advantage_cases.json` explains the origin of its
//! numbers.

use nestor_plugin::recorded::{Columns, Recorded, RecordedRow, cases};
use nestor_plugin::{Estimator, Scores, parse_config};
use serde_json::{Value, json};

use super::Ppo;

/// Advantages and returns per token.
fn score(columns: &Columns, config: &Value) -> (Vec<f32>, Vec<f32>) {
    let tokens = columns.token_rewards.len();
    let (mut advantages, mut returns) = (vec![f32::NAN; tokens], vec![f32::NAN; tokens]);
    let mut ppo = parse_config(&config.to_string()).and_then(Ppo::open).expect("a sound config");
    ppo.score(&columns.view(), &mut Scores::new(&mut advantages, &mut returns)).expect("scores");
    (advantages, returns)
}

fn row(traj: &str, token_rewards: Vec<f64>, values: Vec<f32>) -> RecordedRow {
    RecordedRow {
        traj: traj.into(),
        valid: true,
        resp_len: token_rewards.len() as u32,
        values: Some(values),
        token_rewards: Some(token_rewards),
        ..RecordedRow::default()
    }
}

fn columns(rows: Vec<RecordedRow>) -> Columns {
    Recorded { rows, ..Recorded::default() }.columns().expect("sound rows")
}

fn numbers(row: &Value) -> Vec<f64> {
    row.as_array().expect("a row").iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[test]
fn inside_steps_equal_the_reference() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json")).value;
    let all = ["gae_worked", "gae_random"].map(|name| file[name].as_array().expect("cases").clone()).concat();
    let mut compared = 0;
    for case in &all {
        let by_row = |key: &str| -> Vec<Vec<f64>> { case[key].as_array().expect(key).iter().map(numbers).collect() };
        let lengths: Vec<usize> =
            by_row("response_mask").iter().map(|mask| mask.iter().filter(|&&m| m == 1.0).count()).collect();
        // A response that fills the padded row has no state after it there: the reference takes 0.
        let rows = by_row("token_level_rewards").into_iter().zip(by_row("values")).zip(&lengths).enumerate();
        let rows = rows.map(|(i, ((mut rewards, values), &length))| {
            rewards.truncate(length);
            let values = values.iter().chain([&0.0]).take(length + 1).map(|&v| v as f32).collect();
            row(&i.to_string(), rewards, values)
        });
        let (advantages, returns) =
            score(&columns(rows.collect()), &json!({ "gamma": case["gamma"], "lambda": case["lam"] }));
        // The reference whitens in float32: 3e-4.
        for (what, got, tolerance) in [("adv", advantages, 3e-4), ("returns", returns, 1e-4)] {
            let want = by_row(what).into_iter().zip(&lengths).flat_map(|(row, &n)| row.into_iter().take(n));
            for (got, want) in got.into_iter().zip(want) {
                let close = (f64::from(got) - want).abs() <= tolerance * (1.0 + want.abs());
                assert!(close, "{what}: {got}, the reference has {want}");
                compared += 1;
            }
        }
    }
    assert!(compared > 0);
}

/// By hand: rewards 1, 2 (less a penalty of 0.5), 4; values before the steps 0.5, 1, -1; the episode's return is 7.
#[test]
fn over_an_episode_by_hand() {
    let steps = [(1.0, 0.0, 0.5), (2.0, 0.5, 1.0), (4.0, 0.0, -1.0)];
    let rows = steps.map(|(reward, penalty, value)| RecordedRow {
        reward,
        ..row("a", vec![0.0, 7.0 - penalty], vec![value, 9.0, 9.0])
    });
    let (gamma, lambda) = (0.9, 0.8);
    let deltas = [1.0 + gamma - 0.5, 1.5 - gamma - 1.0, 4.0 - -1.0];
    let last = deltas[2];
    let middle = deltas[1] + gamma * lambda * last;
    let first = deltas[0] + gamma * lambda * middle;
    let config = json!({ "gamma": gamma, "lambda": lambda, "horizon": "episode" });
    let plain = columns(rows.to_vec());
    let (advantages, returns) = score(&plain, &config);
    let want: Vec<f32> = [(first, 0.5), (middle, 1.0), (last, -1.0)].map(|(a, v)| [(a + v) as f32; 2]).concat();
    assert_eq!(returns, want);
    // Whitened: twice each, so the order and the zero mean are kept.
    let raw: Vec<f64> = [[first; 2], [middle; 2], [last; 2]].concat();
    let mean = raw.iter().sum::<f64>() / 6.0;
    let variance = raw.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 5.0;
    for (got, raw) in advantages.iter().zip(&raw) {
        assert!((f64::from(*got) - (raw - mean) / (variance + 1e-8).sqrt()).abs() < 1e-6);
    }
    // KL-in-reward stays with its step, and a copy has its source's numbers.
    let mut with_kl = rows.to_vec();
    with_kl[1].token_rewards = Some(vec![-0.25, 6.5]);
    with_kl.push(RecordedRow { dup_of: Some(0), ..with_kl[0].clone() });
    let (_, returns) = score(&columns(with_kl), &config);
    assert!((f64::from(returns[2]) - (middle + 1.0 - 0.25)).abs() < 1e-6, "{returns:?}");
    assert_eq!((returns[6], returns[7]), (returns[0], returns[0]));
}

#[test]
fn configs_out_of_range_are_refused() {
    for (config, key) in [(json!({ "lambda": 1.1 }), "lambda"), (json!({ "gamma": -0.1 }), "gamma")] {
        let message = parse_config(&config.to_string()).and_then(Ppo::open).err().expect("refused").to_string();
        assert!(message.contains(key), "{message}");
    }
}
