//! The optimizer's step, on any device: `cpp/adamw.cpp`.

use std::ffi::{c_char, c_int};

use anyhow::{Result, ensure};
use tch::Tensor;

use super::{TensorPtr, call};

unsafe extern "C" {
    fn nestor_adamw(
        n: usize,
        params: *const TensorPtr,
        grads: *const TensorPtr,
        exp_avgs: *const TensorPtr,
        exp_avg_sqs: *const TensorPtr,
        copies: *const TensorPtr,
        divisor: f64,
        steps: i64,
        options: *const AdamW,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// Settings of one AdamW step (decoupled weight decay, bias correction as in `torch.optim.AdamW`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
}

/// The tensors of one AdamW step: lists of equal length, each entry one (flat) parameter.
#[derive(Debug)]
pub struct AdamWState<'a> {
    /// Parameters, changed in place.
    pub params: &'a [Tensor],
    /// May be overwritten.
    pub grads: &'a [Tensor],
    /// First moments, changed in place.
    pub exp_avgs: &'a [Tensor],
    /// Second moments, changed in place.
    pub exp_avg_sqs: &'a [Tensor],
    /// Get the new parameters, each in the copy's own type.
    pub copies: Option<&'a [Tensor]>,
    /// Divisor of the gradients, applied first.
    pub divisor: f64,
    /// Number of steps, with this one.
    pub steps: u64,
}

/// Makes one AdamW step in place. Where the device has this program's kernel, the copies are written in the same pass over
/// memory.
///
/// # Errors
/// When lists differ in length or shapes.
pub fn adamw(state: &AdamWState, options: &AdamW) -> Result<()> {
    let n = state.params.len();
    for others in [state.grads, state.exp_avgs, state.exp_avg_sqs].into_iter().chain(state.copies) {
        ensure!(others.len() == n, "AdamW needs lists of one length, got {} and {n}", others.len());
        for (param, other) in state.params.iter().zip(others) {
            let (want, got) = (param.size(), other.size());
            ensure!(want == got, "AdamW needs tensors of one shape, got {want:?} and {got:?}");
        }
    }
    let pointers = |list: &[Tensor]| list.iter().map(Tensor::as_ptr).collect::<Vec<TensorPtr>>();
    let (params, grads) = (pointers(state.params), pointers(state.grads));
    let (exp_avgs, exp_avg_sqs) = (pointers(state.exp_avgs), pointers(state.exp_avg_sqs));
    let copies = state.copies.map(pointers);
    call(|message, size| {
        // SAFETY: the arrays hold n pointers to live tensors each (checked above, borrowed from `state`), and the C++ side
        // keeps none of them after the call.
        unsafe {
            nestor_adamw(
                n,
                params.as_ptr(),
                grads.as_ptr(),
                exp_avgs.as_ptr(),
                exp_avg_sqs.as_ptr(),
                copies.as_ref().map_or(std::ptr::null(), |copies| copies.as_ptr()),
                state.divisor,
                state.steps as i64,
                options,
                message,
                size,
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    const OPTIONS: AdamW = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay: 0.01, eps: 1e-8 };

    /// Expected values from PyTorch 2.11:
    /// ```python
    /// p = torch.tensor([1., -2., 3.], requires_grad=True)
    /// o = torch.optim.AdamW([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    /// for g in ([.5, .1, -1.], [.2, -.3, 0.]): p.grad = torch.tensor(g); o.step()
    /// print(p.tolist())
    /// ```
    #[test]
    fn two_steps_equal_pytorch() {
        let f = |v: [f32; 3]| Tensor::from_slice(&v);
        let params = [f([1., -2., 3.])];
        let moments = [[f([0.; 3])], [f([0.; 3])]];
        let copies = [f([0.; 3]).to_kind(Kind::BFloat16)];
        for (steps, g) in [(1, f([0.5, 0.1, -1.0])), (2, f([0.2, -0.3, 0.0]))] {
            let state = AdamWState {
                params: &params,
                grads: &[g * 4.0],
                exp_avgs: &moments[0],
                exp_avg_sqs: &moments[1],
                copies: Some(&copies),
                divisor: 4.0,
                steps,
            };
            adamw(&state, &OPTIONS).expect("adamw");
        }
        let got = Vec::<f32>::try_from(&params[0]).expect("values");
        for (got, want) in got.iter().zip(EXPECTED) {
            assert!((got - want).abs() < 1e-6, "{got} != {want}");
        }
        assert!(copies[0] == params[0].to_kind(Kind::BFloat16));
    }

    const EXPECTED: [f32; 3] = [0.808_095_8, -2.046_572_2, 3.161_060_8];

    #[test]
    fn a_wrong_shape_is_an_error() {
        let t = |n: i64| Tensor::zeros([n], (Kind::Float, Device::Cpu));
        let state = AdamWState {
            params: &[t(3)],
            grads: &[t(2)],
            exp_avgs: &[t(3)],
            exp_avg_sqs: &[t(3)],
            copies: None,
            divisor: 1.0,
            steps: 1,
        };
        assert!(adamw(&state, &OPTIONS).is_err());
    }
}
