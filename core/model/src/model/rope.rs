//! Rotary position embeddings: the tables. The operations that apply them are those of `Ops`.

use tch::{Kind, Tensor};

use super::Config;
use super::rope_scaling::RopeScaling;

/// Rotary tables for given positions: cos and sin, each (T, 1, D) in the compute type. Both halves of D are equal.
#[derive(Debug)]
pub struct Rope {
    pub cos: Tensor,
    pub sin: Tensor,
}

impl Rope {
    /// The tables for positions (T) int64, or for those of time, rows and columns (3, T), which share a head's angles as
    /// `mrope_section` says. Angles are computed in float32, as in transformers.
    pub fn new(config: &Config, positions: &Tensor, kind: Kind) -> Self {
        let (dim, device) = (config.head_dim(), positions.device());
        let exponent = Tensor::arange_start_step(0, dim, 2, (Kind::Int64, device)).to_kind(Kind::Float) / dim as f64;
        let base = match config.rope_scaling {
            Some(RopeScaling::Dynamic { factor }) => dynamic_base(config, factor, positions),
            _ => Tensor::full([1], config.rope_theta, (Kind::Float, device)),
        };
        let inverse = base.pow(&exponent).reciprocal(); // (D/2), or (T, D/2) with a base for each sequence
        let inverse =
            config.rope_scaling.map_or_else(|| inverse.shallow_clone(), |it| it.apply(&inverse, config.rope_theta));
        let angles = positions.to_kind(Kind::Float).unsqueeze(-1) * inverse; // (T, D/2) or (3, T, D/2)
        let angles = match &config.vision {
            Some(vision) if angles.dim() == 3 => {
                let axes = vision.mrope_section.iter().zip(0..).scan(0, |start, (&size, axis)| {
                    *start += size;
                    Some(angles.select(0, axis).narrow(1, *start - size, size))
                });
                Tensor::cat(&axes.collect::<Vec<_>>(), 1)
            }
            _ => angles,
        };
        let factor = config.rope_scaling.map_or(1.0, RopeScaling::attention_factor);
        match factor == 1.0 {
            true => Self::of_angles(&angles, kind),
            false => {
                let tables = Self::of_angles(&angles, Kind::Float);
                Self { cos: (tables.cos * factor).to_kind(kind), sin: (tables.sin * factor).to_kind(kind) }
            }
        }
    }

    /// The tables of angles (T, D/2) float32.
    pub fn of_angles(angles: &Tensor, kind: Kind) -> Self {
        let angles = Tensor::cat(&[angles, angles], 1).unsqueeze(1); // (T, 1, D)
        Self { cos: angles.cos().to_kind(kind), sin: angles.sin().to_kind(kind) }
    }

    /// The tables of some rows, index (N) int64: (N, 1, D).
    pub fn rows(&self, index: &Tensor) -> Self {
        Self { cos: self.cos.index_select(0, index), sin: self.sin.index_select(0, index) }
    }

    /// The same tables, in the same memory.
    pub fn shallow_clone(&self) -> Self {
        Self { cos: self.cos.shallow_clone(), sin: self.sin.shallow_clone() }
    }
}

/// The base of dynamic scaling at each position (T): (T, 1) float32. Every position 0 begins a sequence, whose length raises the
/// base beyond `max_position_embeddings`. Where all positions are below that, as in every pass of the engine, it is the plain one.
fn dynamic_base(config: &Config, factor: f64, positions: &Tensor) -> Tensor {
    let longest = config.max_position_embeddings;
    if positions.max().int64_value(&[]) < longest {
        return Tensor::full([1], config.rope_theta, (Kind::Float, positions.device()));
    }
    let (longest, dim) = (longest as f64, config.head_dim() as f64);
    let begins = positions.eq(0);
    let sequence = begins.to_kind(Kind::Int64).cumsum(0, Kind::Int64) - 1;
    let lengths = (positions + 1).masked_select(&begins.roll([-1], [0])).index_select(0, &sequence);
    let lengths = lengths.to_kind(Kind::Float).clamp_min(longest);
    (config.rope_theta * (lengths * factor / longest - (factor - 1.0)).pow_tensor_scalar(dim / (dim - 2.0)))
        .unsqueeze(-1)
}
