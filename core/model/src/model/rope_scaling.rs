//! Rotary frequencies that are lowered for sequences longer than a model was first trained on, as `modeling_rope_utils.py` of
//! transformers lowers them. `config.json` has them as `rope_scaling` or, since transformers 5, in `rope_parameters`.

use std::f64::consts::TAU;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tch::{Kind, Tensor};

use super::fields::Fields;
use crate::input_error;

/// A change of the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Divides every frequency by the factor.
    Linear {
        factor: f64,
    },
    /// Raises the base for a sequence longer than `max_position_embeddings`, by its length; shorter ones are as without.
    Dynamic {
        factor: f64,
    },
    Yarn(Yarn),
    /// Llama 3.1's: divides the frequencies with less than `low_freq_factor` turns in the original length, keeps those with more
    /// than `high_freq_factor`, and mixes the two in between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: i64,
    },
}

/// YaRN ([arXiv 2309.00071](https://arxiv.org/abs/2309.00071)): keeps frequencies with more than `beta_fast` turns in the original
/// length, divides those with less than `beta_slow`, mixes those in between by a ramp over the pairs, and multiplies the tables.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub original_max_position_embeddings: i64,
    /// Multiplies cos and sin; derived from the others if none.
    pub attention_factor: Option<f64>,
    /// Weights of the logarithm in `attention_factor`, above and below the line.
    pub mscale: Option<f64>,
    pub mscale_all_dim: Option<f64>,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// The ramp begins and ends at whole pairs.
    pub truncate: bool,
}

impl Yarn {
    fn from_json(section: &Fields, longest: i64, original: i64) -> Result<Self> {
        // As transformers: 0 counts as missing.
        let or = |name: &str, default: f64| {
            Ok::<_, anyhow::Error>(section.number(name)?.filter(|&x| x != 0.0).unwrap_or(default))
        };
        Ok(Self {
            factor: section.number("factor")?.unwrap_or(longest as f64 / original as f64),
            original_max_position_embeddings: original,
            attention_factor: section.number("attention_factor")?,
            mscale: section.number("mscale")?,
            mscale_all_dim: section.number("mscale_all_dim")?,
            beta_fast: or("beta_fast", 32.0)?,
            beta_slow: or("beta_slow", 1.0)?,
            truncate: section.boolean("truncate")?.unwrap_or(true),
        })
    }

    fn to_json(self) -> Value {
        let mut json = Map::new();
        let mut put = |name: &str, value: Value| json.insert(name.into(), value);
        put("rope_type", "yarn".into());
        put("factor", self.factor.into());
        put("original_max_position_embeddings", self.original_max_position_embeddings.into());
        for (name, value) in [
            ("attention_factor", self.attention_factor),
            ("mscale", self.mscale),
            ("mscale_all_dim", self.mscale_all_dim),
        ] {
            if let Some(value) = value {
                put(name, value.into());
            }
        }
        put("beta_fast", self.beta_fast.into());
        put("beta_slow", self.beta_slow.into());
        put("truncate", self.truncate.into());
        json.into()
    }

    fn attention_factor(self) -> f64 {
        let log = |mscale: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * mscale * self.factor.ln() + 1.0 };
        let weight = |mscale: Option<f64>| mscale.filter(|&m| m != 0.0);
        self.attention_factor.unwrap_or_else(|| match (weight(self.mscale), weight(self.mscale_all_dim)) {
            (Some(above), Some(below)) => log(above) / log(below),
            _ => log(1.0),
        })
    }

    fn apply(self, frequencies: &Tensor, base: f64) -> Tensor {
        let pairs = frequencies.size()[0];
        let dim = 2.0 * pairs as f64;
        let pair_of =
            |turns: f64| dim * (self.original_max_position_embeddings as f64 / (turns * TAU)).ln() / (2.0 * base.ln());
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let pair = Tensor::arange(pairs, (Kind::Float, frequencies.device()));
        let divided = ((pair - low) / (high - low)).clamp(0.0, 1.0);
        frequencies / self.factor * &divided + frequencies * (1.0 - divided)
    }
}

impl RopeScaling {
    /// Reads a section of this `rope_type`; none where the type is not known. `longest` is `max_position_embeddings`, and
    /// `original` the length of the first training.
    pub fn from_json(rope_type: &str, section: &Fields, longest: i64, original: i64) -> Result<Option<Self>> {
        let number =
            |name: &str| section.number(name)?.ok_or_else(|| input_error!("rope_type {rope_type} needs {name}"));
        let scaling = match rope_type {
            "linear" => Self::Linear { factor: number("factor")? },
            "dynamic" => Self::Dynamic { factor: number("factor")? },
            "yarn" => Self::Yarn(Yarn::from_json(section, longest, original)?),
            "llama3" => Self::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: original,
            },
            _ => return Ok(None),
        };
        Ok(Some(scaling))
    }

    /// Checks that the numbers describe a change.
    pub fn check(&self) -> Result<()> {
        let sound = |factor: f64| (1.0..=f64::from(f32::MAX)).contains(&factor);
        let fits = match *self {
            Self::Linear { factor } | Self::Dynamic { factor } => sound(factor),
            Self::Yarn(yarn) => {
                let positive = |x: f64| x > 0.0 && x <= f64::from(f32::MAX);
                sound(yarn.factor)
                    && yarn.original_max_position_embeddings > 0
                    && positive(yarn.beta_slow)
                    && yarn.beta_slow <= yarn.beta_fast
                    && positive(yarn.beta_fast)
                    && positive(yarn.attention_factor())
            }
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: n,
            } => sound(factor) && low > 0.0 && low < high && high <= f64::from(f32::MAX) && n > 0,
        };
        match fits {
            true => Ok(()),
            false => Err(input_error!(
                "rope_scaling {}: factor must be at least 1, the other numbers positive, low_freq_factor below high_freq_factor, and \
                 beta_slow at most beta_fast",
                self.to_json()
            )),
        }
    }

    /// The value of `rope_scaling`.
    pub fn to_json(self) -> Value {
        match self {
            Self::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            Self::Dynamic { factor } => json!({ "rope_type": "dynamic", "factor": factor }),
            Self::Yarn(yarn) => yarn.to_json(),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            }),
        }
    }

    /// The frequencies of a head's pairs after the change: (D/2) float32, radians per position. `Dynamic` leaves them as they are.
    pub fn apply(self, frequencies: &Tensor, base: f64) -> Tensor {
        match self {
            Self::Linear { factor } => frequencies / factor,
            Self::Dynamic { .. } => frequencies.shallow_clone(),
            Self::Yarn(yarn) => yarn.apply(frequencies, base),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let turns = original_max_position_embeddings as f64 / (frequencies.reciprocal() * TAU);
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - &kept) * frequencies / factor + kept * frequencies
            }
        }
    }

    /// The factor of cos and sin.
    pub fn attention_factor(self) -> f64 {
        match self {
            Self::Yarn(yarn) => yarn.attention_factor(),
            _ => 1.0,
        }
    }
}
