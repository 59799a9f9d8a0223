//! The units of a network: the layout of their parameters in flat tensors, and these parameters as the weights of a pass.

use nestor_torch::ops::Ops;
use tch::Tensor;

use super::arch::BlockParts;
use super::config::{Config, Output};
use super::linear::{Linear, TapeGradients, add_gradients};
use super::views::Views;
use super::vision::tower;
use crate::shard::{Layout, LowRank, OUTER};

/// The weights of one block: views of its flat tensor, in its order. Projections that share an input are one.
pub struct BlockWeights {
    /// (E).
    pub(super) input_norm: Tensor,
    /// Queries, keys and values: ((H + 2K) D, E).
    pub(super) qkv: Linear,
    /// Norms of the heads of queries and keys, (D) each.
    pub(super) qk_norm: Option<[Tensor; 2]>,
    /// (E, H D).
    pub(super) o_proj: Linear,
    /// (E).
    pub(super) post_norm: Tensor,
    /// Gate and up: (2F, E).
    pub(super) gate_up: Linear,
    /// (E, F).
    pub(super) down: Linear,
}

/// The weights outside the blocks: views of the first unit's flat tensor, in its order.
pub struct OuterWeights {
    /// (V, E).
    pub embedding: Tensor,
    /// The final norm (E).
    pub norm: Tensor,
    /// The LM head (V, E), which may be the embedding itself, or a critic's (1, E) with its bias.
    pub head: Linear,
}

/// The layouts of all units of a network: unit 0 outside the blocks, then the blocks, then the units of a vision tower.
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
        // The names of transformers' token classification with one label.
        Output::Value => {
            outer.extend([("score.weight".to_string(), vec![1, hidden]), ("score.bias".to_string(), vec![1])]);
        }
    }
    let mut units = vec![Layout::new(OUTER, outer)];
    let BlockParts { qkv_bias, o_bias, mlp_bias, head_norms } = c.block;
    for layer in 0..c.num_hidden_layers {
        // Each part with the condition that it is there. Query, key and value are adjacent, so that one product computes all
        // three; so are gate and up.
        let parts = [
            (true, "input_layernorm.weight", vec![hidden]),
            (true, "self_attn.q_proj.weight", vec![q, hidden]),
            (true, "self_attn.k_proj.weight", vec![kv, hidden]),
            (true, "self_attn.v_proj.weight", vec![kv, hidden]),
            (qkv_bias, "self_attn.q_proj.bias", vec![q]),
            (qkv_bias, "self_attn.k_proj.bias", vec![kv]),
            (qkv_bias, "self_attn.v_proj.bias", vec![kv]),
            (head_norms, "self_attn.q_norm.weight", vec![c.head_dim()]),
            (head_norms, "self_attn.k_norm.weight", vec![c.head_dim()]),
            (true, "self_attn.o_proj.weight", vec![hidden, q]),
            (o_bias, "self_attn.o_proj.bias", vec![hidden]),
            (true, "post_attention_layernorm.weight", vec![hidden]),
            (true, "mlp.gate_proj.weight", vec![ffn, hidden]),
            (true, "mlp.up_proj.weight", vec![ffn, hidden]),
            (mlp_bias, "mlp.gate_proj.bias", vec![ffn]),
            (mlp_bias, "mlp.up_proj.bias", vec![ffn]),
            (true, "mlp.down_proj.weight", vec![hidden, ffn]),
            (mlp_bias, "mlp.down_proj.bias", vec![hidden]),
        ];
        let there = parts.into_iter().filter(|(there, ..)| *there);
        let params = there.map(|(_, rest, shape)| (format!("model.layers.{layer}.{rest}"), shape)).collect();
        units.push(Layout::new(format!("block {layer}"), params));
    }
    if let Some(vision) = &c.vision {
        units.extend(tower::layouts(vision, hidden));
    }
    units
}

/// The layouts of the language model's blocks.
pub fn block_layouts(c: &Config) -> Vec<Layout> {
    layouts(c).into_iter().skip(1).take(c.num_hidden_layers as usize).collect()
}

/// Something of each projection (queries, keys, values, output, gate, up, down) by the layer that joins them.
fn by_layer<T>(of_projections: &[T]) -> [&[T]; 4] {
    let (qkv, rest) = of_projections.split_at(3);
    let (o_proj, rest) = rest.split_at(1);
    let (gate_up, down) = rest.split_at(2);
    [qkv, o_proj, gate_up, down]
}

impl BlockWeights {
    /// Views of a block's flat tensor; with `grad` the norms are leaves that require gradients.
    pub fn new(c: &Config, flat: &Tensor, grad: bool) -> Self {
        let (hidden, ffn, dim) = (c.hidden_size, c.intermediate_size, c.head_dim());
        let (q, kv) = (c.num_attention_heads * dim, c.num_key_value_heads * dim);
        let BlockParts { qkv_bias, o_bias, mlp_bias, head_norms } = c.block;
        let mut views = Views::new(flat, grad);
        let input_norm = views.scale(hidden);
        let qkv = views.linear(q + 2 * kv, hidden, qkv_bias);
        let qk_norm = head_norms.then(|| [views.scale(dim), views.scale(dim)]);
        let o_proj = views.linear(hidden, q, o_bias);
        let post_norm = views.scale(hidden);
        let gate_up = views.linear(2 * ffn, hidden, mlp_bias);
        let down = views.linear(hidden, ffn, mlp_bias);
        Self { input_norm, qkv, qk_norm, o_proj, post_norm, gate_up, down }
    }

    /// The norms, in flat order, in which a pass goes through them too.
    pub fn norms(&self) -> Vec<&Tensor> {
        let mut norms = vec![&self.input_norm];
        norms.extend(self.qk_norm.iter().flatten());
        norms.push(&self.post_norm);
        norms
    }

    /// The linear layers, in the order that a pass goes through them.
    fn linears(&self) -> [&Linear; 4] {
        [&self.qkv, &self.o_proj, &self.gate_up, &self.down]
    }

    /// Adds the weight gradients of a pass to float32 `sums` of the same shapes, or writes them where they are the `first`.
    pub fn add_gradients(sums: &Self, gradients: &TapeGradients, ops: Ops, first: bool) {
        add_gradients(&sums.norms(), &sums.linears(), gradients, ops, first);
    }

    /// The same for A and B of the block's adapters, in the order of its projections.
    pub fn add_adapter_gradients(&self, sums: &[LowRank], gradients: &TapeGradients, ops: Ops, first: bool) {
        let linears = self.linears().into_iter().zip(by_layer(sums)).zip(&gradients.layers);
        linears.for_each(|((linear, sums), of_layer)| linear.add_adapter_gradients(sums, of_layer, ops, first));
    }

    /// The same with adapters of its projections, in their order.
    pub(super) fn adapt(self, parts: &[LowRank], scale: f64) -> Self {
        let [qkv, o_proj, gate_up, down] = by_layer(parts);
        Self {
            qkv: self.qkv.adapt(qkv, scale),
            o_proj: self.o_proj.adapt(o_proj, scale),
            gate_up: self.gate_up.adapt(gate_up, scale),
            down: self.down.adapt(down, scale),
            ..self
        }
    }

    /// All tensors that a pass reads.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.norms().into_iter().chain(self.linears().into_iter().flat_map(Linear::tensors)).collect()
    }

    /// The same with reordered copies of all matrices, see [`Linear::reorder`].
    pub fn reorder(self) -> Self {
        Self {
            qkv: self.qkv.reorder(),
            o_proj: self.o_proj.reorder(),
            gate_up: self.gate_up.reorder(),
            down: self.down.reorder(),
            ..self
        }
    }
}

impl OuterWeights {
    /// Views of the first unit's flat tensor; with `grad` the norm is a leaf that requires a gradient.
    pub fn new(c: &Config, flat: &Tensor, grad: bool) -> Self {
        let mut views = Views::new(flat, grad);
        let embedding = views.view(&[c.vocab_size, c.hidden_size]);
        let norm = views.scale(c.hidden_size);
        let head = match c.output {
            Output::Tokens if c.tie_word_embeddings => Linear::new(embedding.shallow_clone(), None),
            Output::Tokens => views.linear(c.vocab_size, c.hidden_size, false),
            Output::Value => views.linear(1, c.hidden_size, true),
        };
        Self { embedding, norm, head }
    }

    /// All tensors that a pass reads.
    pub fn tensors(&self) -> Vec<&Tensor> {
        [&self.embedding, &self.norm].into_iter().chain(self.head.tensors()).collect()
    }

    /// The same with a reordered copy of the head, see [`Linear::reorder`].
    pub fn reorder(self) -> Self {
        Self { head: self.head.reorder(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Result;
    use tch::{Device, Kind};

    use super::*;
    use crate::model::Model;
    use crate::model::arch::ALL;

    #[test]
    fn the_views_cover_their_units() -> Result<()> {
        let heads = [(Output::Tokens, true), (Output::Tokens, false), (Output::Value, true)];
        let own = ALL.iter().map(|known| Config::shape(known.shapes[0].name)).collect::<Result<Vec<_>>>()?;
        let whole = Config { block: BlockParts::ALL, ..own[0].clone() };
        for (config, (output, tie_word_embeddings)) in
            own.into_iter().chain([whole]).flat_map(|config| heads.map(|head| (config.clone(), head)))
        {
            let shape = (config.architecture.model_type, config.block);
            let config = Config { output, tie_word_embeddings, ..config };
            let model = Model::empty(config, Kind::Float, Device::Cpu);
            let mut reader = model.reader();
            let numel = |tensors: &[&Tensor]| tensors.iter().map(|t| t.numel() as i64).sum::<i64>();
            let of = |linear: &Linear| numel(&[&linear.weight]) + linear.bias.as_ref().map_or(0, |bias| numel(&[bias]));
            let block = model.block_weights(&mut reader, 0, false)?;
            let linears: i64 = block.linears().into_iter().map(of).sum();
            assert_eq!(numel(&block.norms()) + linears, model.layouts[1].numel(), "{shape:?}");
            let outer = model.outer_weights(&mut reader, false)?;
            let tied = outer.head.weight.data_ptr() == outer.embedding.data_ptr();
            let embedding = if tied { 0 } else { numel(&[&outer.embedding]) };
            let rest = numel(&[&outer.norm]) + of(&outer.head);
            assert_eq!(embedding + rest, model.layouts[0].numel(), "{shape:?}, {output:?}");
        }
        Ok(())
    }
}
