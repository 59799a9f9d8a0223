//! pass@k: the best sample of a group by its lead over the second.

use nestor_plugin::Rows;
use nestor_plugin::stats::{Norm, Summary, group_by, row_scores};
use schemars::JsonSchema;
use serde::Deserialize;

/// Says which rows are samples of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sample {
    /// Every row.
    Row,
    /// The first step of every episode; the others get 0.
    FirstStep,
    /// Every episode, by its first step.
    Episode,
}

/// `[B]` Returns the advantages of pass@k.
pub fn lead(rows: &Rows<'_>, sample: Sample, norm: Norm) -> Vec<f64> {
    let (scores, mut advantages) = (row_scores(rows), vec![0.0; rows.len()]);
    for group in group_by(rows.group) {
        let counts = |row: &usize| sample == Sample::Row || (rows.step[*row] == 0 && rows.duplicate_of[*row] < 0);
        let mut samples: Vec<usize> = group.iter().copied().filter(counts).collect();
        samples.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let [best, second, ..] = samples[..] else { continue };
        let values: Vec<f64> = samples.iter().map(|&row| scores[row]).collect();
        let Some(summary) = Summary::of(&values) else { continue };
        let advantage = Summary { mean: scores[second], ..summary }.advantage(scores[best], norm);
        let wins =
            |row: &usize| *row == best || (sample == Sample::Episode && rows.episode[*row] == rows.episode[best]);
        group.into_iter().filter(wins).for_each(|row| advantages[row] = advantage);
    }
    advantages
}
