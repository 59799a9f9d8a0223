//! Rotary frequencies that are lowered for sequences longer than a model was first trained on, as `modeling_rope_utils.py` of
//! transformers lowers them. `config.json` has them as `rope_scaling` or, since transformers 5, in `rope_parameters`.

use std::f64::consts::TAU;

use anyhow::Result;
use serde_json::{Value, json};
use tch::Tensor;

use super::fields::Fields;
use crate::input_error;

/// A change of the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Divides every frequency by the factor.
    Linear { factor: f64 },
    /// Llama 3.1's: divides the frequencies with less than `low_freq_factor` turns in the original length, keeps those with more
    /// than `high_freq_factor`, and mixes the two in between.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position_embeddings: i64 },
}

impl RopeScaling {
    /// Reads a section of this `rope_type`; none where the type is not known.
    pub fn from_json(rope_type: &str, section: &Fields) -> Result<Option<Self>> {
        let number =
            |name: &str| section.number(name)?.ok_or_else(|| input_error!("rope_type {rope_type} needs {name}"));
        let scaling = match rope_type {
            "linear" => Self::Linear { factor: number("factor")? },
            "llama3" => Self::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: section.required("original_max_position_embeddings")?,
            },
            _ => return Ok(None),
        };
        Ok(Some(scaling))
    }

    /// Checks that the numbers describe a change.
    pub fn check(&self) -> Result<()> {
        let sound = |factor: f64| (1.0..=f64::from(f32::MAX)).contains(&factor);
        let fits = match *self {
            Self::Linear { factor } => sound(factor),
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
                "rope_scaling {}: factor must be at least 1, low_freq_factor positive and below high_freq_factor, and the original \
                 length positive",
                self.to_json()
            )),
        }
    }

    /// The value of `rope_scaling`.
    pub fn to_json(self) -> Value {
        match self {
            Self::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            }),
        }
    }

    /// The frequencies of a head's pairs after the change: (D/2) float32, radians per position.
    pub fn apply(self, frequencies: &Tensor) -> Tensor {
        match self {
            Self::Linear { factor } => frequencies / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let turns = original_max_position_embeddings as f64 / (frequencies.reciprocal() * TAU);
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - &kept) * frequencies / factor + kept * frequencies
            }
        }
    }
}
