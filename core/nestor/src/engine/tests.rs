//! The engine compared with one request at a time, and with a pass without a cache.

use std::collections::HashMap;

use anyhow::Result;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::model::arch::BlockParts;
use crate::model::decoder::{ForwardInput, WeightSource};
use crate::model::linear::Tape;
use crate::model::{Config, Model};

/// A network with random weights, whose distributions are neither flat nor certain.
pub(crate) fn tiny(kv_heads: i64, tied: bool) -> Model {
    of_parts(kv_heads, tied, Config::shape("tiny").expect("a shape").block)
}

/// The same with these parts of a block.
fn of_parts(kv_heads: i64, tied: bool, block: BlockParts) -> Model {
    let config = Config {
        block,
        vocab_size: 61,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: kv_heads,
        max_position_embeddings: 256,
        rope_theta: 10_000.0,
        tie_word_embeddings: tied,
        ..Config::shape("tiny").expect("a shape")
    };
    let model = Model::empty(config, Kind::Float, Device::Cpu);
    // libtorch's generator belongs to all tests of the process at once, so two networks drawn from it would differ.
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for flat in model.units.held() {
        let numbers: Vec<f32> = (0..flat.numel()).map(|_| rng.random_range(-0.52..0.52)).collect();
        flat.shallow_clone().copy_(&Tensor::from_slice(&numbers).view_as(flat));
    }
    model
}

/// Log-softmax (T, V) of one sequence, all tokens at once and no cache.
fn full_pass(model: &Model, tokens: &[u32], temperature: f64) -> Tensor {
    tch::no_grad(|| {
        let mut reader = model.reader();
        let ids: Vec<i64> = tokens.iter().map(|&t| t as i64).collect();
        let positions = Tensor::arange(ids.len() as i64, (Kind::Int64, Device::Cpu));
        let input = ForwardInput {
            tokens: &Tensor::from_slice(&ids),
            images: None,
            rope: &model.rope(&positions),
            decodes: false,
            keys: None,
            read: None,
        };
        let attend = |_, q: &Tensor, k: &Tensor, v: &Tensor| {
            let group = q.size()[1] / k.size()[1];
            let split = |t: &Tensor| t.transpose(0, 1).unsqueeze(0);
            let (k, v) = (k.repeat_interleave_self_int(group, 1, None), v.repeat_interleave_self_int(group, 1, None));
            let (q, k, v) = (split(q), split(&k), split(&v));
            let out = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false);
            out.squeeze_dim(0).transpose(0, 1)
        };
        let states = model.forward(WeightSource::Read(&mut reader), &input, attend).expect("weights");
        let outer = model.outer_weights(&mut reader, false).expect("weights");
        (model.logits(&outer, &states) / temperature).log_softmax(-1, Kind::Float)
    })
}

/// Requests with prompts of many lengths, some of them equal.
fn requests(count: u32, sampling: Sampling) -> Vec<Request> {
    let request = |episode: u32| {
        let kind = episode % 7;
        let length = 1 + (kind * kind * 2) as usize; // 1 to 73 tokens
        Request {
            key: NoiseKey { episode, step: episode / 7, ..Default::default() },
            prompt: (0..length).map(|i| (kind * 13 + i as u32 * 5) % 61).collect(),
            images: Vec::new(),
            max_new_tokens: 3 + (episode % 5) as usize,
            sampling,
        }
    };
    (0..count).map(request).collect()
}

fn options(slots: usize) -> EngineOptions {
    EngineOptions { slots, capacity: 80, ends: vec![7, 9].into(), seed: 3, ..Default::default() }
}

/// Runs the requests, `late` of them submitted one by one between steps; completions by episode.
fn run(model: &Model, options: EngineOptions, requests: &[Request], late: usize) -> Result<HashMap<u32, Completion>> {
    let mut engine = Engine::new(options);
    let weights = Weights::new(model).expect("weights");
    let (first, rest) = requests.split_at(requests.len() - late);
    let mut rest = rest.iter();
    first.iter().try_for_each(|r| engine.submit(r.clone()))?;
    let mut all = HashMap::new();
    loop {
        if let Some(request) = rest.next() {
            engine.submit(request.clone())?;
        }
        if engine.is_idle() {
            return Ok(all);
        }
        for done in engine.step(&weights)? {
            assert!(all.insert(done.key.episode, done).is_none());
        }
    }
}

#[test]
fn recorded_logprobs_equal_those_of_a_full_pass() -> Result<()> {
    let whole = of_parts(2, true, BlockParts::ALL);
    for (model, temperature) in [(tiny(2, true), 1.0), (tiny(4, false), 0.7), (tiny(1, true), 1.3), (whole, 1.0)] {
        let sampling = Sampling { temperature, top_k: 20, ..Default::default() };
        let requests = requests(20, sampling);
        for (episode, done) in run(&model, options(6), &requests, 5)? {
            let request = &requests[episode as usize];
            let tokens: Vec<u32> = request.prompt.iter().chain(&done.tokens).copied().collect();
            let all = full_pass(&model, &tokens, temperature);
            for (i, (&token, &logprob)) in done.tokens.iter().zip(&done.logprobs).enumerate() {
                let expected = all.double_value(&[(request.prompt.len() + i - 1) as i64, token as i64]);
                assert!((expected - logprob as f64).abs() < 1e-5, "episode {episode} token {i}: {logprob} {expected}");
            }
            let ended = [7, 9].contains(done.tokens.last().expect("a response has a token"));
            assert_eq!(ended, done.finished == FinishReason::Eos);
            assert!(ended || done.tokens.len() == request.max_new_tokens);
            assert!(done.tokens[..done.tokens.len() - 1].iter().all(|t| ![7, 9].contains(t)));
        }
    }
    Ok(())
}

#[test]
fn other_requests_and_their_order_do_not_change_a_response() -> Result<()> {
    let model = tiny(2, true);
    for temperature in [0.0, 1.0] {
        let requests = requests(25, Sampling { temperature, ..Default::default() });
        let mut alone = HashMap::new();
        for request in &requests {
            alone.extend(run(&model, options(1), std::slice::from_ref(request), 0)?);
        }
        let mut backwards = requests.clone();
        backwards.reverse();
        for (requests, slots, late) in [(&requests, 3, 9), (&backwards, 4, 0), (&requests, 25, 20)] {
            let together = run(&model, options(slots), requests, late)?;
            assert_eq!(together.len(), alone.len());
            for (episode, done) in &together {
                assert_eq!(done.tokens, alone[episode].tokens, "episode {episode}, {slots} slots");
            }
        }
    }
    Ok(())
}

#[test]
fn deterministic_mode_gives_the_same_bits_under_any_schedule() -> Result<()> {
    let model = tiny(2, true);
    let mut requests = requests(30, Sampling::default());
    // Another sampling mode in the same batch must not matter either.
    requests.iter_mut().step_by(4).for_each(|r| r.sampling.top_k = 9);
    let mode = EngineOptions { deterministic: true, ..options(20) };
    let expected = run(&model, mode.clone(), &requests, 0)?;
    let mut other: Vec<Request> = requests.iter().rev().cloned().collect();
    other.swap(3, 17);
    for late in [0, 12, 29] {
        assert_eq!(run(&model, mode.clone(), &other, late)?, expected);
    }
    assert_eq!(run(&model, mode, &requests[..1], 0)?[&0], expected[&0]);
    Ok(())
}

#[test]
fn a_beginning_is_computed_once() -> Result<()> {
    let model = tiny(2, true);
    let weights = Weights::new(&model).expect("weights");
    let mut engine = Engine::new(EngineOptions { ends: Ends::default(), ..options(8) });
    for episode in 0..8 {
        // Six share two pages of 16 tokens, and two of these share a third.
        let mut prompt = vec![5; if episode < 6 { 40 } else { 3 }];
        if (2..6).contains(&episode) {
            prompt[32..].fill(episode);
        }
        let key = NoiseKey { episode, ..Default::default() };
        engine.submit(Request { key, images: Vec::new(), prompt, max_new_tokens: 2, sampling: Sampling::default() })?;
    }
    assert_eq!(engine.step(&weights)?.len(), 0);
    assert_eq!(engine.step(&weights)?.len(), 8);
    let shared = Counters { generated: 16, prefilled: 86, decoded: 8, shared: 160, passes: 2, alone: 8, paged: 0 };
    assert_eq!(engine.take_counters(), shared);
    assert!(engine.is_idle());
    Ok(())
}

/// A conversation: its second prompt is the first one, the drawn tokens, and more.
#[test]
fn a_conversation_continues_from_the_cache_with_the_same_logprobs() -> Result<()> {
    let model = tiny(2, true);
    let weights = Weights::new(&model).expect("weights");
    let mut engine = Engine::new(EngineOptions { ends: Ends::default(), ..options(2) });
    let mut prompt: Vec<u32> = (0..20).collect();
    for step in 0..3 {
        let key = NoiseKey { step, ..Default::default() };
        let request = Request {
            key,
            images: Vec::new(),
            prompt: prompt.clone(),
            max_new_tokens: 14,
            sampling: Sampling::default(),
        };
        engine.submit(request)?;
        let done = loop {
            if let Some(done) = engine.step(&weights)?.pop() {
                break done;
            }
        };
        let shared = engine.take_counters().shared as usize;
        assert_eq!(shared, if step == 0 { 0 } else { (prompt.len() - 4) / 16 * 16 }, "step {step}");
        prompt.extend(&done.tokens);
        let all = full_pass(&model, &prompt, 1.0);
        for (i, logprob) in done.logprobs.iter().enumerate() {
            let at = prompt.len() - done.tokens.len() + i;
            let expected = all.double_value(&[at as i64 - 1, i64::from(prompt[at])]);
            assert!((expected - f64::from(*logprob)).abs() < 1e-5, "step {step}, token {i}: {logprob} {expected}");
        }
        prompt.extend([1, 2, 3]);
    }
    Ok(())
}

#[test]
fn a_full_cache_makes_requests_wait() -> Result<()> {
    let model = tiny(2, true);
    let requests = requests(25, Sampling::default());
    let free = run(&model, options(25), &requests, 0)?;
    // Room for one of the longest requests, or for a few short ones.
    let tight = run(&model, EngineOptions { cache_tokens: 80, ..options(25) }, &requests, 7)?;
    for (episode, done) in &free {
        assert_eq!(done.tokens, tight[episode].tokens, "episode {episode}");
    }
    Ok(())
}

#[test]
fn generic_operations_draw_the_same_tokens_as_fused_ones() -> Result<()> {
    for (kv_heads, deterministic) in [(1, false), (2, false), (4, true)] {
        let model = tiny(kv_heads, true);
        let requests = requests(30, Sampling { temperature: 0.8, ..Default::default() });
        let mode = EngineOptions { deterministic, ..options(7) };
        let generic = Model { ops: Ops::Generic, ..tiny(kv_heads, true) };
        let (generic, fused) = (run(&generic, mode.clone(), &requests, 9)?, run(&model, mode, &requests, 9)?);
        for (episode, done) in generic {
            let other = &fused[&episode];
            assert_eq!(done.tokens, other.tokens, "episode {episode}");
            for (a, b) in done.logprobs.iter().zip(&other.logprobs) {
                assert!((a - b).abs() < 1e-5, "episode {episode}: {a} {b}");
            }
        }
    }
    Ok(())
}

/// Requests of all sampling modes, with seeds of their own.
fn mixed(seed: u64) -> Vec<Request> {
    let mut requests = requests(14, Sampling::default());
    for (i, request) in requests.iter_mut().enumerate() {
        request.sampling.temperature = [1.0, 0.0, 0.7, 1.3][(i + seed as usize) % 4];
        request.sampling.top_k = if i % 5 == 4 && seed.is_multiple_of(3) { 9 } else { 0 };
        request.sampling.top_p = if i % 5 == 2 && seed.is_multiple_of(2) { 0.7 } else { 1.0 };
        request.key.iteration = seed;
    }
    requests
}

#[test]
fn recorded_passes_draw_the_same_tokens_as_plain_ones() -> Result<()> {
    for seed in 0..24 {
        let model = Model { ops: Ops::Generic, ..tiny([1, 2, 4][seed as usize % 3], true) };
        let requests = mixed(seed);
        let (slots, late) = (1 + (seed as usize * 5) % 14, (seed as usize * 3) % 14);
        let cache_tokens = if seed % 2 == 0 { 0 } else { 160 };
        let with = |decode| EngineOptions { seed, cache_tokens, decode, ..options(slots) };
        let plain = run(&model, with(Decode::Plain), &requests, late)?;
        let recorded = run(&model, with(Decode::Recorded), &requests, late)?;
        assert_eq!(recorded.len(), requests.len());
        for (episode, done) in recorded {
            let other = &plain[&episode];
            assert_eq!(
                (&done.tokens, done.finished),
                (&other.tokens, other.finished),
                "seed {seed}, episode {episode}"
            );
            for (a, b) in done.logprobs.iter().zip(&other.logprobs) {
                assert!((a - b).abs() < 1e-5, "seed {seed}, episode {episode}: {a} {b}");
            }
        }
    }
    Ok(())
}

#[test]
fn recordings_stay_while_addresses_do_and_read_new_contents() -> Result<()> {
    let options = EngineOptions { ends: Ends::default(), decode: Decode::Recorded, ..options(4) };
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let request = |step| {
        let key = NoiseKey { step, ..NoiseKey::default() };
        Request { key, images: Vec::new(), prompt: vec![step + 1], max_new_tokens: 6, sampling: greedy }
    };
    let complete = |engine: &mut Engine, model: &Model, step: u32| -> Result<Vec<u32>> {
        let weights = Weights::new(model)?;
        engine.submit(request(step))?;
        loop {
            if let Some(done) = engine.step(&weights)?.pop() {
                return Ok(done.tokens);
            }
        }
    };
    let mut engine = Engine::new(options.clone());
    let model = Model { ops: Ops::Generic, ..tiny(2, false) };
    complete(&mut engine, &model, 0)?;
    let (addresses, count) = (engine.recorder.addresses().to_vec(), engine.recorder.recordings());
    assert!(count == 1 && !addresses.is_empty());
    // An update in place.
    for flat in model.units.held() {
        let _ = tch::no_grad(|| flat.shallow_clone().g_mul_scalar_(-1.0));
    }
    let tokens = complete(&mut engine, &model, 1)?;
    assert_eq!((engine.recorder.addresses(), engine.recorder.recordings()), (&addresses[..], count));
    assert_eq!(tokens, complete(&mut Engine::new(options.clone()), &model, 1)?);
    // Weights at other addresses.
    let other = Model { ops: Ops::Generic, ..model.frozen() };
    for flat in other.units.held() {
        let _ = tch::no_grad(|| flat.shallow_clone().g_mul_scalar_(-0.5));
    }
    let tokens = complete(&mut engine, &other, 2)?;
    assert_ne!(engine.recorder.addresses(), addresses);
    assert_eq!(tokens, complete(&mut Engine::new(options), &other, 2)?);
    engine.clear();
    assert_eq!(engine.recorder.recordings(), 0);
    Ok(())
}

#[test]
fn recorded_logits_that_are_not_finite_are_an_error() -> Result<()> {
    let model = Model { ops: Ops::Generic, ..tiny(2, true) };
    let _ = model.units.held()[0].shallow_clone().fill_(f64::NAN);
    let options = EngineOptions { decode: Decode::Recorded, ..options(4) };
    let error = run(&model, options, &requests(3, Sampling::default()), 0).expect_err("not finite").to_string();
    assert!(error.contains("not finite"), "{error}");
    Ok(())
}

#[test]
fn generation_reads_the_weights_that_the_update_trains_and_rounds_no_logit() -> Result<()> {
    let float = tiny(2, false);
    let flats = float.units.held().iter().map(|flat| flat.to_kind(Kind::BFloat16)).collect();
    let model = Model { ops: Ops::Generic, ..Model::new(float.config.clone(), flats) };
    let weights = Weights::new(&model)?;
    let held = |tensor: usize| {
        model.units.held().iter().any(|flat| {
            let start = flat.data_ptr() as usize;
            (start..start + flat.numel() * 2).contains(&tensor)
        })
    };
    assert!(weights.held().addresses.iter().all(|&address| held(address)));
    let states = Tensor::randn([3, 32], (Kind::BFloat16, Device::Cpu));
    let outer = &weights.held().outer;
    let logits = model.logits(outer, &states);
    let exact = model
        .final_norm(outer, &states, &mut Tape::off())
        .to_kind(Kind::Float)
        .matmul(&outer.head.weight.to_kind(Kind::Float).tr());
    assert!(logits.kind() == Kind::Float && logits.allclose(&exact, 1e-5, 1e-5, false));
    Ok(())
}
