//! The two passes of generation over the one Qwen2 of `model`: prompts on the packed axis, then a token per slot.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::cache::Cache;
use super::sampler::indices;
use crate::model::Model;
use crate::model::qwen2::{BlockWeights, OuterWeights};

/// Attention of prompts is padded to a multiple of this. It depends on a prompt's own length only, so that a
/// prompt's numbers do not depend on its company.
const PROMPT_MULTIPLE: usize = 32;
/// Decoding attends over a multiple of this many cached tokens.
const DECODE_MULTIPLE: usize = 64;

/// The views of all parameters, made once for all passes of a step.
pub struct Weights {
    outer: OuterWeights,
    blocks: Vec<BlockWeights>,
}

impl Weights {
    /// The parameters of a model as they are now.
    pub fn of(model: &Model) -> Self {
        Self {
            outer: model.outer_weights(false),
            blocks: (0..model.blocks()).map(|layer| model.block_weights(layer, false)).collect(),
        }
    }
}

/// A model, its parameters' views and the cache: what both passes work with.
pub struct Pass<'a> {
    /// The network.
    pub model: &'a Model,
    /// Its parameters.
    pub weights: &'a Weights,
    /// Where keys and values go.
    pub cache: &'a Cache,
}

/// Prompts for one prefill: each is computed once and written to every slot that wants it.
#[derive(Debug, Default)]
pub struct Prompts {
    /// The distinct prompts.
    pub prompts: Vec<Vec<u32>>,
    /// (prompt, slot) pairs; one row of logits each.
    pub wanted: Vec<(usize, usize)>,
    /// Fixed number of packed tokens and of logit rows, filled up with dummies (deterministic mode).
    pub fixed: Option<(usize, usize)>,
}

impl Prompts {
    /// Number of packed tokens.
    pub fn tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }
}

/// Prompts whose attention is padded to the same length and done in one call.
struct Bucket {
    count: i64,
    padded: i64,
    /// For each place of the padded (count, padded) grid the packed token that stands there.
    gather: Tensor,
}

impl Pass<'_> {
    /// Computes the prompts, fills the cache and gives the logits (R, V) of what follows each wanted prompt.
    pub fn prefill(&self, job: &Prompts) -> Tensor {
        let device = self.model.device();
        let starts: Vec<usize> = job
            .prompts
            .iter()
            .scan(0, |next, p| {
                *next += p.len();
                Some(*next - p.len())
            })
            .collect();
        let (length, rows) = job.fixed.unwrap_or((job.tokens(), job.wanted.len()));
        let filler = length - job.tokens();
        let tokens = job.prompts.iter().flatten().map(|&t| t as i64).chain(std::iter::repeat_n(0, filler));
        let positions = job.prompts.iter().flat_map(|p| 0..p.len() as i64).chain(std::iter::repeat_n(0, filler));
        let (buckets, back) = self.buckets(job, &starts, filler);

        // Which packed token goes to which place of the cache; a prompt wanted twice is written twice.
        let (mut sources, mut places) = (Vec::new(), Vec::new());
        for &(prompt, slot) in &job.wanted {
            for position in 0..job.prompts[prompt].len() {
                sources.push((starts[prompt] + position) as i64);
                places.push(self.cache.place(slot, position));
            }
        }
        let (sources, places) = (indices(sources, device), indices(places, device));

        let rope = self.model.rope(&indices(positions, device));
        let mut x = self.model.embed(&self.weights.outer, &indices(tokens, device));
        for (layer, weights) in self.weights.blocks.iter().enumerate() {
            x = self.model.block(weights, &x, &rope, |q, k, v| {
                self.cache.write(layer, &places, &k.index_select(0, &sources), &v.index_select(0, &sources));
                let parts: Vec<Tensor> = buckets.iter().map(|bucket| bucket.attend(q, k, v)).collect();
                let all = if let [only] = &parts[..] { only.shallow_clone() } else { Tensor::cat(&parts, 0) };
                all.index_select(0, &back)
            });
        }
        let last = job.wanted.iter().map(|&(prompt, _)| (starts[prompt] + job.prompts[prompt].len() - 1) as i64);
        let last = last.chain(std::iter::repeat(0)).take(rows);
        self.model.head(&self.weights.outer, &x.index_select(0, &indices(last, device)))
    }

    /// The buckets, and for each packed token its place in the buckets' outputs laid end to end.
    fn buckets(&self, job: &Prompts, starts: &[usize], filler: usize) -> (Vec<Bucket>, Tensor) {
        let device = self.model.device();
        let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (prompt, tokens) in job.prompts.iter().enumerate() {
            by_length.entry(tokens.len().next_multiple_of(PROMPT_MULTIPLE)).or_default().push(prompt);
        }
        let mut back = vec![0; job.tokens() + filler];
        let (mut buckets, mut offset) = (Vec::new(), 0);
        for (padded, members) in by_length {
            let mut gather = Vec::with_capacity(padded * members.len());
            for &prompt in &members {
                let (start, len) = (starts[prompt], job.prompts[prompt].len());
                gather.extend((0..padded).map(|i| (start + i.min(len - 1)) as i64));
                (0..len).for_each(|i| back[start + i] = (offset + i) as i64);
                offset += padded;
            }
            let gather = indices(gather, device);
            buckets.push(Bucket { count: members.len() as i64, padded: padded as i64, gather });
        }
        (buckets, indices(back, device))
    }

    /// One token per slot, the first slots of the cache in order: `inputs` are (token, position). Gives the logits
    /// (slots, V). Attends over `length` cached tokens, or, without it, over as few as the longest slot needs.
    pub fn decode(&self, inputs: &[(u32, usize)], length: Option<i64>) -> Tensor {
        let device = self.model.device();
        let slots = inputs.len() as i64;
        let longest = inputs.iter().map(|&(_, position)| position + 1).max().unwrap_or(1);
        let length = length.unwrap_or(longest.next_multiple_of(DECODE_MULTIPLE) as i64).min(self.cache.length());
        let places = inputs.iter().enumerate().map(|(slot, &(_, position))| self.cache.place(slot, position));
        let places = indices(places, device);
        let positions = indices(inputs.iter().map(|&(_, position)| position as i64), device);
        let future = Tensor::arange(length, (Kind::Int64, device)).unsqueeze(0).gt_tensor(&positions.unsqueeze(1));
        let mask = Tensor::zeros([slots, 1, 1, length], (self.model.kind(), device))
            .masked_fill_(&future.view([slots, 1, 1, length]), f64::NEG_INFINITY);

        let config = &self.model.config;
        let (kv_heads, dim) = (config.num_key_value_heads, config.head_dim());
        let rope = self.model.rope(&positions);
        let mut x = self.model.embed(&self.weights.outer, &indices(inputs.iter().map(|&(t, _)| t as i64), device));
        for (layer, weights) in self.weights.blocks.iter().enumerate() {
            x = self.model.block(weights, &x, &rope, |q, k, v| {
                self.cache.write(layer, &places, k, v);
                let (keys, values) = self.cache.read(layer, slots, length);
                // The query heads that share a key head stand where attention expects several queries.
                let q = q.reshape([slots, kv_heads, -1, dim]);
                Tensor::scaled_dot_product_attention(&q, &keys, &values, Some(&mask), 0.0, false, None, false)
            });
        }
        self.model.head(&self.weights.outer, &x)
    }
}

impl Bucket {
    /// Causal attention of packed queries (T, H, D), keys and values (T, K, D); gives (count * padded, H, D).
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let (heads, kv_heads, dim) = (q.size()[1], k.size()[1], q.size()[2]);
        let grid = [self.count, self.padded, kv_heads, dim];
        let expand = |x: &Tensor| {
            let x = x.index_select(0, &self.gather).view(grid).transpose(1, 2).unsqueeze(2);
            x.expand([self.count, kv_heads, heads / kv_heads, self.padded, dim], false).reshape([
                self.count,
                heads,
                self.padded,
                dim,
            ])
        };
        let q = q.index_select(0, &self.gather).view([self.count, self.padded, heads, dim]).transpose(1, 2);
        let out =
            Tensor::scaled_dot_product_attention(&q, &expand(k), &expand(v), None::<&Tensor>, 0.0, true, None, false);
        out.transpose(1, 2).reshape([-1, heads, dim])
    }
}
