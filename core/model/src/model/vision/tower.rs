//! The vision tower of Qwen2.5-VL: patches of images to embeddings of their tokens.
//!
//! A patch is embedded by one product. Blocks attend inside windows or to the whole image. The merger makes one token of
//! each square of patches, as wide as the language model's stream. The network follows `modeling_qwen2_5_vl.py` of
//! transformers. Its parts use the linear layers, the tape and the operations of the language model's blocks.
//!
//! Shapes: P patches, M tokens of the merger, N numbers of a patch, W the tower's width, E the language model's.

use anyhow::Result;
use nestor_images::KeyedImage;
use nestor_torch::generic::{Normed, RotatedQkv};
use nestor_torch::ops::Ops;
use nestor_torch::upload;
use tch::{Device, Kind, Tensor};

use super::attention::Segments;
use super::plan::TowerPlan;
use crate::model::linear::{Linear, Tape, TapeGradients, add_gradients};
use crate::model::views::Views;
use crate::model::{Rope, VisionConfig};
use crate::shard::Layout;

/// Epsilon of the tower's norms.
const EPS: f64 = 1e-6;
/// Base of the tower's rotary angles.
const THETA: f64 = 1e4;

/// The units of a tower, in the order in which a recipe trains them: the merger, the blocks, the patch embedding.
pub fn layouts(c: &VisionConfig, hidden_size: i64) -> Vec<Layout> {
    let (width, ffn, merged) = (c.hidden_size, c.intermediate_size, c.hidden_size * c.merged());
    let named = |prefix: String, params: Vec<(&str, Vec<i64>)>| {
        params.into_iter().map(|(name, shape)| (format!("visual.{prefix}{name}"), shape)).collect::<Vec<_>>()
    };
    let merger = vec![
        ("ln_q.weight", vec![width]),
        ("mlp.0.weight", vec![merged, merged]),
        ("mlp.0.bias", vec![merged]),
        ("mlp.2.weight", vec![hidden_size, merged]),
        ("mlp.2.bias", vec![hidden_size]),
    ];
    let mut units = vec![Layout::new("merger", named("merger.".into(), merger))];
    for block in 0..c.depth {
        // Gate and up are adjacent, so that one product computes both.
        let params = vec![
            ("norm1.weight", vec![width]),
            ("attn.qkv.weight", vec![3 * width, width]),
            ("attn.qkv.bias", vec![3 * width]),
            ("attn.proj.weight", vec![width, width]),
            ("attn.proj.bias", vec![width]),
            ("norm2.weight", vec![width]),
            ("mlp.gate_proj.weight", vec![ffn, width]),
            ("mlp.up_proj.weight", vec![ffn, width]),
            ("mlp.gate_proj.bias", vec![ffn]),
            ("mlp.up_proj.bias", vec![ffn]),
            ("mlp.down_proj.weight", vec![width, ffn]),
            ("mlp.down_proj.bias", vec![width]),
        ];
        units.push(Layout::new(format!("vision block {block}"), named(format!("blocks.{block}."), params)));
    }
    let shape = vec![width, 3, c.temporal_patch_size, c.patch_size, c.patch_size];
    units.push(Layout::new("patch embedding", named("patch_embed.".into(), vec![("proj.weight", shape)])));
    units
}

/// The weights of one block of the tower: views of its flat tensor.
pub struct TowerBlock {
    norm1: Tensor,
    /// Queries, keys and values: (3W, W) with a bias.
    qkv: Linear,
    proj: Linear,
    norm2: Tensor,
    /// Gate and up: (2F, W) with a bias.
    gate_up: Linear,
    down: Linear,
}

/// The weights of the merger: views of its flat tensor.
pub struct Merger {
    norm: Tensor,
    first: Linear,
    second: Linear,
}

/// All weights of a tower, held by the caller.
pub struct TowerWeights {
    pub merger: Merger,
    pub blocks: Vec<TowerBlock>,
    pub patch_embed: Linear,
}

impl TowerBlock {
    /// Views of a block's flat tensor; with `grad` the norms are leaves that require gradients.
    pub fn new(c: &VisionConfig, flat: &Tensor, grad: bool) -> Self {
        let (width, ffn) = (c.hidden_size, c.intermediate_size);
        let mut views = Views::new(flat, grad);
        let norm1 = views.scale(width);
        let qkv = views.linear(3 * width, width, true);
        let proj = views.linear(width, width, true);
        let norm2 = views.scale(width);
        let gate_up = views.linear(2 * ffn, width, true);
        let down = views.linear(width, ffn, true);
        Self { norm1, qkv, proj, norm2, gate_up, down }
    }

    /// Adds the weight gradients of a pass to float32 `sums` of the same shapes, or writes them where they are the `first`.
    pub fn add_gradients(sums: &Self, gradients: &TapeGradients, ops: Ops, first: bool) {
        let linears = [&sums.qkv, &sums.proj, &sums.gate_up, &sums.down];
        add_gradients(&[&sums.norm1, &sums.norm2], &linears, gradients, ops, first);
    }
}

impl Merger {
    /// Views of the merger's flat tensor; with `grad` the norm is a leaf that requires a gradient.
    pub fn new(c: &VisionConfig, hidden_size: i64, flat: &Tensor, grad: bool) -> Self {
        let merged = c.hidden_size * c.merged();
        let mut views = Views::new(flat, grad);
        let norm = views.scale(c.hidden_size);
        let first = views.linear(merged, merged, true);
        let second = views.linear(hidden_size, merged, true);
        Self { norm, first, second }
    }

    /// Adds the weight gradients of a pass to float32 `sums` of the same shapes, or writes them where they are the `first`.
    pub fn add_gradients(sums: &Self, gradients: &TapeGradients, ops: Ops, first: bool) {
        add_gradients(&[&sums.norm], &[&sums.first, &sums.second], gradients, ops, first);
    }
}

/// The patch embedding as a linear layer (W, N): a view of its flat tensor.
pub fn patch_embedding(c: &VisionConfig, flat: &Tensor) -> Linear {
    Linear::new(flat.narrow(0, 0, c.hidden_size * c.patch_numel()).view([c.hidden_size, c.patch_numel()]), None)
}

/// The patches of some images, in the order of a pass, and their places for rotation and attention.
pub struct TowerInput {
    /// (P, N) in the compute type.
    pub patches: Tensor,
    rope: Rope,
    windows: Segments,
    images: Segments,
    /// The place of each token of the images among those of the merger, (M) int64.
    places: Tensor,
    /// Tokens of each image.
    pub tokens: Vec<i64>,
}

impl TowerInput {
    /// Resizes and cuts the images on the CPU.
    ///
    /// # Errors
    /// When an image is too narrow or too large.
    pub fn new(c: &VisionConfig, images: &[&KeyedImage], kind: Kind, device: Device) -> Result<Self> {
        let (mut grids, mut values) = (Vec::with_capacity(images.len()), Vec::new());
        for image in images {
            let patches = c.processor.patches(image.image())?;
            grids.push(patches.grid);
            values.push(Tensor::from_slice(&patches.values).view([-1, c.patch_numel()]));
        }
        let plan = TowerPlan::new(c, &grids);
        let order = Tensor::from_slice(&plan.patches(c.merged()));
        let patches = Tensor::cat(&values, 0).index_select(0, &order).to_kind(kind).to_device(device);
        Ok(Self {
            patches,
            rope: rope(c, &plan.positions, kind, device),
            windows: Segments::new(&plan.windows, device),
            images: Segments::new(&plan.images, device),
            places: upload(&plan.places(), device),
            tokens: plan.images.iter().map(|patches| patches / c.merged()).collect(),
        })
    }
}

/// Rotary tables of patches: the first half of the angles counts rows, the second one columns.
fn rope(c: &VisionConfig, positions: &[[i64; 2]], kind: Kind, device: Device) -> Rope {
    let half = c.head_dim() / 2;
    let exponent = Tensor::arange_start_step(0, half, 2, (Kind::Int64, device)).to_kind(Kind::Float) / half as f64;
    let inverse = Tensor::full([1], THETA, (Kind::Float, device)).pow(&exponent).reciprocal(); // (D/4)
    let positions = upload(positions.as_flattened(), device).view([-1, 2, 1]).to_kind(Kind::Float);
    Rope::of_angles(&(positions * inverse).view([-1, half]), kind)
}

/// One block: (P, W) to (P, W). The tape records norms and linear layers.
pub fn block(
    c: &VisionConfig,
    ops: Ops,
    weights: &TowerBlock,
    (number, input): (usize, &TowerInput),
    x: &Tensor,
    tape: &mut Tape,
) -> Tensor {
    let (heads, dim) = (c.num_heads, c.head_dim());
    let Normed { sum: x, norm: h, weight } = ops.add_norm(x, None, &weights.norm1, EPS);
    tape.norm(&weight);
    let h = weights.qkv.apply(&h, tape).view([-1, 3 * heads, dim]);
    let RotatedQkv { q, k, v, bias } = ops.rotate_qkv(h, [&input.rope.cos, &input.rope.sin], heads, None);
    tape.bias(bias);
    let segments = if c.attends_fully(number) { &input.images } else { &input.windows };
    let attended = weights.proj.apply(&segments.attend([&q, &k, &v]).reshape([-1, heads * dim]), tape);
    let Normed { sum: x, norm: h, weight } = ops.add_norm(&x, Some(&attended), &weights.norm2, EPS);
    tape.norm(&weight);
    let h = ops.silu_mul(&weights.gate_up.apply(&h, tape));
    x + weights.down.apply_last(&h, tape)
}

/// The merger: (P, W) in the order of a pass to embeddings of the images' tokens (M, E) in their own order. The tape records
/// norm and linear layers.
pub fn merge(c: &VisionConfig, ops: Ops, weights: &Merger, places: &Tensor, x: &Tensor, tape: &mut Tape) -> Tensor {
    let Normed { norm: h, weight, .. } = ops.add_norm(x, None, &weights.norm, EPS);
    tape.norm(&weight);
    let h = weights.first.apply(&h.reshape([-1, c.hidden_size * c.merged()]), tape).gelu("none");
    weights.second.apply(&h, tape).index_select(0, places)
}

impl TowerInput {
    /// The place of each token of the images among those of the merger, (M) int64.
    pub fn places(&self) -> &Tensor {
        &self.places
    }
}
