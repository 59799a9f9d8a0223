//! The section `update.optimizer` of a recipe: the optimizers by name, and their keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recipe;
use super::check::Problem;

/// The optimizer of the policy, of its critic and of the warm start; `docs/optimizers.md` has the equations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// The update rule.
    pub name: OptimizerName,
    /// AdamW's decay rates of the first and the second moment.
    pub betas: [f64; 2],
    /// AdamW's epsilon, added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of all parameters: each step multiplies them by 1 - `lr` * `weight_decay`.
    pub weight_decay: f64,
    /// With `muon`: decay rate of the momentum, 0.95 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// With `muon`: the scale of a matrix's update, by default `match_rms_adamw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<MuonScale>,
    /// With `muon`: the learning rate of AdamW's parameters (embeddings, head, norms, biases), as a multiple of Muon's, which is `lr`; 1
    /// by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adamw_lr_ratio: Option<f64>,
}

/// The update rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerName {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Orthogonalised momentum for the matrices of the blocks, and AdamW for all other parameters. Not for `model.lora`.
    Muon,
}

/// The scale of Muon's update of a matrix with `rows` outputs and `cols` inputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MuonScale {
    /// 0.2 sqrt(max(rows, cols)), so that an entry moves as far as AdamW moves it (Moonshot).
    #[default]
    MatchRmsAdamw,
    /// sqrt(max(1, rows / cols)) (Keller Jordan; PyTorch's `original`), for learning rates near 0.02.
    AspectRatio,
}

/// Muon's keys, with defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    pub momentum: f64,
    pub scale: MuonScale,
    pub adamw_lr_ratio: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::default(),
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
            momentum: None,
            scale: None,
            adamw_lr_ratio: None,
        }
    }
}

impl Optimizer {
    /// Muon's keys.
    pub fn muon(&self) -> Muon {
        Muon {
            momentum: self.momentum.unwrap_or(0.95),
            scale: self.scale.unwrap_or_default(),
            adamw_lr_ratio: self.adamw_lr_ratio.unwrap_or(1.0),
        }
    }

    /// The keys that belong to Muon alone, where they are given.
    fn given_to_muon(&self) -> Option<&'static str> {
        let given = [
            ("momentum", self.momentum.is_some()),
            ("scale", self.scale.is_some()),
            ("adamw_lr_ratio", self.adamw_lr_ratio.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }
}

/// The first value out of range, and keys of another optimizer than the one that is named.
pub(super) fn problem(recipe: &Recipe) -> Option<Problem> {
    let optimizer = &recipe.update.optimizer;
    let path = |key: &str| format!("update.optimizer.{key}");
    let range = |key: &str, value: f64, good: bool, wanted: &str| {
        (!good).then(|| (path(key), format!("must be {wanted}, but is {value}")))
    };
    let outside = optimizer.betas.iter().find(|beta| !(0.0..1.0).contains(*beta));
    let muon = optimizer.muon();
    range("weight_decay", optimizer.weight_decay, optimizer.weight_decay >= 0.0, "0 or more")
        .or_else(|| range("betas", *outside?, false, "from 0 to below 1"))
        .or_else(|| range("eps", optimizer.eps, optimizer.eps > 0.0, "greater than 0"))
        .or_else(|| range("momentum", muon.momentum, (0.0..1.0).contains(&muon.momentum), "from 0 to below 1"))
        .or_else(|| range("adamw_lr_ratio", muon.adamw_lr_ratio, muon.adamw_lr_ratio > 0.0, "greater than 0"))
        .or_else(|| match optimizer.name {
            OptimizerName::Adamw => {
                let key = optimizer.given_to_muon()?;
                Some((path(key), "belongs to `name: muon`; leave it out, or name that optimizer".into()))
            }
            // An adapter's two factors are no layer's matrix: steps that are steepest for each are not for their product.
            OptimizerName::Muon => recipe.model.lora.map(|_| {
                let message = "must be `adamw` with `model.lora`: Muon is for whole matrices, not for adapters";
                (path("name"), message.into())
            }),
        })
}
