//! The weight of a state.

use nestor_plugin::stats::Summary;

/// The share of the returns' variance that the actions explain; none where it cannot be estimated.
pub fn explained(returns: &[f64], by_action: &[Vec<f64>]) -> Option<f64> {
    let variance = |values: &[f64]| Summary::of(values).map_or(0.0, |summary| summary.variance());
    let total = variance(returns);
    if by_action.len() < 2 || by_action.iter().any(|returns| returns.len() < 2) || total == 0.0 {
        return None;
    }
    let within: f64 = by_action.iter().map(|own| own.len() as f64 / returns.len() as f64 * variance(own)).sum();
    Some((1.0 - within / total).clamp(0.0, 1.0))
}
