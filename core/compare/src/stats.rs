//! Intervals and tests over few seeds.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// Level of the intervals.
pub const LEVEL: f64 = 0.95;
/// Corrected p-value below which a difference is called. It is less than 5 %, so that in simulations with their own
/// error, too, at most 5 % of the pairs of equal groups are called different.
pub const CALL: f64 = 0.04;

/// A mean rate over seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub mean: f64,
    /// The 95 % interval, t over seeds, within 0 and 1; none of a single seed, or of two equal ones.
    pub interval: Option<[f64; 2]>,
    /// The value of each seed.
    pub values: Vec<f64>,
}

impl Estimate {
    /// The mean of the seeds' rates with its t interval. Equal rates count as noisy as their `resolution`, the share of one
    /// episode: they are equal by chance. Two of them are too few to tell.
    pub fn of(values: Vec<f64>, resolution: f64) -> Self {
        let is_equal = values.iter().all(|value| (value - values[0]).abs() < 1e-12);
        let spread = Spread::paired(&values, if is_equal { resolution } else { 0.0 });
        let spread = spread.filter(|_| !is_equal || values.len() > 2);
        let interval = spread.map(|spread| spread.interval(mean(&values)).map(|end| end.clamp(0.0, 1.0)));
        Self { mean: mean(&values), interval, values }
    }
}

/// The standard error of a mean or a difference, with its degrees of freedom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub error: f64,
    pub freedom: f64,
}

impl Spread {
    /// The standard error of the mean of values, such as differences of one seed each; none of fewer than two. The
    /// standard deviation counts as at least `least`: the resolution of a rate, without which equal values by chance
    /// would leave no noise at all.
    pub fn paired(values: &[f64], least: f64) -> Option<Self> {
        let n = values.len() as f64;
        let deviation = variance(values)?.sqrt().max(least);
        Some(Self { error: deviation / n.sqrt(), freedom: n - 1.0 })
    }

    /// The standard error of the difference of the means of two independent groups, after Welch (Biometrika 34, 1947).
    pub fn welch(a: &[f64], b: &[f64], least: f64) -> Option<Self> {
        let part = |values: &[f64]| Some(variance(values)?.max(least * least) / values.len() as f64);
        let (first, second) = (part(a)?, part(b)?);
        let whole = (first + second).powi(2);
        let each = first.powi(2) / (a.len() as f64 - 1.0) + second.powi(2) / (b.len() as f64 - 1.0);
        let freedom = if each > 0.0 { whole / each } else { (a.len() + b.len()) as f64 - 2.0 };
        Some(Self { error: (first + second).sqrt(), freedom })
    }

    /// The 95 % interval around an estimate.
    pub fn interval(&self, at: f64) -> [f64; 2] {
        let half = t_quantile(0.5 + LEVEL / 2.0, self.freedom) * self.error;
        [at - half, at + half]
    }

    /// The two-sided p-value of an estimate against 0.
    pub fn p(&self, at: f64) -> f64 {
        match (at == 0.0, self.error == 0.0) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            _ => 2.0 * t_distribution(self.freedom).map_or(f64::NAN, |t| t.cdf(-(at / self.error).abs())),
        }
    }

    /// The true difference that such a comparison shows in about 4 of 5 repetitions, when `comparisons` are corrected
    /// for.
    pub fn detectable(&self, comparisons: usize) -> f64 {
        let tail = CALL / 2.0 / comparisons.max(1) as f64;
        (t_quantile(1.0 - tail, self.freedom) + t_quantile(0.8, self.freedom)) * self.error
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The unbiased variance; none of fewer than two values.
fn variance(values: &[f64]) -> Option<f64> {
    let center = mean(values);
    let squares: f64 = values.iter().map(|value| (value - center).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() as f64 - 1.0))
}

fn t_distribution(freedom: f64) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, freedom).ok()
}

fn t_quantile(p: f64, freedom: f64) -> f64 {
    t_distribution(freedom).map_or(f64::NAN, |t| t.inverse_cdf(p))
}

/// The two-sided p-value of McNemar's exact test: `first` and `second` are the discordant pairs of each direction.
pub fn mcnemar(first: u64, second: u64) -> f64 {
    let pairs = first + second;
    match Binomial::new(0.5, pairs) {
        Ok(binomial) if pairs > 0 => (2.0 * binomial.cdf(first.min(second))).min(1.0),
        _ => 1.0,
    }
}

/// P-values after Holm's correction (Scandinavian Journal of Statistics 6, 1979).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut least: f64 = 0.0;
    for (rank, &place) in order.iter().enumerate() {
        least = least.max(p[place] * (p.len() - rank) as f64).min(1.0);
        adjusted[place] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-8 * b.abs().max(1.0), "{a} is not {b}");
    }

    /// `scipy.stats.t.ppf(.975, df)` and `2 * t.sf(2.5, df)`, SciPy 1.17.1.
    #[test]
    fn t_agrees_with_scipy() {
        for (freedom, quantile, p) in [
            (1.0, 12.706204736174694, 0.24223788318168682),
            (2.0, 4.302652729749462, 0.12961172022151082),
            (4.0, 2.7764451051977934, 0.06676654481198814),
            (8.0, 2.306004135204166, 0.03694203771362412),
            (17.3, 2.1070320037534676, 0.02274750017580115),
            (30.0, 2.0422724563012378, 0.01811564906806669),
        ] {
            near(t_quantile(0.975, freedom), quantile);
            near(Spread { error: 1.0, freedom }.p(-2.5), p);
        }
    }

    const A: [f64; 5] = [0.50, 0.55, 0.47, 0.61, 0.52];
    const B: [f64; 5] = [0.42, 0.51, 0.49, 0.50, 0.41];

    /// `scipy.stats.ttest_rel(a, b)`, `ttest_ind(a, b[:4], equal_var=False)` with `confidence_interval()`, and
    /// `t.interval(.95, 4, loc=mean(a), scale=sem(a))`, SciPy 1.17.1.
    #[test]
    fn intervals_agree_with_scipy() {
        let pairs: Vec<f64> = A.iter().zip(B).map(|(a, b)| a - b).collect();
        let spread = Spread::paired(&pairs, 0.0).unwrap();
        let [low, high] = spread.interval(mean(&pairs));
        near(low, -0.004347935871093667);
        near(high, 0.1323479358710937);
        near(spread.p(mean(&pairs)), 0.06005936380198362);

        let (b, spread) = (&B[..4], Spread::welch(&A, &B[..4], 0.0).unwrap());
        let [low, high] = spread.interval(mean(&A) - mean(b));
        near(low, -0.024278225359044822);
        near(high, 0.12427822535904491);
        near(spread.freedom, 6.998875005824677);
        near(spread.p(mean(&A) - mean(b)), 0.1554665321720122);

        let [low, high] = Estimate::of(A.to_vec(), 0.1).interval.unwrap();
        near(low, 0.46371328164224174);
        near(high, 0.5962867183577583);
    }

    /// `scipy.stats.binomtest(b, b + c, .5).pvalue`; 10 and 25 also by statsmodels' `mcnemar([[0, 10], [25, 0]],
    /// exact=True)`.
    #[test]
    fn mcnemar_agrees_with_scipy() {
        for (first, second, p) in [
            (0, 0, 1.0),
            (1, 8, 0.0390625),
            (5, 5, 1.0),
            (10, 25, 0.016673847800120715),
            (40, 61, 0.046044066929342785),
        ] {
            near(mcnemar(first, second), p);
        }
    }

    /// `multipletests([.01, .04, .03, .005], method="holm")`, statsmodels 0.15.0.
    #[test]
    fn holm_agrees_with_statsmodels() {
        for (adjusted, expected) in holm(&[0.01, 0.04, 0.03, 0.005]).into_iter().zip([0.03, 0.06, 0.06, 0.02]) {
            near(adjusted, expected);
        }
    }

    #[test]
    fn equal_differences_of_few_seeds_leave_the_noise_of_the_resolution() {
        let spread = Spread::paired(&[0.01, 0.01], 0.01).unwrap();
        assert!(spread.p(0.01) > 0.05, "{}", spread.p(0.01));
    }

    /// `x ± t.ppf(.975, n - 1) * r / sqrt(n)` with SciPy's quantiles of above, x the rate of each of n seeds, r the resolution.
    #[test]
    fn seeds_that_agree_by_chance_leave_an_interval() {
        let of = |rate: f64, seeds| Estimate::of(vec![rate; seeds], 0.025).interval;
        assert_eq!([of(0.175, 1), of(0.175, 2), of(0.0, 2), of(1.0, 2)], [None; 4]);
        let [low, high] = of(0.175, 3).unwrap();
        near(low, 0.11289655720624173);
        near(high, 0.23710344279375825);
        assert_eq!(of(1.0, 5).unwrap()[1], 1.0);
        near(of(1.0, 5).unwrap()[0], 0.9689584000449059);
        assert!(Estimate::of(vec![0.1 + 0.2, 0.3], 0.025).interval.is_none(), "equal but for rounding");
    }
}
