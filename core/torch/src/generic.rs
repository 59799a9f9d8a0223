//! The network's operations by libtorch's own, on any device: `cpp/generic.cpp` and `cpp/norm.cpp`. Those that only CUDA has
//! are in `cpp/cuda_ops.cpp`; on a CPU public operations take their place. Own kernels take the place of both where the
//! device has them: [`crate::kernels`].
//!
//! They panic where shapes or types do not fit, as tch's own operations do.
//!
//! T tokens, N heads, D elements of a head, F elements of gate and of up.

use std::ffi::{c_char, c_int};

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use super::{TensorPtr, made, must};

unsafe extern "C" {
    fn nestor_generic_rms_norm(
        x: TensorPtr,
        weight: TensorPtr,
        eps: f64,
        y: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_generic_add_norm(
        x: TensorPtr,
        y: TensorPtr,
        weight: TensorPtr,
        eps: f64,
        sum_and_norm: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_generic_rotate(
        x: TensorPtr,
        cos: TensorPtr,
        sin: TensorPtr,
        rotated: i64,
        y: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_generic_silu_mul(x: TensorPtr, y: *mut *mut C_tensor, message: *mut c_char, message_size: usize)
    -> c_int;
    fn nestor_varlen_attention(
        q: TensorPtr,
        k: TensorPtr,
        v: TensorPtr,
        query_starts: TensorPtr,
        longest_query: i64,
        key_starts: TensorPtr,
        key_used: TensorPtr,
        longest_key: i64,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_decode_attention(
        q: TensorPtr,
        cache: TensorPtr,
        page_table: TensorPtr,
        lengths: TensorPtr,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_logits(
        x: TensorPtr,
        weight: TensorPtr,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_generic_add_product(
        sum: TensorPtr,
        a: TensorPtr,
        b: TensorPtr,
        first: bool,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// Sequences that lie end to end on one axis.
#[derive(Debug)]
pub struct Sequences {
    /// First row of each sequence, and the end of the last: (n + 1) int32.
    pub starts: Tensor,
    /// Rows of each sequence that are used, where not all are: (n) int32.
    pub used: Option<Tensor>,
    /// Most used rows of a sequence.
    pub longest: i64,
}

/// x / rms(x) * weight over the last dimension: (T, D) with weight (D), or (T, N, D) with weight (N, D).
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let (size, by) = (x.size(), weight.size());
    assert!(size.len() >= 2 && size[1..] == by[..], "rms_norm needs a weight for {size:?}, got {by:?}");
    // SAFETY: the tensors live through the call; their shapes fit by the check.
    let [y] = made(|y, message, n| unsafe { nestor_generic_rms_norm(x.as_ptr(), weight.as_ptr(), eps, y, message, n) });
    y
}

/// x + y and its norm, (T, E) each, with weight (E).
pub fn add_norm(x: &Tensor, y: &Tensor, weight: &Tensor, eps: f64) -> [Tensor; 2] {
    let (size, by) = (x.size(), weight.size());
    let fits = size.len() == 2 && size[1..] == by[..] && y.size() == size;
    assert!(fits, "add_norm needs two of {size:?} and a weight, got {by:?}");
    // SAFETY: as above.
    made(|both, message, n| unsafe {
        nestor_generic_add_norm(x.as_ptr(), y.as_ptr(), weight.as_ptr(), eps, both, message, n)
    })
}

/// Applies the rotary embedding, cos and sin (T, 1, D), to the first `rotated` heads of x (T, N, D) and leaves the others.
/// Takes x by value, because the result may be in its memory: no other tensor of that memory may be read afterwards.
pub fn rotate(x: Tensor, cos: &Tensor, sin: &Tensor, rotated: i64) -> Tensor {
    let size = x.size();
    let &[t, n, dim] = &size[..] else { panic!("rotate needs (T, N, D), got {size:?}") };
    assert!(0 < rotated && rotated <= n && dim % 2 == 0, "{rotated} heads of {size:?} cannot be rotated");
    for table in [cos, sin] {
        assert!(table.size() == [t, 1, dim] && table.device() == x.device(), "a table for {t} tokens of {dim}");
    }
    // SAFETY: the tensors live through the call; libtorch checks every shape again.
    let [y] = made(|y, message, size| unsafe {
        nestor_generic_rotate(x.as_ptr(), cos.as_ptr(), sin.as_ptr(), rotated, y, message, size)
    });
    y
}

/// silu(gate) * up, with gate and up in one tensor (T, 2F): (T, F).
pub fn silu_mul(x: &Tensor) -> Tensor {
    assert!(x.dim() == 2 && x.size()[1] % 2 == 0, "silu_mul needs gate and up");
    // SAFETY: as above.
    let [y] = made(|y, message, size| unsafe { nestor_generic_silu_mul(x.as_ptr(), y, message, size) });
    y
}

/// Causal attention of packed queries (T, H, D) to packed keys and values (S, K, D), the last query of a sequence to all of
/// its keys: (T, H, D). Queries behind the last sequence are undefined. Without gradients where not all keys are used.
pub fn varlen_attention([q, k, v]: [&Tensor; 3], queries: &Sequences, keys: &Sequences) -> Tensor {
    let (wide, narrow) = (q.size(), k.size());
    let fits = wide.len() == 3 && narrow.len() == 3 && narrow[1] > 0 && wide[1] % narrow[1] == 0 && v.size() == narrow;
    assert!(fits && wide[2] == narrow[2], "attention of {wide:?} to {narrow:?}");
    for starts in [&queries.starts, &keys.starts].into_iter().chain(&keys.used) {
        assert!(starts.kind() == Kind::Int && starts.device() == q.device() && starts.is_contiguous());
    }
    assert!(queries.starts.size() == keys.starts.size(), "as many sequences of queries as of keys");
    // SAFETY: as above. Every start is made from the lengths of these tensors by the caller, as tch's `embedding` trusts its
    // indices on CUDA.
    let [out] = made(|out, message, size| unsafe {
        nestor_varlen_attention(
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            queries.starts.as_ptr(),
            queries.longest,
            keys.starts.as_ptr(),
            keys.used.as_ref().map_or(std::ptr::null(), |used| used.as_ptr()),
            keys.longest,
            out,
            message,
            size,
        )
    });
    out
}

/// Writes aᵀ b to a float32 `sum` (n, m), with a (T, n) and b (T, m), or adds it to what the sum holds unless it is `first`.
pub fn add_product(sum: &Tensor, a: &Tensor, b: &Tensor, first: bool) {
    let (rows, columns, to) = (a.size(), b.size(), sum.size());
    assert!(rows.len() == 2 && columns.len() == 2 && rows[0] == columns[0] && to == [rows[1], columns[1]]);
    assert!(sum.kind() == Kind::Float && a.kind() == b.kind(), "a float32 sum of products of one type");
    // SAFETY: as above.
    must(|message, size| unsafe {
        nestor_generic_add_product(sum.as_ptr(), a.as_ptr(), b.as_ptr(), first, message, size)
    });
}

/// Attention of one query row of each sequence: q (B, H, D), the cache of keys, then values, (2, P, page, K, D), the pages of
/// each sequence (B, N) int32, and the number of tokens that it sees (B) int32. Gives (B, H, D), zeros where that is 0. No
/// shape and no wait depends on the lengths, so a graph can record it.
pub fn decode_attention(q: &Tensor, cache: &Tensor, page_table: &Tensor, lengths: &Tensor) -> Tensor {
    let (rows, pages, kept) = (q.size(), page_table.size(), cache.size());
    let fits = rows.len() == 3 && kept.len() == 5 && kept[0] == 2 && kept[4] == rows[2] && rows[1] % kept[3] == 0;
    assert!(fits && pages.len() == 2 && pages[0] == rows[0], "attention of {rows:?} to {kept:?} by {pages:?}");
    assert!(lengths.size() == [rows[0]] && [page_table, lengths].iter().all(|t| t.kind() == Kind::Int));
    // SAFETY: the tensors live through the call. The caller names pages of the cache only, as tch's `embedding` trusts its
    // indices on CUDA; a CPU checks them.
    let [out] = made(|out, message, size| unsafe {
        nestor_decode_attention(q.as_ptr(), cache.as_ptr(), page_table.as_ptr(), lengths.as_ptr(), out, message, size)
    });
    out
}

/// The head's product in float32, x (T, E) with a weight (V, E) of its type: (T, V). On CUDA the product of two bytes an
/// element has a float32 result of its own; elsewhere the operands are converted.
pub fn logits(x: &Tensor, weight: &Tensor) -> Tensor {
    assert!(x.kind() == weight.kind() && x.dim() == 2 && weight.dim() == 2 && x.size()[1] == weight.size()[1]);
    // SAFETY: the tensors live through the call; libtorch checks every shape again.
    let [out] = made(|out, message, size| unsafe { nestor_logits(x.as_ptr(), weight.as_ptr(), out, message, size) });
    out
}
