//! Operations that small networks dispatch, as a recorder sees them.

use nestor::engine::{Decode, Engine, EngineOptions, NoiseKey, Request, Sampling, Weights};
use nestor::policy::update::differentiate;
use nestor::policy::{Network, Packed, PassOptions, policy_gradients};
use nestor_model::data::{Rows, Sequence};
use nestor_model::model::{Config, Model, new};
use nestor_model::shard::{Ranks, update_rule};
use nestor_recipe::Recompute;
use nestor_torch::ops::Ops;
use nestor_torch::record::{Operation, Record};
use tch::{Device, Kind};

pub const HEADS: i64 = 8;
pub const KV_HEADS: i64 = 2;
pub const DIM: i64 = 16;

/// A small network of the architecture that has the shape of this name.
pub fn config(shape: &str, blocks: i64) -> Config {
    Config {
        vocab_size: 64,
        hidden_size: 64,
        intermediate_size: 160,
        num_hidden_layers: blocks,
        num_attention_heads: HEADS,
        num_key_value_heads: KV_HEADS,
        head_dim: Some(DIM),
        max_position_embeddings: 1024,
        rope_theta: 10_000.0,
        initializer_range: 0.2,
        ..Config::shape(shape).expect("a shape")
    }
}

pub fn model(shape: &str, blocks: i64, ops: Ops) -> Model {
    of_config(config(shape, blocks), ops)
}

pub fn of_config(config: Config, ops: Ops) -> Model {
    let Model { config, units, .. } = new::random(&config, 3, Kind::Float, Device::Cpu).expect("a model");
    let flats = units.held().iter().map(|flat| flat.to_kind(Kind::BFloat16)).collect();
    Model { ops, ..Model::new(config, flats) }
}

/// Operations of a forward and backward pass over sequences of these lengths, and the bytes that are live between the two.
pub fn pass(model: Model, lengths: &[usize], recompute: Recompute) -> (Vec<Operation>, i64) {
    pass_alike(model, lengths, 0, recompute)
}

/// The same of sequences that have their first `common` tokens in common.
pub fn pass_alike(model: Model, lengths: &[usize], common: u32, recompute: Recompute) -> (Vec<Operation>, i64) {
    let (mut policy, packed) = prepared(model, lengths, common);
    let record = Record::begin();
    let live = differentiated(&mut policy, &packed, recompute, || record.live_bytes());
    (record.operations(), live)
}

/// A network with an optimizer, and a micro-batch of such sequences.
pub fn prepared(model: Model, lengths: &[usize], common: u32) -> (Network, Packed) {
    let mut rows = Rows { token_offsets: vec![0], ..Rows::default() };
    let mut sequences = Vec::new();
    for (i, &length) in lengths.iter().enumerate() {
        rows.span_start.push(length as u32 - 4);
        rows.token_offsets.push(4 * (i as u64 + 1));
        sequences.push(Sequence {
            tokens: (0..length as u32).map(|t| if t < common { t } else { t + 5 * i as u32 } % 64).collect(),
            rows: vec![i as u32],
            ..Sequence::default()
        });
    }
    let packed = Packed::new(&sequences.iter().collect::<Vec<_>>(), &rows, &model).expect("sequences");
    let mut policy =
        Network::new(model, update_rule(&Default::default()), &Ranks::solo(Device::Cpu)).expect("a network");
    policy.optimizer.zero_grad();
    (policy, packed)
}

/// A forward and backward pass; the result of `between`, which is called between the two.
pub fn differentiated<T>(
    policy: &mut Network,
    packed: &Packed,
    recompute: Recompute,
    between: impl FnOnce() -> T,
) -> T {
    let (model, sums) = policy.for_backward();
    let options = PassOptions { temperature: 1.0, recompute, loss_factor: 1.0 };
    let result = policy_gradients(model, packed, options, sums, |stats| {
        let live = between();
        let (grads, ()) = differentiate(stats, false, |logprobs, _| (logprobs.sum(Kind::Double), ()));
        (grads, live)
    });
    result.expect("a pass")
}

/// Operations of one pass that decodes a token for each of some requests of `length` tokens.
pub fn decode(model: &Model, requests: u32, length: usize, decode: Decode) -> Vec<Operation> {
    let options = EngineOptions { slots: requests as usize, capacity: length + 16, decode, ..Default::default() };
    let (mut engine, weights) = (Engine::new(options), Weights::new(model).expect("weights"));
    for episode in 0..requests {
        let prompt = (0..length as u32).map(|t| (t * 7 + episode) % 64).collect();
        let key = NoiseKey { episode, ..Default::default() };
        engine
            .submit(Request { key, images: Vec::new(), prompt, max_new_tokens: 8, sampling: Sampling::default() })
            .expect("taken");
    }
    // Prompts first; then every pass decodes.
    while engine.counters().generated < 2 * u64::from(requests) {
        engine.step(&weights).expect("a pass");
    }
    let record = Record::begin();
    engine.step(&weights).expect("a pass");
    record.operations()
}
