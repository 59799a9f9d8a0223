//! A run: what the training loop's parts do, and everything they hold between iterations.

mod report;
mod start;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use crate::agent::{PlaySettings, Player, Success, TaskCursor, eval_plan, pack, plan, write_rollouts};
use crate::checkpoint::Checkpoints;
use crate::data::{Batch, Episode};
use crate::engine::{NoiseKey, noise};
use crate::model::Model;
use crate::plugin::Estimator;
use crate::policy::schedule::learning_rate;
use crate::policy::update::{Policy, UpdateReport, UpdateSettings, ragged_logprobs};
use crate::recipe::Recipe;
use crate::track::{Metrics, Phases, Tracker, rss_bytes};

/// Where a run lives and whether it goes on.
#[derive(Debug, Clone, Default)]
pub struct TrainArgs {
    /// The run directory; by default the first free `runs/<recipe>[-n]`.
    pub run_dir: Option<PathBuf>,
    /// Go on from the newest whole checkpoint.
    pub resume: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All iterations are done.
    Done,
    /// A signal asked to stop; a checkpoint was saved.
    Stopped,
}

/// What a checkpoint holds beside tensors. Random streams are keyed by the counters, so these are their state too.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Iterations done.
    iteration: u64,
    /// Where in the training tasks the run is.
    tasks: TaskCursor,
    /// Optimiser steps done.
    optimizer_steps: u64,
    /// Optimiser steps skipped since the last good one.
    skipped_in_a_row: u32,
}

/// A run between two iterations.
pub struct Run {
    recipe: Recipe,
    dir: PathBuf,
    policy: Policy,
    reference: Option<Model>,
    player: Player,
    estimator: Estimator,
    tracker: Tracker,
    checkpoints: Checkpoints,
    /// The folder that holds the policy's config.json and tokenizer.
    model_files: PathBuf,
    phases: Phases,
    metrics: Metrics,
    state: State,
    /// Whether the warm start and the first evaluation are done.
    baseline: bool,
    /// The iteration of the newest checkpoint.
    saved: Option<u64>,
    /// Set by SIGINT and SIGTERM.
    stop: Arc<AtomicBool>,
}

impl Run {
    /// The number of the next iteration, from 1; none when all are done or a signal asked to stop.
    pub fn next_iteration(&mut self) -> Option<u64> {
        let next = self.state.iteration + 1;
        (next <= self.recipe.iterations && !self.stop.load(Ordering::Relaxed)).then_some(next)
    }

    /// Plays one group of episodes for each of the next tasks.
    pub fn collect(&mut self, iteration: u64) -> Result<Vec<Episode>> {
        self.phases.start("rollout");
        let rollout = &self.recipe.rollout;
        let tasks = self.state.tasks.next(rollout.tasks as usize);
        let plan = plan(&tasks, rollout.group_size, self.recipe.seed, iteration);
        let settings = PlaySettings::train(rollout, iteration);
        let episodes = self.player.play(&self.policy.model, &plan, &settings).context("playing episodes")?;
        let seconds = self.phases.seconds("rollout").max(1e-9);
        self.metrics.set("rollout/tokens_per_s", self.player.take_counters().generated as f64 / seconds);
        Ok(episodes)
    }

    /// Episodes as sequences and rows.
    pub fn pack(&mut self, episodes: &[Episode]) -> Result<Batch> {
        self.phases.start("pack");
        Ok(pack(episodes, &self.recipe.rollout))
    }

    /// Adds the reference's log-probs, where the recipe has a KL loss.
    pub fn reference(&mut self, batch: &mut Batch) -> Result<()> {
        let Some(reference) = &self.reference else { return Ok(()) };
        self.phases.start("reference");
        let tokens = self.recipe.update.micro_batch_tokens;
        let column = ragged_logprobs(reference, batch, tokens, self.recipe.rollout.temperature);
        batch.rows.ref_logprobs = Some(column);
        Ok(())
    }

    /// Lets the estimator fill in advantages and returns.
    pub fn score(&mut self, batch: &mut Batch) -> Result<()> {
        self.phases.start("advantage");
        self.estimator.score(&mut batch.rows)
    }

    /// Updates the policy on a scored batch.
    pub fn update(&mut self, iteration: u64, batch: &Batch) -> Result<UpdateReport> {
        self.phases.start("update");
        let lr = learning_rate(&self.recipe.update, iteration - 1, self.recipe.iterations);
        let settings = UpdateSettings {
            update: &self.recipe.update,
            lr,
            temperature: self.recipe.rollout.temperature,
            seed: stream_seed(self.recipe.seed, noise::SHUFFLE, iteration),
        };
        let report = self.policy.update(batch, &settings)?;
        let seconds = self.phases.seconds("update").max(1e-9);
        self.metrics.set("update/tokens_per_s", report.tokens as f64 / seconds);
        self.metrics.set("lr", lr);
        Ok(report)
    }

    /// Gathers the iteration's metrics and writes its episodes.
    pub fn track(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch, update: &UpdateReport) -> Result<()> {
        self.phases.start("track");
        report::episodes(&mut self.metrics, episodes, self.player.tokenizer().eos());
        report::rows(&mut self.metrics, &batch.rows);
        report::update(&mut self.metrics, update, &self.recipe.update);
        let every = self.recipe.checkpoint.rollouts_every;
        if every > 0 && iteration.is_multiple_of(every) {
            let dir = self.dir.join("rollouts");
            std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
            let path = dir.join(format!("iteration-{iteration:06}.jsonl"));
            write_rollouts(&path, episodes, Some(batch), self.player.tokenizer())?;
        }
        Ok(())
    }

    /// Ends the iteration: evaluates and saves where the recipe says so, and writes the row of metrics between the two,
    /// so that a checkpoint never runs ahead of the metrics.
    pub fn evaluate_and_save(&mut self, iteration: u64) -> Result<()> {
        let last = iteration == self.recipe.iterations;
        let every = self.recipe.eval.every;
        if last || (every > 0 && iteration.is_multiple_of(every)) {
            self.evaluate()?;
        }
        self.state.iteration = iteration;
        self.record()?;
        let every = self.recipe.checkpoint.every;
        if last || (every > 0 && iteration.is_multiple_of(every)) {
            self.save()?;
        }
        Ok(())
    }

    /// Says how the run ended.
    pub fn close(mut self) -> Result<Ending> {
        self.tracker.draw()?;
        if self.state.iteration < self.recipe.iterations {
            if !self.baseline {
                self.tracker.say("stopped by a signal before reinforcement learning: nothing was saved")?;
                return Ok(Ending::Stopped);
            }
            if self.saved != Some(self.state.iteration) {
                self.save()?;
            }
            let line = format!("stopped by a signal; go on with --resume --run-dir {}", self.dir.display());
            self.tracker.say(&line)?;
            return Ok(Ending::Stopped);
        }
        if let [(_, before), .., (_, after)] = self.tracker.evaluations() {
            self.tracker.say(&format!(
                "success on the evaluation tasks: {before:.3} before reinforcement learning, {after:.3} after it"
            ))?;
        }
        self.tracker.say(&format!("done: {}", self.dir.display()))?;
        Ok(Ending::Done)
    }

    /// Success on the fixed task list. Its random streams are its own, so training does not notice.
    fn evaluate(&mut self) -> Result<()> {
        self.phases.start("evaluate");
        let eval = &self.recipe.eval;
        let plan = eval_plan(self.player.world().tasks(&eval.split)?, eval.tasks, self.recipe.seed);
        let episodes = self.player.play(&self.policy.model, &plan, &PlaySettings::eval(eval)).context("evaluating")?;
        self.player.take_counters();
        let success = Success::of(&episodes);
        self.metrics.set("eval/success", success.all.rate());
        for (kind, count) in &success.by_type {
            self.metrics.set(format!("eval/success/{kind}"), count.rate());
        }
        let n = episodes.len().max(1) as f64;
        self.metrics.set("eval/return", episodes.iter().map(Episode::episode_return).sum::<f64>() / n);
        self.metrics.set("eval/length", episodes.iter().map(|e| e.steps.len() as f64).sum::<f64>() / n);
        Ok(())
    }

    /// Writes the row of metrics of the iterations done so far.
    fn record(&mut self) -> Result<()> {
        if let Some(bytes) = rss_bytes() {
            self.metrics.set("memory/rss_bytes", bytes);
        }
        self.phases.finish(&mut self.metrics);
        self.phases.start("track"); // of the next row
        self.tracker.record(self.state.iteration, &std::mem::take(&mut self.metrics))
    }

    /// Saves a checkpoint; its time counts into the next row.
    fn save(&mut self) -> Result<()> {
        self.phases.start("checkpoint");
        self.state.optimizer_steps = self.policy.optimizer.steps;
        self.state.skipped_in_a_row = self.policy.skipped_in_a_row;
        let keep = self.recipe.checkpoint.keep;
        self.checkpoints.save(self.state.iteration, &self.policy, &self.state, &self.model_files, keep)?;
        self.saved = Some(self.state.iteration);
        self.phases.stop();
        Ok(())
    }
}

/// Seed of one iteration's draws in a stream of their own.
fn stream_seed(seed: u64, stream: u32, iteration: u64) -> u64 {
    NoiseKey { stream, iteration, ..NoiseKey::default() }.rng(seed, 0).next_u64()
}
