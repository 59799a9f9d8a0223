//! The optimizer's tensors that rest in the host's memory (`update.offload`) in a plan: what a GPU no longer holds, what a step
//! needs there, and what the host holds instead.

use serde::Serialize;

use super::format::bytes;
use super::hardware::Hardware;
use super::units::UnitTensors;
use crate::recipe::Offload;

/// Bytes of a network's tensors that rest on the host of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Offloaded {
    pub master_weights: u64,
    /// The optimizer's state.
    pub state: u64,
    /// Those of the largest unit, of which a step has a copy on the device.
    pub staged: u64,
    /// The host's memory that they take: libtorch rounds each pinned tensor up to a power of two.
    pub host: u64,
}

impl Offloaded {
    /// Those of a network with these units; on a CPU they are not pinned.
    pub fn new(units: &[UnitTensors], offload: Offload, cpu: bool) -> Self {
        let mut offloaded = Self::default();
        if offload == Offload::None {
            return offloaded;
        }
        for UnitTensors { count, master_weights, state } in units {
            let moved = if offload == Offload::All { *master_weights } else { 0 };
            let pinned = |bytes: u64| if cpu || bytes == 0 { bytes } else { bytes.next_power_of_two() };
            offloaded.master_weights += count * moved;
            offloaded.state += count * state.iter().sum::<u64>();
            offloaded.staged = offloaded.staged.max(moved + state.iter().sum::<u64>());
            offloaded.host += count * state.iter().chain([&moved]).copied().map(pinned).sum::<u64>();
        }
        offloaded
    }

    /// Seconds that a step takes to copy them to the device and back.
    pub fn seconds(&self, hardware: &Hardware) -> f64 {
        2.0 * (self.master_weights + self.state) as f64 / hardware.host_rate
    }
}

/// Warns where the ranks of a machine have more to rest on the host than it has `available`.
pub fn host_warning(offloaded: &Offloaded, ranks: u64, available: u64) -> Option<String> {
    let needed = offloaded.host * ranks;
    (needed > available).then(|| {
        format!(
            "update.offload keeps {} in the host's memory, and {} are free: use more machines, or leave more on the GPUs",
            bytes(needed),
            bytes(available)
        )
    })
}

impl std::ops::Add for Offloaded {
    type Output = Self;

    /// Those of two networks, which step one after the other.
    fn add(self, other: Self) -> Self {
        Self {
            master_weights: self.master_weights + other.master_weights,
            state: self.state + other.state,
            staged: self.staged.max(other.staged),
            host: self.host + other.host,
        }
    }
}
