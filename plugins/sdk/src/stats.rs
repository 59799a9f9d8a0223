//! Group statistics that estimators share, in float64.
//!
//! A row's score S is the sum of its token rewards (episode reward, penalty, KL-in-reward).

use std::collections::HashMap;
use std::hash::Hash;

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Rows;

/// Added to a standard deviation before dividing by it.
pub const EPSILON: f64 = 1e-6;

/// Selects the division of differences from a group's mean by its standard deviation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Divide by the standard deviation plus 1e-6. Its divisor is n - 1 unless the key names n.
    #[default]
    Std,
    /// Do not divide.
    None,
}

/// Selects the scores that a group's mean and standard deviation count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weighting {
    /// Every step, copies included: a long episode counts more (the reference implementation).
    #[default]
    Row,
    /// Every episode once, with the score of its first step (the paper's Eq. 3).
    Episode,
}

/// Selects the divisor of a standard deviation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Spread {
    /// n - 1 (Bessel's correction).
    #[default]
    Sample,
    /// n.
    Population,
}

/// Mean and standard deviation of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Mean of the values.
    pub mean: f64,
    /// Standard deviation with n - 1; exactly 0 if all values are equal, whatever rounding does to the mean.
    pub std: f64,
}

impl Summary {
    /// Summarises some values; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let (count, first) = (values.len(), *values.first()?);
        if values.iter().all(|&v| v == first) {
            return Some(Self { count, mean: first, std: 0.0 });
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Some(Self { count, mean, std: (squares / (count - 1) as f64).sqrt() })
    }

    /// Summarises scores of episodes. A single one has nothing to be compared with, so the mean is taken as 0 and the deviation
    /// as 1.
    pub fn of_scores(scores: &[f64]) -> Option<Self> {
        let alone = Self { count: 1, mean: 0.0, std: 1.0 };
        Self::of(scores).map(|summary| if summary.count == 1 { alone } else { summary })
    }

    /// Returns the summary with another divisor in its standard deviation.
    pub fn with(self, spread: Spread) -> Self {
        let (n, divisor) = (self.count as f64, self.count.saturating_sub(1) as f64);
        match spread {
            Spread::Sample => self,
            Spread::Population => Self { std: self.std * (divisor / n).sqrt(), ..self },
        }
    }

    /// Returns the population variance: exactly 0 if all values are equal.
    pub fn variance(&self) -> f64 {
        self.with(Spread::Population).std.powi(2)
    }

    /// Returns the advantage of a value: its difference from the mean, divided as `norm` says. A group of equal values
    /// gives 0 under [`Norm::Std`].
    pub fn advantage(&self, value: f64, norm: Norm) -> f64 {
        match norm {
            Norm::None => value - self.mean,
            Norm::Std if self.std == 0.0 => 0.0,
            Norm::Std => (value - self.mean) / (self.std + EPSILON),
        }
    }
}

/// Groups the indices of equal keys; groups and members are in order of first appearance.
pub fn group_by<K: Hash + Eq>(keys: impl IntoIterator<Item = K>) -> Vec<Vec<usize>> {
    let mut number: HashMap<K, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, key) in keys.into_iter().enumerate() {
        let group = *number.entry(key).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(i);
    }
    groups
}

/// Returns the score S of each row.
pub fn row_scores(rows: &Rows<'_>) -> Vec<f64> {
    (0..rows.len()).map(|row| rows.token_rewards[rows.tokens(row)].iter().sum()).collect()
}

/// Selects the scores that count in a group's statistics: those of all its rows, or one per episode.
pub fn counted(rows: &Rows<'_>, members: &[usize], scores: &[f64], weighting: Weighting) -> Vec<f64> {
    match weighting {
        Weighting::Row => members.iter().map(|&row| scores[row]).collect(),
        Weighting::Episode => {
            let mut firsts: Vec<usize> = Vec::new();
            for episode in group_by(members.iter().map(|&row| rows.episode[row])) {
                firsts.extend(episode.into_iter().map(|i| members[i]).min_by_key(|&row| rows.step[row]));
            }
            firsts.into_iter().map(|row| scores[row]).collect()
        }
    }
}

/// The episode-level advantage that GRPO and GiGPO share (Eq. 3 of the GiGPO paper). For each group it is
/// (S - mean) / (std + 1e-6), or S - mean, with [`Summary::of_scores`].
pub fn episode_advantages(rows: &Rows<'_>, norm: Norm, weighting: Weighting) -> Vec<f64> {
    let scores = row_scores(rows);
    let mut advantages = vec![0.0; rows.len()];
    for members in group_by(rows.group) {
        let Some(summary) = Summary::of_scores(&counted(rows, &members, &scores, weighting)) else { continue };
        for row in members {
            advantages[row] = summary.advantage(scores[row], norm);
        }
    }
    advantages
}

/// `[B]` Returns the advantage of each value inside its group: [`Summary::advantage`] with the group's own statistics. A value
/// that is alone gives 0. `spread` selects the standard deviation.
pub fn group_advantages(values: &[f64], groups: &[Vec<usize>], norm: Norm, spread: Spread) -> Vec<f64> {
    let mut advantages = vec![0.0; values.len()];
    for members in groups {
        let own: Vec<f64> = members.iter().map(|&row| values[row]).collect();
        let Some(summary) = Summary::of(&own) else { continue };
        for &row in members {
            advantages[row] = summary.with(spread).advantage(values[row], norm);
        }
    }
    advantages
}

/// Returns the mean of the values of each state, for states numbered from 0. Only rows that are no copies count.
pub fn state_means(rows: &Rows<'_>, states: &[usize], values: &[f64]) -> Vec<f64> {
    let mut of_state = vec![Vec::new(); states.iter().max().map_or(0, |last| last + 1)];
    for row in (0..rows.len()).filter(|&row| rows.duplicate_of[row] < 0) {
        of_state[states[row]].push(values[row]);
    }
    of_state.iter().map(|values| Summary::of(values).map_or(0.0, |summary| summary.mean)).collect()
}

/// Returns the weighted sum of the first columns, one for each weight. Too few columns, and columns of different lengths,
/// are an error.
pub fn weighted_sum(columns: &[Vec<f64>], weights: &[f64]) -> Result<Vec<f64>> {
    let length = columns.first().map_or(0, Vec::len);
    let fits = weights.len() <= columns.len() && columns.iter().all(|column| column.len() == length);
    ensure!(fits, "a sum with {} weights has {} columns, or they differ in length", weights.len(), columns.len());
    let weighted = |row: usize| columns.iter().zip(weights).map(|(column, weight)| weight * column[row]).sum();
    Ok((0..length).map(weighted).collect())
}

/// Whitens the values of all tokens to mean 0 and variance 1: (x - mean) / sqrt(var + 1e-8), the variance with n - 1.
/// Equal values, and a single one, become 0.
pub fn whiten(values: &mut [f64]) {
    let Some(Summary { mean, std, .. }) = Summary::of(values) else { return };
    for value in values {
        *value = if std == 0.0 { 0.0 } else { (*value - mean) / (std * std + 1e-8).sqrt() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_no_spread() {
        // In float32 the reference gives -0.4875 for 173 values of 8.145063; the exact answer is 0.
        let summary = Summary::of(&[8.145063; 173]).unwrap();
        assert_eq!(summary.advantage(8.145063, Norm::Std), 0.0);
        assert_eq!(summary.advantage(8.145063, Norm::None), 0.0);
    }

    /// `masked_whiten` of `tests/fixtures/loss_cases.json`: the reference implementation's results.
    #[test]
    fn whitening_equals_the_reference() {
        let cases: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/fixtures/loss_cases.json")).unwrap();
        for case in cases["masked_whiten"].as_array().unwrap() {
            let numbers = |key: &str| -> Vec<f64> {
                let rows = case[key].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
                rows.map(|x| x.as_f64().unwrap()).collect()
            };
            let mask = numbers("mask");
            let masked = |key: &str| -> Vec<f64> {
                numbers(key).into_iter().zip(&mask).filter(|(_, m)| **m == 1.0).map(|(x, _)| x).collect()
            };
            let mut got = masked("values");
            whiten(&mut got);
            for (got, want) in got.iter().zip(masked("whitened")) {
                assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{got}, the reference has {want}");
            }
        }
        let mut equal = [0.1; 7];
        whiten(&mut equal);
        assert_eq!(equal, [0.0; 7]);
    }

    #[test]
    fn groups_keep_the_order_of_first_appearance() {
        assert_eq!(group_by(["b", "a", "b", "c", "a"]), [vec![0, 2], vec![1, 4], vec![3]]);
    }
}
