//! A network that is trained: the policy, or its critic.

use anyhow::{Result, bail};
use tch::{Kind, Tensor, no_grad};

use super::pass;
use crate::model::config::Output;
use crate::model::qwen2::layouts;
use crate::model::{Config, Model};
use crate::recipe::{self, Recompute, Update};
use crate::shard::{AdamW, Adapters, GradientSums, Layout, Optimizer, Ranks, StepReport, Units};

/// Optimiser steps in a row without a finite gradient after which a run ends.
const MOST_SKIPPED: u32 = 10;

/// A network and its optimiser, shared by ranks.
#[derive(Debug)]
pub struct Network {
    /// Computes in the recipe's type.
    pub model: Model,
    /// Holds this rank's part of the float32 master_weights, of all weights or of the adapters.
    pub optimizer: Optimizer,
    /// What is trained, where that is not all weights.
    pub adapters: Option<Adapters>,
    /// Optimiser steps skipped since the last good one.
    pub skipped_in_a_row: u32,
    /// Who trains it.
    pub ranks: Ranks,
}

impl Network {
    /// Starts training a network whose weights are whole at every rank: zero moments.
    pub fn new(model: Model, ranks: &Ranks) -> Result<Self> {
        let model = spread(model, ranks)?;
        let optimizer = Optimizer::new(&parts(&model, ranks));
        Ok(Self { model, optimizer, adapters: None, skipped_in_a_row: 0, ranks: ranks.clone() })
    }

    /// Starts training a network's blocks through adapters, which change nothing yet.
    pub fn with_lora(model: Model, settings: &recipe::Lora, seed: u64, ranks: &Ranks) -> Result<Self> {
        let model = spread(model, ranks)?;
        let (adapters, start) = Adapters::new(&model.layouts, &model.units, settings, seed);
        let parts = adapters.layouts.iter().zip(&start).map(|(layout, flat)| ranks.part_of(layout, flat));
        let optimizer = Optimizer::new(&parts.collect::<Vec<_>>());
        Ok(Self { model, optimizer, adapters: Some(adapters), skipped_in_a_row: 0, ranks: ranks.clone() })
    }

    /// A critic of a policy: its embedding, blocks and final norm as they are now, and a value head of zeros. All of its
    /// weights are trained, whatever is of the policy's.
    pub fn critic_of(policy: &Self) -> Result<Self> {
        let (ranks, device, kind) = (&policy.ranks, policy.model.device(), policy.model.kind());
        let config = Config { output: Output::Value, ..policy.model.config.clone() };
        let (layouts, own) = (layouts(&config), policy.weights());
        // Blocks are laid out as the policy's; outside of them the head differs.
        let float = |part: &Tensor| part.detach().to_kind(Kind::Float);
        let outer = ranks.whole_of(&policy.model.layouts[0], &float(&own[0]))?;
        let first = Tensor::zeros([layouts[0].numel()], (Kind::Float, device));
        no_grad(|| {
            for param in &layouts[0].params {
                if let Some(same) = policy.model.layouts[0].params.iter().find(|p| p.name == param.name) {
                    layouts[0].view(&first, param).copy_(&policy.model.layouts[0].view(&outer, same));
                }
            }
        });
        let mut master_weights = vec![ranks.part_of(&layouts[0], &first)];
        master_weights.extend(own[1..].iter().map(|part| float(part).copy()));
        let optimizer = Optimizer::new(&master_weights);
        let units = if ranks.spread_weights() {
            Units::Spread { ranks: ranks.clone(), parts: master_weights.iter().map(|part| part.to_kind(kind)).collect() }
        } else if ranks.is_alone() {
            Units::Whole(master_weights.iter().map(|part| part.to_kind(kind)).collect())
        } else {
            let padded = layouts.iter().map(|layout| ranks.partition(layout).padded());
            Units::Whole(padded.map(|n| Tensor::zeros([n], (kind, device))).collect())
        };
        let model = Model::of_units(config, units);
        let mut critic = Self { model, optimizer, adapters: None, skipped_in_a_row: 0, ranks: ranks.clone() };
        critic.refresh()?;
        Ok(critic)
    }

    /// This rank's part of all weights as exactly as they are known, one flat tensor per unit: the float32 master_weights, or
    /// with adapters what the network computes with.
    pub fn weights(&self) -> Vec<Tensor> {
        let master_weights = || self.optimizer.master_weights.iter().map(Tensor::shallow_clone).collect();
        if self.adapters.is_some() { self.parts() } else { master_weights() }
    }

    /// This rank's part of what the network computes with, one flat tensor per unit.
    pub fn parts(&self) -> Vec<Tensor> {
        parts(&self.model, &self.ranks)
    }

    /// Where what is trained lies in the optimiser's units.
    pub fn trained(&self) -> &[Layout] {
        self.adapters.as_ref().map_or(&self.model.layouts, |adapters| &adapters.layouts)
    }

    /// What a backward pass computes with, and where it adds the gradient.
    pub fn for_backward(&mut self) -> (&Model, GradientSums<'_>) {
        let layouts = self.adapters.as_ref().map_or(&self.model.layouts, |adapters| &adapters.layouts);
        let sums = GradientSums::new(&mut self.optimizer, layouts, self.adapters.as_ref(), &self.ranks);
        (&self.model, sums)
    }

    /// Takes part in what the ranks do together for a micro-batch, where this one has none left.
    pub fn idle(&mut self, recompute: Recompute) -> Result<()> {
        let (model, sums) = self.for_backward();
        pass::idle_backward(model, recompute, sums)
    }

    /// Makes the network compute with what the master_weights are now.
    pub fn refresh(&mut self) -> Result<()> {
        let Self { model, optimizer, ranks, .. } = self;
        if let Some(adapters) = &mut self.adapters {
            return adapters.merge(&optimizer.master_weights, &model.units.held()[1..], ranks);
        }
        let kind = model.kind();
        match &model.units {
            Units::Whole(flats) if !ranks.is_alone() => {
                for ((layout, flat), master) in model.layouts.iter().zip(flats).zip(&optimizer.master_weights) {
                    ranks.gather_into(layout, flat, &master.to_kind(kind))?.wait()?;
                }
            }
            _ if kind == Kind::Float => {} // they are the network's own tensors
            units => no_grad(|| {
                for (held, master) in units.held().iter().zip(&optimizer.master_weights) {
                    held.shallow_clone().copy_(master);
                }
            }),
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
        let step = self.optimizer.step(&options, grad_clip, &*self.ranks.comm)?;
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

/// Keeps of whole weights what this rank is to hold: a part of each unit, or all of it, padded for being gathered.
fn spread(model: Model, ranks: &Ranks) -> Result<Model> {
    if ranks.is_alone() {
        return Ok(model);
    }
    let Model { config, layouts, units } = model;
    let Units::Whole(flats) = units else { bail!("the weights are spread over ranks already") };
    // One unit at a time, so that they are never there twice.
    let mut held = Vec::with_capacity(flats.len());
    for (layout, flat) in layouts.iter().zip(flats) {
        held.push(if ranks.spread_weights() {
            ranks.part_of(layout, &flat)
        } else {
            flat.constant_pad_nd([0, ranks.partition(layout).padded() - layout.numel()])
        });
    }
    let units = match ranks.spread_weights() {
        true => Units::Spread { ranks: ranks.clone(), parts: held },
        false => Units::Whole(held),
    };
    Ok(Model::of_units(config, units))
}

/// Makes a model compute with these parts of its weights, which [`parts`] gave and somebody has filled.
pub fn set_parts(model: &Model, ranks: &Ranks, parts: &[Tensor]) -> Result<()> {
    // Elsewhere the parts are the model's own tensors.
    if let (Units::Whole(flats), false) = (&model.units, ranks.is_alone()) {
        for ((layout, flat), part) in model.layouts.iter().zip(flats).zip(parts) {
            ranks.gather_into(layout, flat, part)?.wait()?;
        }
    }
    Ok(())
}

/// This rank's part of the weights of a model, one flat tensor per unit.
pub fn parts(model: &Model, ranks: &Ranks) -> Vec<Tensor> {
    match &model.units {
        Units::Spread { parts, .. } => parts.iter().map(Tensor::shallow_clone).collect(),
        Units::Whole(flats) => model.layouts.iter().zip(flats).map(|(l, flat)| ranks.part_of(l, flat)).collect(),
    }
}
