//! Operations per block, and the memory that a block keeps, as a recorder of dispatched operations counts them on a CPU.
//! The generic operations are those that CUDA runs: each is a kernel or two there.

use std::collections::BTreeMap;

use nestor::engine::Decode;
use nestor::policy::recompute::activation_bytes;
use nestor_recipe::Recompute;
use nestor_torch::ops::Ops;
use nestor_torch::record::Operation;
use tch::Kind;

use crate::dispatched::{DIM, HEADS, KV_HEADS, decode, model, pass, pass_alike};

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

/// Without own kernels, sequences that begin alike add two gathers and their two sums to a block, none larger than the keys of
/// all sequences. With them nothing is added (tests/ledger.rs).
#[test]
fn a_common_beginning_gathers_keys_and_values_once_a_block() {
    let lengths = [60, 50, 45];
    let of = |blocks, common| pass_alike(model("tiny", blocks, Ops::Generic), &lengths, common, Recompute::None).0;
    let block = |common| difference(&of(3, common), &of(2, common));
    let (alike, apart) = (block(40), block(0));
    let more: BTreeMap<&str, i64> = alike
        .iter()
        .map(|(name, n)| (name.as_str(), n - apart.get(name).copied().unwrap_or(0)))
        .filter(|(name, n)| *n != 0 && *name != "aten::flatten") // a view
        .collect();
    // Each sum begins with zeros; it adds without another dispatch.
    assert_eq!(more, BTreeMap::from([("aten::index_select", 2), ("aten::zero_", 2)]), "{alike:#?}");
    let keys = lengths.iter().sum::<usize>() as i64 * KV_HEADS * DIM;
    for Operation { name, tensors, .. } in of(2, 40).iter().filter(|it| it.name == "aten::index_select") {
        let written = tensors.split(';').find_map(|tensor| tensor.trim().strip_prefix("w ")).expect("a result");
        let elements: i64 = written.split(' ').filter_map(|size| size.parse::<i64>().ok()).product();
        assert!(elements <= keys, "{name} writes {written}; all keys have {keys} elements");
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
