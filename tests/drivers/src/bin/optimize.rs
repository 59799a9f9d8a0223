//! Steps of an optimizer on given gradients, shared by ranks, for `tests/python/test_optimizers.py`, which compares them with
//! PyTorch.
//!
//! usage: optimize STEPS.json TENSORS.safetensors OUT.safetensors
//!
//! STEPS holds `optimizer` (a recipe's section), `lr`, `grad_clip`, `steps` and `units`: names of parameters by the name of their
//! unit. TENSORS holds each parameter's start, and its gradient in step t as `NAME.t`. Ranks come from torchrun's variables.
//! Rank 0 writes the final parameters.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, bail};
use nestor_drivers::named;
use nestor_model::ranks::{self, Rendezvous};
use nestor_model::shard::{self, Layout, Ranks, update_rule};
use nestor_recipe::{Dist, Optimizer};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

#[derive(Deserialize)]
struct Input {
    optimizer: Optimizer,
    lr: f64,
    grad_clip: f64,
    steps: u32,
    units: BTreeMap<String, Vec<String>>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [steps, tensors, out] = &arguments[..] else { bail!("usage: optimize STEPS.json TENSORS OUT") };
    let input: Input = serde_json::from_str(&std::fs::read_to_string(steps)?).context("reading the steps")?;
    let tensors: HashMap<String, Tensor> = Tensor::read_safetensors(tensors)?.into_iter().collect();
    let comm = ranks::join(&Rendezvous::of_environment()?, Device::Cpu, &Dist::default())?;
    let ranks = Ranks { comm, ..Ranks::solo(Device::Cpu) };

    let shapes = |names: &[String]| names.iter().map(|name| (name.clone(), tensors[name].size())).collect();
    let units: Vec<Layout> = input.units.iter().map(|(unit, names)| Layout::new(unit, shapes(names))).collect();
    // This rank's shard of each unit, from tensors with these endings of their names.
    let shards = |ending: &str| -> Vec<Tensor> {
        let shard = |unit: &Layout| {
            let whole = Tensor::zeros([unit.numel()], (Kind::Float, Device::Cpu));
            unit.params.iter().for_each(|p| unit.view(&whole, p).copy_(&tensors[&format!("{}{ending}", p.name)]));
            ranks.shard_of(unit, &whole)
        };
        units.iter().map(shard).collect()
    };
    let mut optimizer = shard::Optimizer::new(update_rule(&input.optimizer).into(), &units, &shards(""), &ranks, None)?;
    for step in 0..input.steps {
        optimizer.grads = shards(&format!(".{step}"));
        optimizer.step(&units, (input.lr, input.grad_clip), &ranks, None)?;
    }
    let whole = units.iter().zip(&optimizer.master_weights).map(|(unit, shard)| ranks.whole_of(unit, shard));
    let whole = whole.collect::<Result<Vec<_>>>()?;
    if ranks.comm.rank() == 0 {
        Tensor::write_safetensors(&named("", &units, &whole), out)?;
    }
    Ok(())
}
