//! The choice between the two forms of the network's operations.

use tch::{Device, Kind, Tensor};

use crate::fused;
use crate::generic::{self, Normed, RotatedQkv};
use crate::packed::{Keys, PackedSequences};

/// The form in which a network's operations are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ops {
    /// This crate's kernels for a CPU, each one pass over memory: float32 and bfloat16.
    Fused,
    /// libtorch's own operations: all that CUDA runs, and float16 on a CPU.
    Generic,
}

impl Ops {
    /// The form for tensors of this type and device. `NESTOR_OPS=generic` in the environment selects the generic one
    /// everywhere, so that tests run CUDA's code on a CPU.
    pub fn of(kind: Kind, device: Device) -> Self {
        let forced = std::env::var_os("NESTOR_OPS").is_some_and(|ops| ops == "generic");
        let fused = device == Device::Cpu && matches!(kind, Kind::Float | Kind::BFloat16) && !forced;
        if fused { Self::Fused } else { Self::Generic }
    }

    /// x / rms(x) * weight over the last dimension: (T, D) with weight (D), or (T, N, D) with weight (N, D).
    pub fn rms_norm(self, x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
        match self {
            Self::Fused => fused::rms_norm(x, weight, eps),
            Self::Generic => generic::norm(x, None, weight, eps).norm,
        }
    }

    /// The residual x, or with the output of a layer x + y, and its norm: (T, E) each, with weight (E).
    pub fn add_norm(self, x: &Tensor, y: Option<&Tensor>, weight: &Tensor, eps: f64) -> Normed {
        match self {
            Self::Fused => {
                let sum = y.map_or_else(|| x.shallow_clone(), |y| x + y);
                let norm = fused::rms_norm(&sum, weight, eps);
                Normed { sum, norm, weight: weight.shallow_clone() }
            }
            Self::Generic => generic::norm(x, y, weight, eps),
        }
    }

    /// Applies the rotary embedding, cos and sin (T, 1, D), to queries and keys of one tensor (T, H + 2K, D), which also has
    /// the values. The results may be in the memory of x, which no other tensor may read afterwards. The generic form gives keys
    /// and values for each row of `keys`, where there are some.
    pub fn rotate_qkv(self, x: Tensor, tables: [&Tensor; 2], heads: i64, keys: Option<&Keys>) -> RotatedQkv {
        match self {
            Self::Fused => {
                let [q, k, v] = fused::rotate_qkv(&x, tables, heads);
                RotatedQkv { q, k, v, bias: None }
            }
            Self::Generic => generic::rotate_qkv(x, tables, heads, keys),
        }
    }

    /// The same for queries and keys alone, (T, H + K, D), with values elsewhere (T, K, D).
    pub fn rotate_qk(self, x: Tensor, v: &Tensor, tables: [&Tensor; 2], heads: i64, keys: Option<&Keys>) -> RotatedQkv {
        match self {
            Self::Fused => {
                let [q, k] = fused::rotate(&x, tables, heads);
                RotatedQkv { q, k, v: v.shallow_clone(), bias: None }
            }
            Self::Generic => generic::rotate_qk(x, v, tables, heads, keys),
        }
    }

    /// silu(gate) * up, with gate and up in one tensor (T, 2F): (T, F).
    pub fn silu_mul(self, x: &Tensor) -> Tensor {
        match self {
            Self::Fused => fused::silu_mul(x),
            Self::Generic => generic::silu_mul(x),
        }
    }

    /// Causal attention of each sequence over itself: queries (T, H, D), and keys and values as the rotation gave them, to
    /// (T, H, D).
    pub fn attend(self, [q, k, v]: [&Tensor; 3], sequences: &PackedSequences) -> Tensor {
        let PackedSequences { each, queries, keys } = sequences;
        match self {
            Self::Fused => fused::attend(q, k, v, each),
            Self::Generic => {
                generic::varlen_attention([q, k, v], queries, keys.as_ref().map_or(queries, |keys| &keys.sequences))
            }
        }
    }

    /// Writes aᵀ b to a float32 `sum` (n, m), with a (T, n) and b (T, m): a weight's gradient. Adds it to what the sum holds
    /// unless it is `first`.
    pub fn add_product(self, sum: &Tensor, a: &Tensor, b: &Tensor, first: bool) {
        match self {
            Self::Fused => fused::add_product(sum, a, b, first),
            Self::Generic => generic::add_product(sum, a, b, first),
        }
    }

    /// Writes a vector's gradient to its float32 `sum` (m), or adds it to what the sum holds unless it is `first`. A gradient
    /// (n, m) is in n parts, which are summed in float32.
    pub fn add_gradient(self, sum: &Tensor, gradient: &Tensor, first: bool) {
        let in_parts = gradient.dim() > 1;
        let whole = match self {
            Self::Generic if in_parts => return generic::add_column_sums(sum, gradient, first),
            Self::Fused if in_parts => &gradient.sum_dim_intlist([0i64].as_slice(), false, Kind::Float),
            _ => gradient,
        };
        let mut sum = sum.shallow_clone();
        if first {
            sum.copy_(whole);
        } else {
            let _ = sum.g_add_(whole);
        }
    }
}

/// Rows of x (T, E) by index, (N, E). As an embedding: the gradient of `index_select` adds row by row on a CPU, and on CUDA in an
/// order that changes from run to run.
pub fn rows(x: &Tensor, index: &Tensor) -> Tensor {
    Tensor::embedding(x, index, -1, false, false)
}

/// Cuts (T, N, D) into parts of these numbers of heads. One operation, so that the gradient is one too.
pub fn split<const P: usize>(x: &Tensor, heads: [i64; P]) -> [Tensor; P] {
    let parts = x.split_with_sizes(heads, 1);
    parts.try_into().unwrap_or_else(|_| unreachable!("a split has as many parts as sizes"))
}
