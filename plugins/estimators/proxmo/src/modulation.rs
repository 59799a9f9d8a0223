//! The weight of an episode by the success rate of its group.

use anyhow::Result;
use nestor_plugin::Rows;
use nestor_plugin::stats::{Summary, group_by, row_scores};

use crate::{Proxmo, Rate};

/// `[B]` Returns m; 1 without `modulation`.
pub fn modulation(rows: &Rows<'_>, config: &Proxmo) -> Result<Vec<f64>> {
    let mut weights = vec![1.0; rows.len()];
    if !config.modulation {
        return Ok(weights);
    }
    let success: Vec<f64> = match config.rate {
        Rate::Flag => rows.success()?.iter().copied().map(f64::from).collect(),
        Rate::Score => row_scores(rows),
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for group in group_by(rows.group) {
        let own: Vec<f64> = group.iter().map(|&row| success[row]).collect();
        let Some(Summary { mean, .. }) = Summary::of(&own) else { continue };
        let rate = if group.len() == 1 { 0.0 } else { mean.clamp(0.0, 1.0) };
        for row in group {
            let solved = success[row] > 0.5;
            let exponent = if solved { (1.0 - rate).powf(config.alpha) } else { -rate.powf(config.alpha) };
            weights[row] = 1.0 + config.beta * (sigmoid(exponent) - 0.5);
        }
    }
    Ok(weights)
}
