//! RLOO (Ahmadian et al. 2024, "Back to Basics", arXiv:2402.14740): a step's score against the mean of the others in
//! its group,
//!
//! ```text
//! A_i = (S_i - mean_G S) * K / (K - 1)              = S_i - mean of the other K - 1, where i is one of the K
//! ```
//!
//! S_i is the sum of row i's token rewards. K and the mean count every step (`weighting: row`; the others then include
//! the other steps of the same episode, as in the reference implementation) or every episode once. A group with a
//! single count gives S_i itself. Every response token of the row gets A_i.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::stats::{Summary, Weighting, counted, group_by, row_scores};
use nestor_plugin::{Rows, WeightedParts};
use schemars::JsonSchema;
use serde::Deserialize;

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rloo {
    /// The scores that a group's mean counts.
    #[serde(default)]
    weighting: Weighting,
}

impl WeightedParts for Rloo {
    const ID: &'static str = "rloo";
    const DOC: &'static str = "RLOO: episode scores against the mean of the others in the group";
    const PARTS: &'static [&'static str] = &["episode_advantage"];

    fn weights(&self) -> Vec<f64> {
        vec![1.0]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let scores = row_scores(rows);
        let mut advantages = scores.clone();
        for members in group_by(rows.group) {
            match Summary::of(&counted(rows, &members, &scores, self.weighting)) {
                Some(summary) if summary.count > 1 => {
                    let k = summary.count as f64;
                    for row in members {
                        advantages[row] = (scores[row] - summary.mean) * k / (k - 1.0);
                    }
                }
                _ => {}
            }
        }
        Ok(vec![advantages])
    }
}

nestor_plugin::export! { estimators: [Rloo + parts] }

#[cfg(test)]
mod tests;
