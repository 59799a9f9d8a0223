//! A = S - m, where S is the score of a row (the sum of its token rewards) and m the mean over the rows of its group.

use nestor_plugin::anyhow::{Result, ensure};
use nestor_plugin::schemars::JsonSchema;
use nestor_plugin::serde::Deserialize;
use nestor_plugin::stats::{Summary, group_by, row_scores};
use nestor_plugin::{Estimator, Rows, Scores};

/// The keys of `estimator.config`.
#[derive(Deserialize, JsonSchema)]
#[serde(crate = "nestor_plugin::serde", default, deny_unknown_fields)]
#[schemars(crate = "nestor_plugin::schemars")]
struct GroupMean {
    /// Factor of every advantage.
    scale: f64,
}

impl Default for GroupMean {
    fn default() -> Self {
        Self { scale: 1.0 }
    }
}

impl Estimator for GroupMean {
    const ID: &'static str = "my_plugin";
    const DOC: &'static str = "Row score less the mean of its group.";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        ensure!(config.scale.is_finite(), "config key `scale` must be finite, not {}", config.scale);
        Ok(config)
    }
    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let scores = row_scores(rows);
        let mut advantages = vec![0.0; rows.len()];
        for members in group_by(rows.group) {
            let of_group: Vec<f64> = members.iter().map(|&row| scores[row]).collect();
            let mean = Summary::of(&of_group).map_or(0.0, |group| group.mean);
            members.iter().for_each(|&row| advantages[row] = self.scale * (scores[row] - mean));
        }
        out.broadcast(rows, &advantages); // the same number for every token of a row
        Ok(())
    }
}

nestor_plugin::export! { estimators: [GroupMean] }
