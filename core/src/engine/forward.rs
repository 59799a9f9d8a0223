//! The two passes of generation over the one Qwen2 of `model`: prompts on the packed axis, then a token per slot.

use tch::{Kind, Tensor};

use super::cache::Cache;
use super::sampler::indices;
use crate::model::Model;
use crate::model::qwen2::{BlockWeights, OuterWeights};
use crate::policy::attention::{Packing, packed_tokens};

/// In deterministic mode attention of prompts is padded to a multiple of this.
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

impl Pass<'_> {
    /// Computes the prompts, fills the cache and gives the logits (R, V) of what follows each wanted prompt.
    pub fn prefill(&self, job: &Prompts) -> Tensor {
        let device = self.model.device();
        let (length, rows) = job.fixed.unwrap_or((job.tokens(), job.wanted.len()));
        let filler = vec![0; length - job.tokens()];
        let packed: Vec<&[u32]> =
            job.prompts.iter().chain([&filler]).map(Vec::as_slice).filter(|p| !p.is_empty()).collect();
        let lengths: Vec<usize> = packed.iter().map(|p| p.len()).collect();
        let packing = match job.fixed {
            Some(_) => Packing::independent(&lengths, PROMPT_MULTIPLE, device),
            None => Packing::new(&lengths, device),
        };

        // Which packed token goes to which place of the cache; a prompt wanted twice is written twice.
        let mut starts = vec![0];
        starts.extend(lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        }));
        let (mut sources, mut places, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for &(prompt, slot) in &job.wanted {
            for position in 0..lengths[prompt] {
                sources.push((starts[prompt] + position) as i64);
                places.push(self.cache.place(slot, position));
            }
            last.push((starts[prompt + 1] - 1) as i64);
        }
        last.resize(rows, 0);
        let (sources, places) = (indices(sources, device), indices(places, device));

        let rope = self.model.rope(&packing.positions);
        let mut x = self.model.embed(&self.weights.outer, &packed_tokens(packed.into_iter(), device));
        for (layer, weights) in self.weights.blocks.iter().enumerate() {
            x = self.model.block(weights, &x, &rope, |q, k, v| {
                self.cache.write(layer, &places, &k.index_select(0, &sources), &v.index_select(0, &sources));
                packing.attend(q, k, v)
            });
        }
        self.model.head(&self.weights.outer, &x.index_select(0, &indices(last, device)))
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
