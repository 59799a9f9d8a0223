//! Places of named parameters in their unit's flat tensor.

use tch::Tensor;

/// Most elements of a slice: 64 MiB of float32.
const SLICE: i64 = 1 << 24;

/// One parameter inside a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The Hugging Face name, as in the safetensors files.
    pub name: String,
    pub shape: Vec<i64>,
    /// Its first element in the flat tensor.
    pub offset: i64,
}

impl Param {
    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// The parameters of one unit, end to end in its flat tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub name: String,
    /// In order of their offsets.
    pub params: Vec<Param>,
    /// Most elements that ranks gather or reduce at a time.
    pub slice: i64,
}

impl Layout {
    /// The layout of parameters given as (name, shape).
    pub fn new(name: impl Into<String>, params: Vec<(String, Vec<i64>)>) -> Self {
        let mut offset = 0;
        let params = params
            .into_iter()
            .map(|(name, shape)| {
                let param = Param { name, shape, offset };
                offset += param.numel();
                param
            })
            .collect();
        Self { name: name.into(), params, slice: SLICE }
    }

    /// The layout with slices of this many elements, so that a small unit is cut as a large one is.
    pub fn with_slices(self, slice: i64) -> Self {
        Self { slice, ..self }
    }

    /// Number of elements of the flat tensor.
    pub fn numel(&self) -> i64 {
        self.params.last().map_or(0, |p| p.offset + p.numel())
    }

    /// A view of one parameter in a flat tensor of this layout.
    pub fn view(&self, flat: &Tensor, param: &Param) -> Tensor {
        flat.narrow(0, param.offset, param.numel()).view(param.shape.as_slice())
    }
}
