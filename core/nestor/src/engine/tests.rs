//! The engine compared with one request at a time, and with a pass without a cache.

use std::collections::HashMap;

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::model::qwen2::{ForwardInput, WeightSource};
use crate::model::{Architecture, Config, Model};

/// A network with random weights, whose distributions are neither flat nor certain.
pub(crate) fn tiny(kv_heads: i64, tied: bool) -> Model {
    let config = Config {
        architecture: Architecture::Qwen2,
        vocab_size: 61,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: kv_heads,
        head_dim: None,
        max_position_embeddings: 256,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: tied,
        initializer_range: 0.02,
        output: crate::model::config::Output::Tokens,
    };
    tch::manual_seed(11);
    let model = Model::empty(config, Kind::Float, Device::Cpu);
    for flat in model.units.held() {
        let _ = flat.shallow_clone().normal_(0.0, 0.3);
    }
    model
}

/// Log-softmax (T, V) of one sequence, all tokens at once and no cache.
fn full_pass(model: &Model, tokens: &[u32], temperature: f64) -> Tensor {
    tch::no_grad(|| {
        let mut reader = model.reader();
        let ids: Vec<i64> = tokens.iter().map(|&t| t as i64).collect();
        let positions = Tensor::arange(ids.len() as i64, (Kind::Int64, Device::Cpu));
        let input = ForwardInput { tokens: &Tensor::from_slice(&ids), positions: &positions, read: None };
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
        (model.head(&outer, &states) / temperature).log_softmax(-1, Kind::Float)
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
            max_new_tokens: 3 + (episode % 5) as usize,
            sampling,
        }
    };
    (0..count).map(request).collect()
}

fn options(slots: usize) -> EngineOptions {
    EngineOptions { slots, capacity: 80, eos: vec![7, 9], seed: 3, ..Default::default() }
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
    for (model, temperature) in [(tiny(2, true), 1.0), (tiny(4, false), 0.7), (tiny(1, true), 1.3)] {
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
    let mut engine = Engine::new(EngineOptions { eos: Vec::new(), ..options(8) });
    for episode in 0..8 {
        // Six share two pages of 16 tokens, and two of these share a third.
        let mut prompt = vec![5; if episode < 6 { 40 } else { 3 }];
        if (2..6).contains(&episode) {
            prompt[32..].fill(episode);
        }
        let key = NoiseKey { episode, ..Default::default() };
        engine.submit(Request { key, prompt, max_new_tokens: 2, sampling: Sampling::default() })?;
    }
    assert_eq!(engine.step(&weights)?.len(), 0);
    assert_eq!(engine.step(&weights)?.len(), 8);
    assert_eq!(engine.take_counters(), Counters { generated: 16, prefilled: 86, shared: 160, passes: 2 });
    assert!(engine.is_idle());
    Ok(())
}

/// A conversation: its second prompt is the first one, the drawn tokens, and more.
#[test]
fn a_conversation_continues_from_the_cache_with_the_same_logprobs() -> Result<()> {
    let model = tiny(2, true);
    let weights = Weights::new(&model).expect("weights");
    let mut engine = Engine::new(EngineOptions { eos: Vec::new(), ..options(2) });
    let mut prompt: Vec<u32> = (0..20).collect();
    for step in 0..3 {
        let key = NoiseKey { step, ..Default::default() };
        let request = Request { key, prompt: prompt.clone(), max_new_tokens: 14, sampling: Sampling::default() };
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
