//! Tensors of checkpoints: their checksum, whatever the number of ranks that wrote them, and their first difference.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::difference::Difference;
use crate::checkpoint::{changed_since, tensor_sets};
use crate::files::hex;
use crate::model::stored::{SLICE, TensorFiles};

/// SHA-256 of every set of tensors of a checkpoint, over names and values in float32.
pub fn digests(checkpoint: &Path) -> Result<Vec<(String, String)>> {
    let digest = |files: &TensorFiles| -> Result<String> {
        let mut hasher = Sha256::new();
        for (name, size) in files.sizes() {
            hasher.update(name);
            hasher.update(size.to_le_bytes());
            for begin in (0..size).step_by(SLICE as usize) {
                let values = files.values(name, begin..(begin + SLICE).min(size))?;
                values.iter().for_each(|value| hasher.update(value.to_le_bytes()));
            }
        }
        Ok(hex(hasher))
    };
    tensor_sets(checkpoint)?.into_iter().map(|(set, files)| Ok((set, digest(&files)?))).collect()
}

/// The elements of one set that differ.
#[derive(Default)]
struct Count {
    first: Option<Difference>,
    tensors: usize,
    elements: u64,
    largest: f64,
    /// Sums of squares of the differences, and of the first run's values.
    squares: (f64, f64),
}

/// The first element that differs in a set of tensors, with the number of all that differ.
pub fn compare(first: &Path, other: &Path, set: &str) -> Result<Option<Difference>> {
    let Some(count) = count(first, other, set)? else { return Ok(None) };
    let Count { first: Some(found), tensors, elements, largest, .. } = count else { return Ok(None) };
    let mut note = format!("elements that differ: {elements}, in tensors: {tensors}, by at most {largest:.1e}");
    for why in [first, other].into_iter().filter_map(changed_since) {
        note += &format!("; {why}");
    }
    Ok(Some(found.with_note(note)))
}

/// Distance between the policies of two checkpoints, relative to the first one (L2): adapters where there are some.
pub fn distance(first: &Path, other: &Path) -> Result<f64> {
    let adapters = count(first, other, "adapter_model")?;
    let policy = if adapters.is_some() { adapters } else { count(first, other, "policy")? };
    let (apart, all) = policy.map_or((0.0, 0.0), |count| count.squares);
    Ok(if all == 0.0 { apart.sqrt() } else { (apart / all).sqrt() })
}

/// Compares every element of a set; none where a checkpoint has no such set.
fn count(first: &Path, other: &Path, set: &str) -> Result<Option<Count>> {
    let (mut a, mut b) = (tensor_sets(first)?, tensor_sets(other)?);
    let (Some(a), Some(b)) = (a.remove(set), b.remove(set)) else { return Ok(None) };
    let (sizes, others) = (a.sizes(), b.sizes());
    let mut count = Count::default();
    for name in sizes.keys().chain(others.keys()).collect::<BTreeSet<_>>() {
        let found = match (sizes.get(name), others.get(name)) {
            (Some(size), Some(there)) if size == there => None,
            (Some(size), Some(there)) => {
                Some(Difference::new(*size, *there).within("tensor", format!("{name}, elements")))
            }
            (size, _) => Some(Difference::missing(name, size.is_some())),
        };
        if let Some(found) = found {
            count.tensors += 1;
            count.first.get_or_insert(found);
            continue;
        }
        let (size, before) = (sizes[name], count.elements);
        for begin in (0..size).step_by(SLICE as usize) {
            let range = begin..(begin + SLICE).min(size);
            let (a, b) = (a.values(name, range.clone())?, b.values(name, range)?);
            for (at, (a, b)) in (begin..).zip(a.into_iter().zip(b)) {
                count.add(name, at, a, b);
            }
        }
        count.tensors += usize::from(count.elements > before);
    }
    Ok(Some(count))
}

impl Count {
    fn add(&mut self, tensor: &str, at: i64, a: f32, b: f32) {
        let apart = f64::from(a) - f64::from(b);
        self.squares.0 += apart * apart;
        self.squares.1 += f64::from(a) * f64::from(a);
        let bits = (a.to_bits() ^ b.to_bits()).count_ones();
        if bits == 0 {
            return;
        }
        self.elements += 1;
        self.largest = if apart.is_nan() { apart } else { self.largest.max(apart.abs()) };
        self.first.get_or_insert_with(|| {
            // The fewest digits that name the float32.
            let number = |x: f32| Value::from(x.to_string().parse().unwrap_or(f64::from(x)));
            Difference::new(number(a), number(b)).within("bits", bits).within("element", at).within("tensor", tensor)
        });
    }
}
