//! Operations per block, and the memory that a block keeps, as a recorder of dispatched operations counts them on a CPU.
//! The generic operations are those that CUDA runs: each is a kernel or two there.

use std::collections::BTreeMap;

use nestor::data::{Rows, Sequence};
use nestor::engine::{Engine, EngineOptions, NoiseKey, Request, Sampling, Weights};
use nestor::model::{Architecture, Config, Model, config::Output, new};
use nestor::policy::backward::activation_bytes;
use nestor::policy::update::differentiate;
use nestor::policy::{Network, Packed, PassOptions, policy_gradients};
use nestor::recipe::Recompute;
use nestor::shard::Ranks;
use nestor_torch::ops::Ops;
use nestor_torch::record::{Operation, Record};
use tch::{Device, Kind};

const HEADS: i64 = 8;
const KV_HEADS: i64 = 2;
const DIM: i64 = 16;

fn model(architecture: Architecture, blocks: i64, ops: Ops) -> Model {
    let config = Config {
        architecture,
        vocab_size: 64,
        hidden_size: 64,
        intermediate_size: 160,
        num_hidden_layers: blocks,
        num_attention_heads: HEADS,
        num_key_value_heads: KV_HEADS,
        head_dim: Some(DIM),
        max_position_embeddings: 1024,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: true,
        initializer_range: 0.2,
        output: Output::Tokens,
    };
    let Model { config, units, .. } = new::random(&config, 3, Kind::Float, Device::Cpu).expect("a model");
    let flats = units.held().iter().map(|flat| flat.to_kind(Kind::BFloat16)).collect();
    Model { ops, ..Model::new(config, flats) }
}

/// Operations of a forward and backward pass over sequences of these lengths, and the bytes that are live between the two.
fn pass(model: Model, lengths: &[usize], recompute: Recompute) -> (Vec<Operation>, i64) {
    let mut rows = Rows { token_offsets: vec![0], ..Rows::default() };
    let mut sequences = Vec::new();
    for (i, &length) in lengths.iter().enumerate() {
        rows.span_start.push(length as u32 - 4);
        rows.token_offsets.push(4 * (i as u64 + 1));
        sequences.push(Sequence { tokens: (0..length as u32).map(|t| t % 64).collect(), rows: vec![i as u32] });
    }
    let packed = Packed::new(&sequences.iter().collect::<Vec<_>>(), &rows, Device::Cpu);
    let mut policy = Network::new(model, &Ranks::solo(Device::Cpu)).expect("a network");
    policy.optimizer.zero_grad();
    let (model, sums) = policy.for_backward();
    let record = Record::begin();
    let options = PassOptions { temperature: 1.0, recompute, loss_factor: 1.0 };
    let between = policy_gradients(model, &packed, options, sums, |stats| {
        let live = record.live_bytes();
        let (grads, ()) = differentiate(stats, false, |logprobs, _| (logprobs.sum(Kind::Double), ()));
        (grads, live)
    });
    (record.operations(), between.expect("a pass"))
}

/// Operations of one pass that decodes a token for each of some requests of `length` tokens.
fn decode(model: &Model, requests: u32, length: usize) -> Vec<Operation> {
    let options = EngineOptions { slots: requests as usize, capacity: length + 16, ..Default::default() };
    let (mut engine, weights) = (Engine::new(options), Weights::new(model).expect("weights"));
    for episode in 0..requests {
        let prompt = (0..length as u32).map(|t| (t * 7 + episode) % 64).collect();
        let key = NoiseKey { episode, ..Default::default() };
        engine.submit(Request { key, prompt, max_new_tokens: 8, sampling: Sampling::default() }).expect("taken");
    }
    // Prompts first; then every pass decodes.
    while engine.counters().generated < u64::from(requests) {
        engine.step(&weights).expect("a pass");
    }
    let record = Record::begin();
    engine.step(&weights).expect("a pass");
    record.operations()
}

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
    for (architecture, decoded, updated, recomputed) in
        [(Architecture::Qwen2, 19, 44, 60), (Architecture::Qwen3, 21, 51, 69)]
    {
        let of = |blocks| model(architecture, blocks, Ops::Generic);
        let decoding = difference(&decode(&of(2), 4, 40), &decode(&of(1), 4, 40));
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
    let operations = decode(&model(Architecture::Qwen2, 1, Ops::Generic), requests, length);
    let repeated = i64::from(requests) * length as i64 * HEADS * DIM;
    for Operation { name, largest } in &operations {
        assert!(*largest < repeated, "{name} has {largest} elements; repeated keys have {repeated}");
        let builds = ["tril", "triu", "masked_fill", "where", "repeat", "ones", "gt"];
        assert!(!builds.iter().any(|part| name.contains(part)), "{name} in {operations:?}");
    }
    assert!(operations.iter().any(|operation| operation.name == "nestor::varlen_attention"), "{operations:?}");
}

/// `recompute: auto` and `nestor plan` count on it. What stands for CUDA's operations on a CPU keeps no scales and log-sums, which
/// are up to 4 % here.
#[test]
fn a_block_keeps_as_many_bytes_as_planned() {
    let lengths = [90, 130, 60];
    let tokens: usize = lengths.iter().sum();
    for architecture in [Architecture::Qwen2, Architecture::Qwen3] {
        for ops in [Ops::Fused, Ops::Generic] {
            let of = |blocks| pass(model(architecture, blocks, ops), &lengths, Recompute::None).1;
            let kept = of(3) - of(2);
            let planned = tokens as u64 * activation_bytes(&model(architecture, 1, ops).config, Kind::BFloat16, ops);
            let ratio = kept as f64 / planned as f64;
            assert!((0.95..=1.01).contains(&ratio), "{architecture:?} {ops:?}: {kept} bytes, {planned} planned");
        }
    }
}
