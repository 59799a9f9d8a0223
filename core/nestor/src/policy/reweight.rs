//! PF-PPO's policy filtration (arXiv:2409.06957, as verl's `compute_pf_ppo_reweight_data` writes it): the update trains on a
//! resample of the batch in which rewards that can be trusted are more frequent. N sequences are drawn with replacement from N,
//! sequence i with probability w_i / sum_j w_j,
//!
//! ```text
//! pow:         w_i = |S_i|^power
//! max_min:     w_i = 1 where S_i is the batch's largest or smallest score, else 0
//! max_random:  w_i = 0.4 where S_i is the batch's largest score, else 0.1
//! ```
//!
//! and never below 1e-8. S_i is the sum of the sequence's token rewards (in a transcript, their mean over its steps).

use rand::SeedableRng;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand_chacha::ChaCha8Rng;

use crate::data::Batch;
use crate::recipe::{Reweight, ReweightMethod};

/// The least weight, so that a batch of zeros can be drawn from.
const LEAST: f64 = 1e-8;

/// The sequences to train on: as many as there are without those of failed episodes, drawn with replacement.
pub fn resample(batch: &Batch, reweight: &Reweight, seed: u64) -> Vec<usize> {
    let rows = &batch.rows;
    let score = |row: u32| rows.token_rewards[rows.response(row)].iter().sum::<f64>();
    let mean = |of: &[u32]| of.iter().map(|&row| score(row)).sum::<f64>() / of.len().max(1) as f64;
    let scored = &batch.sequences[..batch.sequences.len() - batch.failed];
    let scores: Vec<f64> = scored.iter().map(|sequence| mean(&sequence.rows)).collect();
    // Without a sequence there is nothing to draw.
    let Ok(drawn) = WeightedIndex::new(weights(&scores, reweight)) else { return Vec::new() };
    drawn.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(scores.len()).collect()
}

/// The weight of each score.
fn weights(scores: &[f64], reweight: &Reweight) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let weight = |score: f64| match reweight.method {
        ReweightMethod::Pow => score.abs().powf(reweight.power),
        ReweightMethod::MaxMin => f64::from(score == largest || score == smallest),
        ReweightMethod::MaxRandom if score == largest => 0.4,
        ReweightMethod::MaxRandom => 0.1,
    };
    scores.iter().map(|&score| (weight(score) + LEAST).max(LEAST)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Sequence;
    use anyhow::{Context, Result};
    use serde_json::Value;

    fn read(method: &Value) -> Result<Reweight> {
        let name = method["reweight_method"].as_str().context("a method")?;
        let power = method["weight_pow"].as_f64().unwrap_or(2.0);
        Ok(Reweight { method: serde_json::from_value(name.into())?, power })
    }

    /// Against verl-agent's `compute_pf_ppo_reweight_data`, recorded in tests/fixtures/estimator_family.json.
    #[test]
    fn weights_equal_the_reference() -> Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/estimator_family.json");
        let fixtures: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
        let cases = fixtures["cases"].as_array().context("cases")?;
        let mut compared = 0;
        for recorded in fixtures["methods"]["pf_ppo"].as_array().context("pf_ppo")? {
            let case = cases.iter().find(|case| case["id"] == recorded["case"]).context("its case")?;
            let scores = scores(case)?;
            for run in recorded["runs"].as_array().context("runs")? {
                let got = weights(&scores, &read(&run["params"])?);
                let sum: f64 = got.iter().sum();
                let expected =
                    |key: &str| run[key].as_array().map(|list| list.iter().filter_map(Value::as_f64).collect());
                let (want, probabilities): (Option<Vec<f64>>, Option<Vec<f64>>) =
                    (expected("weights"), expected("probability"));
                let (want, probabilities) = (want.context("weights")?, probabilities.context("probabilities")?);
                assert_eq!(got.len(), want.len());
                for ((got, want), probability) in got.iter().zip(&want).zip(&probabilities) {
                    assert!((got - want).abs() <= 1e-6 * want.abs().max(1e-8), "{}: {got}, {want}", recorded["case"]);
                    assert!(
                        (got / sum - probability).abs() <= 1e-6,
                        "{}: {}, {probability}",
                        recorded["case"],
                        got / sum
                    );
                    compared += 1;
                }
            }
        }
        assert!(compared > 0);
        Ok(())
    }

    /// S of every row: its episode's reward, less the row's own penalty.
    fn scores(case: &Value) -> Result<Vec<f64>> {
        let rows = case["rows"].as_array().context("rows")?;
        let penalty = case["penalty_coef"].as_f64().context("a penalty")?;
        let same = |a: &Value, b: &Value| a["group"] == b["group"] && a["traj"] == b["traj"];
        let of = |row: &Value| {
            let episode: f64 = rows.iter().filter(|other| same(row, other)).filter_map(|r| r["reward"].as_f64()).sum();
            let valid = row["valid"].as_bool().unwrap_or_else(|| row["valid"].as_f64() == Some(1.0));
            episode - if valid { 0.0 } else { penalty }
        };
        Ok(rows.iter().map(of).collect())
    }

    #[test]
    fn draws_follow_the_weights() {
        let mut batch = Batch::default();
        for (row, reward) in [0.0, 1.0, 3.0].into_iter().enumerate() {
            batch.sequences.push(Sequence { tokens: vec![1], rows: vec![row as u32], ..Sequence::default() });
            batch.rows.token_rewards.push(reward);
        }
        batch.rows.token_offsets = vec![0, 1, 2, 3];
        let reweight = Reweight { method: ReweightMethod::Pow, power: 2.0 };
        let draws: Vec<usize> = (0..1000).flat_map(|seed| resample(&batch, &reweight, seed)).collect();
        let share = |sequence: usize| draws.iter().filter(|&&drawn| drawn == sequence).count() as f64 / 3000.0;
        assert_eq!(share(0), 0.0);
        assert!((share(2) - 0.9).abs() < 0.03, "{}", share(2));
        assert_eq!(resample(&batch, &reweight, 5), resample(&batch, &reweight, 5));
        assert!(resample(&Batch::default(), &reweight, 5).is_empty());
    }
}
