//! Consecutive views of a unit's flat tensor.

use tch::Tensor;

use super::linear::Linear;

/// Cuts a flat tensor into consecutive views.
pub struct Views<'a> {
    flat: &'a Tensor,
    offset: i64,
    /// Makes vectors leaves that autograd differentiates with respect to.
    grad: bool,
}

impl<'a> Views<'a> {
    /// Views of a flat tensor; with `grad` norms are leaves that require gradients.
    pub fn new(flat: &'a Tensor, grad: bool) -> Self {
        Self { flat, offset: 0, grad }
    }

    /// The next elements in this shape.
    pub fn view(&mut self, shape: &[i64]) -> Tensor {
        let numel: i64 = shape.iter().product();
        let view = self.flat.narrow(0, self.offset, numel).view(shape);
        self.offset += numel;
        view
    }

    /// The weight of a norm.
    pub fn scale(&mut self, width: i64) -> Tensor {
        let view = self.view(&[width]);
        if self.grad { view.detach().set_requires_grad(true) } else { view }
    }

    /// A weight (out, in), and after it a bias (out) if there is one.
    pub fn linear(&mut self, out: i64, input: i64, bias: bool) -> Linear {
        let weight = self.view(&[out, input]);
        Linear::new(weight, bias.then(|| self.view(&[out])))
    }
}
