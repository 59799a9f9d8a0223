//! The devices of this machine: its GPUs as the driver names them, or its CPU.

use nestor_args::Gpu;
use nvml_wrapper::Nvml;
use serde::Serialize;
use tch::Kind;

use super::hardware::Hardware;
use crate::recipe::DeviceChoice;

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Card {
    /// As the driver names it.
    pub name: String,
    /// Bytes.
    pub memory: u64,
}

impl Card {
    /// The known device with the nearest rates: the one that the name holds, else the one with the nearest memory.
    fn nearest(&self) -> Gpu {
        let named = |model: &str| self.name.contains(model);
        match (named("H200"), named("H100")) {
            (true, _) => Gpu::H200,
            (_, true) => Gpu::H100,
            _ => [Gpu::H100, Gpu::H200]
                .into_iter()
                .min_by_key(|gpu| Hardware::of(*gpu, Kind::BFloat16).memory.abs_diff(self.memory))
                .unwrap_or(Gpu::H100),
        }
    }
}

/// The GPUs that libtorch sees here, smallest memory first.
pub fn cards() -> Vec<Card> {
    let visible = tch::Cuda::device_count().max(0) as usize;
    let Some(nvml) = (visible > 0).then(Nvml::init).and_then(Result::ok) else { return Vec::new() };
    let card = |index| {
        let device = nvml.device_by_index(index).ok()?;
        Some(Card { name: device.name().ok()?, memory: device.memory_info().ok()?.total })
    };
    let mut cards: Vec<Card> = (0..nvml.device_count().unwrap_or(0)).filter_map(card).collect();
    cards.sort_by_key(|card| card.memory);
    cards.truncate(visible);
    cards
}

/// The device that a plan is for, and its name.
#[derive(Debug, Clone)]
pub struct Target {
    pub hardware: Hardware,
    pub name: String,
    /// GPUs of this machine, if the plan is for them.
    pub here: u64,
}

/// Chooses the device of a plan: the one asked for, else this machine's GPUs where the recipe may use them, else its CPU.
/// `memory` in bytes replaces the device's own.
pub fn target(asked: Option<Gpu>, device: DeviceChoice, kind: Kind, memory: Option<u64>) -> Target {
    let cards = if asked.is_none() && device != DeviceChoice::Cpu { cards() } else { Vec::new() };
    let mut target = chosen(asked, &cards, kind);
    target.hardware.memory = memory.unwrap_or(target.hardware.memory);
    target
}

fn chosen(asked: Option<Gpu>, cards: &[Card], kind: Kind) -> Target {
    match (asked, cards.first()) {
        (None, Some(card)) => {
            let nearest = card.nearest();
            let hardware = Hardware { memory: card.memory, ..Hardware::of(nearest, kind) };
            let rates = if card.name.contains(["H100", "H200"][usize::from(nearest == Gpu::H200)]) {
                String::new()
            } else {
                format!(", at the rates of an {nearest}")
            };
            Target { hardware, name: format!("{}{rates}", card.name), here: cards.len() as u64 }
        }
        (asked, _) => {
            let gpu = asked.unwrap_or(Gpu::Cpu);
            Target { hardware: Hardware::of(gpu, kind), name: gpu.to_string(), here: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_own_memory_and_the_nearest_rates() {
        let card = |name: &str, gb: u64| Card { name: name.into(), memory: gb * 1_000_000_000 };
        let plan = |card| chosen(None, &[card], Kind::BFloat16);
        let h200 = plan(card("NVIDIA H200", 150));
        assert_eq!(
            (h200.hardware.gpu, h200.hardware.memory, &h200.name[..]),
            (Gpu::H200, 150_000_000_000, "NVIDIA H200")
        );
        assert_eq!(plan(card("NVIDIA H100 NVL", 100)).hardware.gpu, Gpu::H100);
        let other = plan(card("NVIDIA A100-SXM4-80GB", 85));
        assert_eq!((other.hardware.gpu, other.hardware.memory), (Gpu::H100, 85_000_000_000));
        assert!(other.name.ends_with("at the rates of an H100 80 GB"), "{}", other.name);
        let asked = chosen(Some(Gpu::Cpu), &[card("NVIDIA H200", 150)], Kind::BFloat16);
        assert_eq!((asked.hardware.gpu, asked.here), (Gpu::Cpu, 0));
        assert_eq!(chosen(None, &[], Kind::BFloat16).hardware.gpu, Gpu::Cpu);
    }
}
