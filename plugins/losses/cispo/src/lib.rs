//! CISPO (MiniMax-M1, arXiv:2506.13585), as `update.loss: cispo`: an example of a loss with a factor that is not differentiated.
//! With x the log-prob of a token, r its ratio to the old one as a constant, and A the advantage:
//!
//! ```text
//! -A clip(r, 1 - low, 1 + high) x
//! ```

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::{Loss, Losses, Tokens, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The loss, which is its own config.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cispo {
    /// Clip range below 1.
    clip_low: f64,
    /// Clip range above 1.
    clip_high: f64,
}

impl Default for Cispo {
    fn default() -> Self {
        Self { clip_low: 0.2, clip_high: 0.2 }
    }
}

impl Loss for Cispo {
    const ID: &'static str = "cispo";
    const DOC: &'static str = "CISPO: the clipped ratio per token as a weight of the log-prob";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        check_between("clip_low", config.clip_low, 1e-6..=1.0)?;
        check_between("clip_high", config.clip_high, 1e-6..=1e6)?;
        Ok(config)
    }

    /// Metrics: `clip_fraction`, the share of tokens whose ratio is clipped.
    fn compute(&self, tokens: &Tokens<'_>, out: &mut Losses<'_>) -> Result<()> {
        let mut clipped = 0.0;
        for token in 0..tokens.logprobs.len() {
            let ratio = tokens.detached_log_ratio(token).exp();
            let weight = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high);
            clipped += f64::from(u8::from(weight != ratio));
            let by_logprob = -tokens.advantage(token) * weight;
            out.set(token, by_logprob * f64::from(tokens.logprobs[token]), by_logprob);
        }
        out.metric("clip_fraction", clipped);
        Ok(())
    }
}

nestor_plugin::export! { losses: [Cispo] }
