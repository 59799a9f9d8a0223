//! A network that is trained: the policy, or its critic.

use std::cell::RefCell;

use anyhow::{Result, bail};
use tch::{Kind, Tensor, no_grad};

use super::backward;
use super::batching::MicroBatching;
use crate::error::Diverged;
use crate::model::config::Output;
use crate::model::unit_weights::layouts;
use crate::model::{Config, Model};
use crate::recipe::{self, LOSS_SCALE, Recompute};
use crate::shard::{Adapters, GradientSums, HeldUnits, Layout, LossScale, Optimizer, Ranks, StepReport, Stepping};

/// A network and its optimizer, shared by ranks.
#[derive(Debug)]
pub struct Network {
    /// In the recipe's compute type.
    pub model: Model,
    /// Holds this rank's shards of the float32 master weights, of all weights or of the adapters.
    pub optimizer: Optimizer,
    /// Optimizer steps skipped since the last good one.
    pub skipped_in_a_row: u32,
    pub ranks: Ranks,
}

impl Network {
    /// Starts to train a network whose weights are whole on every rank: the optimizer's state is zero.
    pub fn new(model: Model, stepping: impl Into<Stepping>, ranks: &Ranks) -> Result<Self> {
        let model = shard(model, ranks)?;
        let (units, shards) = (&model.layouts[..model.trained], shards(&model, ranks));
        let optimizer = Optimizer::new(stepping.into(), units, &shards[..model.trained], ranks, loss_scale(&model))?;
        Ok(Self { model, optimizer, skipped_in_a_row: 0, ranks: ranks.clone() })
    }

    /// Starts to train a network's blocks through adapters, which change nothing yet.
    pub fn with_lora(
        model: Model,
        stepping: impl Into<Stepping>,
        (settings, seed): (&recipe::Lora, u64),
        ranks: &Ranks,
    ) -> Result<Self> {
        let model = shard(model, ranks)?;
        let adapters = Adapters::new(&model.layouts[1..=model.blocks()], model.device(), settings, seed);
        let shards = adapters.shards(ranks);
        let optimizer = Optimizer::new(stepping.into(), &adapters.layouts, &shards, ranks, loss_scale(&model))?;
        let model = Model { adapters: Some(adapters), ..model };
        Ok(Self { model, optimizer, skipped_in_a_row: 0, ranks: ranks.clone() })
    }

    /// A critic of a policy: the policy's current embedding, blocks and final norm, and a value head of zeros. All of its
    /// weights are trained, also where only adapters of the policy are.
    pub fn critic_of(policy: &Self) -> Result<Self> {
        let (ranks, device, kind) = (&policy.ranks, policy.model.device(), policy.model.kind());
        let config = Config { output: Output::Value, ..policy.model.config.clone() };
        let (layouts, own) = (layouts(&config), policy.weights());
        // Blocks have the policy's layout; outside of them the head differs.
        let float = |shard: &Tensor| shard.detach().to_device(device).to_kind(Kind::Float);
        let outer = ranks.whole_of(&policy.model.layouts[0], &float(&own[0]))?;
        let first = Tensor::zeros([layouts[0].numel()], (Kind::Float, device));
        no_grad(|| {
            for param in &layouts[0].params {
                if let Some(same) = policy.model.layouts[0].params.iter().find(|p| p.name == param.name) {
                    layouts[0].view(&first, param).copy_(&policy.model.layouts[0].view(&outer, same));
                }
            }
        });
        let mut weights = vec![ranks.shard_of(&layouts[0], &first)];
        weights.extend(own[1..].iter().map(|shard| float(shard).copy()));
        // The critic freezes the units of a vision tower that the policy freezes.
        let trained = if policy.model.adapters.is_some() { policy.model.merger_unit() } else { policy.model.trained };
        let count = trained.min(weights.len());
        let (stepping, loss_scale) = (policy.optimizer.stepping.clone(), policy.optimizer.loss_scale);
        let optimizer = Optimizer::new(stepping, &layouts[..count], &weights[..count], ranks, loss_scale)?;
        let compute = || weights.iter().map(|shard| shard.to_kind(kind)).collect::<Vec<_>>();
        let units = if ranks.shards_weights() {
            HeldUnits::Sharded { ranks: ranks.clone(), shards: compute() }
        } else if ranks.is_alone() {
            HeldUnits::Whole(compute())
        } else {
            let padded = layouts.iter().map(|layout| ranks.partition(layout).padded());
            HeldUnits::Whole(padded.map(|n| Tensor::zeros([n], (kind, device))).collect())
        };
        if let (HeldUnits::Whole(flats), false) = (&units, ranks.is_alone()) {
            for ((layout, flat), shard) in layouts.iter().zip(flats).zip(compute()).skip(trained) {
                ranks.gather_into(layout, flat, &shard)?.wait()?;
            }
        }
        let Model { encodes_alone, images, .. } = &policy.model;
        let (encodes_alone, images) = (*encodes_alone, RefCell::new(images.borrow().fresh()));
        let trained = optimizer.master_weights.len();
        let model = Model { trained, images, encodes_alone, ..Model::of_units(config, units) };
        let mut critic = Self { model, optimizer, skipped_in_a_row: 0, ranks: ranks.clone() };
        critic.refresh()?;
        Ok(critic)
    }

    /// This rank's shards of the weights that a checkpoint holds, one flat tensor per unit: the master weights and the frozen
    /// units behind them, or the frozen weights beside the adapters.
    pub fn base(&self) -> Vec<Tensor> {
        if self.model.adapters.is_some() {
            return self.shards();
        }
        let mut all: Vec<_> = self.optimizer.master_weights.iter().map(Tensor::shallow_clone).collect();
        if all.len() < self.model.units.len() {
            all.extend(self.shards().into_iter().skip(all.len()));
        }
        all
    }

    /// This rank's shards of the weights with the adapters merged into them, float32, one flat tensor per unit.
    pub fn weights(&self) -> Vec<Tensor> {
        let Some(adapters) = &self.model.adapters else { return self.base() };
        let layouts = self.model.layouts.iter().enumerate();
        let merged = layouts.zip(self.shards()).map(|((unit, layout), held)| match unit {
            0 => held.to_kind(Kind::Float),
            unit if unit > self.model.blocks() => held.to_kind(Kind::Float),
            block => adapters.merged(block - 1, layout, &held, &self.ranks),
        });
        merged.collect()
    }

    /// This rank's shards of the compute weights, one flat tensor per unit.
    pub fn shards(&self) -> Vec<Tensor> {
        shards(&self.model, &self.ranks)
    }

    /// Its passes, shared among ranks, with micro-batches of at most `budget` computed tokens.
    pub fn micro_batching(&self, budget: usize) -> MicroBatching<'_> {
        MicroBatching { ranks: &self.ranks, config: &self.model.config, budget }
    }

    /// Layouts of the optimizer's units: all weights, or the adapters.
    pub fn trained(&self) -> &[Layout] {
        trained(&self.model)
    }

    /// The model and the gradient sums of a backward pass.
    pub fn for_backward(&mut self) -> (&Model, GradientSums<'_>) {
        let adapters_only = self.model.adapters.is_some();
        (&self.model, GradientSums::new(&mut self.optimizer, trained(&self.model), adapters_only, &self.ranks))
    }

    /// Takes part in the collectives of a micro-batch, where this rank has none left.
    pub fn idle(&mut self, recompute: Recompute) -> Result<()> {
        let (model, sums) = self.for_backward();
        backward::idle_backward(model, recompute, sums)
    }

    /// Has the network compute with the current master weights.
    pub fn refresh(&mut self) -> Result<()> {
        let Self { model, optimizer, ranks, .. } = self;
        model.weights_changed();
        let device = model.device();
        let on_device = |master: &Tensor| master.to_device(device); // from the host, where they are offloaded
        if let Some(adapters) = &mut model.adapters {
            let shards: Vec<Tensor> = optimizer.master_weights.iter().map(on_device).collect();
            return adapters.gather(&shards, ranks);
        }
        let kind = model.kind();
        match &model.units {
            HeldUnits::Whole(flats) if !ranks.is_alone() => {
                for ((layout, flat), master) in model.layouts.iter().zip(flats).zip(&optimizer.master_weights) {
                    ranks.gather_into(layout, flat, &on_device(master).to_kind(kind))?.wait()?;
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

    /// Clips the gradient sums to this global norm and makes an optimizer step at this learning rate. A gradient that is not
    /// finite changes nothing.
    pub fn step(&mut self, lr: f64, grad_clip: f64) -> Result<StepReport> {
        let copies = copies(&self.model, &self.ranks);
        let step = self.optimizer.step(trained(&self.model), (lr, grad_clip), &self.ranks, copies)?;
        if step.skipped {
            // Where a lower loss scale may help, the gradient itself may be finite.
            let hopeless = !self.optimizer.loss_scale.is_some_and(LossScale::can_fall);
            self.skipped_in_a_row += u32::from(hopeless);
            return Ok(step);
        }
        self.skipped_in_a_row = 0;
        self.model.weights_changed();
        if copies.is_none() {
            self.refresh()?;
        }
        Ok(step)
    }

    /// Ends a run that cannot learn any more.
    ///
    /// # Errors
    /// When `most` gradients in a row were not finite, at all ranks alike.
    pub fn check_skipped(&self, most: u32) -> Result<()> {
        if self.skipped_in_a_row < most {
            return Ok(());
        }
        Err(self.diverged(&format!(" (update.max_skipped is {most})")))
    }

    /// The error of a network whose last optimizer steps were skipped; `limit` names the setting that ends the run.
    pub fn diverged(&self, limit: &str) -> anyhow::Error {
        let skipped = self.skipped_in_a_row;
        let message =
            format!("{skipped} optimizer steps in a row were skipped, because their gradients were not finite{limit}");
        Diverged { critic: self.model.config.output == Output::Value, message }.into()
    }

    /// True if all of this rank's weights and of the optimizer's state are finite.
    pub fn is_finite(&self) -> bool {
        let Optimizer { master_weights, state, .. } = &self.optimizer;
        let state = state.iter().flat_map(|state| &state.shards);
        // The largest and the smallest entry are NaN if any is.
        let finite = |flat: &Tensor| (flat.max() - flat.min()).double_value(&[]).is_finite();
        let mut all = master_weights.iter().chain(state).filter(|flat| flat.numel() > 0);
        no_grad(|| all.all(finite))
    }
}

/// The compute weights that are this rank's master weights in another type, tensor by tensor, so that an optimizer step can
/// write both. None for adapters, for weights that are the master weights themselves, and for those gathered from all ranks.
fn copies<'a>(model: &'a Model, ranks: &Ranks) -> Option<&'a [Tensor]> {
    let gathered = !ranks.is_alone() && !ranks.shards_weights();
    (model.adapters.is_none() && model.kind() != Kind::Float && !gathered).then(|| &model.units.held()[..model.trained])
}

/// Layouts of the units that are trained: all weights, or the adapters.
fn trained(model: &Model) -> &[Layout] {
    match &model.adapters {
        Some(adapters) => &adapters.layouts,
        None => &model.layouts[..model.trained],
    }
}

/// The loss scale that a network starts with.
fn loss_scale(model: &Model) -> Option<LossScale> {
    LossScale::of(model.kind(), LOSS_SCALE)
}

/// Reduces whole weights to what this rank holds: a shard of each unit, or all of it, padded to be gathered.
pub fn shard(model: Model, ranks: &Ranks) -> Result<Model> {
    if ranks.is_alone() {
        return Ok(model);
    }
    let Model { config, layouts, units, trained, images, encodes_alone, .. } = model;
    let HeldUnits::Whole(flats) = units else { bail!("the weights are sharded already") };
    // One unit at a time, so that memory never holds all weights twice.
    let mut held = Vec::with_capacity(flats.len());
    for (layout, flat) in layouts.iter().zip(flats) {
        held.push(if ranks.shards_weights() {
            ranks.shard_of(layout, &flat)
        } else {
            flat.constant_pad_nd([0, ranks.partition(layout).padded() - layout.numel()])
        });
    }
    let units = match ranks.shards_weights() {
        true => HeldUnits::Sharded { ranks: ranks.clone(), shards: held },
        false => HeldUnits::Whole(held),
    };
    Ok(Model { trained, images, encodes_alone, ..Model::of_units(config, units) })
}

/// Makes a model compute with these shards of its weights, which [`shards`] returned and the caller has filled.
pub fn set_shards(model: &Model, ranks: &Ranks, shards: &[Tensor]) -> Result<()> {
    // Elsewhere the shards are the model's own tensors.
    if let (HeldUnits::Whole(flats), false) = (&model.units, ranks.is_alone()) {
        for ((layout, flat), shard) in model.layouts.iter().zip(flats).zip(shards) {
            ranks.gather_into(layout, flat, shard)?.wait()?;
        }
    }
    Ok(())
}

/// This rank's shards of the weights of a model, one flat tensor per unit.
pub fn shards(model: &Model, ranks: &Ranks) -> Vec<Tensor> {
    match &model.units {
        HeldUnits::Sharded { shards, .. } => shards.iter().map(Tensor::shallow_clone).collect(),
        HeldUnits::Whole(flats) => model.layouts.iter().zip(flats).map(|(l, flat)| ranks.shard_of(l, flat)).collect(),
    }
}
