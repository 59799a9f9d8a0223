//! Transcript mode: an episode is one conversation, and the update sees exactly the tokens that the engine consumed.

#![allow(clippy::unwrap_used)] // a panic fails the test

use crate::support;
use std::sync::Arc;

use crate::support::toy;
use nestor::agent::{EpisodePlan, PlaySettings, Player, PlayerOptions, Scored, pack, plan, texts};
use nestor::engine::{Completion, Engine, EngineOptions, NoiseKey, Request, Weights};
use nestor::policy::batching::{MicroBatching, ScoringPasses};
use nestor::policy::logprobs::{logprobs, ragged_logprobs};
use nestor_host::Parts;
use nestor_model::data::{Batch, Episode};
use nestor_model::error::InputError;
use nestor_model::files::{TokenRow, write_lines};
use nestor_model::model::{Config, Model, make_deterministic};
use nestor_model::shard::Ranks;
use nestor_model::tokenizer::Tokenizer;
use nestor_recipe::Rollout;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const VOCABULARY: usize = 280;
const SEED: u64 = 5;

/// A rollout section in transcript mode with these changes.
fn rollout(changes: Value) -> Rollout {
    let mut section = json!({
        "tasks": 6, "group_size": 2, "max_steps": 5, "max_prompt_tokens": 90, "max_response_tokens": 40, "slots": 5,
        "max_sequence_tokens": 400, "history": { "mode": "transcript" },
        "template": "{% if not follow_up %}{{ task }}: {% endif %}{{ observation }} {{ step }}{{ history | length }}",
    });
    section.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    serde_json::from_value(section).unwrap()
}

fn episodes() -> Vec<EpisodePlan> {
    plan(&[0, 1, 2, 3, 4, 5], 2, 7, 0)
}

fn player(rollout: &Rollout, deterministic: bool) -> Player {
    let texts = texts(&toy().into(), rollout, &episodes(), 0.0, 1).unwrap();
    let tokenizer = Tokenizer::train(texts.into_iter(), VOCABULARY, false).unwrap();
    let (environments, rollout) = (toy().into(), rollout.clone());
    Player::new(PlayerOptions {
        tokenizer,
        config: Config::shape("tiny").unwrap(),
        environments,
        rollout,
        seed: SEED,
        deterministic,
        stop: Arc::default(),
        progress: Default::default(),
    })
    .unwrap()
}

/// Counts of the ways in which episodes and responses ended, so that a test can check that it met every case.
#[derive(Debug, Default)]
struct Ends {
    /// Responses by their last token: the template's own end of a turn, another end, none.
    by_response: [usize; 3],
    /// Episodes by their end: the environment, the limit of steps, no room.
    by_episode: [usize; 3],
}

/// Replays an episode's responses, and builds the expected conversation from the texts by ChatML's rules. Returns its tokens
/// and the starts of the responses.
fn conversation(player: &Player, episode: &Episode, rollout: &Rollout, ends: &mut Ends) -> (Vec<u32>, Vec<u32>) {
    let tokenizer = player.tokenizer();
    let encode = |text: String| tokenizer.encode(&text).unwrap();
    let [end, other] = *tokenizer.eos() else { panic!("two tokens end a sequence") };
    let mut env = toy().spawn().unwrap();
    let mut now = env.reset("train", episode.task, episode.seed).unwrap();
    let (mut tokens, mut spans) = (Vec::new(), Vec::new());
    let user = |text: String| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    for (i, step) in episode.steps.iter().enumerate() {
        let text = format!("{} {}0", now.text, i + 1);
        let new = match episode.steps[..i].last().map(|before| before.response.last().copied().unwrap()) {
            None => encode(user(format!("{}: {text}", now.task))),
            Some(last) if last == end => encode(format!("\n{}", user(text))),
            Some(_) => encode(format!("<|im_end|>\n{}", user(text))),
        };
        assert_eq!(step.prompt, new, "the step's own part");
        tokens.extend(new);
        spans.push(tokens.len() as u32);
        assert!(tokens.len() + rollout.max_response_tokens <= rollout.max_tokens(), "no room for a response");
        tokens.extend(&step.response);
        let last = *step.response.last().unwrap();
        let kind = if last == end { 0 } else { 1 + usize::from(last != other) };
        assert!(kind < 2 || step.response.len() == rollout.max_response_tokens);
        ends.by_response[kind] += 1;
        now = env.step(&step.response_text).unwrap();
        let over = if now.terminated || now.truncated {
            0
        } else if i as u32 + 1 == rollout.max_steps {
            1
        } else {
            let turn = encode(user(format!("{} {}0", now.text, i + 2))).len() + if last == end { 1 } else { 2 };
            if tokens.len() + turn + rollout.max_response_tokens <= rollout.max_tokens() {
                assert!(!step.truncated && i + 1 < episode.steps.len(), "there was room for another step");
                continue;
            }
            2
        };
        assert_eq!((i + 1, step.truncated), (episode.steps.len(), !now.terminated));
        ends.by_episode[over] += 1;
    }
    (tokens, spans)
}

/// An engine's responses to the tokens before each response of the packed sequences.
fn answers(
    player: &Player,
    model: &Model,
    batch: &Batch,
    settings: &PlaySettings,
    rollout: &Rollout,
) -> Vec<Completion> {
    let mut engine = Engine::new(EngineOptions {
        slots: rollout.slots,
        capacity: rollout.max_tokens(),
        deterministic: true,
        ends: player.ends().clone(),
        seed: SEED,
        ..EngineOptions::default()
    });
    let weights = Weights::new(model).unwrap();
    let rows = &batch.rows;
    for row in 0..rows.len() {
        let tokens = &batch.sequences[rows.sequence[row] as usize].tokens;
        let PlaySettings { stream, iteration, sampling, .. } = *settings;
        let key = NoiseKey { stream, iteration, episode: rows.episode[row], step: rows.step[row] };
        let prompt = tokens[..rows.span_start[row] as usize].to_vec();
        engine
            .submit(Request { key, images: Vec::new(), prompt, max_new_tokens: rollout.max_response_tokens, sampling })
            .unwrap();
    }
    let mut done = Vec::new();
    while !engine.is_idle() {
        done.extend(engine.step(&weights).unwrap());
    }
    done.sort_by_key(|c| (c.key.episode, c.key.step));
    done
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// In deterministic mode the engine's log-probs are a function of the ids it was given, to the last bit. So an engine
/// that is given the packed ids before a span and answers with the span and its very log-probs shows that these ids are
/// what was consumed while playing.
#[test]
fn the_packed_ids_are_those_that_the_engine_consumed() {
    make_deterministic().unwrap();
    let model = support::model(VOCABULARY);
    let mut dice = ChaCha8Rng::seed_from_u64(11);
    let mut ends = Ends::default();
    for case in 0..10 {
        let response = dice.random_range(1..60);
        let rollout = rollout(json!({
            "max_response_tokens": response,
            "max_sequence_tokens": 90 + response + dice.random_range(0..200),
            "max_steps": dice.random_range(1..11),
            "env_threads": dice.random_range(1..4),
        }));
        let mut player = player(&rollout, true);
        let settings = PlaySettings::train(&rollout, case);
        let played = player.play(&model, &episodes(), &settings).unwrap();
        let mut batch = pack(&played, &rollout);
        let steps: usize = played.iter().map(|e| e.steps.len()).sum();
        assert_eq!((batch.sequences.len(), batch.rows.len()), (played.len(), steps));
        let mut row = 0;
        for (episode, sequence) in played.iter().zip(&batch.sequences) {
            let (tokens, spans) = conversation(&player, episode, &rollout, &mut ends);
            assert_eq!(sequence.tokens, tokens);
            let rows = row..row + spans.len();
            assert_eq!(sequence.rows, rows.clone().map(|r| r as u32).collect::<Vec<_>>());
            assert_eq!(batch.rows.span_start[rows.clone()], spans);
            row = rows.end;
        }
        let steps = || played.iter().flat_map(|e| &e.steps);
        for (done, step) in answers(&player, &model, &batch, &settings, &rollout).iter().zip(steps()) {
            assert_eq!((&done.tokens, bits(&done.logprobs)), (&step.response, bits(&step.logprobs)));
        }
        // The comparison notices a single changed id at any place.
        let at = batch.rows.span_start[0] as usize - 1 - case as usize;
        batch.sequences[0].tokens[at] ^= 1;
        let other = &answers(&player, &model, &batch, &settings, &rollout)[0];
        assert!(bits(&other.logprobs) != bits(&played[0].steps[0].logprobs));
    }
    assert!(ends.by_response.iter().chain(&ends.by_episode[1..]).all(|&n| n > 5), "{ends:?}");
}

#[test]
fn log_probs_of_the_engine_are_those_of_one_pass_over_the_conversation() {
    let model = support::model(VOCABULARY);
    let rollout = rollout(json!({ "temperature": 1.0 }));
    let mut player = player(&rollout, false);
    let played = player.play(&model, &episodes(), &PlaySettings::train(&rollout, 1)).unwrap();
    let batch = pack(&played, &rollout);
    assert!(batch.sequences.iter().all(|s| s.rows.len() > 2));
    let row = |tokens: &Vec<u32>| TokenRow { tokens: tokens.clone(), ..TokenRow::default() };
    let sequences: Vec<_> = batch.sequences.iter().map(|s| row(&s.tokens)).collect();
    let scored = logprobs(&model, &sequences).unwrap();
    let rows = &batch.rows;
    let one_pass = (0..rows.len()).flat_map(|r| {
        let first = rows.span_start[r] as usize - 1;
        let count = (rows.token_offsets[r + 1] - rows.token_offsets[r]) as usize;
        scored[rows.sequence[r] as usize][first..first + count].to_vec()
    });
    let ranks = Ranks::solo(model.device());
    let batching = MicroBatching { ranks: &ranks, config: &model.config, budget: 1000 };
    let update = ragged_logprobs(&ranks, &model, &batch, &ScoringPasses::new(batching, &batch), 1.0).unwrap();
    let (mut largest, mut range) = (0f32, 0f32);
    for ((engine, one_pass), update) in rows.logprobs.iter().zip(one_pass).zip(update) {
        largest = largest.max((engine - one_pass).abs()).max((engine - update).abs());
        range = range.max(engine.abs());
    }
    assert!(largest < 1e-5 && range > 1.0, "{largest} {range}");
}

#[test]
fn the_expert_teaches_in_one_conversation() {
    let rollout = rollout(json!({ "max_sequence_tokens": 200, "max_response_tokens": 60 }));
    let mut player = player(&rollout, false);
    let shown = player.demonstrate(&episodes(), 0.5, 3).unwrap();
    let mut ends = Ends::default();
    let batch = pack(&shown, &rollout);
    for (episode, sequence) in shown.iter().zip(&batch.sequences) {
        let (tokens, _) = conversation(&player, episode, &rollout, &mut ends);
        assert_eq!(sequence.tokens, tokens);
        for step in &episode.steps {
            let text = player.tokenizer().encode(&step.response_text).unwrap();
            assert_eq!(step.response, [text, vec![player.tokenizer().eos()[0]]].concat());
        }
    }
    assert!(ends.by_episode[0] > 0 && ends.by_episode[2] > 0, "{ends:?}");
    // A rollout file shows the tokens that each turn added.
    let dir = tempfile::tempdir().unwrap();
    let batch = &pack(&shown, &rollout);
    let (failed, parts) = (Batch::default(), Parts::default());
    let scored = Scored { episodes: &shown, batch, failed: &failed, parts: &parts, tokenizer: player.tokenizer() };
    write_lines(&dir.path().join("r.jsonl"), scored.lines()).unwrap();
    let text = std::fs::read_to_string(dir.path().join("r.jsonl")).unwrap();
    let long: Value =
        text.lines().map(|l| serde_json::from_str(l).unwrap()).find(|l: &Value| l["steps"][1].is_object()).unwrap();
    let turn = long["steps"][1]["prompt"].as_str().unwrap();
    assert!(
        turn.starts_with("\n<|im_start|>user\nat ") && turn.ends_with(" 20<|im_end|>\n<|im_start|>assistant\n"),
        "{turn}"
    );
}

#[test]
fn deterministic_play_depends_on_neither_threads_nor_other_episodes() {
    make_deterministic().unwrap();
    let model = support::model(VOCABULARY);
    let play = |threads: u32, plan: &[EpisodePlan]| {
        let rollout = rollout(json!({ "env_threads": threads }));
        player(&rollout, true).play(&model, plan, &PlaySettings::train(&rollout, 0)).unwrap()
    };
    let whole = play(1, &episodes());
    assert_eq!(play(3, &episodes()), whole);
    assert_eq!(play(2, &episodes()[3..8]), whole[3..8]);
}

#[test]
fn a_turn_over_the_limit_is_the_users_error() {
    // The first prompt fits, but the prompt of the next step does not.
    let long = ["observation"; 30].join(" ~ ");
    let rollout = rollout(json!({ "template": format!("{{% if follow_up %}}{{{{ {long} }}}}{{% endif %}}") }));
    let mut player = player(&rollout, false);
    let settings = PlaySettings::train(&rollout, 0);
    let played = player.play(&support::model(VOCABULARY), &episodes(), &settings);
    let error = played.err().unwrap();
    let message = format!("{error:#}");
    let words = ["step 2 of episode", "rollout.max_prompt_tokens is 90", "or shorten the template"];
    assert!(words.iter().all(|word| message.contains(word)) && !message.contains("truncation"), "{message}");
    assert!(error.chain().any(|cause| cause.is::<InputError>()), "{message}");
}
