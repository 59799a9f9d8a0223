//! The section `model.lora` of a recipe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Problem;

const MOST_RANK: i64 = 1 << 12;

/// Low-rank adapters (arXiv 2106.09685), equal to peft's without dropout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rows of A and columns of B.
    pub rank: i64,
    /// Scale: B A is multiplied by alpha / rank.
    pub alpha: f64,
    /// The projections that get adapters; by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_modules: Option<Vec<Projection>>,
    /// The first values of A; B begins with zeros, so that the first policy is the base.
    #[serde(default)]
    pub init: LoraInit,
}

/// A linear projection of a block, by its name in peft's `target_modules`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Projection {
    /// Queries.
    QProj,
    /// Keys.
    KProj,
    /// Values.
    VProj,
    /// Output of attention.
    OProj,
    /// Gate of the feed-forward layer.
    GateProj,
    /// Its input beside the gate.
    UpProj,
    /// Its output.
    DownProj,
}

/// The first values of A.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoraInit {
    /// Uniform within ±1 / sqrt(in): peft's default.
    #[default]
    Kaiming,
    /// Normal with standard deviation 1 / rank: peft's `gaussian`.
    Gaussian,
}

impl Projection {
    /// Its name, such as `q_proj`.
    pub fn name(self) -> &'static str {
        match self {
            Self::QProj => "q_proj",
            Self::KProj => "k_proj",
            Self::VProj => "v_proj",
            Self::OProj => "o_proj",
            Self::GateProj => "gate_proj",
            Self::UpProj => "up_proj",
            Self::DownProj => "down_proj",
        }
    }
}

impl Lora {
    /// Adapters of all projections.
    pub fn of_all(rank: i64, alpha: f64) -> Self {
        Self { rank, alpha, target_modules: None, init: LoraInit::default() }
    }

    /// True if the projection with this name, such as `q_proj`, gets an adapter.
    pub fn adapts(&self, projection: &str) -> bool {
        self.target_modules.as_ref().is_none_or(|all| all.iter().any(|one| one.name() == projection))
    }
}

/// The first value out of range.
pub(super) fn problem(l: &Lora) -> Option<Problem> {
    let message = format!("must be from 1 to {MOST_RANK}, but is {}", l.rank);
    (!(1..=MOST_RANK).contains(&l.rank))
        .then(|| ("model.lora.rank".into(), message))
        .or_else(|| {
            let message = format!("must be greater than 0, but is {}", l.alpha);
            let is_positive = l.alpha > 0.0; // false for NaN
            (!is_positive).then(|| ("model.lora.alpha".into(), message))
        })
        .or_else(|| {
            let targets = l.target_modules.as_ref()?;
            let twice = targets.iter().enumerate().any(|(at, target)| targets[..at].contains(target));
            let message = "must name one projection or more, each once";
            (targets.is_empty() || twice).then(|| ("model.lora.target_modules".into(), message.into()))
        })
}
