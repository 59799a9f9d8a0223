//! A loss that needs reference log-probs and entropies, with one planted fault on demand.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use nestor_plugin::{Loss, LossNeeds, Losses, Tokens};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A ratio per token, a squared log-ratio to the reference, and a squared entropy.
pub struct PlantedLoss {
    fault: Option<Fault>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default)]
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fault {
    NanOnLargeRatio,
    Unwritten,
    WritesPast,
    WrongSign,
    ForgetsEntropy,
    OwnTokenOnly,
    ShareOfCall,
    NumberOfResponse,
    CountsCalls,
    MetricIsMean,
    NamesChange,
    LeakInCompute,
}

impl Loss for PlantedLoss {
    const ID: &'static str = "planted_loss";
    const DOC: &'static str = "Ratios with one planted fault.";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        Ok(Self { fault: config.fault })
    }

    fn needs(&self) -> LossNeeds {
        LossNeeds { reference: true, entropy: true }
    }

    fn compute(&self, tokens: &Tokens<'_>, out: &mut Losses<'_>) -> Result<()> {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let has = |fault| self.fault == Some(fault);
        let reference = tokens.ref_logprobs.context("there are no reference log-probs")?;
        let (mut sum, unwritten) = (0.0, out.losses.first().copied());
        for (number, response) in tokens.responses().enumerate() {
            // The mean ratio of the response: each loss depends on all of its tokens.
            let ratios: Vec<f64> = response.clone().map(|token| tokens.log_ratio(token).min(30.0).exp()).collect();
            let length = ratios.len() as f64;
            let ratio = ratios.iter().sum::<f64>() / length;
            let advantages: f64 = response.clone().map(|token| tokens.advantage(token)).sum();
            for (token, own) in response.clone().zip(&ratios) {
                let behind = f64::from(tokens.logprobs[token]) - f64::from(reference[token]);
                let entropy = f64::from(tokens.entropy[token]);
                let mut loss = -tokens.advantage(token) * ratio + 0.5 * behind * behind + 0.5 * entropy * entropy;
                let mut by_logprob = -advantages * own / length + behind;
                match self.fault {
                    Some(Fault::NanOnLargeRatio) if ratio > 1e3 => loss = f64::NAN,
                    Some(Fault::WrongSign) => by_logprob = -by_logprob,
                    Some(Fault::OwnTokenOnly) => by_logprob = -tokens.advantage(token) * own / length + behind,
                    Some(Fault::NumberOfResponse) => {
                        loss += number as f64 * 1e-3 * f64::from(tokens.old_logprobs[token])
                    }
                    Some(Fault::ShareOfCall) => loss += tokens.logprobs.len() as f64,
                    Some(Fault::CountsCalls) => loss += CALLS.load(Ordering::Relaxed) as f64,
                    _ => {}
                }
                out.set(token, loss, by_logprob);
                out.by_entropy[token] = if has(Fault::ForgetsEntropy) { 0.0 } else { entropy };
                sum += ratio;
            }
        }
        CALLS.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Some(Fault::Unwritten) => {
                if let (Some(first), Some(unwritten)) = (out.losses.first_mut(), unwritten) {
                    *first = unwritten;
                }
            }
            // SAFETY: none; the host has room behind the end, where it looks for such a fault.
            Some(Fault::WritesPast) => unsafe { out.losses.as_mut_ptr().add(out.losses.len()).write(1.0) },
            Some(Fault::LeakInCompute) => std::mem::forget(black_box(vec![1u8; 256 << 10])),
            _ => {}
        }
        if has(Fault::NamesChange) && tokens.logprobs.len() > 50 {
            out.metric("rare", 0.0);
        }
        let tokens = tokens.logprobs.len().max(1) as f64;
        out.metric("ratio", if has(Fault::MetricIsMean) { sum / tokens } else { sum });
        Ok(())
    }
}
