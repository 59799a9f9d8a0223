//! LoRA: each linear projection of a block is trained through two thin matrices A and B; everything else is frozen.
//!
//! ```text
//! W = W0 + s B A,   s = alpha / rank,   A (rank, in),   B (out, rank)
//! dA = s Bᵀ dW,     dB = s dW Aᵀ
//! ```
//!
//! E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685. The network computes with W,
//! merged anew from W0 after every step, so that engine, passes and export see one set of weights. In bfloat16 an entry
//! of W moves only once s B A is more than half of its last bit; A and B are float32, where smaller changes add up.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use tch::{Kind, Tensor, no_grad};

use super::{Layout, Param};
use crate::recipe;

/// Last word of the keys of A's random numbers, which no key of new weights or of noise has.
const ADAPTERS: u64 = u64::MAX - 1;

/// The adapters of a network: where A and B of each projection lie, and W0. A and B themselves are an optimiser's
/// masters, one flat float32 tensor per block.
#[derive(Debug)]
pub struct Adapters {
    /// A and B of each projection in turn, by block, under peft's names.
    pub layouts: Vec<Layout>,
    /// Where a block's own parameters lie, and their frozen values in the compute type.
    frozen: Vec<(Layout, Tensor)>,
    rank: i64,
    alpha: f64,
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
    /// Where A and B of each projection of these blocks lie, under peft's names.
    pub fn layouts_of(blocks: &[Layout], rank: i64) -> Vec<Layout> {
        let adapter = |block: &Layout| {
            let pair = |w: &Param| {
                let name = |which: &str| format!("base_model.model.{}.lora_{which}.weight", module(w));
                [(name("A"), vec![rank, w.shape[1]]), (name("B"), vec![w.shape[0], rank])]
            };
            Layout::new(block.name.clone(), projections(block).flat_map(pair).collect())
        };
        blocks.iter().map(adapter).collect()
    }

    /// Adapters of these blocks as they are now, and A and B to begin with, as peft makes them: A uniform within
    /// ±1 / sqrt(in) (`kaiming_uniform_(a=sqrt(5))`), B zero.
    pub fn new(blocks: &[Layout], flats: &[Tensor], settings: &recipe::Lora, seed: u64) -> (Self, Vec<Tensor>) {
        let recipe::Lora { rank, alpha } = *settings;
        let layouts = Self::layouts_of(blocks, rank);
        let frozen = blocks.iter().zip(flats).map(|(block, flat)| (block.clone(), flat.detach().copy())).collect();
        let adapters = Self { layouts, frozen, rank, alpha };
        let start = adapters.layouts.iter().zip(flats).enumerate().map(|(block, (layout, flat))| {
            let start = Tensor::zeros([layout.numel()], (Kind::Float, flat.device()));
            for (number, Adapted { a, .. }) in adapters.of_block(block).enumerate() {
                let values = Tensor::from_slice(&uniform([seed, block as u64, number as u64, ADAPTERS], a));
                start.narrow(0, a.offset, a.numel()).copy_(&values);
            }
            start
        });
        let start = start.collect();
        (adapters, start)
    }

    /// Sets the blocks' projections to W0 + s B A, computed in float32.
    pub fn merge(&self, masters: &[Tensor], blocks: &[Tensor]) {
        no_grad(|| {
            for (block, (own, flat)) in masters.iter().zip(blocks).enumerate() {
                let (layout, frozen) = &self.frozen[block];
                for Adapted { w, a, b } in self.of_block(block) {
                    let [a, b] = [a, b].map(|param| self.layouts[block].view(own, param));
                    let merged = layout.view(frozen, w).to_kind(Kind::Float) + b.matmul(&a) * self.scale();
                    layout.view(flat, w).copy_(&merged);
                }
            }
        });
    }

    /// Adds dA and dB of one block to `grad`, given its A and B and the gradients of tensors that lie end to end over the
    /// block's flat tensor.
    pub fn project(&self, block: usize, gradients: &[Tensor], own: &Tensor, grad: &Tensor) {
        let layout = &self.layouts[block];
        no_grad(|| {
            let mut start = 0;
            for gradient in gradients {
                let end = start + gradient.numel() as i64;
                for Adapted { w, a, b } in self.of_block(block).filter(|p| (start..end).contains(&p.w.offset)) {
                    // Projections that share an input have one gradient, row upon row.
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

    /// What peft's `adapter_config.json` says of these adapters; `base` is the folder of the model they belong to.
    pub fn peft_config(&self, base: &Path) -> Value {
        let targets = projections(&self.frozen[0].0).map(|w| module(w).rsplit('.').next());
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": targets.collect::<Vec<_>>(),
            "inference_mode": true,
        })
    }

    fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    fn of_block(&self, block: usize) -> impl Iterator<Item = Adapted<'_>> {
        let pairs = self.layouts[block].params.chunks_exact(2);
        projections(&self.frozen[block].0).zip(pairs).map(|(w, ab)| Adapted { w, a: &ab[0], b: &ab[1] })
    }
}

/// Uniform numbers within ±1 / sqrt(in) for A (rank, in), of the random stream that `key` names.
fn uniform(key: [u64; 4], a: &Param) -> Vec<f32> {
    let mut bytes = [0; 32];
    for (part, word) in bytes.chunks_exact_mut(8).zip(key) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    let mut rng = ChaCha8Rng::from_seed(bytes);
    let bound = 1.0 / (a.shape[1] as f32).sqrt();
    (0..a.numel()).map(|_| ((rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0) * bound).collect()
}
