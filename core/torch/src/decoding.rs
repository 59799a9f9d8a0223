//! Own kernels of generation: `cpp/decode_kernels.cpp`. Public operations take the place of a missing kernel. They
//! wait for no device, and no shape depends on numbers on it, so a graph can record them.
//!
//! They panic where shapes or types do not fit, as tch's own operations do. T rows, H query heads, K key heads, D elements
//! of a head, R rows of logits, V tokens of the vocabulary.

use std::ffi::{c_char, c_int};

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use super::{TensorPtr, made, must};

unsafe extern "C" {
    fn nestor_rotate_into_cache(
        q: TensorPtr,
        k: TensorPtr,
        v: TensorPtr,
        cos: TensorPtr,
        sin: TensorPtr,
        cache: TensorPtr,
        places: TensorPtr,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_attends_pages(cache: TensorPtr, yes: *mut bool, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_samples(logits: TensorPtr, yes: *mut bool, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_sample(
        logits: TensorPtr,
        inverse_temperatures: TensorPtr,
        uniforms: TensorPtr,
        greedy: TensorPtr,
        top_k: TensorPtr,
        top_p: TensorPtr,
        log_min_p: TensorPtr,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// Returns true if [`super::generic::decode_attention`] has a kernel for this cache (2, P, PAGE, K, D).
pub fn attends_pages(cache: &Tensor) -> bool {
    assert!(cache.dim() == 5);
    let mut yes = false;
    // SAFETY: the tensors live through the call, which writes one bool.
    must(|message, size| unsafe { nestor_attends_pages(cache.as_ptr(), &mut yes, message, size) });
    yes
}

/// Applies the rotary embedding, cos and sin (T, 1, D) with equal halves, to queries (T, H, D) in place and to keys (T, K, D).
/// Writes the keys and the values (T, K, D) to their places, page times `PAGE` plus offset as (T) int64, of a cache
/// (2, P, PAGE, K, D). Page 0 is filling: it may be written or not.
pub fn rotate_into_cache([q, k, v]: [&Tensor; 3], [cos, sin]: [&Tensor; 2], cache: &Tensor, places: &Tensor) {
    check_cache([q, k, v], cache, places);
    for table in [cos, sin] {
        assert!(table.size() == [k.size()[0], 1, k.size()[2]] && table.kind() == k.kind());
    }
    // SAFETY: the tensors live through the call, and their shapes fit as checked. The caller names places of the cache only,
    // as tch's `embedding` trusts its indices on CUDA.
    must(|message, size| unsafe {
        nestor_rotate_into_cache(
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            cos.as_ptr(),
            sin.as_ptr(),
            cache.as_ptr(),
            places.as_ptr(),
            message,
            size,
        )
    });
}

/// The same for keys that are already rotated, without queries.
pub fn write_into_cache([k, v]: [&Tensor; 2], cache: &Tensor, places: &Tensor) {
    check_cache([k, k, v], cache, places);
    let none = std::ptr::null();
    // SAFETY: as above; without tables the queries are only looked at.
    must(|message, size| unsafe {
        nestor_rotate_into_cache(
            k.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            none,
            none,
            cache.as_ptr(),
            places.as_ptr(),
            message,
            size,
        )
    });
}

fn check_cache([q, k, v]: [&Tensor; 3], cache: &Tensor, places: &Tensor) {
    let (queries, keys, kept) = (q.size(), k.size(), cache.size());
    let fits = keys.len() == 3 && kept.len() == 5 && kept[0] == 2 && kept[3..] == keys[1..] && v.size() == keys;
    assert!(fits && queries.len() == 3 && queries[0] == keys[0] && queries[2] == keys[2], "{keys:?} into {kept:?}");
    assert!(places.size() == [keys[0]] && places.kind() == Kind::Int64);
    assert!([q, v, cache].iter().all(|t| t.kind() == k.kind() && t.device() == k.device()));
}

/// Settings of draws on the logits' device, (R) each.
#[derive(Debug)]
pub struct DrawColumns<'a> {
    /// Factor of the row's logits, float32.
    pub inverse_temperatures: &'a Tensor,
    /// Number in [0, 1) that picks the token, float32.
    pub uniforms: &'a Tensor,
    /// Not 0: the likeliest token, int32.
    pub greedy: &'a Tensor,
    /// None where no row truncates.
    pub truncation: Option<TruncationColumns<'a>>,
}

/// Parts of the distribution that rows draw from, on the logits' device, (R) each. Greedy rows have no use for them.
#[derive(Debug, Clone, Copy)]
pub struct TruncationColumns<'a> {
    /// Number of the likeliest tokens, int32; 0 or less, or V or more: all.
    pub top_k: &'a Tensor,
    /// Part of the mass, float32; 1 or more: all.
    pub top_p: &'a Tensor,
    /// Logarithm of the least part of the likeliest token's probability, float32; minus infinity: all.
    pub log_min_p: &'a Tensor,
}

/// Returns true if [`sample`] has kernels for logits (R, V).
pub fn samples(logits: &Tensor) -> bool {
    assert!(logits.dim() == 2);
    let mut yes = false;
    // SAFETY: the tensor lives through the call, which writes one bool.
    must(|message, size| unsafe { nestor_samples(logits.as_ptr(), &mut yes, message, size) });
    yes
}

/// Draws a token for each row of logits (R, V): tokens (R) int64, and log-probs (R) float32 of the whole distribution at the
/// row's temperature, NaN where the row is not finite. By the kernels it is the token that [`crate::draw`] draws on a processor
/// with fused multiply-add.
pub fn sample(logits: &Tensor, draws: &DrawColumns) -> [Tensor; 2] {
    let rows = logits.size()[0];
    let DrawColumns { inverse_temperatures, uniforms, greedy, truncation } = draws;
    let cut = truncation.map(|cut| [(cut.top_k, Kind::Int), (cut.top_p, Kind::Float), (cut.log_min_p, Kind::Float)]);
    let columns = [(*inverse_temperatures, Kind::Float), (*uniforms, Kind::Float), (*greedy, Kind::Int)];
    for (column, kind) in columns.into_iter().chain(cut.into_iter().flatten()) {
        assert!(column.size() == [rows] && column.kind() == kind && column.device() == logits.device());
        assert!(column.is_contiguous(), "a column of draws is dense");
    }
    // SAFETY: the tensors live through the call, which makes two; types and sizes are as checked.
    made(|out, message, size| unsafe {
        nestor_sample(
            logits.as_ptr(),
            inverse_temperatures.as_ptr(),
            uniforms.as_ptr(),
            greedy.as_ptr(),
            truncation.map_or(std::ptr::null_mut(), |cut| cut.top_k.as_ptr()),
            truncation.map_or(std::ptr::null_mut(), |cut| cut.top_p.as_ptr()),
            truncation.map_or(std::ptr::null_mut(), |cut| cut.log_min_p.as_ptr()),
            out,
            message,
            size,
        )
    })
}
