//! Rotary position embeddings: the tables. The operations that apply them are those of `Ops`.

use tch::{Kind, Tensor};

use super::Config;

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
        let inverse = Tensor::full([1], config.rope_theta, (Kind::Float, device)).pow(&exponent).reciprocal();
        let inverse = config.rope_scaling.map_or_else(|| inverse.shallow_clone(), |scaling| scaling.apply(&inverse));
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
        Self::of_angles(&angles, kind)
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
