//! `nestor bench rollout`: plays a script. Episodes are independent: each submits its next turn as soon as its environment
//! has answered, and the engine never waits for an environment while it has work.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nestor_args::{RolloutArgs, RunArgs};
use serde_json::{Value, json};

use super::script::Script;
use super::timing::{median, seconds_of};
use super::workload::Workload;
use crate::data::{Episode, Step};
use crate::engine::{Engine, EngineOptions, NoiseKey, Request, Sampling, Weights, noise};
use crate::files::write_whole;
use crate::input_error;
use crate::model::{Model, StoredType, device, hub, kind, weights};
use crate::recipe::HistoryMode;

/// Plays a script; `tokens_per_s` counts the generated tokens.
pub fn rollout(args: &RolloutArgs) -> Result<Value> {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        return Err(input_error!("--temperature must be a number from 0 (greedy), not {}", args.temperature));
    }
    args.run.check()?;
    let workload = Workload::load(&args.script.workload)?;
    let folder = hub::folder(&args.model)?;
    let model = weights::load(&folder, kind(args.run.compute.dtype), device(args.run.compute.device)?)?;
    let script = Script::open(&workload, &args.script, &model.config)?;
    let sampling = Sampling { temperature: args.temperature, ..Sampling::default() };
    let mut stage = Stage::new(&script, args.run.slots, sampling);
    let (mut seconds, mut last) = (Vec::new(), None);
    for iteration in 0..args.run.warm_up + args.run.repeats {
        stage.engine.take_counters();
        let begin = Instant::now();
        let played = stage.play(&model, iteration as u64)?;
        seconds.extend((iteration >= args.run.warm_up).then(|| begin.elapsed().as_secs_f64()));
        last = Some((played, stage.engine.take_counters()));
    }
    let (played, counters) = last.context("nothing was played")?;
    if let Some(path) = &args.responses_out {
        let responses = |episode: &Episode| episode.steps.iter().map(|s| s.response.clone()).collect::<Vec<_>>();
        let all: Vec<_> = played.episodes.iter().map(responses).collect();
        write_whole(path, json!({ "episodes": all }).to_string())?;
    }
    let mut report = describe(&script, &args.run)?;
    report["work"] = "rollout".into();
    report["slots"] = stage.slots.into();
    report["prompt_tokens"] = played.prompt_tokens.into();
    report["prefilled"] = counters.prefilled.into();
    report["shared"] = counters.shared.into();
    report["passes"] = counters.passes.into();
    report["seconds_all"] = seconds_of(&seconds);
    report["seconds"] = median(seconds.clone()).into();
    report["tokens"] = counters.generated.into();
    report["tokens_per_s"] = (counters.generated as f64 / median(seconds)).into();
    Ok(report)
}

/// The fields that all reports on a script share.
pub fn describe(script: &Script, run: &RunArgs) -> Result<Value> {
    Ok(json!({
        "work": "",
        "envs": script.episodes.len(),
        "group_size": script.group_size,
        "turns": script.turns().count(),
        "history": script.history,
        "seed": script.seed,
        "dtype": StoredType::of(kind(run.compute.dtype))?.name,
        "device": if device(run.compute.device)?.is_cuda() { "cuda" } else { "cpu" },
        "threads": tch::get_num_threads(),
        "repeats": run.repeats,
    }))
}

/// Episodes as the training loop receives them.
#[derive(Debug)]
pub struct Played {
    /// In the order of the script.
    pub episodes: Vec<Episode>,
    /// Tokens of all prompts, including those shared through the cache.
    pub prompt_tokens: u64,
}

/// A script and the engine that plays it.
pub struct Stage<'a> {
    script: &'a Script,
    pub engine: Engine,
    pub slots: usize,
    sampling: Sampling,
}

impl<'a> Stage<'a> {
    /// An engine with room for the script; by default a slot for each environment.
    pub fn new(script: &'a Script, slots: Option<usize>, sampling: Sampling) -> Self {
        let slots = slots.unwrap_or(script.episodes.len());
        let options =
            EngineOptions { slots, capacity: script.longest(), seed: script.seed, ..EngineOptions::default() };
        Self { script, engine: Engine::new(options), slots, sampling }
    }

    /// Plays all episodes, then drops the cache as an update does.
    pub fn play(&mut self, model: &Model, iteration: u64) -> Result<Played> {
        let begin = Instant::now();
        let weights = Weights::new(model)?;
        let all = &self.script.episodes;
        let mut played = Played { episodes: Vec::new(), prompt_tokens: 0 };
        // Environments that have yet to answer, with the time of their answer.
        let mut thinking: Vec<(Instant, usize)> = Vec::new();
        for (index, scripted) in all.iter().enumerate() {
            let (group, episode) = (scripted.group, index as u32);
            played.episodes.push(Episode { group, episode, task: u64::from(group), ..Episode::default() });
            thinking.push((begin + answer_time(scripted.turns[0].env_ms), index));
        }
        let mut left = all.len();
        while left > 0 {
            let now = Instant::now();
            let (ready, later): (Vec<_>, Vec<_>) = thinking.into_iter().partition(|&(at, _)| at <= now);
            thinking = later;
            for (_, index) in ready {
                let request = self.request(&played.episodes[index], iteration);
                played.prompt_tokens += request.prompt.len() as u64;
                self.engine.submit(request)?;
            }
            if self.engine.is_idle() {
                let next = thinking.iter().map(|&(at, _)| at).min().context("an episode was lost")?;
                std::thread::sleep(next.saturating_duration_since(now));
                continue;
            }
            for done in self.engine.step(&weights)? {
                let index = done.key.episode as usize;
                let (scripted, steps) = (&all[index], &mut played.episodes[index].steps);
                let turn = &scripted.turns[steps.len()];
                ensure!(done.tokens.len() == turn.response, "a response has {} tokens", done.tokens.len());
                let over = steps.len() + 1 == scripted.turns.len();
                steps.push(Step {
                    prompt: turn.prompt.clone(),
                    response: done.tokens,
                    logprobs: done.logprobs,
                    anchor: turn.state.to_le_bytes().to_vec(),
                    reward: turn.reward,
                    valid: true,
                    terminated: over,
                    continues: (self.script.history == HistoryMode::Transcript)
                        .then(|| steps.len().checked_sub(1).map(|last| last as u32))
                        .flatten(),
                    ..Step::default()
                });
                match scripted.turns.get(steps.len()) {
                    Some(next) => thinking.push((Instant::now() + answer_time(next.env_ms), index)),
                    None => left -= 1,
                }
            }
        }
        self.engine.clear();
        Ok(played)
    }

    /// The request for an episode's next turn.
    fn request(&self, episode: &Episode, iteration: u64) -> Request {
        let step = episode.steps.len();
        let turn = &self.script.episodes[episode.episode as usize].turns[step];
        let mut prompt = Vec::new();
        if self.script.history == HistoryMode::Transcript {
            prompt.extend(episode.steps.iter().flat_map(|s| s.prompt.iter().chain(&s.response)));
        }
        prompt.extend(&turn.prompt);
        let key = NoiseKey { stream: noise::TRAIN, iteration, episode: episode.episode, step: step as u32 };
        Request { key, prompt, images: Vec::new(), max_new_tokens: turn.response, sampling: self.sampling }
    }
}

fn answer_time(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms))
}
