//! The success rate of an evaluation and its 95 % interval.

use super::pass_at::{ks, pass_at};
use crate::agent::Count;

/// The normal quantile of a two-sided 95 % interval.
const Z: f64 = 1.959963984540054;

/// Success on some tasks, each played equally often.
#[derive(Debug, Clone, PartialEq)]
pub struct SuccessRate {
    /// Episodes of all tasks.
    pub count: Count,
    /// Share of episodes won; over several environments, the mean of their shares.
    pub rate: f64,
    /// Number of tasks.
    pub tasks: usize,
    /// 95 % interval of the success rate.
    pub interval: [f64; 2],
    /// Pairs of k and pass@k, from k = 1 to the number of samples per task.
    pub pass_at: Vec<(usize, f64)>,
}

impl SuccessRate {
    /// The success rate of tasks, given the samples of each.
    pub fn of(tasks: &[Count]) -> Self {
        Self::over(&[tasks])
    }

    /// The success rate over environments, each of the same weight, given the samples of each task of each.
    pub fn over(environments: &[impl AsRef<[Count]>]) -> Self {
        let all: Vec<&[Count]> = environments.iter().map(AsRef::as_ref).collect();
        let tasks = all.concat();
        let samples = tasks.iter().map(|task| task.played).min().unwrap_or(1);
        let mean = |value: &dyn Fn(&[Count]) -> f64| mean(all.iter().map(|tasks| value(tasks)));
        Self {
            count: total(&tasks),
            rate: mean(&|tasks| total(tasks).rate()),
            tasks: tasks.len(),
            interval: interval(&all),
            pass_at: ks(samples).into_iter().map(|k| (k, mean(&|tasks| pass_at(tasks, k)))).collect(),
        }
    }

    /// Share of episodes won; over several environments, the mean of their shares.
    pub fn rate(&self) -> f64 {
        self.rate
    }
}

/// The mean of some numbers; 0 of none.
fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len().max(1) as f64;
    numbers.sum::<f64>() / count
}

fn total(tasks: &[Count]) -> Count {
    tasks.iter().fold(Count::default(), |sum, task| Count { won: sum.won + task.won, played: sum.played + task.played })
}

/// The 95 % interval of the success rate over tasks with several samples each: Wilson's interval of the effective number of
/// episodes. Samples of one task resemble each other, so they count for less than as many tasks. By the design effect
/// (L. Kish, "Survey Sampling", 1965) the number is p (1 - p) / (s² / m), where s² is the variance of the m tasks' own
/// rates. It is at least m and at most the episodes played. With one sample per task this is Wilson's interval itself.
///
/// Over several environments of the same weight p is the mean of their rates, s² / m the mean of their variances divided by
/// their number, and each number of tasks or episodes the one with which one environment would be as certain.
pub fn interval(environments: &[&[Count]]) -> [f64; 2] {
    let played = |tasks: &[Count]| total(tasks).played;
    if environments.is_empty() || environments.iter().any(|tasks| played(tasks) == 0) {
        return [0.0, 1.0];
    }
    let n = environments.len() as f64;
    let p = mean(environments.iter().map(|tasks| total(tasks).rate()));
    let as_certain = |count: &dyn Fn(&[Count]) -> f64| match environments {
        [one] => count(one), // exactly
        all => n / mean(all.iter().map(|tasks| 1.0 / count(tasks))),
    };
    let (least, most) = (as_certain(&|tasks| tasks.len() as f64), as_certain(&|tasks| played(tasks) as f64));
    let variance = mean(environments.iter().map(|tasks| variance(tasks))) / n;
    let binomial = p * (1.0 - p);
    // Without a failure, or without a success, nothing shows that the samples of a task differ.
    let effective = if binomial == 0.0 { least } else { (binomial / variance).clamp(least, most) };
    score_interval(p, effective)
}

/// The variance of the mean of the tasks' rates.
fn variance(tasks: &[Count]) -> f64 {
    let (m, p) = (tasks.len() as f64, total(tasks).rate());
    let squares: f64 = tasks.iter().map(|task| (task.rate() - p).powi(2)).sum();
    squares / (m - 1.0).max(1.0) / m
}

/// The 95 % interval of a success rate: Wilson's score interval (E. B. Wilson, "Probable inference, the law of
/// succession, and statistical inference", JASA 22, 1927). Without episodes it is [0, 1].
pub fn wilson(count: Count) -> [f64; 2] {
    if count.played == 0 { [0.0, 1.0] } else { score_interval(count.rate(), count.played as f64) }
}

/// With z = 1.96: (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n).
fn score_interval(p: f64, n: f64) -> [f64; 2] {
    let center = p + Z * Z / (2.0 * n);
    let spread = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    [((center - spread) / scale).max(0.0), ((center + spread) / scale).min(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: [f64; 2], expected: [f64; 2], tolerance: f64) -> bool {
        got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance)
    }

    /// Published examples: R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in
    /// Medicine 17 (1998), table I, method 3. The last two are the same formula in Python.
    #[test]
    fn wilson_equals_published_examples() {
        let cases = [
            (81, 263, [0.2553, 0.3662]),
            (15, 148, [0.0624, 0.1605]),
            (0, 20, [0.0, 0.1611]),
            (1, 29, [0.0061, 0.1718]),
            (20, 20, [0.8389, 1.0]),
            (84, 200, [0.3537, 0.4893]),
        ];
        for (won, played, expected) in cases {
            let got = wilson(Count { won, played });
            assert!(near(got, expected, 5e-5), "{won} of {played}: {got:?} is not {expected:?}");
            let tasks: Vec<Count> = (0..played).map(|i| Count { won: usize::from(i < won), played: 1 }).collect();
            assert_eq!(interval(&[&tasks]), got, "one sample per task");
        }
        assert_eq!([wilson(Count::default()), interval(&[])], [[0.0, 1.0]; 2]);
    }

    #[test]
    fn equal_samples_are_no_new_evidence_and_independent_ones_are() {
        let tasks = |won: &[usize], played| won.iter().map(|&won| Count { won, played }).collect::<Vec<_>>();
        let single = interval(&[&tasks(&[1, 0, 1, 1, 0], 1)]);
        assert_eq!(interval(&[&tasks(&[4, 0, 4, 4, 0], 4)]), single);
        assert_eq!(interval(&[&tasks(&[4; 5], 4)]), wilson(Count { won: 5, played: 5 }));
        // Tasks of one rate: every episode counts.
        assert_eq!(interval(&[&tasks(&[2; 5], 4)]), wilson(Count { won: 10, played: 20 }));
    }

    #[test]
    fn environments_count_alike_however_many_tasks_they_have() {
        let tasks = |won: usize, played: usize| -> Vec<Count> {
            (0..played).map(|task| Count { won: usize::from(task < won), played: 1 }).collect()
        };
        // Panels of one size: as one panel, but for the spread between the environments.
        let equal = SuccessRate::over(&[tasks(5, 10), tasks(5, 10)]);
        assert_eq!((equal.rate, equal.count, equal.tasks), (0.5, Count { won: 10, played: 20 }, 20));
        assert!(near(equal.interval, wilson(equal.count), 1e-12), "{:?}", equal.interval);
        // A tenth of 10 and nine tenths of 1000: the few tasks make the mean uncertain.
        let mixed = SuccessRate::over(&[tasks(1, 10), tasks(900, 1000)]);
        assert!(
            (mixed.rate - 0.5).abs() < 1e-12 && mixed.interval[0] > 0.3 && mixed.interval[1] - mixed.interval[0] > 0.15
        );
        assert_eq!(SuccessRate::of(&tasks(3, 4)).rate(), 0.75);
    }
}
