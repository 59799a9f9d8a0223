//! The hierarchical bootstrap: seeds and tasks drawn anew, with replacement.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seed of the draws: the same runs give the same interval.
const SEED: u64 = 2505;

/// Shares of episodes won, by seed and task.
pub type Shares = Vec<Vec<f64>>;

/// The 95 % percentile interval of the difference of the mean shares of two groups. A draw takes as many seeds and
/// tasks as there are; the tasks are the same for all seeds and both groups, since all play one panel. `paired` draws
/// the same seeds of both groups.
pub fn interval(first: &Shares, second: &Shares, paired: bool, draws: usize) -> Option<[f64; 2]> {
    let tasks = first.first()?.len();
    if draws == 0 || tasks == 0 || first.len().min(second.len()) < 2 {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut means: Vec<f64> = (0..draws)
        .map(|_| {
            let own = places(&mut rng, first.len(), first.len());
            let other = if paired { own.clone() } else { places(&mut rng, second.len(), second.len()) };
            let drawn = places(&mut rng, tasks, tasks);
            drawn.iter().map(|&task| column(first, &own, task) - column(second, &other, task)).sum::<f64>()
                / tasks as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((draws - 1) as f64 * share).round() as usize];
    Some([at(0.025), at(0.975)])
}

fn places(rng: &mut ChaCha8Rng, count: usize, below: usize) -> Vec<usize> {
    (0..count).map(|_| rng.random_range(0..below)).collect()
}

fn column(shares: &Shares, seeds: &[usize], task: usize) -> f64 {
    seeds.iter().map(|&seed| shares[seed][task]).sum::<f64>() / seeds.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_difference_everywhere_has_no_spread_and_unequal_seeds_have() {
        let rows = |shares: [f64; 3]| -> Shares { shares.map(|share| vec![share; 4]).to_vec() };
        let [low, high] = interval(&rows([0.5, 0.7, 0.9]), &rows([0.4, 0.6, 0.8]), true, 200).unwrap();
        assert!((low - 0.1).abs() < 1e-12 && (high - 0.1).abs() < 1e-12, "{low} {high}");
        let [low, high] = interval(&rows([0.5, 0.7, 0.9]), &rows([0.4, 0.6, 0.8]), false, 200).unwrap();
        assert!(low < -0.1 && high > 0.3, "{low} {high}");
    }
}
