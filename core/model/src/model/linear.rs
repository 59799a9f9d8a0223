//! A linear layer, the adapters on it, and the gradients of both.
//!
//! ```text
//! y = x Wᵀ + b + (x Aᵀ) (s B)ᵀ
//!
//! dW = gᵀ x           db = sum of g             g the gradient of y
//! dB = s gᵀ (x Aᵀ)    dA = (g (s B))ᵀ x
//! ```
//!
//! Autograd computes the gradients of y and x alone. Those of the weights are products of the two, and each product is added
//! to the optimizer's float32 sum as it is computed, so that no weight gradient exists in the compute type. Gradients of
//! vectors, which are biases and weights of norms, come out of autograd in float32 parts where own kernels compute them: a pass
//! over all tokens leaves a part for each of its blocks, and one small kernel adds their sum to the optimizer's.

use nestor_torch::ReorderedLinear;
use nestor_torch::autograd::{GradientEdge, gradients, unread_product};
use nestor_torch::ops::Ops;
use tch::{Device, Tensor};

use crate::shard::LowRank;

/// A linear projection.
#[derive(Debug)]
pub struct Linear {
    /// W (out, in).
    pub weight: Tensor,
    /// b (out).
    pub bias: Option<Tensor>,
    /// A copy of the weight for products without gradients, see [`Linear::reorder`].
    reordered: Option<ReorderedLinear>,
    adapters: Option<JoinedAdapters>,
}

/// The adapters of all projections that one layer joins, as one adapter in the compute type.
#[derive(Debug)]
struct JoinedAdapters {
    /// All A below each other, (n r, in).
    a: Tensor,
    /// s B of each projection in its own rows and columns, 0 elsewhere: (out, n r).
    b: Tensor,
    scale: f64,
}

/// The norms and linear layers that a pass went through, in turn: what their weight gradients are made of.
#[derive(Debug, Default)]
pub struct Tape {
    /// None in a pass without gradients.
    entries: Option<TapeEntries>,
    /// Nobody reads the values of the pass's output.
    unread: bool,
}

#[derive(Debug, Default)]
struct TapeEntries {
    /// The leaves that have the gradients of the norms' weights.
    norms: Vec<GradientEdge>,
    layers: Vec<LayerEntry>,
}

#[derive(Debug)]
struct LayerEntry {
    /// x (T, in).
    input: Tensor,
    /// The place of y in the graph.
    output: GradientEdge,
    /// A leaf that stands for the bias.
    bias: Option<GradientEdge>,
}

/// The parts of a pass's weight gradients, in the order of its tape.
#[derive(Debug)]
pub struct TapeGradients {
    /// Those of norms, in the form of their leaves: (E), or (P, E) in P parts.
    pub norms: Vec<Tensor>,
    pub layers: Vec<LayerGradients>,
}

/// The parts of one linear layer's weight gradients.
#[derive(Debug)]
pub struct LayerGradients {
    /// x (T, in).
    pub input: Tensor,
    /// g (T, out), the gradient of y.
    pub output: Tensor,
    /// That of the bias (P, out) in P parts; g itself where there is none.
    pub bias: Option<Tensor>,
}

impl Tape {
    /// Records nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Records every layer.
    pub fn on() -> Self {
        Self { entries: Some(TapeEntries::default()), unread: false }
    }

    /// Records every layer of a block that is computed again, for its gradients alone.
    pub fn again() -> Self {
        Self { unread: true, ..Self::on() }
    }

    /// Records the leaf that has the gradient of a norm's weight, unless that is frozen.
    pub fn norm(&mut self, weight: &Tensor) {
        if let Some(entries) = self.entries.as_mut().filter(|_| weight.requires_grad()) {
            entries.norms.push(GradientEdge::of(weight));
        }
    }

    /// Records a leaf that stands for the bias of the last layer, where there is one.
    pub fn bias(&mut self, leaf: Option<Tensor>) {
        if let Some(last) = self.entries.as_mut().and_then(|entries| entries.layers.last_mut()) {
            last.bias = leaf.as_ref().map(GradientEdge::of);
        }
    }

    fn layer(&mut self, input: &Tensor, output: &Tensor) {
        if let Some(entries) = &mut self.entries {
            entries.layers.push(LayerEntry { input: input.detach(), output: GradientEdge::of(output), bias: None });
        }
    }

    /// The gradient of the pass's `input`, and what those of the weights are made of, given the gradient of its `output`. Frees
    /// the graph.
    pub fn backward(self, output: Tensor, grad: &Tensor, input: &Tensor) -> (Tensor, TapeGradients) {
        let TapeEntries { norms, layers } = self.entries.unwrap_or_default();
        let of_norms = norms.len();
        let mut edges: Vec<_> = std::iter::once(GradientEdge::of(input)).chain(norms).collect();
        let layers: Vec<_> = layers
            .into_iter()
            .map(|LayerEntry { input, output, bias }| {
                let has_bias = bias.is_some();
                edges.push(output);
                edges.extend(bias);
                (input, has_bias)
            })
            .collect();
        let mut made = gradients(&output, grad, &edges).into_iter();
        drop((edges, output));
        let mut next = || made.next().unwrap_or_else(|| unreachable!("one gradient for each edge"));
        let of_input = next();
        let norms = (0..of_norms).map(|_| next()).collect();
        let layers = layers
            .into_iter()
            .map(|(input, has_bias)| LayerGradients { input, output: next(), bias: has_bias.then(&mut next) })
            .collect();
        (of_input, TapeGradients { norms, layers })
    }
}

impl Linear {
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, reordered: None, adapters: None }
    }

    /// x (T, in) to (T, out).
    pub fn apply(&self, x: &Tensor, tape: &mut Tape) -> Tensor {
        let mut y = match &self.reordered {
            Some(reordered) => reordered.apply(x, self.bias.as_ref()),
            None => x.linear(&self.weight, self.bias.as_ref()),
        };
        if let Some(JoinedAdapters { a, b, .. }) = &self.adapters {
            let _ = y.addmm_(&x.matmul(&a.tr()), &b.tr());
        }
        tape.layer(x, &y);
        y
    }

    /// The same for the layer that a block ends with: its product is left out where the tape says that nobody reads it.
    pub fn apply_last(&self, x: &Tensor, tape: &mut Tape) -> Tensor {
        if !tape.unread || self.adapters.is_some() {
            return self.apply(x, tape);
        }
        let y = unread_product(x, &self.weight);
        tape.layer(x, &y);
        y
    }

    /// Adds the layer's output for x (T, in) to `sum` (T, out) where it is, without gradients.
    pub fn add_to(&self, mut sum: Tensor, x: &Tensor) -> Tensor {
        let _ = sum.addmm_(x, &self.weight.tr());
        if let Some(bias) = &self.bias {
            let _ = sum.g_add_(bias);
        }
        if let Some(JoinedAdapters { a, b, .. }) = &self.adapters {
            let _ = sum.addmm_(&x.matmul(&a.tr()), &b.tr());
        }
        sum
    }

    /// The same with the adapters of its projections, in the order of their rows; y gets s (x Aᵀ) Bᵀ in addition.
    pub fn adapt(self, parts: &[LowRank], scale: f64) -> Self {
        if parts.iter().all(LowRank::is_none) {
            return self;
        }
        let options = (self.weight.kind(), self.weight.device());
        let all: Vec<&Tensor> = parts.iter().map(|part| &part.a).collect();
        let a = Tensor::cat(&all, 0).to_kind(options.0);
        let b = Tensor::zeros([self.weight.size()[0], a.size()[0]], options);
        for (part, place) in parts.iter().zip(places(parts)) {
            place.of(&b).copy_(&(&part.b * scale));
        }
        Self { adapters: Some(JoinedAdapters { a, b, scale }), ..self }
    }

    /// Adds on a CPU a copy of the weight in the layout that oneDNN multiplies small inputs with fastest, if it has one. For
    /// passes without gradients; later changes of the weight do not reach the copy.
    pub fn reorder(self) -> Self {
        let on_cpu = self.weight.device() == Device::Cpu;
        let reordered = on_cpu.then(|| ReorderedLinear::new(&self.weight).ok()).flatten();
        Self { reordered, ..self }
    }

    /// All tensors that a pass reads.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let adapters = self.adapters.iter().flat_map(|own| [&own.a, &own.b]);
        std::iter::once(&self.weight).chain(&self.bias).chain(adapters)
    }

    /// Adds the gradients of W and b to float32 `sums` of their shapes, or writes them where they are `first`.
    pub fn add_gradients(sums: &Self, LayerGradients { input, output, bias }: &LayerGradients, ops: Ops, first: bool) {
        ops.add_product(&sums.weight, output, input, first);
        if let Some(sum) = &sums.bias {
            ops.add_gradient(sum, bias.as_ref().unwrap_or(output), first);
        }
    }

    /// The same for A and B of each adapter.
    pub fn add_adapter_gradients(&self, sums: &[LowRank], gradients: &LayerGradients, ops: Ops, first: bool) {
        let Some(JoinedAdapters { a, b, scale }) = &self.adapters else { return };
        let LayerGradients { input: x, output: g, .. } = gradients;
        let inner = x.matmul(&a.tr()) * *scale; // s x Aᵀ (T, n r)
        let back = g.matmul(b); // (T, n r)
        for (sum, place) in sums.iter().zip(places(sums)).filter(|(sum, _)| !sum.is_none()) {
            let columns = |t: &Tensor| t.narrow(1, place.column, place.columns);
            ops.add_product(&sum.b, &g.narrow(1, place.row, place.rows), &columns(&inner), first);
            ops.add_product(&sum.a, &columns(&back), x, first);
        }
    }
}

/// Adds the weight gradients of a pass to the float32 sums of its norms and linear layers, or writes them where they are the
/// `first`.
pub fn add_gradients(norms: &[&Tensor], linears: &[&Linear], gradients: &TapeGradients, ops: Ops, first: bool) {
    norms.iter().zip(&gradients.norms).for_each(|(sum, gradient)| ops.add_gradient(sum, gradient, first));
    linears
        .iter()
        .zip(&gradients.layers)
        .for_each(|(sums, of_layer)| Linear::add_gradients(sums, of_layer, ops, first));
}

/// The rows and columns of a projection's B among those of its layer.
struct Place {
    row: i64,
    rows: i64,
    column: i64,
    columns: i64,
}

impl Place {
    fn of(&self, joined: &Tensor) -> Tensor {
        joined.narrow(0, self.row, self.rows).narrow(1, self.column, self.columns)
    }
}

fn places(parts: &[LowRank]) -> impl Iterator<Item = Place> {
    parts.iter().scan((0, 0), |(row, column), part| {
        let (rows, columns) = (part.b.size()[0], part.b.size()[1]);
        let place = Place { row: *row, rows, column: *column, columns };
        (*row, *column) = (*row + rows, *column + columns);
        Some(place)
    })
}
