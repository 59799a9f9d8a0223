//! Statistics of logits and their gradient by this program's kernels: `cuda/head_statistics.cu` and `cuda/head_gradient.cu`.

use std::ffi::{c_char, c_int};

use tch::{Kind, Tensor};

use super::{TensorPtr, must};

unsafe extern "C" {
    fn nestor_head_statistics(
        logits: TensorPtr,
        targets: TensorPtr,
        temperature: f64,
        logprobs: TensorPtr,
        statistics: TensorPtr,
        done: *mut bool,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_head_gradient(
        logits: TensorPtr,
        targets: TensorPtr,
        temperature: f64,
        statistics: TensorPtr,
        by_logprob: TensorPtr,
        by_entropy: TensorPtr,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// Log-probs of targets under softmax(logits / temperature), with the statistics that the gradient needs. One reading of the
/// logits, and one more for the gradient.
#[derive(Debug)]
pub struct HeadStatistics {
    /// Log-probs of the targets, float32 (n).
    pub logprobs: Tensor,
    /// Largest logit over the temperature, log of the sum, and entropy of each row, float32 (n, 3).
    statistics: Tensor,
    targets: Tensor,
    size: [i64; 2],
    temperature: f64,
}

impl HeadStatistics {
    /// Computes the statistics of logits (n, V), contiguous, at targets (n), each less than V. None where the device has no
    /// kernel for it.
    ///
    /// # Panics
    /// When shapes or types do not fit.
    pub fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Option<Self> {
        let &[n, vocabulary] = &logits.size()[..] else { panic!("logits have two dimensions") };
        let fits = targets.size() == [n] && targets.kind() == Kind::Int64 && targets.device() == logits.device();
        assert!(fits && logits.is_contiguous() && i32::try_from(vocabulary).is_ok(), "a target for each of {n} rows");
        let float = (Kind::Float, logits.device());
        let (logprobs, statistics) = (Tensor::empty([n], float), Tensor::empty([n, 3], float));
        let targets = targets.contiguous();
        let mut done = false;
        // SAFETY: the tensors live through the call and have the sizes and types that the kernel takes. It trusts each target
        // to be a token, as tch's `gather` trusts its indices on CUDA.
        must(|message, size| unsafe {
            nestor_head_statistics(
                logits.as_ptr(),
                targets.as_ptr(),
                temperature,
                logprobs.as_ptr(),
                statistics.as_ptr(),
                &mut done,
                message,
                size,
            )
        });
        done.then(|| Self { logprobs, statistics, targets, size: [n, vocabulary], temperature })
    }

    /// Entropies, float32 (n).
    pub fn entropy(&self) -> Tensor {
        self.statistics.select(1, 2)
    }

    /// Overwrites the same logits with the gradient of the sum of by_logprob * logprob + by_entropy * entropy; each (n).
    ///
    /// # Panics
    /// When these are not tensors of the sizes that the statistics were made of.
    pub fn backward(&self, logits: &mut Tensor, by_logprob: &Tensor, by_entropy: Option<&Tensor>) {
        assert!(logits.size() == self.size && logits.is_contiguous() && logits.device() == self.targets.device());
        let float = |by: &Tensor| by.to_kind(Kind::Float).contiguous();
        let (by_logprob, by_entropy) = (float(by_logprob), by_entropy.map(float));
        for by in [Some(&by_logprob), by_entropy.as_ref()].into_iter().flatten() {
            assert!(by.size() == [self.size[0]] && by.device() == logits.device(), "one gradient a row");
        }
        // SAFETY: as above.
        must(|message, size| unsafe {
            nestor_head_gradient(
                logits.as_ptr(),
                self.targets.as_ptr(),
                self.temperature,
                self.statistics.as_ptr(),
                by_logprob.as_ptr(),
                by_entropy.as_ref().map_or(std::ptr::null(), |by| by.as_ptr()),
                message,
                size,
            )
        });
    }
}
