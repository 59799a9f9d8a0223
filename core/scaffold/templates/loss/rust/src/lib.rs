//! PPO's clipped ratio: max(-A r, -A clip(r, 1 - clip, 1 + clip)), where r is the ratio of a token's probability to the old one, and A
//! its advantage.

use nestor_plugin::anyhow::{Result, ensure};
use nestor_plugin::schemars::JsonSchema;
use nestor_plugin::serde::Deserialize;
use nestor_plugin::{Loss, Losses, Tokens};

/// The keys of `loss.config`.
#[derive(Deserialize, JsonSchema)]
#[serde(crate = "nestor_plugin::serde", default, deny_unknown_fields)]
#[schemars(crate = "nestor_plugin::schemars")]
struct ClippedRatio {
    /// Largest distance of a ratio from 1 that is rewarded.
    clip: f64,
}

impl Default for ClippedRatio {
    fn default() -> Self {
        Self { clip: 0.2 }
    }
}

impl Loss for ClippedRatio {
    const ID: &'static str = "my_plugin";
    const DOC: &'static str = "PPO's clipped ratio.";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        let fits = config.clip > 0.0 && config.clip < 1.0;
        ensure!(fits, "config key `clip` must be between 0 and 1, not {}", config.clip);
        Ok(config)
    }
    fn compute(&self, tokens: &Tokens<'_>, out: &mut Losses<'_>) -> Result<()> {
        let mut clipped = 0.0;
        for token in 0..tokens.logprobs.len() {
            let (ratio, advantage) = (tokens.log_ratio(token).exp(), tokens.advantage(token));
            let bounded = ratio.clamp(1.0 - self.clip, 1.0 + self.clip);
            let is_clipped = -advantage * bounded > -advantage * ratio;
            clipped += f64::from(u8::from(is_clipped));
            // The derivative of the ratio by the token's log-prob is the ratio.
            match is_clipped {
                true => out.set(token, -advantage * bounded, 0.0),
                false => out.set(token, -advantage * ratio, -advantage * ratio),
            }
        }
        out.metric("clip_fraction", clipped); // a sum; metrics.jsonl gets the mean over the update's tokens, loss/clip_fraction
        Ok(())
    }
}

nestor_plugin::export! { losses: [ClippedRatio] }
