//! LoRA: linear projections of a block are trained through two thin matrices A and B; everything else is frozen.
//!
//! ```text
//! y = x W0ᵀ + s (x Aᵀ) Bᵀ,   s = alpha / rank,   A (rank, in),   B (out, rank)
//! ```
//!
//! E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685. Update and generation compute with
//! the frozen W0 and the adapters one after the other. A merged W0 + s B A in bfloat16 would keep only changes of more than
//! half of an entry's last bit, so that most of the first steps would not reach the outputs.

use anyhow::Result;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor, no_grad};

use super::layout::{Layout, Param};
use super::units::Ranks;
use crate::random::{ADAPTERS, normals, uniforms};
use crate::recipe::{Lora, LoraInit};

/// The adapters of a network's blocks.
#[derive(Debug)]
pub struct Adapters {
    /// A and B of each projection in turn, one layout per block, under peft's names.
    pub layouts: Vec<Layout>,
    /// A and B that the network computes with, whole on every rank: one flat float32 tensor per block.
    whole: Vec<Tensor>,
    /// A block's projections in their order.
    projections: Vec<Adapted>,
    settings: Lora,
}

/// A projection of every block.
#[derive(Debug, Clone)]
struct Adapted {
    /// (out, in) of its weight.
    shape: [i64; 2],
    /// Number of its adapter in a block, if it has one.
    number: Option<usize>,
}

/// A (rank, in) and B (out, rank) of one projection, or their gradient sums: float32 views of a flat tensor. The rank is 0 where
/// the projection has no adapter.
#[derive(Debug)]
pub struct LowRank {
    pub a: Tensor,
    pub b: Tensor,
}

impl LowRank {
    /// True for a projection without an adapter.
    pub fn is_none(&self) -> bool {
        self.a.size()[0] == 0
    }
}

/// A block's linear projections: all of its matrices.
pub fn projections(block: &Layout) -> impl Iterator<Item = &Param> {
    block.params.iter().filter(|p| p.shape.len() == 2)
}

/// A block's projections that get adapters.
pub fn adapted<'a>(block: &'a Layout, settings: &Lora) -> impl Iterator<Item = &'a Param> {
    projections(block).filter(|w| adapts(settings, w))
}

fn adapts(settings: &Lora, w: &Param) -> bool {
    settings.adapts(module(w).rsplit('.').next().unwrap_or_default())
}

/// A projection's name without `.weight`.
fn module(w: &Param) -> &str {
    w.name.strip_suffix(".weight").unwrap_or(&w.name)
}

impl Adapters {
    /// The layouts of A and B of each adapted projection of these blocks, under peft's names.
    pub fn layouts_of(blocks: &[Layout], settings: &Lora) -> Vec<Layout> {
        let lora_rank = settings.rank;
        let adapter = |block: &Layout| {
            let pair = |w: &Param| {
                let name = |which: &str| format!("base_model.model.{}.lora_{which}.weight", module(w));
                [(name("A"), vec![lora_rank, w.shape[1]]), (name("B"), vec![w.shape[0], lora_rank])]
            };
            Layout::new(block.name.clone(), adapted(block, settings).flat_map(pair).collect())
        };
        blocks.iter().map(adapter).collect()
    }

    /// Adapters of these blocks that change nothing yet, as peft makes them: B is zero, and A uniform within ±1 / sqrt(in)
    /// (`kaiming_uniform_(a=sqrt(5))`) or normal with standard deviation 1 / rank (`gaussian`).
    pub fn new(blocks: &[Layout], device: Device, settings: &Lora, seed: u64) -> Self {
        let layouts = Self::layouts_of(blocks, settings);
        let whole = layouts.iter().enumerate().map(|(block, layout)| {
            let start = Tensor::zeros([layout.numel()], (Kind::Float, device));
            for (number, a) in layout.params.iter().step_by(2).enumerate() {
                let key = [seed, block as u64, number as u64, ADAPTERS];
                let values = match settings.init {
                    LoraInit::Kaiming => {
                        Tensor::from_slice(&uniforms(key, a.numel(), 1.0 / (a.shape[1] as f32).sqrt()))
                    }
                    LoraInit::Gaussian => Tensor::from_slice(&normals(key, a.numel())) / settings.rank as f64,
                };
                start.narrow(0, a.offset, a.numel()).copy_(&values);
            }
            start
        });
        let whole = whole.collect();
        Self::of(blocks, whole, settings)
    }

    /// Adapters of these blocks with these values, one flat float32 tensor per block.
    pub fn of(blocks: &[Layout], whole: Vec<Tensor>, settings: &Lora) -> Self {
        let layouts = Self::layouts_of(blocks, settings);
        let mut numbers = 0..;
        let one = |w: &Param| Adapted {
            shape: [w.shape[0], w.shape[1]],
            number: adapts(settings, w).then(|| numbers.next()).flatten(),
        };
        let projections = blocks.first().into_iter().flat_map(projections).map(one).collect();
        Self { layouts, whole, projections, settings: settings.clone() }
    }

    /// A copy with its own storage.
    pub fn copy(&self) -> Self {
        let whole = self.whole.iter().map(|flat| flat.detach().copy()).collect();
        let Self { layouts, projections, settings, .. } = self;
        Self { layouts: layouts.clone(), whole, projections: projections.clone(), settings: settings.clone() }
    }

    /// This rank's shards of A and B, one flat tensor per block.
    pub fn shards(&self, ranks: &Ranks) -> Vec<Tensor> {
        self.layouts.iter().zip(&self.whole).map(|(layout, flat)| ranks.shard_of(layout, flat)).collect()
    }

    /// Takes A and B from the ranks' shards.
    pub fn gather(&mut self, shards: &[Tensor], ranks: &Ranks) -> Result<()> {
        let whole = self.layouts.iter().zip(shards).map(|(layout, shard)| ranks.whole_of(layout, shard));
        self.whole = whole.collect::<Result<_>>()?;
        Ok(())
    }

    /// A and B of a block's projections, in their order.
    pub fn of_block(&self, block: usize) -> Vec<LowRank> {
        self.views(block, &self.whole[block])
    }

    /// A and B of a block's projections in a flat tensor of the block's layout.
    pub fn views(&self, block: usize, flat: &Tensor) -> Vec<LowRank> {
        let layout = &self.layouts[block];
        let none = |shape| Tensor::zeros(shape, (flat.kind(), flat.device()));
        let views = self.projections.iter().map(|Adapted { shape: [outputs, inputs], number }| match number {
            Some(number) => {
                let at = 2 * number;
                LowRank { a: layout.view(flat, &layout.params[at]), b: layout.view(flat, &layout.params[at + 1]) }
            }
            None => LowRank { a: none([0, *inputs]), b: none([*outputs, 0]) },
        });
        views.collect()
    }

    /// A rank's shard of a block's weights with the adapters merged into them, W0 + s B A in float32; `held` is its shard of
    /// W0.
    pub fn merged(&self, block: usize, layout: &Layout, held: &Tensor, ranks: &Ranks) -> Tensor {
        no_grad(|| {
            let merged = held.detach().to_kind(Kind::Float).copy();
            let partition = ranks.partition(layout);
            let all = projections(layout).zip(self.of_block(block));
            for (w, LowRank { a, b }) in all.filter(|(_, one)| !one.is_none()) {
                let change = (b.matmul(&a) * self.scale()).view([-1]);
                for piece in partition.pieces_of(ranks.comm.rank(), w.offset..w.offset + w.numel()) {
                    let change = change.narrow(0, piece.start - w.offset, piece.length);
                    let _ = merged.narrow(0, piece.shard_start, piece.length).g_add_(&change);
                }
            }
            merged
        })
    }

    /// Number of entries of all A and B.
    pub fn numel(&self) -> i64 {
        self.layouts.iter().map(Layout::numel).sum()
    }

    /// The contents of peft's `adapter_config.json`; `base` is the folder of the base model, or a Hub id with its commit.
    pub fn peft_config(&self, base: &str, revision: Option<&str>) -> Value {
        let names = self.layouts[0].params.iter().step_by(2);
        let targets = names.map(|a| a.name.strip_suffix(".lora_A.weight").unwrap_or(&a.name).rsplit('.').next());
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "revision": revision,
            "r": self.settings.rank,
            "lora_alpha": self.settings.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": targets.collect::<Vec<_>>(),
            "inference_mode": true,
        })
    }

    /// The factor s of the adapters' outputs.
    pub fn scale(&self) -> f64 {
        self.settings.alpha / self.settings.rank as f64
    }
}
