//! The prefix tree changes neither log-probs nor gradients: random batches against the same batches with every sequence in a
//! micro-batch of its own, which has nothing in common with another.

#![allow(clippy::unwrap_used)] // a panic fails the test

use std::collections::HashSet;
use std::rc::Rc;

use nestor::policy::Network;
use nestor::policy::batching::{MicroBatching, ScoringPasses};
use nestor::policy::critic;
use nestor::policy::logprobs::ragged_logprobs;
use nestor::policy::update::{UpdateSettings, gradients};
use nestor_model::data::{Batch, KeyedImage, Rows, Sequence, SequenceImage};
use nestor_model::model::{Config, Model, new};
use nestor_model::shard::{Ranks, UpdateRule, update_rule};
use nestor_plugin::Image;
use nestor_recipe::{Lora, Update};
use nestor_torch::ops::Ops;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::support::{draw, small};

const IMAGE: u32 = 59;
/// Tokens of an image of 56 x 56 pixels.
const IMAGE_TOKENS: usize = 4;

fn config(shape: &str) -> Config {
    let mut config = small(shape);
    if let Some(vision) = &mut config.vision {
        (vision.depth, vision.hidden_size, vision.intermediate_size, vision.num_heads) = (2, 32, 48, 2);
        vision.fullatt_block_indexes = vec![1];
        (vision.image_token_id, vision.video_token_id) = (i64::from(IMAGE), 58);
        (vision.vision_start_token_id, vision.vision_end_token_id) = (57, 60);
        // Half of a head of 8 elements.
        vision.mrope_section = [2, 1, 1];
    }
    config
}

/// A batch whose sequences have much in common: groups that begin alike, rows that go on from another's middle, equal rows,
/// and episodes with several responses. With `images` some of them show one of two.
fn batch(rng: &mut ChaCha8Rng, images: bool) -> Batch {
    let mut batch = Batch { rows: Rows { token_offsets: vec![0], ..Rows::default() }, ..Batch::default() };
    let shades: Vec<KeyedImage> = [10, 200].map(|s| Image::new(56, 56, vec![s; 3 * 56 * 56]).unwrap().into()).into();
    for _ in 0..rng.random_range(1..4) {
        let mut known: Vec<Sequence> = vec![Sequence::default()];
        for _ in 0..rng.random_range(1..=17) {
            let base = known.choose(rng).unwrap().clone();
            // Never through an image.
            let cut = rng.random_range(0..=base.tokens.len());
            let inside = |image: &&SequenceImage| (1..IMAGE_TOKENS).contains(&cut.wrapping_sub(image.start as usize));
            let cut = base.images.iter().find(inside).map_or(cut, |image| image.start as usize);
            let mut sequence = Sequence { tokens: base.tokens[..cut].to_vec(), ..Sequence::default() };
            sequence.images = base.images.into_iter().filter(|image| (image.start as usize) < cut).collect();
            if images && rng.random_bool(0.5) {
                let start = sequence.tokens.len() as u32;
                sequence.images.push(SequenceImage { start, image: shades.choose(rng).unwrap().clone() });
                sequence.tokens.extend([IMAGE; IMAGE_TOKENS]);
            }
            sequence.tokens.extend((0..rng.random_range(2..8)).map(|_| rng.random_range(0..4)));
            known.push(sequence);
            if rng.random_bool(0.2) {
                known.extend(known.last().cloned());
            }
        }
        for mut sequence in known.into_iter().skip(1) {
            let (mut end, mut spans) = (sequence.tokens.len(), Vec::new());
            let after = sequence.images.last().map_or(1, |image| image.start as usize + IMAGE_TOKENS);
            for _ in 0..rng.random_range(1..3) {
                if end > after {
                    let start = rng.random_range(after.max(end.saturating_sub(6))..end);
                    spans.push(start..end);
                    end = start.saturating_sub(1);
                }
            }
            for span in spans.into_iter().rev() {
                let rows = &mut batch.rows;
                sequence.rows.push(rows.span_start.len() as u32);
                rows.group.push(0);
                rows.span_start.push(span.start as u32);
                rows.token_offsets.push(rows.token_offsets.last().unwrap() + span.len() as u64);
                let mut numbers =
                    |scale: f32| -> Vec<f32> { span.clone().map(|_| scale * rng.random::<f32>()).collect() };
                rows.logprobs.extend(numbers(-4.0));
                rows.ref_logprobs.get_or_insert_default().extend(numbers(-4.0));
                rows.advantages.extend(numbers(2.0));
                rows.returns.extend(numbers(1.0));
                rows.values.get_or_insert_default().extend(numbers(1.0));
                rows.values.get_or_insert_default().push(0.5);
                rows.token_rewards.extend(span.clone().map(|_| 0.0));
            }
            batch.sequences.push(sequence);
        }
    }
    batch
}

fn update(micro_batch_tokens: usize) -> Update {
    serde_json::from_value(json!({
        "mini_batch": 4, "lr": 1e-3, "kl": { "coef": 0.1 }, "entropy": 0.01, "clip_low": 10.0, "clip_high": 10.0,
        "micro_batch_tokens": micro_batch_tokens,
    }))
    .unwrap()
}

fn settings(update: &Update) -> UpdateSettings<'_> {
    UpdateSettings { update, loss: None, lr: update.lr, temperature: 0.9, max_response_tokens: 16, seed: 5 }
}

fn rule() -> Rc<dyn UpdateRule> {
    update_rule(&nestor_recipe::Optimizer::default())
}

/// Log-probs of a batch, and the gradients of a policy, of adapters and of a critic, tensor by tensor.
fn numbers(model: &dyn Fn() -> Model, batch: &Batch, micro_batch_tokens: usize) -> Vec<Tensor> {
    let (ranks, update) = (Ranks::solo(Device::Cpu), update(micro_batch_tokens));
    let all: Vec<usize> = (0..batch.sequences.len()).collect();
    let mut policy = Network::new(model(), rule(), &ranks).unwrap();
    let passes = ScoringPasses::new(policy.micro_batching(micro_batch_tokens), batch);
    let logprobs = ragged_logprobs(&ranks, &policy.model, batch, &passes, 0.9).unwrap();
    let mut found = vec![Tensor::from_slice(&logprobs)];
    gradients(&mut policy, batch, &all, &settings(&update)).unwrap();
    let of = |network: &Network| -> Vec<Tensor> {
        let grads = network.trained().iter().zip(&network.optimizer.grads);
        grads.flat_map(|(layout, grad)| layout.params.iter().map(|param| layout.view(grad, param).copy())).collect()
    };
    found.extend(of(&policy));
    let mut critic = Network::critic_of(&policy).unwrap();
    critic::gradients(&mut critic, batch, &all, 0.2, &settings(&update)).unwrap();
    found.extend(of(&critic));
    if policy.model.config.vision.is_some() {
        return found; // adapters ask for a frozen tower
    }
    let adapters = (&Lora::of_all(3, 6.0), 7);
    let mut adapted = Network::with_lora(model(), rule(), adapters, &ranks).unwrap();
    // B is 0 at first, and with it A's gradient.
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    tch::no_grad(|| adapted.optimizer.master_weights.iter().for_each(|weights| draw(weights, 0.2, &mut rng)));
    adapted.refresh().unwrap();
    gradients(&mut adapted, batch, &all, &settings(&update)).unwrap();
    found.extend(of(&adapted));
    found
}

/// The tensor that differs most, with its difference relative to its norm.
fn apart(a: &[Tensor], b: &[Tensor]) -> (usize, f64) {
    let one = |(a, b): (&Tensor, &Tensor)| {
        let norm = |x: &Tensor| x.to_kind(Kind::Double).norm().double_value(&[]);
        norm(&(a - b)) / norm(b).max(1e-6)
    };
    a.iter().zip(b).map(one).enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
}

/// The nodes of the tree by their definition: the distinct beginnings of sequences.
#[test]
fn a_pass_computes_each_distinct_beginning_once() {
    for round in 0..50 {
        let batch = batch(&mut ChaCha8Rng::seed_from_u64(round), false);
        let update = update(1 << 20);
        let mut policy = Network::new(
            new::random(&config("tiny"), 3, Kind::Float, Device::Cpu).unwrap(),
            rule(),
            &Ranks::solo(Device::Cpu),
        )
        .unwrap();
        let all: Vec<usize> = (0..batch.sequences.len()).collect();
        let report = gradients(&mut policy, &batch, &all, &settings(&update)).unwrap();
        let tokens = batch.sequences.iter().map(|s| &s.tokens);
        let beginnings: HashSet<&[u32]> = tokens.clone().flat_map(|t| (1..=t.len()).map(move |n| &t[..n])).collect();
        let want = (tokens.map(Vec::len).sum::<usize>() as u64, beginnings.len() as u64);
        assert_eq!((report.tokens, report.distinct_tokens), want, "batch {round}");
    }
}

#[test]
fn a_batch_has_the_log_probs_and_gradients_of_its_sequences_alone() {
    let mut shares = Vec::new();
    for (shape, ops, kind, rounds) in [
        ("tiny", Ops::Fused, Kind::Float, 60),
        ("tiny", Ops::Generic, Kind::Float, 40),
        ("qwen3-tiny", Ops::Fused, Kind::Float, 20),
        ("smollm2-135m", Ops::Fused, Kind::Float, 20),
        ("qwen2.5-vl-3b", Ops::Fused, Kind::Float, 30),
        ("tiny", Ops::Fused, Kind::BFloat16, 20),
        ("tiny", Ops::Generic, Kind::BFloat16, 10),
    ] {
        let config = config(shape);
        let model = || {
            let Model { config, units, .. } = new::random(&config, 3, Kind::Float, Device::Cpu).unwrap();
            let flats = units.held().iter().map(|flat| flat.to_kind(kind)).collect();
            Model { ops, ..Model::new(config, flats) }
        };
        for round in 0..rounds {
            let mut rng = ChaCha8Rng::seed_from_u64(round);
            let batch = batch(&mut rng, config.vision.is_some());
            let batching = MicroBatching { ranks: &Ranks::solo(Device::Cpu), config: &config, budget: 1 << 20 };
            shares.push(ScoringPasses::new(batching, &batch).computed_share);
            let alone = numbers(&model, &batch, 1);
            // All in one tree, or trees that a budget cuts.
            let budget = if round % 3 > 0 { 1 << 20 } else { 40 };
            let (tensor, apart) = apart(&numbers(&model, &batch, budget), &alone);
            let most = if kind == Kind::Float { 1e-5 } else { 0.1 };
            let case = format!("{shape}, {ops:?}, {kind:?}, batch {round}, budget {budget}, tensor {tensor}");
            assert!(apart < most, "{case}: {apart:e}");
        }
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!(mean < 0.6, "the batches have too little in common: {mean}");
}
