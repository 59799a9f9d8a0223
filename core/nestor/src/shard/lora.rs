//! LoRA: each linear projection of a block is trained through two thin matrices A and B; everything else is frozen.
//!
//! ```text
//! W = W0 + s B A,   s = alpha / rank,   A (rank, in),   B (out, rank)
//! dA = s Bᵀ dW,     dB = s dW Aᵀ
//! ```
//!
//! E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685. The network computes with W,
//! merged from W0 after every step, so that engine, passes and export see one set of weights. In bfloat16 an entry of W
//! moves only once s B A is more than half of its last bit; A and B are float32, where smaller changes add up.

use std::path::Path;

use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use tch::{Kind, Tensor, no_grad};

use super::layout::{Layout, Param};
use super::partition::Partition;
use super::units::{HeldUnits, Ranks};
use crate::recipe;

/// Last word of the keys of A's random numbers; no key of new weights or of noise ends with it.
const ADAPTERS: u64 = u64::MAX - 1;

/// The adapters of a network: the layouts of A and B, and W0. A and B themselves are an optimiser's master weights, one
/// flat float32 tensor per block.
#[derive(Debug)]
pub struct Adapters {
    /// A and B of each projection in turn, one layout per block, under peft's names.
    pub layouts: Vec<Layout>,
    /// A and B as last merged, whole: one flat float32 tensor per block.
    whole: Vec<Tensor>,
    frozen: Vec<Frozen>,
    /// Rows of A.
    lora_rank: i64,
    alpha: f64,
}

/// A block's frozen base weights: all of them, or this rank's shard.
#[derive(Debug)]
struct Frozen {
    layout: Layout,
    partition: Partition,
    /// The rank that owns the shard.
    rank: usize,
    /// In the compute type.
    values: Tensor,
}

/// The parameters of one projection.
struct Adapted<'a> {
    /// W (out, in) in the block's layout.
    w: &'a Param,
    /// A (rank, in) in the adapter's layout.
    a: &'a Param,
    /// B (out, rank) in the adapter's layout.
    b: &'a Param,
}

/// A block's linear projections: all of its matrices.
fn projections(block: &Layout) -> impl Iterator<Item = &Param> {
    block.params.iter().filter(|p| p.shape.len() == 2)
}

/// A projection's name without `.weight`.
fn module(w: &Param) -> &str {
    w.name.strip_suffix(".weight").unwrap_or(&w.name)
}

impl Adapters {
    /// The layouts of A and B of each projection of these blocks, under peft's names.
    pub fn layouts_of(blocks: &[Layout], lora_rank: i64) -> Vec<Layout> {
        let adapter = |block: &Layout| {
            let pair = |w: &Param| {
                let name = |which: &str| format!("base_model.model.{}.lora_{which}.weight", module(w));
                [(name("A"), vec![lora_rank, w.shape[1]]), (name("B"), vec![w.shape[0], lora_rank])]
            };
            Layout::new(block.name.clone(), projections(block).flat_map(pair).collect())
        };
        blocks.iter().map(adapter).collect()
    }

    /// Adapters of a network's blocks as they are now, and the initial A and B, as peft makes them: A uniform within
    /// ±1 / sqrt(in) (`kaiming_uniform_(a=sqrt(5))`), B zero. `layouts` and `units` are the network's.
    pub fn new(layouts: &[Layout], units: &HeldUnits, settings: &recipe::Lora, seed: u64) -> (Self, Vec<Tensor>) {
        let (blocks, held) = (&layouts[1..], &units.held()[1..]);
        let recipe::Lora { rank: lora_rank, alpha } = *settings;
        let layouts = Self::layouts_of(blocks, lora_rank);
        let (world, rank) = match units {
            HeldUnits::Whole(_) => (1, 0),
            HeldUnits::Sharded { ranks, .. } => (ranks.world(), ranks.comm.rank()),
        };
        let freeze = |(layout, held): (&Layout, &Tensor)| Frozen {
            layout: layout.clone(),
            partition: Partition::new(layout.numel(), world),
            rank,
            values: held.detach().copy(),
        };
        let frozen = blocks.iter().zip(held).map(freeze).collect();
        let adapters = Self { layouts, whole: Vec::new(), frozen, lora_rank, alpha };
        let start = adapters.layouts.iter().enumerate().map(|(block, layout)| {
            let start = Tensor::zeros([layout.numel()], (Kind::Float, units.device()));
            for (number, Adapted { a, .. }) in adapters.of_block(block).enumerate() {
                let values = Tensor::from_slice(&uniform([seed, block as u64, number as u64, ADAPTERS], a));
                start.narrow(0, a.offset, a.numel()).copy_(&values);
            }
            start
        });
        let start: Vec<Tensor> = start.collect();
        (Self { whole: start.iter().map(Tensor::shallow_clone).collect(), ..adapters }, start)
    }

    /// Sets the projections that this rank holds to W0 + s B A, computed in float32, with the ranks' current
    /// `master_weights` as A and B.
    pub fn merge(&mut self, master_weights: &[Tensor], blocks: &[Tensor], ranks: &Ranks) -> Result<()> {
        let whole = self.layouts.iter().zip(master_weights).map(|(layout, shard)| ranks.whole_of(layout, shard));
        self.whole = whole.collect::<Result<_>>()?;
        no_grad(|| {
            for (block, (own, held)) in self.whole.iter().zip(blocks).enumerate() {
                let Frozen { partition, rank, values, .. } = &self.frozen[block];
                for Adapted { w, a, b } in self.of_block(block) {
                    let [a, b] = [a, b].map(|param| self.layouts[block].view(own, param));
                    let change = (b.matmul(&a) * self.scale()).view([-1]);
                    for piece in partition.pieces_of(*rank, w.offset..w.offset + w.numel()) {
                        let of = |x: &Tensor| x.narrow(0, piece.shard_start, piece.length);
                        let change = change.narrow(0, piece.start - w.offset, piece.length);
                        of(held).copy_(&(of(values).to_kind(Kind::Float) + change));
                    }
                }
            }
        });
        Ok(())
    }

    /// Adds dA and dB of one block to `grad`, given the gradients of the block's tensors in the order of its flat tensor.
    pub fn project(&self, block: usize, gradients: &[Tensor], grad: &Tensor) {
        let (layout, own) = (&self.layouts[block], &self.whole[block]);
        no_grad(|| {
            let mut start = 0;
            for gradient in gradients {
                let end = start + gradient.numel() as i64;
                for Adapted { w, a, b } in self.of_block(block).filter(|p| (start..end).contains(&p.w.offset)) {
                    // Projections that share an input have one gradient, with their rows below each other.
                    let dw = gradient.reshape([-1]).narrow(0, w.offset - start, w.numel()).view(&w.shape[..]);
                    let dw = dw.to_kind(Kind::Float);
                    let da = layout.view(own, b).tr().matmul(&dw) * self.scale();
                    let db = dw.matmul(&layout.view(own, a).tr()) * self.scale();
                    let _ = layout.view(grad, a).g_add_(&da);
                    let _ = layout.view(grad, b).g_add_(&db);
                }
                start = end;
            }
        });
    }

    /// Number of entries of all A and B.
    pub fn numel(&self) -> i64 {
        self.layouts.iter().map(Layout::numel).sum()
    }

    /// The contents of peft's `adapter_config.json`; `base` is the folder of the base model.
    pub fn peft_config(&self, base: &Path) -> Value {
        let targets = projections(&self.frozen[0].layout).map(|w| module(w).rsplit('.').next());
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.lora_rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": targets.collect::<Vec<_>>(),
            "inference_mode": true,
        })
    }

    fn scale(&self) -> f64 {
        self.alpha / self.lora_rank as f64
    }

    fn of_block(&self, block: usize) -> impl Iterator<Item = Adapted<'_>> {
        let pairs = self.layouts[block].params.chunks_exact(2);
        projections(&self.frozen[block].layout).zip(pairs).map(|(w, ab)| Adapted { w, a: &ab[0], b: &ab[1] })
    }
}

/// Uniform numbers within ±1 / sqrt(in) for A (rank, in), from the random stream of this key.
fn uniform(key: [u64; 4], a: &Param) -> Vec<f32> {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(key) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut rng = ChaCha8Rng::from_seed(bytes);
    let bound = 1.0 / (a.shape[1] as f32).sqrt();
    (0..a.numel()).map(|_| ((rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0) * bound).collect()
}
