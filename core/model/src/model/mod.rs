//! The network: its configuration, its weights in files, and the forward pass that all architectures share.

pub mod arch;
pub mod config;
mod config_json;
pub mod decoder;
mod fields;
pub mod flops;
pub mod header;
pub mod hub;
pub mod images;
pub mod linear;
pub mod new;
pub mod new_folder;
pub mod rope;
pub mod rope_scaling;
pub mod stored;
pub mod unit_weights;
mod views;
pub mod vision;
mod vision_config;
mod vision_settings;
pub mod weight_files;
pub mod weights;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use nestor_torch::kernels::LeftOut;
use nestor_torch::{cuda, kernels};
use tch::{Device, Kind};

pub use config::Config;
pub use decoder::Model;
pub use rope::Rope;
pub use vision_config::VisionConfig;

use crate::input_error;
use crate::recipe::{DeviceChoice, Dtype, Recipe};
use crate::terminal;

/// The tensor type of a compute type.
pub fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::Float32 => Kind::Float,
        Dtype::Bfloat16 => Kind::BFloat16,
        Dtype::Float16 => Kind::Half,
    }
}

/// A type of stored weights, under the names of three libraries.
#[derive(Debug)]
pub struct StoredType {
    /// In libtorch.
    pub kind: Kind,
    /// In safetensors.
    pub dtype: safetensors::Dtype,
    /// In `config.json`.
    pub name: &'static str,
}

impl StoredType {
    /// All stored types.
    pub const ALL: &'static [Self] = &[
        Self { kind: Kind::Float, dtype: safetensors::Dtype::F32, name: "float32" },
        Self { kind: Kind::BFloat16, dtype: safetensors::Dtype::BF16, name: "bfloat16" },
        Self { kind: Kind::Half, dtype: safetensors::Dtype::F16, name: "float16" },
    ];

    /// The stored type of a tensor type.
    pub fn of(kind: Kind) -> Result<&'static Self> {
        Self::ALL.iter().find(|stored| stored.kind == kind).with_context(|| format!("no model is stored as {kind:?}"))
    }
}

/// The name of a device in JSON and on the console: `cpu` or `cuda:0`.
pub fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(number) => format!("cuda:{number}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The chosen device; an error if it does not exist.
pub fn device(choice: DeviceChoice) -> Result<Device> {
    rank_device(choice, 0)
}

/// The chosen device of the rank of this number on its machine. If it is a GPU, libtorch is set up for it here, before its
/// first tensor.
///
/// The device's kernels are tested here too. Those that fail are left out, with a warning.
pub fn rank_device(choice: DeviceChoice, local_rank: usize) -> Result<Device> {
    let device = untested_device(choice, local_rank)?;
    let left_out = kernels::self_test(device, |_| ())?;
    if !left_out.is_empty() {
        terminal::warn(&kernel_warning(&left_out, kernels::names().len()));
    }
    Ok(device)
}

/// One line for all kernels that are left out, of `all` that there are.
fn kernel_warning(left_out: &[LeftOut], all: usize) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    left_out.iter().for_each(|one| by_reason.entry(&one.reason).or_default().push(&one.kernel));
    if let (1, Some(reason)) = (by_reason.len(), by_reason.keys().next().filter(|_| left_out.len() == all)) {
        return format!("warning: libtorch computes in place of Nestor's kernels, which is slower: {reason}");
    }
    let reasons: Vec<_> = by_reason.iter().map(|(reason, names)| format!("{} ({reason})", names.join(", "))).collect();
    format!("warning: libtorch computes in place of these kernels: {}", reasons.join("; "))
}

/// The same before the test of its kernels.
pub fn untested_device(choice: DeviceChoice, local_rank: usize) -> Result<Device> {
    if let Some(word) = kernels::unknown_choice() {
        return Err(input_error!(
            "NESTOR_KERNELS must be none, or a list such as -sample_token_bf16,-adamw_f32; it has {word:?}, which leaves out \
             no kernel (`nestor bench kernels` names them)"
        ));
    }
    nestor_torch::choose_math();
    match (choice, tch::Cuda::is_available()) {
        (DeviceChoice::Cpu, _) | (DeviceChoice::Auto, false) => Ok(Device::Cpu),
        (DeviceChoice::Cuda | DeviceChoice::Auto, true) => {
            let gpu = visible_gpu(local_rank, tch::Cuda::device_count() as usize)?;
            cuda::prepare()?;
            Ok(Device::Cuda(gpu))
        }
        (DeviceChoice::Cuda, false) => {
            Err(input_error!("device cuda is asked for, but libtorch finds no GPU: use cpu or auto"))
        }
    }
}

/// The GPU of the rank of this number on its machine, among those that its process sees. A process that sees one takes
/// it, since whoever started it chose it.
fn visible_gpu(local_rank: usize, visible: usize) -> Result<usize> {
    match visible {
        1 => Ok(0),
        _ if local_rank < visible => Ok(local_rank),
        _ => Err(input_error!(
            "this is rank {local_rank} of its machine and sees {visible} GPUs: start one rank for each GPU, or show each \
             rank its own (srun --gpus-per-task 1, or CUDA_VISIBLE_DEVICES)"
        )),
    }
}

/// The recipe's device for the rank of this number on its machine. If the recipe is deterministic, the process computes
/// deterministically from here on.
pub fn prepare(recipe: &Recipe, local_rank: usize) -> Result<Device> {
    let device = rank_device(recipe.device, local_rank)?;
    if recipe.deterministic {
        if device.is_cuda() {
            return Err(input_error!(
                "recipe key `deterministic`: bit-identical runs are for the CPU in this version; set device to cpu"
            ));
        }
        make_deterministic()?;
    }
    Ok(device)
}

/// Makes the rest of the process compute the same bits from the same input: deterministic kernels, and one thread on a
/// CPU, because the split of a product over threads changes its last bits with the number of rows.
pub fn make_deterministic() -> Result<()> {
    tch::set_num_threads(1);
    nestor_torch::set_deterministic(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_names_of_recipes() {
        assert_eq!([Device::Cpu, Device::Cuda(0), Device::Cuda(3)].map(device_name), ["cpu", "cuda:0", "cuda:3"]);
    }

    #[test]
    fn a_rank_takes_its_gpu_among_the_visible_ones() {
        // Number on the machine, visible GPUs, the GPU: one that each task sees alone, one of many, too few.
        let cases = [
            (0, 1, Some(0)),
            (7, 1, Some(0)),
            (0, 4, Some(0)),
            (3, 4, Some(3)),
            (4, 4, None),
            (2, 2, None),
            (0, 0, None),
        ];
        for (local_rank, visible, gpu) in cases {
            assert_eq!(visible_gpu(local_rank, visible).ok(), gpu, "rank {local_rank} of {visible} GPUs");
        }
        let error = visible_gpu(2, 2).expect_err("too few");
        assert!(error.to_string().contains("rank 2 of its machine and sees 2 GPUs"), "{error}");
    }
}
