//! Named metrics of a loss. They add up over micro-batches and ranks, because each is a weighted sum over tokens.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// The metrics of one micro-batch. They stay on the device, since each reading would wait for it.
#[derive(Debug)]
pub struct MicroBatchMetrics {
    names: Vec<Cow<'static, str>>,
    /// In the order of the names, float64.
    values: Tensor,
}

impl MicroBatchMetrics {
    /// From scalars of any kind.
    pub fn new(all: &[(Cow<'static, str>, Tensor)]) -> Self {
        let values: Vec<Tensor> = all.iter().map(|(_, value)| value.to_kind(Kind::Double)).collect();
        Self { names: all.iter().map(|(name, _)| name.clone()).collect(), values: Tensor::stack(&values, 0) }
    }
}

/// Names of the metric table and their values, in the order of the loss.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LossMetrics(Vec<(String, f64)>);

impl LossMetrics {
    /// Reads the sums over micro-batches of one loss; without a micro-batch there are none.
    pub fn read(all: &[MicroBatchMetrics]) -> Self {
        let Some(MicroBatchMetrics { names, .. }) = all.first() else { return Self::default() };
        let mut sums = vec![0.0; names.len()];
        let values: Vec<&Tensor> = all.iter().map(|one| &one.values).collect();
        Tensor::stack(&values, 0).sum_dim_intlist(0, false, Kind::Double).copy_data(&mut sums, names.len());
        Self(names.iter().map(|name| name.to_string()).zip(sums).collect())
    }

    /// Sums by name, in the order of the first that has any: an idle rank has none.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let names = all.clone().find(|one| !one.0.is_empty()).into_iter().flat_map(Self::iter).map(|(name, _)| name);
        let sum = |name| all.clone().filter_map(|one| one.get(name)).fold(0.0, |sum, value| sum + value);
        Self(names.map(|name| (name.to_string(), sum(name))).collect())
    }

    /// The value of a name; none where the loss does not have it.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, f64); N]> for LossMetrics {
    fn from(all: [(&str, f64); N]) -> Self {
        Self(all.map(|(name, value)| (name.to_string(), value)).into())
    }
}

impl std::ops::Mul<f64> for LossMetrics {
    type Output = Self;
    fn mul(self, by: f64) -> Self {
        Self(self.0.into_iter().map(|(name, value)| (name, value * by)).collect())
    }
}
