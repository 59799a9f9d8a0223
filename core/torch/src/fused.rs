//! The network's small operations on a CPU, each one pass over memory, with their gradients: `cpp/fused.cpp`,
//! `cpp/softmax.cpp`, `cpp/attention.cpp` and `cpp/products.cpp`.
//!
//! They panic where shapes or types do not fit, as tch's own operations do.
//!
//! T tokens, N heads, D elements of a row or head, F elements of gate and of up, V vocabulary.

use std::ffi::{c_char, c_int};

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use super::packed::PackedSequence;
use super::{TensorPtr, call, host, made, must};

unsafe extern "C" {
    fn nestor_rms_norm(
        x: TensorPtr,
        weight: TensorPtr,
        eps: f64,
        y: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_rotate(
        x: TensorPtr,
        cos: TensorPtr,
        sin: TensorPtr,
        heads: i64,
        kv_heads: i64,
        parts: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_silu_mul(x: TensorPtr, y: *mut *mut C_tensor, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_softmax(
        logits: TensorPtr,
        targets: TensorPtr,
        temperature: f64,
        logprobs: TensorPtr,
        stats: TensorPtr,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_softmax_grad(
        logits: TensorPtr,
        targets: TensorPtr,
        temperature: f64,
        stats: TensorPtr,
        grad_logprobs: TensorPtr,
        grad_entropy: TensorPtr,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_products_library(library: *mut c_int, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_attend(
        q: TensorPtr,
        k: TensorPtr,
        v: TensorPtr,
        n: usize,
        own: *const i64,
        counts: *const i64,
        pieces: *const i64,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_add_product(
        sum: TensorPtr,
        a: TensorPtr,
        b: TensorPtr,
        first: bool,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_cuda_free(index: i64, free: *mut u64, message: *mut c_char, message_size: usize) -> c_int;
}

/// Returns true if these operations take tensors like this one.
pub fn takes(x: &Tensor) -> bool {
    x.device() == Device::Cpu && matches!(x.kind(), Kind::Float | Kind::BFloat16)
}

/// x / rms(x) * weight over the last dimension: (T, D) with weight (D), or (T, N, D) with weight (N, D).
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let (size, by) = (x.size(), weight.size());
    assert!(takes(x) && takes(weight) && x.kind() == weight.kind(), "rms_norm needs CPU tensors of one type");
    assert!(size.len() >= 2 && size[1..] == by[..], "rms_norm needs a weight for {size:?}, got {by:?}");
    // SAFETY: the tensors live through the call; their shapes and types are checked.
    let [y] = made(|y, message, n| unsafe { nestor_rms_norm(x.as_ptr(), weight.as_ptr(), eps, y, message, n) });
    y
}

/// Applies the rotary embedding, cos and sin (T, 1, D), to queries and keys in one tensor (T, H + K, D): queries (T, H, D)
/// and keys (T, K, D).
pub fn rotate(x: &Tensor, tables: [&Tensor; 2], heads: i64) -> [Tensor; 2] {
    rotated(x, tables, heads, x.size()[1] - heads)
}

/// The same for queries, keys and values in one tensor (T, H + 2K, D); values are copied unchanged.
pub fn rotate_qkv(x: &Tensor, tables: [&Tensor; 2], heads: i64) -> [Tensor; 3] {
    rotated(x, tables, heads, (x.size()[1] - heads) / 2)
}

fn rotated<const N: usize>(x: &Tensor, [cos, sin]: [&Tensor; 2], heads: i64, kv_heads: i64) -> [Tensor; N] {
    let size = x.size();
    let &[t, n, dim] = &size[..] else { panic!("rotate needs (T, N, D), got {size:?}") };
    assert!(takes(x) && heads > 0 && kv_heads > 0, "rotate needs heads on a CPU");
    assert!(
        n == heads + (N as i64 - 1) * kv_heads && dim % 2 == 0,
        "{n} heads of {dim} are not {heads} and {kv_heads}"
    );
    for table in [cos, sin] {
        let fits = table.size() == [t, 1, dim] && table.kind() == x.kind() && table.is_contiguous();
        assert!(fits && table.device() == x.device(), "rotate needs a table for {t} tokens of {dim}");
    }
    // SAFETY: as above, and by the check of `n` there are N parts.
    made(|parts, message, n| unsafe {
        nestor_rotate(x.as_ptr(), cos.as_ptr(), sin.as_ptr(), heads, kv_heads, parts, message, n)
    })
}

/// silu(gate) * up, with gate and up in one tensor (T, 2F): (T, F).
pub fn silu_mul(x: &Tensor) -> Tensor {
    assert!(takes(x) && x.dim() == 2 && x.size()[1] % 2 == 0, "silu_mul needs gate and up on a CPU");
    // SAFETY: as above.
    let [y] = made(|y, message, n| unsafe { nestor_silu_mul(x.as_ptr(), y, message, n) });
    y
}

/// Returns true if [`attend`] and [`add_product`] work on this device.
pub fn has_products(device: Device) -> bool {
    device == Device::Cpu
}

/// Name of the library that multiplies matrices for [`attend`] and [`add_product`]: `mkl`, `onednn` or `float32`. It is that of
/// `NESTOR_PRODUCTS`, else the best for this CPU.
pub fn product_library() -> Result<&'static str> {
    let mut library = 0;
    // SAFETY: writes one number.
    call(|message, size| unsafe { nestor_products_library(&mut library, message, size) })?;
    // The order of `Library` in `cpp/products.h`.
    Ok(["mkl", "onednn", "float32"][library as usize])
}

/// Causal attention over packed sequences, each over itself: queries (T, H, D), keys and values (T, K, D) to
/// (T, H, D).
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, sequences: &[PackedSequence]) -> Tensor {
    let (tokens, wide, narrow) = (q.size()[0], q.size(), k.size());
    let fits = wide.len() == 3 && narrow.len() == 3 && narrow[1] > 0 && wide[1] % narrow[1] == 0 && v.size() == narrow;
    assert!(fits && wide[2] == narrow[2] && narrow[0] == tokens, "attention of {wide:?} to {narrow:?}");
    let own: Vec<i64> = sequences.iter().map(|sequence| sequence.own).collect();
    assert!(own.iter().all(|&n| n > 0) && own.iter().sum::<i64>() == tokens, "lengths that do not add up");
    let counts: Vec<i64> = sequences.iter().map(|sequence| sequence.prefix.len() as i64).collect();
    let pieces = sequences.iter().flat_map(|sequence| &sequence.prefix);
    let pieces: Vec<[i64; 2]> = pieces.map(|piece| [piece.start, piece.end - piece.start]).collect();
    for x in [q, k, v] {
        assert!(
            takes(x) && x.kind() == q.kind() && has_products(x.device()),
            "attention needs CPU tensors of one type"
        );
    }
    // SAFETY: as above; `counts` has as many numbers as `own`, and `pieces` two for each piece that it counts. The operation
    // checks that every piece is one of earlier tokens.
    let [out] = made(|out, message, size| unsafe {
        let (q, k, v, pieces) = (q.as_ptr(), k.as_ptr(), v.as_ptr(), pieces.as_flattened().as_ptr());
        nestor_attend(q, k, v, own.len(), own.as_ptr(), counts.as_ptr(), pieces, out, message, size)
    });
    out
}

/// Writes aᵀ b to a float32 `sum` (n, m), with a (T, n) and b (T, m): a weight's gradient. Adds it to what the sum holds unless it
/// is `first`. The rows of the sum may be apart.
pub fn add_product(sum: &Tensor, a: &Tensor, b: &Tensor, first: bool) {
    let (rows, columns, to) = (a.size(), b.size(), sum.size());
    assert!(rows.len() == 2 && columns.len() == 2 && rows[0] == columns[0] && to == [rows[1], columns[1]]);
    assert!(takes(a) && takes(b) && a.kind() == b.kind() && has_products(b.device()), "CPU tensors of one type");
    let by_rows = to[0] * to[1] == 0 || sum.is_contiguous() || (sum.stride()[1] == 1 && sum.stride()[0] >= to[1]);
    assert!(sum.kind() == Kind::Float && by_rows && sum.device() == Device::Cpu, "a float32 sum");
    // SAFETY: as above.
    must(|message, size| unsafe { nestor_add_product(sum.as_ptr(), a.as_ptr(), b.as_ptr(), first, message, size) });
}

/// Log-probs of targets under softmax(logits / temperature), with the statistics that the gradient needs.
#[derive(Debug)]
pub struct FusedSoftmax {
    /// Log-probs of the targets, float32 (n).
    pub logprobs: Tensor,
    /// Largest logit, log of the sum, and entropy of each row, float32 (n, 3).
    stats: Tensor,
    targets: Tensor,
    vocabulary: i64,
    temperature: f64,
}

impl FusedSoftmax {
    /// Computes the statistics of logits (n, V) at targets (n), which must be less than V.
    pub fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        let size = logits.size();
        let &[n, vocabulary] = &size[..] else { panic!("softmax needs (n, V), got {size:?}") };
        assert!(takes(logits) && logits.is_contiguous(), "softmax needs contiguous logits on a CPU");
        assert!(targets.size() == [n] && targets.kind() == Kind::Int64 && targets.is_contiguous(), "one target a row");
        if n > 0 {
            let (least, most) = (targets.min().int64_value(&[]), targets.max().int64_value(&[]));
            assert!(0 <= least && most < vocabulary, "targets {least} to {most} of {vocabulary}");
        }
        let room = |shape: &[i64]| Tensor::empty(shape, (Kind::Float, Device::Cpu));
        let (logprobs, stats) = (room(&[n]), room(&[n, 3]));
        // SAFETY: as above; targets index inside a row by the check, and the results have the sizes that are written.
        must(|message, size| unsafe {
            let (logits, targets) = (logits.as_ptr(), targets.as_ptr());
            nestor_softmax(logits, targets, temperature, logprobs.as_ptr(), stats.as_ptr(), message, size)
        });
        Self { logprobs, stats, targets: targets.shallow_clone(), vocabulary, temperature }
    }

    /// Entropies, float32 (n).
    pub fn entropy(&self) -> Tensor {
        self.stats.select(1, 2)
    }

    /// Turns the logits, in place, into the gradient of the sum of `logprobs` times the log-probs, and of `entropy` times
    /// the entropies.
    pub fn backward(&self, logits: &mut Tensor, logprobs: &Tensor, entropy: Option<&Tensor>) {
        let n = self.targets.size()[0];
        let same = logits.size() == [n, self.vocabulary] && logits.is_contiguous();
        assert!(takes(logits) && same, "these are not the logits that the statistics were made of");
        let logprobs = logprobs.to_kind(Kind::Float).contiguous();
        let entropy = entropy.map(|entropy| entropy.to_kind(Kind::Float).contiguous());
        for gradient in [Some(&logprobs), entropy.as_ref()].into_iter().flatten() {
            assert!(gradient.size() == [n] && gradient.device() == Device::Cpu, "one gradient a row");
        }
        // SAFETY: as above; the vocabulary is the one that the targets were checked against.
        must(|message, size| unsafe {
            nestor_softmax_grad(
                logits.as_ptr(),
                self.targets.as_ptr(),
                self.temperature,
                self.stats.as_ptr(),
                logprobs.as_ptr(),
                entropy.as_ref().map_or(std::ptr::null(), |entropy| entropy.as_ptr()),
                message,
                size,
            )
        });
    }
}

/// Bytes that this process may still allocate on a device: free memory, and on a GPU also libtorch's cached memory. None
/// if the system gives no figure.
pub fn free_bytes(device: Device) -> Option<u64> {
    match device {
        Device::Cpu => host::available_bytes(),
        Device::Cuda(index) => {
            let mut free = 0;
            // SAFETY: writes one number.
            call(|message, size| unsafe { nestor_cuda_free(index as i64, &mut free, message, size) }).ok()?;
            Some(free)
        }
        _ => None,
    }
}
