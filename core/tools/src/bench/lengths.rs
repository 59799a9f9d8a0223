//! The lengths of a benchmark's sequences: equal, or ragged and new in every run.

use rand_chacha::rand_core::Rng;

use super::BenchOptions;
use crate::engine::NoiseKey;

/// The tokens of a sequence's prompt and response.
pub type Lengths = Vec<(usize, usize)>;

/// Share of the greatest length by which a ragged length moves from run to run.
const SHIFT: f64 = 0.05;

/// Returns the lengths of each sequence: all equal, or 10 to 100 % of that in equal steps. The order is mixed but the same in
/// every run; the response is the same share of every sequence.
///
/// From run 1 on, pairs of ragged sequences exchange up to 5 % of the greatest length, drawn from the run's number. So each
/// run has shapes of its own, and all runs have equally many tokens.
pub fn lengths(options: &BenchOptions, run: usize) -> Lengths {
    let BenchOptions { batch, prompt, new, .. } = *options;
    if !options.ragged {
        return vec![(prompt, new); batch];
    }
    // A step that shares no factor with the batch visits every length once.
    let common = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let stride = (batch * 5 / 8..).find(|&stride| common(stride, batch) == 1).unwrap_or(1);
    let share = |i: usize| 0.1 + 0.9 * (i * stride % batch) as f64 / (batch - 1).max(1) as f64;
    let part = |whole: usize, i: usize| ((whole as f64 * share(i)).round() as usize).max(1);
    let mut lengths: Lengths = (0..batch).map(|i| (part(prompt, i), part(new, i))).collect();
    for (number, pair) in lengths.chunks_exact_mut(2).enumerate().filter(|_| run > 0) {
        let mut rng = NoiseKey { iteration: run as u64, episode: number as u32, ..NoiseKey::default() }.rng(0, 1);
        let [one, other] = pair else { continue };
        exchange(prompt, &mut one.0, &mut other.0, rng.next_u32());
        exchange(new, &mut one.1, &mut other.1, rng.next_u32());
    }
    lengths
}

/// Moves some tokens of a sequence to another, such that both keep from one token to `whole`.
fn exchange(whole: usize, one: &mut usize, other: &mut usize, draw: u32) {
    let most = (SHIFT * whole as f64).ceil() as i64;
    let moved = i64::from(draw) % (2 * most + 1) - most;
    let room = |from: usize, to: usize| (from - 1).min(whole - to) as i64;
    let moved = moved.clamp(-room(*other, *one), room(*one, *other));
    *one = (*one as i64 - moved) as usize;
    *other = (*other as i64 + moved) as usize;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Recompute, Sharding};
    use tch::{Device, Kind};

    fn options(batch: usize, prompt: usize, new: usize) -> BenchOptions {
        BenchOptions {
            dir: "".into(),
            batch,
            prompt,
            new,
            kind: Kind::Float,
            device: Device::Cpu,
            repeats: 1,
            recompute: Recompute::default(),
            ragged: true,
            sharding: Sharding::default(),
            lora: None,
            profile: false,
        }
    }

    #[test]
    fn every_run_has_shapes_of_its_own_and_equally_many_tokens() {
        for (batch, prompt, new) in [(32, 512, 88), (7, 40, 3), (4, 16, 8), (1, 9, 1)] {
            let options = options(batch, prompt, new);
            let total = |lengths: &Lengths| lengths.iter().fold((0, 0), |sum, l| (sum.0 + l.0, sum.1 + l.1));
            let runs: Vec<Lengths> = (0..6).map(|run| lengths(&options, run)).collect();
            for run in &runs {
                assert_eq!(total(run), total(&runs[0]));
                assert!(run.iter().all(|&(p, n)| (1..=prompt).contains(&p) && (1..=new).contains(&n)), "{run:?}");
            }
            let distinct: std::collections::BTreeSet<&Lengths> = runs.iter().collect();
            assert!(batch == 1 || batch == 4 || distinct.len() == runs.len(), "{runs:?}");
            assert_eq!(lengths(&options, 3), runs[3]);
        }
        let fixed = BenchOptions { ragged: false, ..options(3, 5, 2) };
        assert_eq!(lengths(&fixed, 1), [(5, 2); 3]);
    }
}
