//! Causal attention over packed sequences.
//!
//! Sequences lie end to end on one token axis. On a CPU a fused operation takes them so. Elsewhere, for the attention
//! product alone, they are laid out as right-padded rows, in groups of similar length, so that one call serves many
//! sequences; causality hides the padding behind every query, so no mask is needed and the result is exact.

use nestor_torch::fused;
use tch::{Device, Kind, Tensor};

/// Sequences of a group may be this many times longer than its shortest one: bounds the padding.
const LENGTH_RATIO: f64 = 1.25;

/// How the sequences of one forward pass lie on the token axis.
#[derive(Debug)]
pub struct Packing {
    /// Position of every token in its own sequence, (T) int64.
    pub positions: Tensor,
    lengths: Vec<i64>,
    /// None where the fused operation attends.
    groups: Vec<Group>,
    /// Where each packed token is found in the concatenated group outputs, (T) int64; absent for one unpadded group.
    back: Option<Tensor>,
}

/// Sequences of similar length, attended in one call.
#[derive(Debug)]
struct Group {
    /// For each cell of the padded (n, T_max) rows the packed token, (n * T_max) int64; absent when the group is the
    /// whole token axis without padding.
    gather: Option<Tensor>,
    rows: i64,
    length: i64,
}

impl Packing {
    /// The packing of sequences with these lengths, in this order.
    pub fn new(lengths: &[usize], device: Device) -> Self {
        Self::grouped(lengths, None, device)
    }

    /// The same, but what comes out for a sequence does not depend, not even in its last bits, on those that lie beside it:
    /// the fused operation is so by itself, elsewhere each row is as long as its own length rounded up to `multiple`.
    pub fn independent(lengths: &[usize], multiple: usize, device: Device) -> Self {
        Self::grouped(lengths, Some(multiple), device)
    }

    fn grouped(lengths: &[usize], multiple: Option<usize>, device: Device) -> Self {
        let own: Vec<i64> = lengths.iter().map(|&n| n as i64).filter(|&n| n > 0).collect();
        let mut starts = Vec::with_capacity(lengths.len());
        let mut positions = Vec::with_capacity(lengths.iter().sum());
        for &length in lengths {
            starts.push(positions.len());
            positions.extend(0..length as i64);
        }
        let total = positions.len();
        let positions = Tensor::from_slice(&positions).to_device(device);
        if fused::has_products(device) {
            return Self { positions, lengths: own, groups: Vec::new(), back: None };
        }

        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&i| lengths[i]);
        let mut back = vec![0i64; total];
        let mut groups = Vec::new();
        let mut cells = 0;
        let mut rest = &order[..];
        while let Some(&first) = rest.first() {
            let similar = (lengths[first] as f64 * LENGTH_RATIO).max(lengths[first] as f64 + 8.0) as usize;
            let limit = multiple.map_or(similar, |m| lengths[first].next_multiple_of(m));
            let n = rest.partition_point(|&i| lengths[i] <= limit);
            let (members, later) = rest.split_at(n);
            let longest = members.iter().map(|&i| lengths[i]).max().unwrap_or(0);
            let length = if multiple.is_some() { limit } else { longest };
            let mut gather = vec![0i64; n * length];
            for (row, &i) in members.iter().enumerate() {
                for t in 0..lengths[i] {
                    gather[row * length + t] = (starts[i] + t) as i64;
                    back[starts[i] + t] = (cells + row * length + t) as i64;
                }
            }
            let whole = gather.iter().enumerate().all(|(cell, &token)| cell as i64 == token) && gather.len() == total;
            groups.push(Group {
                gather: (!whole).then(|| Tensor::from_slice(&gather).to_device(device)),
                rows: n as i64,
                length: length as i64,
            });
            cells += n * length;
            rest = later;
        }
        let whole = groups.len() == 1 && groups[0].gather.is_none();
        let back = (!whole).then(|| Tensor::from_slice(&back).to_device(device));
        Self { positions, lengths: own, groups, back }
    }

    /// Number of tokens T.
    pub fn tokens(&self) -> i64 {
        self.positions.size()[0]
    }

    /// Causal attention of each sequence over itself: queries (T, H, D), keys and values (T, K, D) to (T, H, D).
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        if fused::has_products(q.device()) {
            return fused::attend(q, k, v, &self.lengths);
        }
        let (heads, dim) = (q.size()[1], q.size()[2]);
        let outputs: Vec<Tensor> = self
            .groups
            .iter()
            .map(|group| {
                let rows = |x: &Tensor| {
                    let x = group.gather.as_ref().map_or_else(|| x.shallow_clone(), |cells| take(x, cells));
                    x.view([group.rows, group.length, -1, dim]).transpose(1, 2) // (n, H or K, T_max, D)
                };
                let (q, k, v) = (rows(q), share(&rows(k), heads), share(&rows(v), heads));
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false)
                    .transpose(1, 2)
                    .reshape([-1, heads, dim])
            })
            .collect();
        match &self.back {
            None => outputs[0].shallow_clone(),
            Some(back) => take(&Tensor::cat(&outputs, 0), back),
        }
    }
}

/// Rows of (T, N, D) by index. As an embedding, because the gradient of `index_select` adds row by row on a CPU.
fn take(x: &Tensor, index: &Tensor) -> Tensor {
    let (_, n, dim) = x.size3().unwrap_or_else(|_| unreachable!("queries, keys and values have three dimensions"));
    Tensor::embedding(&x.reshape([-1, n * dim]), index, -1, false, false).view([-1, n, dim])
}

/// Repeats each key or value head of (n, K, T, D) for the query heads that share it: (n, H, T, D).
pub fn share(x: &Tensor, heads: i64) -> Tensor {
    let (n, kv_heads, t, dim) = x.size4().unwrap_or_else(|_| unreachable!("keys have four dimensions"));
    if kv_heads == heads {
        return x.shallow_clone();
    }
    x.unsqueeze(2).expand([n, kv_heads, heads / kv_heads, t, dim], false).reshape([n, heads, t, dim])
}

/// Token ids of sequences, end to end, (T) int64.
pub fn packed_tokens<'a>(sequences: impl Iterator<Item = &'a [u32]>, device: Device) -> Tensor {
    let ids: Vec<i64> = sequences.flatten().map(|&id| i64::from(id)).collect();
    Tensor::from_slice(&ids).to_kind(Kind::Int64).to_device(device)
}
