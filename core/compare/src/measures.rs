//! Measures of one run's evaluations. Success is a share of episodes, from 0 to 1.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::record::{Panel, Run, Won};

/// Seed of the halvings: the same run gives the same bias.
const SEED: u64 = 10978;

/// The best evaluation of a run, which is chosen by its own noise, too.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its success on all tasks.
    pub success: f64,
    /// The success on one half of the tasks of the iteration that is best on the other half, mean over halvings.
    pub held_out: f64,
    /// The success on the half that chose, minus that on the other half: the bias of choosing, on half the tasks.
    pub bias: f64,
}

/// The first iteration at which an evaluation reaches the threshold, over seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// Seeds that reach it.
    pub seeds: usize,
    /// Seeds in all.
    pub of: usize,
    /// The median iteration, where a seed that never reaches it is later than all others; none if it is such a seed's.
    pub median: Option<f64>,
}

impl Reached {
    /// Counts the iterations of all seeds; none of a seed that never reaches it.
    pub fn of(mut iterations: Vec<Option<u64>>) -> Self {
        iterations.sort_by_key(|iteration| iteration.unwrap_or(u64::MAX));
        let (of, middle) = (iterations.len(), iterations.len() / 2);
        let upper = iterations[middle];
        let lower = if of % 2 == 0 { iterations[middle - 1] } else { upper };
        let median = lower.zip(upper).map(|(lower, upper)| (lower + upper) as f64 / 2.0);
        Self { seeds: iterations.iter().flatten().count(), of, median }
    }
}

/// The evaluations of a run after its start, or all if there are no others.
pub fn evaluations(run: &Run) -> Vec<(u64, &Won)> {
    let after: Vec<_> = run.outcomes.iter().filter(|(iteration, _)| **iteration > 0).collect();
    let chosen = if after.is_empty() { run.outcomes.iter().collect() } else { after };
    chosen.into_iter().map(|(&iteration, won)| (iteration, won)).collect()
}

/// Success on the whole panel.
pub fn success(panel: &Panel, won: &Won) -> f64 {
    let sum: u32 = won.0.iter().sum();
    f64::from(sum) / (panel.tasks as f64 * f64::from(panel.samples))
}

/// The share of episodes won of each task, mean over the last `window` evaluations.
pub fn task_shares(run: &Run, window: usize) -> Vec<f64> {
    let evaluations = evaluations(run);
    let last = &evaluations[evaluations.len().saturating_sub(window)..];
    let episodes = last.len() as f64 * f64::from(run.panel.samples);
    let won = |task: usize| last.iter().map(|(_, won)| f64::from(won.0[task])).sum::<f64>();
    (0..run.panel.tasks).map(|task| won(task) / episodes).collect()
}

/// The area under the curve of evaluations, iteration 0 included, by the trapezoid rule and divided by the iterations
/// that it spans: the mean success over the run.
pub fn area(run: &Run) -> f64 {
    let points: Vec<(f64, f64)> =
        run.outcomes.iter().map(|(&iteration, won)| (iteration as f64, success(&run.panel, won))).collect();
    let (first, last) = (points[0], points[points.len() - 1]);
    let areas = points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0);
    if points.len() < 2 { first.1 } else { areas.sum::<f64>() / (last.0 - first.0) }
}

/// The first iteration whose evaluation is at least `threshold`, iteration 0 included.
pub fn reaches(run: &Run, threshold: f64) -> Option<u64> {
    let found = run.outcomes.iter().find(|(_, won)| success(&run.panel, won) >= threshold);
    found.map(|(&iteration, _)| iteration)
}

/// The best evaluation after the start, with its bias over random halvings of the panel; none for a panel of one task,
/// without evaluations, or without halvings.
pub fn best(run: &Run, halvings: usize) -> Option<Best> {
    let evaluations = evaluations(run);
    let highest = evaluations.iter().map(|(_, won)| success(&run.panel, won)).fold(0.0, f64::max);
    let mut tasks: Vec<usize> = (0..run.panel.tasks).collect();
    let half = tasks.len() / 2;
    if half.min(halvings) == 0 || evaluations.is_empty() {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let (mut chosen, mut held_out) = (0.0, 0.0);
    for _ in 0..halvings {
        tasks.shuffle(&mut rng);
        let halves = tasks.split_at(half);
        for (own, other) in [halves, (halves.1, halves.0)] {
            let rate = |tasks: &[usize], won: &Won| {
                f64::from(tasks.iter().map(|&task| won.0[task]).sum::<u32>())
                    / (tasks.len() as f64 * f64::from(run.panel.samples))
            };
            let mut top = evaluations[0].1;
            for (_, won) in &evaluations[1..] {
                if rate(own, won) > rate(own, top) {
                    top = won;
                }
            }
            chosen += rate(own, top);
            held_out += rate(other, top);
        }
    }
    let count = 2.0 * halvings as f64;
    Some(Best { success: highest, held_out: held_out / count, bias: (chosen - held_out) / count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_that_never_reaches_the_threshold_counts_as_the_latest() {
        let median = |iterations: &[Option<u64>]| Reached::of(iterations.to_vec()).median;
        assert_eq!(median(&[Some(30), None, Some(10), Some(20), None]), Some(30.0));
        assert_eq!(median(&[Some(30), None, None]), None);
        assert_eq!(median(&[Some(10), Some(20), Some(40), None]), Some(30.0));
        assert_eq!(median(&[Some(10), Some(20), None, None]), None);
        assert_eq!(Reached::of(vec![Some(3), None]).seeds, 1);
    }
}
