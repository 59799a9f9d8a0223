//! The network's operations by libtorch's own, on any device: `cpp/generic.cpp`, `cpp/norm.cpp` and `cpp/rotate.cpp`. Those
//! that only CUDA has are in `cpp/cuda_ops.cpp`; on a CPU public operations take their place. Own kernels take the place of
//! both where the device has them: [`crate::kernels`].
//!
//! They panic where shapes or types do not fit, as tch's own operations do.
//!
//! T tokens, N heads, D elements of a head, F elements of gate and of up.

use std::ffi::{c_char, c_int};

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use super::packed::{Keys, Sequences};
use super::{TensorPtr, made, must};

unsafe extern "C" {
    fn nestor_generic_norm(
        x: TensorPtr,
        y: TensorPtr,
        weight: TensorPtr,
        eps: f64,
        made: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_generic_rotate(
        x: TensorPtr,
        apart: TensorPtr,
        cos: TensorPtr,
        sin: TensorPtr,
        heads: i64,
        kv_heads: i64,
        row_tokens: TensorPtr,
        row_starts: TensorPtr,
        token_rows: TensorPtr,
        qkv: *mut *mut C_tensor,
        parts: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_generic_add_column_sums(
        sum: TensorPtr,
        x: TensorPtr,
        first: bool,
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

/// A sum and its norm.
#[derive(Debug)]
pub struct Normed {
    pub sum: Tensor,
    pub norm: Tensor,
    /// The leaf that has the weight's gradient: the weight itself or, in a pass with gradients by own kernels, a stand-in of
    /// float32 (P, ...) whose gradient is the weight's in P parts.
    pub weight: Tensor,
}

/// Rotated queries (T, H, D) and keys (S, K, D), and values (S, K, D): of S rows as [`Keys`] has them, or of the T tokens.
#[derive(Debug)]
pub struct RotatedQkv {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// In a pass with gradients by own kernels, a leaf of float32 (P, (H + 2K) D): its gradient is that of the one tensor summed
    /// over the tokens, in P parts. So it stands for a bias.
    pub bias: Option<Tensor>,
}

/// x, or x + y, and its norm: sum / rms(sum) * weight over the last dimension. (T, E) with weight (E), or without y also
/// (T, N, D) with weight (N, D).
pub fn norm(x: &Tensor, y: Option<&Tensor>, weight: &Tensor, eps: f64) -> Normed {
    let (size, by) = (x.size(), weight.size());
    let fits = size.len() >= 2 && size[1..] == by[..] && y.is_none_or(|y| size.len() == 2 && y.size() == size);
    assert!(fits, "a norm of {size:?} and {:?} needs another weight than {by:?}", y.map(Tensor::size));
    let y = y.map_or(std::ptr::null(), |y| y.as_ptr());
    // SAFETY: the tensors live through the call; their shapes fit by the check.
    let [sum, norm, weight] =
        made(|made, message, n| unsafe { nestor_generic_norm(x.as_ptr(), y, weight.as_ptr(), eps, made, message, n) });
    Normed { sum, norm, weight }
}

/// Applies the rotary embedding, cos and sin (T, 1, D), to queries and keys of one tensor (T, H + K, D): (T, H, D) and (T, K, D).
/// Takes x by value, because the results may be in its memory: no other tensor of that memory may be read afterwards.
pub fn rotate(x: Tensor, tables: [&Tensor; 2], heads: i64) -> [Tensor; 2] {
    let kv_heads = x.size()[1] - heads;
    rotated(x, None, tables, [heads, kv_heads], None).0
}

/// The same for queries, keys and values of one tensor (T, H + 2K, D). Values stay as they are. Keys and values are given for
/// each row of `keys`, where there are some.
pub fn rotate_qkv(x: Tensor, tables: [&Tensor; 2], heads: i64, keys: Option<&Keys>) -> RotatedQkv {
    let kv_heads = (x.size()[1] - heads) / 2;
    let ([q, k, v], bias) = rotated(x, None, tables, [heads, kv_heads], keys);
    RotatedQkv { q, k, v, bias }
}

/// The same for queries and keys of one tensor (T, H + K, D), and values of another (T, K, D). There is no bias.
pub fn rotate_qk(x: Tensor, v: &Tensor, tables: [&Tensor; 2], heads: i64, keys: Option<&Keys>) -> RotatedQkv {
    let kv_heads = x.size()[1] - heads;
    let ([q, k, v], _) = rotated(x, Some(v), tables, [heads, kv_heads], keys);
    RotatedQkv { q, k, v, bias: None }
}

fn rotated<const N: usize>(
    x: Tensor,
    v: Option<&Tensor>,
    [cos, sin]: [&Tensor; 2],
    [heads, kv_heads]: [i64; 2],
    keys: Option<&Keys>,
) -> ([Tensor; N], Option<Tensor>) {
    let size = x.size();
    let &[t, n, dim] = &size[..] else { panic!("rotate needs (T, N, D), got {size:?}") };
    let inside = N as i64 - 1 - i64::from(v.is_some());
    let fits = heads > 0 && kv_heads > 0 && n == heads + inside * kv_heads && dim % 2 == 0;
    assert!(fits, "{heads} and {kv_heads} heads of {size:?} cannot be rotated");
    assert!(v.is_none_or(|v| v.size() == [t, kv_heads, dim] && v.kind() == x.kind()), "values of {t} tokens");
    for table in [cos, sin] {
        assert!(table.size() == [t, 1, dim] && table.device() == x.device(), "a table for {t} tokens of {dim}");
    }
    let of_rows = |of: fn(&Keys) -> &Tensor| keys.map_or(std::ptr::null(), |keys| of(keys).as_ptr());
    let v = v.map_or(std::ptr::null(), |v| v.as_ptr());
    let mut bias = std::ptr::null_mut();
    // SAFETY: the tensors live through the call; by the check of `n` there are N results. `Keys` are made for these tokens by the
    // caller, as tch's `embedding` trusts its indices on CUDA.
    let qkv = made(|qkv, message, size| unsafe {
        let (x, cos, sin) = (x.as_ptr(), cos.as_ptr(), sin.as_ptr());
        let [tokens, starts, rows] = [of_rows(|it| &it.tokens), of_rows(|it| &it.starts), of_rows(|it| &it.of_tokens)];
        nestor_generic_rotate(x, v, cos, sin, heads, kv_heads, tokens, starts, rows, qkv, &mut bias, message, size)
    });
    // SAFETY: on success it is null, or a tensor made with `new`.
    (qkv, (!bias.is_null()).then(|| unsafe { Tensor::from_ptr(bias) }))
}

/// Writes the sums of the columns of x (n, m), in float32, to `sum` (m), or adds them to what it holds unless it is `first`.
pub fn add_column_sums(sum: &Tensor, x: &Tensor, first: bool) {
    let (to, of) = (sum.size(), x.size());
    assert!(of.len() == 2 && to == of[1..] && sum.kind() == Kind::Float, "sums {to:?} of the columns of {of:?}");
    // SAFETY: as above.
    must(|message, size| unsafe { nestor_generic_add_column_sums(sum.as_ptr(), x.as_ptr(), first, message, size) });
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
