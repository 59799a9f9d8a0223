//! HölderPO (arXiv:2605.12058), clipped by responses. With r_k the ratio of token k's probability to the old one, over the L tokens of
//! a response, and A the advantage:
//!
//! ```text
//! M = (mean_k r_k^p)^(1/p), and exp(mean_k log r_k) for p = 0
//! max(-A M, -A clip(M, 1 - low, 1 + high))
//! dM/dx_k = M r_k^p / sum_j r_j^p
//! ```
//!
//! p falls in a line from `p` to `p_end` over the run: a large one learns from few tokens, a small one bounds the variance. The
//! paper's mean over responses is `update.aggregation: seq-mean-token-mean`.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::{Loss, Losses, Tokens, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The loss, which is its own config.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Holder {
    /// Power of the mean in the first iteration: 1 is the arithmetic mean, 0 the geometric one.
    p: f64,
    /// Power in the last iteration.
    p_end: f64,
    /// Clip range of the response's ratio below 1.
    clip_low: f64,
    /// Clip range above 1.
    clip_high: f64,
}

impl Default for Holder {
    fn default() -> Self {
        Self { p: 2.0, p_end: -1.0, clip_low: 0.2, clip_high: 0.2 }
    }
}

impl Loss for Holder {
    const ID: &'static str = "holder";
    const DOC: &'static str = "HölderPO: a response's ratio is a power mean of its tokens' ratios, whose power falls";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        check_between("p", config.p, -100.0..=100.0)?;
        check_between("p_end", config.p_end, -100.0..=100.0)?;
        check_between("clip_low", config.clip_low, 1e-6..=1.0)?;
        check_between("clip_high", config.clip_high, 1e-6..=1e6)?;
        Ok(config)
    }

    /// Metrics: `clip_fraction`, the share of tokens in a response whose clip is active; `power`, the mean's.
    fn compute(&self, tokens: &Tokens<'_>, out: &mut Losses<'_>) -> Result<()> {
        let (p, mut clipped) = (self.p + (self.p_end - self.p) * tokens.progress(), 0.0);
        for response in tokens.responses() {
            let logs: Vec<f64> = response.clone().map(|token| p * tokens.log_ratio(token)).collect();
            // r_k^p relative to the largest, so that none overflows.
            let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = logs.iter().map(|log| (log - most).exp()).collect();
            let (length, sum) = (response.len() as f64, powers.iter().sum::<f64>());
            let mean_log = response.clone().map(|token| tokens.log_ratio(token)).sum::<f64>() / length;
            let ratio = if p.abs() < 1e-6 { mean_log } else { (most + (sum / length).ln()) / p }.exp();
            let bounded = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high);
            let is_clipped = |a: f64| -a * bounded > -a * ratio;
            let by_ratio: f64 = response.clone().map(|t| -tokens.advantage(t)).filter(|&a| !is_clipped(-a)).sum();
            for (token, power) in response.zip(&powers) {
                let advantage = tokens.advantage(token);
                clipped += f64::from(u8::from(is_clipped(advantage)));
                out.set(token, (-advantage * ratio).max(-advantage * bounded), by_ratio * ratio * power / sum);
            }
        }
        out.metric("clip_fraction", clipped);
        out.metric("power", p * tokens.logprobs.len() as f64);
        Ok(())
    }
}

nestor_plugin::export! { losses: [Holder] }
