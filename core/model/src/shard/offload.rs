//! The optimizer's tensors that rest in the host's memory (`update.offload`). A step copies those of one unit to the device, steps
//! the unit there, and copies them back. So its arithmetic is that of a step whose tensors stay, to the last bit.

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use super::layout::Layout;
use super::rule::{NamedState, Step, UpdateRule};
use crate::recipe::Offload;

/// A zero tensor (n), float32, in the host's memory; for a GPU in pinned memory, which it reads without a copy between.
pub fn host_zeros(numel: i64, device: Device) -> Result<Tensor> {
    let zeros = Tensor::zeros([numel], (Kind::Float, Device::Cpu));
    if !device.is_cuda() || numel == 0 {
        return Ok(zeros);
    }
    zeros
        .f_pin_memory(device)
        .with_context(|| format!("pinning {} MB of the host's memory for `update.offload`", 4 * numel / 1_000_000))
}

/// Makes the step of a rule unit by unit, each with copies of the tensors that rest on the host.
pub fn step_by_unit(rule: &dyn UpdateRule, offload: Offload, step: &Step) -> Result<()> {
    for unit in 0..step.units.len() {
        let device = step.grads[unit].device();
        let params = Staged::of(&step.params[unit], device, offload == Offload::All);
        let state: Vec<Staged> =
            step.state.iter().map(|state| Staged::of(&state.shards[unit], device, offload != Offload::None)).collect();
        let named = |(state, staged): (&NamedState, &Staged)| NamedState {
            name: state.name,
            layouts: vec![state.layouts[unit].clone()],
            shards: vec![staged.tensor.shallow_clone()],
        };
        let named: Vec<NamedState> = step.state.iter().zip(&state).map(named).collect();
        rule.step(&Step {
            units: std::slice::from_ref::<Layout>(&step.units[unit]),
            params: std::slice::from_ref(&params.tensor),
            grads: std::slice::from_ref(&step.grads[unit]),
            state: &named,
            copies: step.copies.map(|copies| std::slice::from_ref(&copies[unit])),
            ..*step
        })?;
        [params].into_iter().chain(state).for_each(Staged::put_back);
    }
    Ok(())
}

/// A tensor during the step of its unit.
struct Staged {
    /// On the device.
    tensor: Tensor,
    /// The place of a tensor that rests on the host.
    home: Option<Tensor>,
}

impl Staged {
    /// A copy of a tensor that rests on the host, or the tensor itself. On a CPU the copies are made too.
    fn of(tensor: &Tensor, device: Device, offloaded: bool) -> Self {
        if !offloaded {
            return Self { tensor: tensor.shallow_clone(), home: None };
        }
        let mut copy = Tensor::empty(tensor.size(), (tensor.kind(), device));
        copy.copy_(tensor);
        Self { tensor: copy, home: Some(tensor.shallow_clone()) }
    }

    fn put_back(self) {
        if let Some(mut home) = self.home {
            home.copy_(&self.tensor);
        }
    }
}
