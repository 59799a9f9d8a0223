//! A random policy and the expert play the SDK's toy environment.

#![allow(clippy::unwrap_used)] // a test may fail so

use crate::support;
use std::sync::Arc;

use crate::support::toy;
use nestor::agent::{EpisodePlan, PlaySettings, Player, PlayerOptions, Scored, pack, plan, texts};
use nestor_host::Parts;
use nestor_model::data::{Batch, Episode};
use nestor_model::error::InputError;
use nestor_model::files::write_lines;
use nestor_model::model::{Config, Model, make_deterministic};
use nestor_model::tokenizer::{Message, Tokenizer};
use nestor_recipe::Rollout;
use serde_json::{Value, json};

const VOCABULARY: usize = 280;

/// A rollout section with these changes.
fn rollout(changes: Value) -> Rollout {
    let mut section = json!({
        "tasks": 6, "group_size": 2, "max_steps": 5, "max_prompt_tokens": 300, "max_response_tokens": 40, "slots": 5,
        "template": "{{ task }}: {{ observation }}{% for h in history %} {{ h.step }} {{ h.observation }} {{ h.action }};{% endfor %}",
    });
    section.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    serde_json::from_value(section).unwrap()
}

fn episodes() -> Vec<EpisodePlan> {
    plan(&[0, 1, 2, 3, 4, 5], 2, 7, 0)
}

fn player(rollout: Rollout, deterministic: bool) -> Player {
    let tokenizer =
        Tokenizer::train(texts(&toy().into(), &rollout, &episodes(), 0.0, 1).unwrap().into_iter(), VOCABULARY, false)
            .unwrap();
    Player::new(PlayerOptions {
        tokenizer,
        config: Config::shape("tiny").unwrap(),
        environments: toy().into(),
        rollout,
        seed: 5,
        deterministic,
        stop: Arc::default(),
        progress: Default::default(),
    })
    .unwrap()
}

fn model() -> Model {
    support::model(VOCABULARY)
}

/// Checks that an episode equals what the environment returns when its responses are played again.
fn check(player: &Player, episode: &Episode) {
    let mut env = toy().spawn().unwrap();
    let mut seen = env.reset("train", episode.task, episode.seed).unwrap();
    for (i, step) in episode.steps.iter().enumerate() {
        assert_eq!((&step.observation, &step.anchor), (&seen.text, &seen.anchor));
        let mut shown = format!("{}: {}", seen.task, seen.text);
        for past in i.saturating_sub(2)..i {
            let Episode { steps, .. } = episode;
            shown += &format!(" {} {} {};", past + 1, steps[past].observation, steps[past].action);
        }
        assert_eq!(step.prompt, player.tokenizer().chat(&[Message::new("user", shown)], true).unwrap());
        assert_eq!(player.tokenizer().decode(&step.response, true), step.response_text);
        seen = env.step(&step.response_text).unwrap();
        assert_eq!((&step.action, step.reward, step.valid), (&seen.action, seen.reward, seen.valid));
        let last = i + 1 == episode.steps.len();
        assert_eq!(last, step.terminated || step.truncated);
        assert_eq!(step.terminated, seen.terminated);
        assert_eq!(step.truncated && !seen.truncated, last && !seen.terminated && i + 1 == 5);
    }
    assert_eq!(episode.won, seen.terminated);
}

#[test]
fn a_policy_plays_every_episode_of_the_plan() {
    let mut player = player(rollout(json!({})), false);
    let settings = PlaySettings::train(&rollout(json!({})), 3);
    let model = model();
    let played = player.play(&model, &episodes(), &settings).unwrap();
    let numbers: Vec<_> =
        played.iter().map(|e| EpisodePlan { group: e.group, episode: e.episode, task: e.task, seed: e.seed }).collect();
    assert_eq!(numbers, episodes());
    for episode in &played {
        check(&player, episode);
        for step in &episode.steps {
            assert_eq!(step.response.len(), step.logprobs.len());
            let ends: Vec<bool> = step.response.iter().map(|t| player.tokenizer().eos().contains(t)).collect();
            assert!(ends[..ends.len() - 1].iter().all(|end| !end) && (ends[ends.len() - 1] || ends.len() == 40));
        }
    }
    let steps: usize = played.iter().map(|e| e.steps.len()).sum();
    assert_eq!(pack(&played, &rollout(json!({}))).rows.len(), steps);
    // The noise repeats, and another iteration has other noise.
    assert_eq!(player.play(&model, &episodes(), &settings).unwrap()[4].steps[0].response, played[4].steps[0].response);
    let other = player.play(&model, &episodes(), &PlaySettings { iteration: 4, ..settings }).unwrap();
    assert!(other[4].steps[0].response != played[4].steps[0].response);
}

#[test]
fn deterministic_play_depends_on_neither_threads_nor_other_episodes() {
    make_deterministic().unwrap();
    let model = model();
    let settings = PlaySettings::train(&rollout(json!({})), 0);
    let mut results = [1, 3].map(|threads| {
        let mut player = player(rollout(json!({ "env_threads": threads })), true);
        player.play(&model, &episodes(), &settings).unwrap()
    });
    assert_eq!(results[0], results[1]);
    let mut some = player(rollout(json!({})), true);
    let part = some.play(&model, &episodes()[3..8], &settings).unwrap();
    assert_eq!(part, results[0].drain(3..8).collect::<Vec<_>>());
}

#[test]
fn the_expert_plays_with_noise_and_without() {
    let mut player = player(rollout(json!({})), false);
    let best = player.demonstrate(&episodes(), 0.0, 1).unwrap();
    assert!(best.iter().all(|e| e.won && e.steps.len() as u64 == e.task / 2 + 1));
    let noisy = player.demonstrate(&episodes(), 0.8, 1).unwrap();
    assert_eq!(noisy, player.demonstrate(&episodes(), 0.8, 1).unwrap());
    assert!(noisy != best && noisy != player.demonstrate(&episodes(), 0.8, 2).unwrap());
    for episode in best.iter().chain(&noisy) {
        check(&player, episode);
        assert!(episode.steps.iter().all(|s| s.response.last() == player.tokenizer().eos().first() && s.valid));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rollouts.jsonl");
    let mut batch = pack(&best, &rollout(json!({})));
    batch.rows.advantages = vec![0.5; batch.rows.token_rewards.len()];
    let (failed, parts) = (Batch::default(), Parts::default());
    let scored =
        Scored { episodes: &best, batch: &batch, failed: &failed, parts: &parts, tokenizer: player.tokenizer() };
    write_lines(&path, scored.lines()).unwrap();
    let lines: Vec<Value> =
        std::fs::read_to_string(path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 12);
    let last = lines[11]["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&lines[11]["won"], &last["advantage"], &last["action"]), (&json!(true), &json!(0.5), &json!("down")));
    let step = best[11].steps.last().unwrap();
    let pieces: String = last["tokens"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(pieces, player.tokenizer().decode(&step.response, false));
    assert_eq!(last["admissible"], json!(step.admissible));
    assert!(step.admissible.contains(&step.action));
}

#[test]
fn a_bad_recipe_is_the_users_error_and_names_the_step() {
    let model = model();
    for (changes, words) in [
        (json!({ "template": "{{ observatoin }}" }), ["step 1 of episode", "rollout.template"]),
        (json!({ "max_prompt_tokens": 8 }), ["step 1 of episode", "rollout.max_prompt_tokens"]),
    ] {
        let tokenizer = Tokenizer::train(["a".to_string()].into_iter(), 259, false).unwrap();
        let rollout = rollout(changes);
        let settings = PlaySettings::train(&rollout, 0);
        let options = PlayerOptions {
            tokenizer,
            config: Config::shape("tiny").unwrap(),
            environments: toy().into(),
            rollout,
            seed: 5,
            deterministic: false,
            stop: Arc::default(),
            progress: Default::default(),
        };
        let mut player = Player::new(options).unwrap();
        let error = player.play(&model, &episodes(), &settings).unwrap_err();
        let message = format!("{error:#}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert!(error.chain().any(|cause| cause.is::<InputError>()), "{message}");
    }
    // An error during play, of a task that does not exist; the player can be used again.
    let mut player = player(rollout(json!({})), false);
    let mut wrong = episodes();
    wrong[7].task = 99;
    let settings = PlaySettings::train(&rollout(json!({})), 0);
    let message = format!("{:#}", player.play(&model, &wrong, &settings).unwrap_err());
    assert!(message.contains("toy") && message.contains("99"), "{message}");
    assert_eq!(player.play(&model, &episodes(), &settings).unwrap().len(), 12);
}
