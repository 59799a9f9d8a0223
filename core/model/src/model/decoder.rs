//! The decoder that all architectures share, on one packed token axis.
//!
//! Sequences are packed end to end. The caller of [`Model::forward`] passes a function `attend` that decides which tokens
//! see each other: packed causal attention in the update, the KV cache in generation. So there is one block, and training
//! and generation cannot drift apart. The networks differ in the biases of a block and in norms of heads, which
//! [`BlockParts`](super::arch::BlockParts) names; `arch/` has a file for each.

use std::cell::RefCell;

use anyhow::Result;
use nestor_torch::generic::{self, Normed, RotatedQkv};
use nestor_torch::ops::{Ops, rows, split};
use nestor_torch::packed::Keys;
use tch::{Device, Kind, Tensor};

use super::config::Config;
use super::linear::Tape;
use super::rope::Rope;
use super::unit_weights::{BlockWeights, OuterWeights, layouts};
use super::vision::{ImageCache, ImageRows};
use crate::shard::{Adapters, HeldUnits, Layout, UnitReader};

/// Tokens of images whose embeddings are kept, unless a recipe says otherwise.
const IMAGE_CACHE_TOKENS: usize = 1 << 17;

/// A network whose parameters are one flat tensor per unit: unit 0 is the embedding (with the final norm, and with the
/// head where it is not tied to the embedding; a critic's head is a linear layer to one value), unit `1 + i` is block `i`.
/// The units of a vision tower follow.
#[derive(Debug)]
pub struct Model {
    pub config: Config,
    /// Places of the parameters in each unit's flat tensor.
    pub layouts: Vec<Layout>,
    /// The units in the compute type.
    pub units: HeldUnits,
    /// Adapters of the blocks' projections, which the network computes with beside their weights.
    pub adapters: Option<Adapters>,
    /// The form of its operations.
    pub ops: Ops,
    /// Number of units that are trained, the first ones; the others are frozen.
    pub trained: usize,
    /// Results of the vision tower, by the content of images.
    pub images: RefCell<ImageCache>,
    /// Computes the embeddings of each image by a pass of its own, so that their last bits depend on the image alone.
    pub encodes_alone: bool,
}

/// Input of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockInput<'a> {
    /// (T, E).
    pub x: &'a Tensor,
    pub rope: &'a Rope,
    /// A pass of rows that decode, without gradients: `attend` rotates queries and keys on their way to the cache.
    pub decodes: bool,
    /// Rows that keys and values are given for, where they are not the tokens.
    pub keys: Option<&'a Keys>,
    /// Rows that are computed after attention, (N) int64; all where absent.
    pub read: Option<&'a Tensor>,
}

/// Input of a forward pass.
#[derive(Debug, Clone, Copy)]
pub struct ForwardInput<'a> {
    /// Token ids (T).
    pub tokens: &'a Tensor,
    /// The images among them, and their embeddings end to end (M, E).
    pub images: Option<(&'a ImageRows, &'a Tensor)>,
    /// For the position of each token in its own sequence.
    pub rope: &'a Rope,
    /// A pass of rows that decode, without gradients: `attend` rotates queries and keys on their way to the cache.
    pub decodes: bool,
    /// Rows that keys and values are given for, where they are not the tokens.
    pub keys: Option<&'a Keys>,
    /// Rows whose states are read after the last block, (N) int64; all where absent.
    pub read: Option<&'a Tensor>,
}

/// The weights of a forward pass.
pub enum WeightSource<'a, 'm> {
    /// Read unit by unit, each prefetched while the one before it computes. In the end the first unit is prefetched for
    /// the head.
    Read(&'a mut UnitReader<'m>),
    /// Held by the caller.
    Held { outer: &'a OuterWeights, blocks: &'a [BlockWeights] },
}

impl Model {
    /// A network over these flat tensors, one per unit in the order of [`layouts`].
    pub fn new(config: Config, flats: Vec<Tensor>) -> Self {
        Self::of_units(config, HeldUnits::Whole(flats))
    }

    /// A network over these units.
    pub fn of_units(config: Config, units: HeldUnits) -> Self {
        let ops = Ops::of(units.kind(), units.device());
        let (trained, images) = (units.len(), RefCell::new(ImageCache::new(IMAGE_CACHE_TOKENS)));
        Self { layouts: layouts(&config), config, units, adapters: None, ops, trained, images, encodes_alone: false }
    }

    /// A network whose parameters are all zero.
    pub fn empty(config: Config, kind: Kind, device: Device) -> Self {
        let flats = layouts(&config).iter().map(|l| Tensor::zeros([l.numel()], (kind, device))).collect();
        Self::new(config, flats)
    }

    /// The same network over the same tensors, without adapters: for passes whose weights the caller holds.
    pub fn without_adapters(&self) -> Self {
        Self { ops: self.ops, ..Self::of_units(self.config.clone(), self.units.shallow_clone()) }
    }

    /// A copy of what is trained, with its own storage: of all weights, or of the adapters beside the same base.
    pub fn frozen(&self) -> Self {
        let adapters = self.adapters.as_ref().map(Adapters::copy);
        let units = if adapters.is_some() { self.units.shallow_clone() } else { self.units.copy_first(self.trained) };
        let Self { trained, encodes_alone, .. } = *self;
        let images = RefCell::new(self.images.borrow().fresh());
        Self { adapters, trained, images, encodes_alone, ..Self::of_units(self.config.clone(), units) }
    }

    /// The compute type.
    pub fn kind(&self) -> Kind {
        self.units.kind()
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.units.device()
    }

    /// Number of blocks L.
    pub fn blocks(&self) -> usize {
        self.config.num_hidden_layers as usize
    }

    /// Number of parameters.
    pub fn numel(&self) -> i64 {
        self.layouts.iter().map(Layout::numel).sum()
    }

    /// Every parameter by its Hugging Face name, as a view.
    ///
    /// # Errors
    /// When the weights are sharded over ranks.
    pub fn named_parameters(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for (layout, flat) in self.layouts.iter().zip(self.units.whole()?) {
            for param in &layout.params {
                all.push((param.name.clone(), layout.view(flat, param)));
            }
        }
        Ok(all)
    }

    /// Reads the units one after the other, whole.
    pub fn reader(&self) -> UnitReader<'_> {
        UnitReader::new(&self.layouts, &self.units)
    }

    /// The weights of block `layer`, with its adapters; with `grad` the norms are leaves that require gradients.
    pub fn block_weights(&self, reader: &mut UnitReader, layer: usize, grad: bool) -> Result<BlockWeights> {
        let weights = BlockWeights::new(&self.config, &reader.unit(1 + layer)?, grad);
        Ok(match &self.adapters {
            None => weights,
            Some(adapters) => tch::no_grad(|| weights.adapt(&adapters.of_block(layer), adapters.scale())),
        })
    }

    /// The weights outside the blocks; with `grad` the norm is a leaf that requires a gradient.
    pub fn outer_weights(&self, reader: &mut UnitReader, grad: bool) -> Result<OuterWeights> {
        Ok(OuterWeights::new(&self.config, &reader.unit(0)?, grad))
    }

    /// Rotary tables for positions (T) of type int64.
    pub fn rope(&self, positions: &Tensor) -> Rope {
        Rope::new(&self.config, positions, self.kind())
    }

    /// Embeds token ids (T) into (T, E).
    pub fn embed(&self, weights: &OuterWeights, tokens: &Tensor) -> Tensor {
        rows(&weights.embedding, tokens)
    }

    /// The unit that a forward pass needs after block `layer`: the next block, or the first unit for the head.
    pub fn unit_after(&self, layer: usize) -> usize {
        if layer + 1 == self.blocks() { 0 } else { layer + 2 }
    }

    /// The states after the last block, (N, E) where only N rows are read and (T, E) elsewhere. `attend` gets the block's
    /// number, rotated queries (T, H, D), and rotated keys and values (S, K, D), and returns (T, H, D).
    pub fn forward(
        &self,
        mut weights: WeightSource,
        input: &ForwardInput,
        attend: impl Fn(usize, &Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Result<Tensor> {
        let mut x = match &mut weights {
            WeightSource::Read(reader) => self.embed(&self.outer_weights(reader, false)?, input.tokens),
            WeightSource::Held { outer, .. } => self.embed(outer, input.tokens),
        };
        if let Some((rows, embeddings)) = input.images {
            x = rows.put(&x, embeddings);
        }
        for layer in 0..self.blocks() {
            let read = input.read.filter(|_| layer + 1 == self.blocks());
            let &ForwardInput { rope, decodes, keys, .. } = input;
            let input = BlockInput { x: &x, rope, decodes, keys, read };
            let attend = |q: &Tensor, k: &Tensor, v: &Tensor| attend(layer, q, k, v);
            x = match &mut weights {
                WeightSource::Read(reader) => {
                    let block = self.block_weights(reader, layer, false)?;
                    reader.prefetch(self.unit_after(layer))?;
                    self.block(&block, input, &mut Tape::off(), attend)
                }
                WeightSource::Held { blocks, .. } => self.block(&blocks[layer], input, &mut Tape::off(), attend),
            };
        }
        Ok(x)
    }

    /// One block: (T, E) to (T, E), or (N, E) where only N rows are read. `attend` gets rotated queries (T, H, D), rotated
    /// keys and values (S, K, D), and returns (T, H, D). The tape records norms and linear layers.
    pub fn block(
        &self,
        weights: &BlockWeights,
        BlockInput { x, rope, decodes, keys, read }: BlockInput,
        tape: &mut Tape,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let (c, ops) = (&self.config, self.ops);
        let (heads, kv_heads, dim) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim());
        let tables = [&rope.cos, &rope.sin];

        let Normed { sum: x, norm: h, weight } = ops.add_norm(x, None, &weights.input_norm, c.rms_norm_eps);
        tape.norm(&weight);
        let h = weights.qkv.apply(&h, tape).view([-1, heads + 2 * kv_heads, dim]); // (T, H + 2K, D)
        let [q, k, v] = match &weights.qk_norm {
            None if decodes => split(&h, [heads, kv_heads, kv_heads]),
            None => {
                let RotatedQkv { q, k, v, bias } = ops.rotate_qkv(h, tables, heads, keys);
                tape.bias(bias.filter(|_| weights.qkv.bias.is_some()));
                [q, k, v]
            }
            Some([q_norm, k_norm]) => {
                tape.norm(q_norm);
                tape.norm(k_norm);
                let scales = [q_norm.expand([heads, dim], false), k_norm.expand([kv_heads, dim], false)];
                let [qk, v] = split(&h, [heads + kv_heads, kv_heads]);
                let qk = ops.rms_norm(&qk, &Tensor::cat(&scales, 0), c.rms_norm_eps);
                if decodes {
                    let [q, k] = split(&qk, [heads, kv_heads]);
                    [q, k, v]
                } else {
                    let RotatedQkv { q, k, v, .. } = ops.rotate_qk(qk, &v, tables, heads, keys);
                    [q, k, v]
                }
            }
        };
        let attended = attend(&q, &k, &v).reshape([-1, heads * dim]);
        let keep = |x: &Tensor| read.map_or_else(|| x.shallow_clone(), |read| rows(x, read));
        let (x, attended) = (keep(&x), keep(&attended));
        let attended = weights.o_proj.apply(&attended, tape);

        let Normed { sum: x, norm: h, weight } = ops.add_norm(&x, Some(&attended), &weights.post_norm, c.rms_norm_eps);
        tape.norm(&weight);
        let h = weights.gate_up.apply(&h, tape);
        let h = ops.silu_mul(&h);
        // An update rounds the product before it is added, in all its passes alike.
        if decodes { weights.down.add_to(x, &h) } else { x + weights.down.apply_last(&h, tape) }
    }

    /// The final norm: (R, E) to the input of the head.
    pub fn final_norm(&self, weights: &OuterWeights, x: &Tensor, tape: &mut Tape) -> Tensor {
        let Normed { norm, weight, .. } = self.ops.add_norm(x, None, &weights.norm, self.config.rms_norm_eps);
        tape.norm(&weight);
        norm
    }

    /// Final norm and LM head: (R, E) to logits (R, V). The generic operations give float32, so that log-probs of a policy
    /// in 16 bits are not rounded to them; the fused ones the compute type.
    pub fn logits(&self, weights: &OuterWeights, x: &Tensor) -> Tensor {
        let states = self.final_norm(weights, x, &mut Tape::off());
        match self.ops {
            Ops::Fused => weights.head.apply(&states, &mut Tape::off()),
            Ops::Generic => generic::logits(&states, &weights.head.weight),
        }
    }
}
