//! A network that is trained: the policy, or its critic.

use anyhow::{Result, bail};
use tch::{Kind, Tensor, no_grad};

use crate::model::config::Output;
use crate::model::{Config, Model};
use crate::recipe::{self, Update};
use crate::shard::{AdamW, Adapters, GradientSums, Layout, Optimizer, StepReport};

/// Optimiser steps in a row without a finite gradient after which a run ends.
const MOST_SKIPPED: u32 = 10;

/// A network and its optimiser.
#[derive(Debug)]
pub struct Network {
    /// Computes in the recipe's type.
    pub model: Model,
    /// Holds the float32 masters, of all weights or of the adapters.
    pub optimizer: Optimizer,
    /// What is trained, where that is not all weights.
    pub adapters: Option<Adapters>,
    /// Optimiser steps skipped since the last good one.
    pub skipped_in_a_row: u32,
}

impl Network {
    /// Starts training a network: zero moments.
    pub fn new(model: Model) -> Self {
        Self { optimizer: Optimizer::new(&model.flats), adapters: None, model, skipped_in_a_row: 0 }
    }

    /// Starts training a network's blocks through adapters, which change nothing yet.
    pub fn with_lora(model: Model, settings: &recipe::Lora, seed: u64) -> Self {
        let (adapters, start) = Adapters::new(&model.layouts[1..], &model.flats[1..], settings, seed);
        Self { optimizer: Optimizer::new(&start), adapters: Some(adapters), model, skipped_in_a_row: 0 }
    }

    /// A critic of a policy: its embedding, blocks and final norm as they are now, and a value head of zeros. All of its
    /// weights are trained, whatever is of the policy's.
    pub fn critic_of(policy: &Self) -> Self {
        let config = Config { output: Output::Value, ..policy.model.config.clone() };
        let masters = Model::empty(config, Kind::Float, policy.model.device());
        let own = policy.model.layouts.iter().zip(policy.weights());
        no_grad(|| {
            for ((layout, flat), (other, values)) in masters.layouts.iter().zip(&masters.flats).zip(own) {
                for param in &layout.params {
                    if let Some(same) = other.params.iter().find(|p| p.name == param.name) {
                        layout.view(flat, param).copy_(&other.view(values, same));
                    }
                }
            }
        });
        let optimizer = Optimizer::new(&masters.flats);
        let model = if policy.model.kind() == Kind::Float { masters } else { masters.copy(policy.model.kind()) };
        Self { model, optimizer, adapters: None, skipped_in_a_row: 0 }
    }

    /// All weights as exactly as they are known, one flat tensor per unit: the float32 masters, or with adapters what the
    /// network computes with.
    pub fn weights(&self) -> &[Tensor] {
        if self.adapters.is_some() { &self.model.flats } else { &self.optimizer.masters }
    }

    /// Where what is trained lies in the optimiser's tensors.
    pub fn trained(&self) -> &[Layout] {
        self.adapters.as_ref().map_or(&self.model.layouts, |adapters| &adapters.layouts)
    }

    /// What a backward pass computes with, and where it adds the gradient.
    pub fn for_backward(&mut self) -> (&Model, GradientSums<'_>) {
        (&self.model, GradientSums::new(&mut self.optimizer, self.adapters.as_ref()))
    }

    /// Makes the network compute with what the masters are now.
    pub fn refresh(&mut self) -> Result<()> {
        match &self.adapters {
            Some(adapters) => adapters.merge(&self.optimizer.masters, &self.model.flats[1..]),
            None if self.model.kind() == Kind::Float => {} // they are the network's own tensors
            None => self.model.load_flats(&self.optimizer.masters)?,
        }
        Ok(())
    }

    /// Clips the gradient sums to this global norm and applies them at this learning rate. A gradient that is not finite
    /// changes nothing.
    ///
    /// # Errors
    /// When [`MOST_SKIPPED`] gradients in a row were not finite.
    pub fn step(&mut self, update: &Update, lr: f64, grad_clip: f64) -> Result<StepReport> {
        let [beta1, beta2] = update.betas;
        let options = AdamW { lr, beta1, beta2, weight_decay: update.weight_decay, eps: 1e-8 };
        let step = self.optimizer.step(&options, grad_clip)?;
        if step.skipped {
            self.skipped_in_a_row += 1;
            if self.skipped_in_a_row >= MOST_SKIPPED {
                bail!(
                    "{MOST_SKIPPED} gradients in a row were not finite (norm {}): lower the learning rate ({lr:e}), or \
                     start from a checkpoint whose weights are sound",
                    step.grad_norm
                );
            }
            return Ok(step);
        }
        self.skipped_in_a_row = 0;
        self.refresh()?;
        Ok(step)
    }
}
