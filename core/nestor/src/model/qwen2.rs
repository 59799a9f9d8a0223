//! Qwen2 (Qwen2.5 in every size) and Qwen3, on one packed token axis.
//!
//! Tokens of all sequences lie end to end; which tokens may see each other is decided by the `attend` function that
//! the caller passes to [`Model::block`]: packed causal attention in the update, the KV cache in generation. So there
//! is one block, and training and generation cannot drift apart. Follows `modeling_qwen2.py` and `modeling_qwen3.py` of
//! transformers. The two differ in a block's attention: Qwen2 adds biases to queries, keys and values, Qwen3 normalises
//! each head of queries and keys.

use anyhow::Result;
use nestor_torch::{PackedLinear, fused};
use tch::{Device, Kind, Tensor};

use super::config::Output;
use super::{Architecture, Config};
use crate::shard::{Layout, Reader, Units};

/// A network whose parameters are one flat tensor per unit: unit 0 is the embedding (with the final norm, and with the
/// head where it is not tied to the embedding; a critic's head is a linear layer to one value), unit `1 + i` is block `i`.
#[derive(Debug)]
pub struct Model {
    /// The shape of the network.
    pub config: Config,
    /// Where the parameters lie in each unit's flat tensor.
    pub layouts: Vec<Layout>,
    /// Their values in the compute type.
    pub units: Units,
}

/// Rotary tables for given positions: cos and sin, each (T, 1, D) in the compute type.
#[derive(Debug)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

/// The tensors of one block: views of its flat tensor, projections that share an input fused into one.
pub struct BlockWeights {
    /// In the order of [`block_spans`].
    tensors: Vec<Tensor>,
    /// Copies of the matrices among them for products without gradients, see [`BlockWeights::packed`].
    packed: Vec<Option<PackedLinear>>,
}

/// The tensors of the first unit: `[embedding, final norm]`, the head where it is not tied, and a critic's bias.
pub struct OuterWeights {
    tensors: Vec<Tensor>,
    /// A copy of the head, see [`OuterWeights::packed`].
    packed_head: Option<PackedLinear>,
}

/// The layouts of all units of a network: unit 0 outside the blocks, then the blocks.
pub fn layouts(c: &Config) -> Vec<Layout> {
    let (hidden, ffn) = (c.hidden_size, c.intermediate_size);
    let (q, kv) = (c.num_attention_heads * c.head_dim(), c.num_key_value_heads * c.head_dim());
    let mut outer = vec![
        ("model.embed_tokens.weight".to_string(), vec![c.vocab_size, hidden]),
        ("model.norm.weight".to_string(), vec![hidden]),
    ];
    match c.output {
        Output::Tokens if c.tie_word_embeddings => {}
        Output::Tokens => outer.push(("lm_head.weight".to_string(), vec![c.vocab_size, hidden])),
        // The names of transformers' Qwen2ForTokenClassification with one label.
        Output::Value => {
            outer.extend([("score.weight".to_string(), vec![1, hidden]), ("score.bias".to_string(), vec![1])]);
        }
    }
    let mut units = vec![Layout::new("outer", outer)];
    for layer in 0..c.num_hidden_layers {
        let name = |(rest, shape): (&str, Vec<i64>)| (format!("model.layers.{layer}.{rest}"), shape);
        // Query, key and value (and gate and up) lie side by side, so that one product makes them all.
        let projections = vec![
            ("input_layernorm.weight", vec![hidden]),
            ("self_attn.q_proj.weight", vec![q, hidden]),
            ("self_attn.k_proj.weight", vec![kv, hidden]),
            ("self_attn.v_proj.weight", vec![kv, hidden]),
        ];
        let own = match c.architecture {
            Architecture::Qwen2 => vec![
                ("self_attn.q_proj.bias", vec![q]),
                ("self_attn.k_proj.bias", vec![kv]),
                ("self_attn.v_proj.bias", vec![kv]),
            ],
            Architecture::Qwen3 => {
                vec![("self_attn.q_norm.weight", vec![c.head_dim()]), ("self_attn.k_norm.weight", vec![c.head_dim()])]
            }
        };
        let rest = vec![
            ("self_attn.o_proj.weight", vec![hidden, q]),
            ("post_attention_layernorm.weight", vec![hidden]),
            ("mlp.gate_proj.weight", vec![ffn, hidden]),
            ("mlp.up_proj.weight", vec![ffn, hidden]),
            ("mlp.down_proj.weight", vec![hidden, ffn]),
        ];
        let params = projections.into_iter().chain(own).chain(rest).map(name).collect();
        units.push(Layout::new(format!("block {layer}"), params));
    }
    units
}

/// Shapes of a block's tensors as the forward pass uses them, end to end over the block's flat tensor.
fn block_spans(c: &Config) -> Vec<Vec<i64>> {
    let (hidden, ffn) = (c.hidden_size, c.intermediate_size);
    let (q, kv) = (c.num_attention_heads * c.head_dim(), c.num_key_value_heads * c.head_dim());
    let own = match c.architecture {
        Architecture::Qwen2 => vec![vec![q + 2 * kv]], // biases of query, key, value
        Architecture::Qwen3 => vec![vec![c.head_dim()]; 2], // query norm, key norm
    };
    let mut spans = vec![
        vec![hidden],             // input norm
        vec![q + 2 * kv, hidden], // query, key, value
    ];
    spans.extend(own);
    spans.extend([
        vec![hidden, q],       // output
        vec![hidden],          // post-attention norm
        vec![2 * ffn, hidden], // gate, up
        vec![hidden, ffn],     // down
    ]);
    spans
}

/// Cuts a flat tensor into consecutive views of the given shapes.
fn cut(flat: &Tensor, shapes: &[Vec<i64>]) -> Vec<Tensor> {
    let mut offset = 0;
    shapes
        .iter()
        .map(|shape| {
            let numel: i64 = shape.iter().product();
            let view = flat.narrow(0, offset, numel).view(shape.as_slice());
            offset += numel;
            view
        })
        .collect()
}

/// Views that autograd treats as leaves: the update differentiates with respect to them.
fn leaves(tensors: Vec<Tensor>) -> Vec<Tensor> {
    tensors.into_iter().map(|t| t.detach().set_requires_grad(true)).collect()
}

/// A matrix in the layout that oneDNN multiplies small inputs with fastest; none where it has no such layout.
fn pack(tensor: &Tensor) -> Option<PackedLinear> {
    let packs = tensor.dim() == 2 && tensor.device() == Device::Cpu;
    packs.then(|| PackedLinear::new(tensor).ok()).flatten()
}

/// `x` times a weight, by its packed copy where there is one.
fn linear(x: &Tensor, weight: &Tensor, packed: Option<&PackedLinear>, bias: Option<&Tensor>) -> Tensor {
    packed.map_or_else(|| x.linear(weight, bias), |packed| packed.apply(x, bias))
}

impl BlockWeights {
    /// Views of a block's flat tensor; with `grad` they are leaves that require gradients.
    pub fn new(config: &Config, flat: &Tensor, grad: bool) -> Self {
        let tensors = cut(flat, &block_spans(config));
        Self { tensors: if grad { leaves(tensors) } else { tensors }, packed: Vec::new() }
    }

    /// The tensors in flat order: what a backward pass differentiates with respect to.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// With a second copy of all matrices on a CPU, for passes without gradients that multiply few rows. Changes of the
    /// weights are not seen by it.
    pub fn packed(self) -> Self {
        Self { packed: self.tensors.iter().map(pack).collect(), ..self }
    }
}

impl OuterWeights {
    /// Views of the first unit's flat tensor; with `grad` they are leaves that require gradients.
    pub fn new(layout: &Layout, flat: &Tensor, grad: bool) -> Self {
        let shapes: Vec<_> = layout.params.iter().map(|p| p.shape.clone()).collect();
        let tensors = cut(flat, &shapes);
        Self { tensors: if grad { leaves(tensors) } else { tensors }, packed_head: None }
    }

    /// `[embedding, final norm]`, the head where it is not tied, and a critic's bias.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// With a second copy of the head, as [`BlockWeights::packed`].
    pub fn packed(self) -> Self {
        Self { packed_head: pack(self.head().0), ..self }
    }

    /// Places of final norm and head among the tensors: what stands between the last block and the output. A tied head
    /// is the embedding.
    pub fn head_indices(&self) -> Vec<usize> {
        match self.tensors.len() {
            2 => vec![1, 0],
            n => (1..n).collect(),
        }
    }

    /// The final norm (E).
    fn norm(&self) -> &Tensor {
        &self.tensors[1]
    }

    /// The head (V, E), or a critic's (1, E) and its bias (1).
    pub fn head(&self) -> (&Tensor, Option<&Tensor>) {
        match &self.tensors[..] {
            [embedding, _norm] => (embedding, None),
            tensors => (&tensors[2], tensors.get(3)),
        }
    }
}

impl Model {
    /// A network of this shape over the given flat tensors (one per unit, as [`layouts`] orders them).
    pub fn new(config: Config, flats: Vec<Tensor>) -> Self {
        Self::of_units(config, Units::Whole(flats))
    }

    /// A network of this shape over these units.
    pub fn of_units(config: Config, units: Units) -> Self {
        Self { layouts: layouts(&config), config, units }
    }

    /// A network whose parameters are not yet set.
    pub fn empty(config: Config, kind: Kind, device: Device) -> Self {
        let flats = layouts(&config).iter().map(|l| Tensor::zeros([l.numel()], (kind, device))).collect();
        Self::new(config, flats)
    }

    /// A copy with its own storage, in the given type.
    pub fn copy(&self, kind: Kind) -> Self {
        Self::of_units(self.config.clone(), self.units.copy(kind))
    }

    /// The compute type.
    pub fn kind(&self) -> Kind {
        self.units.kind()
    }

    /// Where the parameters live.
    pub fn device(&self) -> Device {
        self.units.device()
    }

    /// Number of blocks L.
    pub fn blocks(&self) -> usize {
        self.units.len() - 1
    }

    /// Number of parameters.
    pub fn numel(&self) -> i64 {
        self.layouts.iter().map(Layout::numel).sum()
    }

    /// Every parameter by its Hugging Face name, as a view.
    ///
    /// # Errors
    /// When the weights are spread over ranks.
    pub fn named_parameters(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for (layout, flat) in self.layouts.iter().zip(self.units.whole()?) {
            for param in &layout.params {
                all.push((param.name.clone(), layout.view(flat, param)));
            }
        }
        Ok(all)
    }

    /// Hands the units to a pass, one after the other.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.layouts, &self.units)
    }

    /// The tensors of block `layer`; with `grad` they are leaves that require gradients.
    pub fn block_weights(&self, reader: &mut Reader, layer: usize, grad: bool) -> Result<BlockWeights> {
        Ok(BlockWeights::new(&self.config, &reader.unit(1 + layer)?, grad))
    }

    /// The tensors outside the blocks; with `grad` they are leaves that require gradients.
    pub fn outer_weights(&self, reader: &mut Reader, grad: bool) -> Result<OuterWeights> {
        Ok(OuterWeights::new(&self.layouts[0], &reader.unit(0)?, grad))
    }

    /// Rotary tables for positions (T) of type int64.
    pub fn rope(&self, positions: &Tensor) -> Rope {
        let dim = self.config.head_dim();
        let device = positions.device();
        let exponent = Tensor::arange_start_step(0, dim, 2, (Kind::Int64, device)).to_kind(Kind::Float) / dim as f64;
        let inverse = Tensor::full([1], self.config.rope_theta, (Kind::Float, device)).pow(&exponent).reciprocal();
        let angles = positions.to_kind(Kind::Float).unsqueeze(1) * inverse.unsqueeze(0); // (T, D/2)
        let angles = Tensor::cat(&[&angles, &angles], 1).unsqueeze(1); // (T, 1, D)
        Rope { cos: angles.cos().to_kind(self.kind()), sin: angles.sin().to_kind(self.kind()) }
    }

    /// Embeds token ids (T) into (T, E).
    pub fn embed(&self, weights: &OuterWeights, tokens: &Tensor) -> Tensor {
        Tensor::embedding(&weights.tensors[0], tokens, -1, false, false)
    }

    /// One block: (T, E) to (T, E). `attend` gets rotated queries (T, H, D), rotated keys and values (T, K, D) and
    /// gives (T, H, D). Of the last block only some rows may be read: with `read` (N) only these are computed after
    /// attention, and it gives (N, E).
    pub fn block(
        &self,
        weights: &BlockWeights,
        x: &Tensor,
        rope: &Rope,
        read: Option<&Tensor>,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let [norm_in, qkv, own @ .., out, norm_post, gate_up, down] = &weights.tensors[..] else {
            unreachable!("a block has at least six tensors")
        };
        // A block's matrices are the second tensor and three of the last four.
        let places = [1, 2 + own.len(), 4 + own.len(), 5 + own.len()];
        let [qkv_packed, out_packed, gate_up_packed, down_packed] =
            places.map(|place| weights.packed.get(place).and_then(Option::as_ref));
        let (bias, head_norms) = match own {
            [q_norm, k_norm] => (None, Some((q_norm, k_norm))),
            own => (own.first(), None),
        };
        let c = &self.config;
        let (heads, kv_heads, dim) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim());

        let h = rms_norm(x, norm_in, c.rms_norm_eps);
        let h = linear(&h, qkv, qkv_packed, bias).view([-1, heads + 2 * kv_heads, dim]); // (T, H + 2K, D)
        let (qk, v) = (h.narrow(1, 0, heads + kv_heads), h.narrow(1, heads + kv_heads, kv_heads));
        let [q, k, v] = if let Some((q_norm, k_norm)) = head_norms {
            let scales = [q_norm.expand([heads, dim], false), k_norm.expand([kv_heads, dim], false)];
            let [q, k] = rotate(&rms_norm(&qk, &Tensor::cat(&scales, 0), c.rms_norm_eps), rope, heads);
            [q, k, v]
        } else if fused::takes(&h) {
            fused::rotate_qkv(&h, &rope.cos, &rope.sin, heads)
        } else {
            let [q, k] = rotate(&qk, rope, heads);
            [q, k, v]
        };
        let attended = attend(&q, &k, &v).reshape([-1, heads * dim]);
        // Rows by index as an embedding, because the gradient of `index_select` adds row by row on a CPU.
        let keep =
            |x: &Tensor| read.map_or_else(|| x.shallow_clone(), |rows| Tensor::embedding(x, rows, -1, false, false));
        let (x, attended) = (keep(x), keep(&attended));
        let x = x + linear(&attended, out, out_packed, None);

        let h = linear(&rms_norm(&x, norm_post, c.rms_norm_eps), gate_up, gate_up_packed, None);
        x + linear(&silu_mul(&h), down, down_packed, None)
    }

    /// The final norm: (R, E) to what the head gets.
    pub fn final_norm(&self, weights: &OuterWeights, x: &Tensor) -> Tensor {
        rms_norm(x, weights.norm(), self.config.rms_norm_eps)
    }

    /// Final norm and head: (R, E) to logits (R, V), or a critic's values (R, 1), in the compute type.
    pub fn head(&self, weights: &OuterWeights, x: &Tensor) -> Tensor {
        let (head, bias) = weights.head();
        linear(&rms_norm(x, weights.norm(), self.config.rms_norm_eps), head, weights.packed_head.as_ref(), bias)
    }
}

/// x / rms(x) * weight over the last dimension, the mean square in float32.
fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    if fused::takes(x) {
        return fused::rms_norm(x, weight, eps);
    }
    let wide = x.to_kind(Kind::Float);
    let scale = (wide.square().mean_dim(&[-1i64][..], true, Kind::Float) + eps).rsqrt();
    weight * (wide * scale).to_kind(x.kind())
}

/// Applies the rotary embedding to queries and keys side by side, (T, H + K, D): (T, H, D) and (T, K, D).
fn rotate(x: &Tensor, rope: &Rope, heads: i64) -> [Tensor; 2] {
    if fused::takes(x) {
        return fused::rotate(x, &rope.cos, &rope.sin, heads);
    }
    let half = x.size()[2] / 2;
    let turned = Tensor::cat(&[&-x.narrow(2, half, half), &x.narrow(2, 0, half)], 2);
    let rotated = x * &rope.cos + turned * &rope.sin;
    [rotated.narrow(1, 0, heads), rotated.narrow(1, heads, x.size()[1] - heads)]
}

/// silu(gate) * up of gate and up side by side: (T, 2F) to (T, F).
fn silu_mul(x: &Tensor) -> Tensor {
    if fused::takes(x) {
        return fused::silu_mul(x);
    }
    let half = x.size()[1] / 2;
    x.narrow(1, 0, half).silu() * x.narrow(1, half, half)
}
