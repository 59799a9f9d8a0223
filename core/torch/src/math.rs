//! Elementary functions of libtorch on a CPU.

use std::sync::Once;

use tch::{Device, Kind, Tensor};

/// The functions that libtorch takes from the vector library of MKL (`ATen/cpu/vml.h`).
const FUNCTIONS: [fn(&Tensor) -> Tensor; 16] = [
    Tensor::acos,
    Tensor::asin,
    Tensor::atan,
    Tensor::cos,
    Tensor::erf,
    Tensor::erfc,
    Tensor::erfinv,
    Tensor::exp,
    Tensor::log,
    Tensor::log10,
    Tensor::log2,
    Tensor::sin,
    Tensor::sqrt,
    Tensor::tan,
    Tensor::tanh,
    Tensor::trunc,
];

/// Calls each function once, so that later calls have their full precision on every thread.
///
/// MKL chooses the code of a function at its first call. While several threads make that call, one of them may compute all of its
/// values with an error of 1e-4 (pytorch/pytorch#188792), and a run would differ from its repetition. A process calls this before its
/// first other arithmetic. Further calls do nothing.
pub fn choose_math() {
    static CHOSEN: Once = Once::new();
    CHOSEN.call_once(|| {
        for kind in [Kind::Float, Kind::Double] {
            let x = Tensor::full([1], 0.5, (kind, Device::Cpu));
            FUNCTIONS.iter().for_each(|function| drop(function(&x)));
        }
    });
}
