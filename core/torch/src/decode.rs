//! Generation on a CPU: weights in oneDNN's own layout, attention over a paged cache, sampling.

use std::ffi::{c_char, c_int};
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor};

use crate::{TensorPtr, call};

/// Tokens of a page of the cache.
pub const PAGE: usize = 16;

/// Adjacent rows of a pass that belong to one sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub row: i64,
    /// Number of rows.
    pub rows: i64,
    /// Position of the first row in its sequence.
    pub position: i64,
    /// Index of the sequence's first page in the list of pages.
    pub pages: i64,
}

/// Settings for drawing one row's token; `Draw` of `cpp/sample.cpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawDraw {
    /// Factor of the logits.
    pub inverse_temperature: f32,
    /// Uniform number in [0, 1] that picks the token.
    pub uniform: f32,
    /// Not 0: picks the likeliest token instead.
    pub greedy: i32,
    /// Draws among the k likeliest tokens, of equal ones the first; 0 or less, or V or more: among all.
    pub top_k: i32,
    /// Draws among the likeliest tokens that have this part of the mass; 1 or more: among all that top-k keeps.
    pub top_p: f32,
    /// Draws among tokens whose logit is at least the largest plus this, the logarithm of min-p; minus infinity: among all that
    /// top-k and top-p keep.
    pub log_min_p: f32,
}

impl Default for RawDraw {
    /// The first token of the whole distribution.
    fn default() -> Self {
        Self { inverse_temperature: 1.0, uniform: 0.0, greedy: 0, top_k: 0, top_p: 1.0, log_min_p: f32::NEG_INFINITY }
    }
}

/// A token and its log-prob; `Drawn` of `cpp/sample.cpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RawDrawn {
    pub token: i64,
    /// Log-prob under the whole distribution; NaN where the row's logits are not finite.
    pub logprob: f32,
}

unsafe extern "C" {
    fn nestor_reorder_linear(weight: TensorPtr, out: *mut TensorMut, message: *mut c_char, size: usize) -> c_int;
    fn nestor_reordered_linear(
        x: TensorPtr,
        weight: TensorPtr,
        bias: TensorPtr,
        out: *mut TensorMut,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_cache_write(
        keys: TensorPtr,
        values: TensorPtr,
        places: *const i64,
        k: TensorPtr,
        v: TensorPtr,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_paged_attention(
        q: TensorPtr,
        keys: TensorPtr,
        values: TensorPtr,
        segments: *const Segment,
        segment_count: usize,
        pages: *const i64,
        out: *mut TensorMut,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_draw(
        logits: TensorPtr,
        draws: *const RawDraw,
        drawn: *mut RawDrawn,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
}

type TensorMut = *mut torch_sys::C_tensor;

/// Calls a function of the shim that creates a tensor.
fn make(f: impl FnOnce(*mut TensorMut, *mut c_char, usize) -> c_int) -> Result<Tensor> {
    let mut out = null_mut();
    call(|message, size| f(&mut out, message, size))?;
    // SAFETY: the shim succeeded, so `out` is a new tensor with no other owner.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The weight (out, in) of a linear layer on a CPU, in oneDNN's own layout.
#[derive(Debug)]
pub struct ReorderedLinear {
    weight: Tensor,
}

impl ReorderedLinear {
    /// The next number of rows, from `rows` on, that a product computes all alike, so that a row's result
    /// does not depend on its place. oneDNN's kernels for AVX2 sum the last rows of a block in another order, unless 24 divides the
    /// number of rows (tried up to 1,300 rows and 32 threads). Its kernels for AVX-512 compute all rows alike.
    pub fn alike_rows(rows: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if !std::arch::is_x86_feature_detected!("avx512f") {
            return rows.next_multiple_of(24);
        }
        rows
    }

    /// Copies the weight; later changes of it do not reach the copy.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let weight = weight.detach().contiguous();
        // SAFETY: the pointer is to a live tensor, which the shim only reads.
        let weight = make(|out, message, size| unsafe { nestor_reorder_linear(weight.as_ptr(), out, message, size) })?;
        Ok(Self { weight })
    }

    /// The product with x (T, in): (T, out). Without gradients.
    ///
    /// # Panics
    /// When shapes or types do not fit, as tch's own operations do.
    pub fn apply(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let bias = bias.map_or(null(), |bias| bias.as_ptr());
        make(|out, message, size| {
            // SAFETY: the pointers are to live tensors (or null for no bias), which the shim only reads.
            unsafe { nestor_reordered_linear(x.as_ptr(), self.weight.as_ptr(), bias, out, message, size) }
        })
        .unwrap_or_else(|error| panic!("{error:#}"))
    }
}

/// Keys and values of one block on a CPU, page by page. The same element of a page's keys is adjacent for all its tokens,
/// as attention reads them.
#[derive(Debug)]
pub struct PagedCache {
    /// (P, K, D', PAGE), with each two rows in the order that the kernels read; D' is the head size, rounded up to 32.
    keys: Tensor,
    /// (P, K, PAGE, D').
    values: Tensor,
}

impl PagedCache {
    /// A cache of zeros with this many pages.
    pub fn new(pages: i64, kv_heads: i64, dim: i64, kind: Kind) -> Self {
        let (page, padded) = (PAGE as i64, (dim + 31) / 32 * 32);
        let options = (kind, Device::Cpu);
        Self {
            keys: Tensor::zeros([pages, kv_heads, padded, page], options),
            values: Tensor::zeros([pages, kv_heads, page, padded], options),
        }
    }

    pub fn pages(&self) -> i64 {
        self.keys.size()[0]
    }

    /// Copies the pages of a smaller cache to the front.
    pub fn copy_from(&mut self, other: &Self) {
        for (own, other) in [(&self.keys, &other.keys), (&self.values, &other.values)] {
            own.narrow(0, 0, other.size()[0]).copy_(other);
        }
    }

    /// Writes keys and values (T, K, D) to places (T): page times `PAGE` plus offset.
    pub fn write(&self, places: &[i64], k: &Tensor, v: &Tensor) -> Result<()> {
        let [_, kv_heads, page, padded] = self.values.size()[..] else { unreachable!("values have four axes") };
        for new in [k, v] {
            let size = new.size();
            ensure!(
                size.len() == 3 && size[0] == places.len() as i64 && size[1] == kv_heads && size[2] <= padded,
                "the cache of {kv_heads} heads of {padded} cannot take {size:?} at {} places",
                places.len()
            );
            ensure!(
                new.kind() == self.keys.kind() && new.device() == Device::Cpu,
                "the cache has another type or device"
            );
        }
        let end = self.pages() * page;
        ensure!(places.iter().all(|place| (0..end).contains(place)), "a place is outside the cache of {end} tokens");
        // SAFETY: live tensors of one type; every place is in the cache, and a row is no wider than a place.
        call(|message, size| unsafe {
            nestor_cache_write(
                self.keys.as_ptr(),
                self.values.as_ptr(),
                places.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                message,
                size,
            )
        })
    }

    /// Causal attention of queries (T, H, D): a row sees its sequence up to its own position, in the pages listed for its
    /// segment. Softmax and sums are float32. Rows outside all segments are undefined.
    pub fn attend(&self, q: &Tensor, segments: &[Segment], pages: &[i64]) -> Result<Tensor> {
        let ([rows, heads, dim], [_, kv_heads, page, padded]) = (
            <[i64; 3]>::try_from(q.size()).map_err(|size| anyhow::anyhow!("queries have three axes, not {size:?}"))?,
            <[i64; 4]>::try_from(self.values.size()).unwrap_or_else(|_| unreachable!("values have four axes")),
        );
        ensure!(
            heads % kv_heads == 0 && dim <= padded && q.kind() == self.keys.kind() && q.device() == Device::Cpu,
            "queries {:?} do not go with a cache of {kv_heads} heads of {padded}",
            q.size()
        );
        for s in segments {
            let needed = (s.position + s.rows - 1) / page + 1;
            ensure!(
                s.row >= 0
                    && s.rows > 0
                    && s.row + s.rows <= rows
                    && s.position >= 0
                    && s.pages >= 0
                    && s.pages + needed <= pages.len() as i64,
                "a segment is outside its pass: {s:?}"
            );
        }
        ensure!(pages.iter().all(|page| (0..self.pages()).contains(page)), "a page is outside the cache");
        make(|out, message, size| {
            // SAFETY: live tensors of one type; the checks above keep every row, page and position inside them.
            unsafe {
                nestor_paged_attention(
                    q.as_ptr(),
                    self.keys.as_ptr(),
                    self.values.as_ptr(),
                    segments.as_ptr(),
                    segments.len(),
                    pages.as_ptr(),
                    out,
                    message,
                    size,
                )
            }
        })
    }
}

/// Draws a token per row of logits (R, V) on a CPU, float32 or bfloat16. It sums the mass of chunks first, and then reads
/// again only the chunk in which the cumulative distribution exceeds the row's uniform number.
///
/// A row with top-k, top-p or min-p draws by sums of whole numbers, which have no order. Logits are taken at the row's temperature;
/// larger ones come first, equal ones in the order of their tokens. A token's mass is e^(logit - largest logit) in units of
/// 2^-40, rounded down. Top-k keeps the first k tokens. Top-p keeps the first of these, and further ones while the mass before
/// them is below p times the mass of these. Min-p keeps those of these whose logit is at least the largest plus the logarithm
/// of min-p: transformers' order. The draw is the first kept token, in the order of tokens, up to which more mass is
/// kept than the uniform number times all kept mass. So a token with less than 2^-40 of the likeliest one's mass is never drawn.
pub fn draw(logits: &Tensor, draws: &[RawDraw]) -> Result<Vec<RawDrawn>> {
    let size = logits.size();
    ensure!(
        size.len() == 2 && size[0] == draws.len() as i64 && size[1] > 0 && logits.device() == Device::Cpu,
        "{} draws do not go with logits {size:?}",
        draws.len()
    );
    ensure!(matches!(logits.kind(), Kind::Float | Kind::BFloat16), "logits must be float32 or bfloat16");
    let mut drawn = vec![RawDrawn::default(); draws.len()];
    // SAFETY: a live tensor of R rows, R draws to read and R results to write.
    call(|message, size| unsafe { nestor_draw(logits.as_ptr(), draws.as_ptr(), drawn.as_mut_ptr(), message, size) })?;
    Ok(drawn)
}
