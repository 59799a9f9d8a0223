//! Operations per block, and the memory that a block keeps, as a recorder of dispatched operations counts them on a CPU.
//! The generic operations are those that CUDA runs: each is a kernel or two there.

use std::collections::BTreeMap;

use nestor::engine::Decode;
use nestor::policy::backward::activation_bytes;
use nestor_recipe::Recompute;
use nestor_torch::ops::Ops;
use nestor_torch::record::Operation;
use tch::Kind;

use crate::dispatched::{DIM, HEADS, decode, model, pass};

fn counts(operations: &[Operation]) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    operations.iter().for_each(|operation| *counts.entry(operation.name.clone()).or_insert(0) += 1);
    counts
}

/// Operations that a larger network has in addition.
fn difference(larger: &[Operation], smaller: &[Operation]) -> BTreeMap<String, i64> {
    let mut more = counts(larger);
    counts(smaller).into_iter().for_each(|(name, n)| *more.entry(name).or_insert(0) -= n);
    more.retain(|_, n| *n != 0);
    more
}

/// The table "Operations per block" of docs/performance.md has these sums.
#[test]
fn a_block_dispatches_as_many_operations_as_the_docs_say() {
    for (shape, decoded, updated, recomputed) in [("tiny", 20, 43, 59), ("qwen3-tiny", 22, 51, 69)] {
        let of = |blocks| model(shape, blocks, Ops::Generic);
        let decoding = difference(&decode(&of(2), 4, 40, Decode::Plain), &decode(&of(1), 4, 40, Decode::Plain));
        let update = |blocks, recompute| pass(of(blocks), &[20, 33, 9], recompute).0;
        let kept = difference(&update(3, Recompute::None), &update(2, Recompute::None));
        let again = difference(&update(3, Recompute::All), &update(2, Recompute::All));
        let sums = [&decoding, &kept, &again].map(|counts| counts.values().sum::<i64>());
        assert_eq!(sums, [decoded, updated, recomputed], "{decoding:#?} {kept:#?} {again:#?}");
    }
}

/// Keys and values are read at their own heads: nothing has the size of one copy for each query head, nor is a mask made.
#[test]
fn decoding_repeats_no_keys_and_builds_no_mask() {
    let (requests, length) = (4, 300);
    let operations = decode(&model("tiny", 1, Ops::Generic), requests, length, Decode::Plain);
    let seen = i64::from(requests) * length as i64;
    let repeated = seen * HEADS * DIM;
    for Operation { name, largest, .. } in &operations {
        assert!(*largest < repeated, "{name} has {largest} elements; repeated keys have {repeated}");
        let builds = ["tril", "triu", "masked_fill", "where", "repeat", "ones", "gt"];
        // The sampler's are smaller: an element for each request.
        let is_mask = *largest >= seen && builds.iter().any(|part| name.contains(part));
        assert!(!is_mask, "{name} in {operations:?}");
    }
    assert!(operations.iter().any(|operation| operation.name == "nestor::varlen_attention"), "{operations:?}");
}

/// `recompute: auto` and `nestor plan` count on it. What stands for CUDA's operations on a CPU keeps no scales and log-sums, which
/// are up to 4 % here.
#[test]
fn a_block_keeps_as_many_bytes_as_planned() {
    let lengths = [90, 130, 60];
    let tokens: usize = lengths.iter().sum();
    for shape in ["tiny", "qwen3-tiny"] {
        for ops in [Ops::Fused, Ops::Generic] {
            let of = |blocks| pass(model(shape, blocks, ops), &lengths, Recompute::None).1;
            let kept = of(3) - of(2);
            let planned = tokens as u64 * activation_bytes(&model(shape, 1, ops).config, Kind::BFloat16, ops);
            let ratio = kept as f64 / planned as f64;
            assert!((0.95..=1.01).contains(&ratio), "{shape} {ops:?}: {kept} bytes, {planned} planned");
        }
    }
}
