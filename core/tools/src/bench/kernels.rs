//! The test of the own kernels that every start makes, on its own: its results and its time.

use std::time::Instant;

use anyhow::Result;
use nestor_torch::kernels as own;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::model::untested_device;
use crate::recipe::DeviceChoice;

/// Tests the kernels of a device: the names of those that operations launch there, those that are left out with their reasons,
/// and the milliseconds from loading to the last result.
///
/// With `verbose` it names each kernel on standard error before its test, which shows the one that hangs.
pub fn kernels(choice: DeviceChoice, verbose: bool) -> Result<Value> {
    let device = untested_device(choice, 0)?;
    // A device takes its time for the first tensor, whoever makes it.
    Tensor::ones([1], (Kind::Float, device)).double_value(&[0]);
    let begin = Instant::now();
    let left_out = own::self_test(device, |kernel| {
        if verbose {
            eprintln!("testing {kernel}");
        }
    })?;
    let ms = 1e3 * begin.elapsed().as_secs_f64();
    let left_out: Vec<Value> =
        left_out.into_iter().map(|one| json!({ "kernel": one.kernel, "reason": one.reason })).collect();
    let kernels: Vec<String> = own::names().into_iter().filter(|name| own::has(name, device)).collect();
    Ok(json!({
        "work": "kernels",
        "device": if device.is_cuda() { "cuda" } else { "cpu" },
        "kernels": kernels,
        "left_out": left_out,
        "code": own::code_of(device),
        "ms": ms,
    }))
}
