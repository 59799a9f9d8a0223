//! SAPO (arXiv:2511.20347): in place of a clip, a smooth gate lets a token's gradient fade as its ratio leaves 1. With r the ratio of a
//! token's probability to the old one, A the advantage, s the logistic function, and t a temperature by the sign of A:
//!
//! ```text
//! g(r) = 4 s(t (r - 1)) / t
//! -A g(r)
//! dg/dx = 4 s (1 - s) r, which is 1 at r = 1
//! ```

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::{Loss, Losses, Tokens, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Largest log-ratio that the exponential is taken of: far beyond, the gate's derivative is 0 all the same.
const MOST: f64 = 50.0;

/// The loss, which is its own config.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sapo {
    /// Temperature of tokens with a positive advantage. A higher one lets the gradient fade sooner.
    temperature_positive: f64,
    /// Temperature of all others.
    temperature_negative: f64,
}

impl Default for Sapo {
    fn default() -> Self {
        Self { temperature_positive: 1.0, temperature_negative: 1.05 }
    }
}

impl Loss for Sapo {
    const ID: &'static str = "sapo";
    const DOC: &'static str = "SAPO: a smooth gate of the ratio per token in place of a clip";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        check_between("temperature_positive", config.temperature_positive, 1e-6..=1e6)?;
        check_between("temperature_negative", config.temperature_negative, 1e-6..=1e6)?;
        Ok(config)
    }

    /// Metrics: `gate`, the mean derivative of the gate.
    fn compute(&self, tokens: &Tokens<'_>, out: &mut Losses<'_>) -> Result<()> {
        let mut gates = 0.0;
        for token in 0..tokens.logprobs.len() {
            let (advantage, ratio) = (tokens.advantage(token), tokens.log_ratio(token).min(MOST).exp());
            let temperature = if advantage > 0.0 { self.temperature_positive } else { self.temperature_negative };
            let share = 1.0 / (1.0 + (temperature * (1.0 - ratio)).exp());
            let gate = 4.0 * share * (1.0 - share) * ratio;
            out.set(token, -advantage * 4.0 * share / temperature, -advantage * gate);
            gates += gate;
        }
        out.metric("gate", gates);
        Ok(())
    }
}

nestor_plugin::export! { losses: [Sapo] }
