//! A run: what the training loop's parts do, and everything they hold between iterations.

mod report;
mod group_filter;
mod speed;
mod start;

use std::path::PathBuf;

use anyhow::{Context, Result};
use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use crate::agent::{PlaySettings, Player, Scored, TaskCursor, pack, plan_from};
use crate::checkpoint::{Checkpoints, Saved, SavedUpdate};
use crate::data::{Batch, Episode};
use crate::dist::{exchange, from_root};
use crate::engine::{Counters as Generated, NoiseKey, noise};
use crate::error::{Stopped, message};
use crate::eval::evaluate;
use crate::model::Model;
use crate::plugin::Estimator;
use crate::policy::Network;
use crate::policy::critic::{self, CriticReport, ragged_values};
use crate::policy::kl_reward::{KlCoefficient, subtract_kl};
use crate::policy::logprobs::ragged_logprobs;
use crate::policy::update::{self, UpdateReport, UpdateSettings, learning_rate};
use crate::recipe::{OldLogprobs, Recipe};
use crate::shard::Ranks;
use crate::track::{Event, Metrics, Phases, Status, Tracker};
use group_filter::Selection;
use speed::{Speed, TRAINED, forward_flops, generation_flops};
pub use start::{join, run_dir};

/// Where a run lives and whether it goes on.
#[derive(Debug, Clone, Default)]
pub struct TrainArgs {
    /// The run directory; by default the first free `runs/<recipe>[-n]`.
    pub run_dir: Option<PathBuf>,
    /// Go on from the newest whole checkpoint.
    pub resume: bool,
    /// Started again after a failure: go on if the directory holds a run, else start there whatever a killed start left.
    pub restarted: bool,
    /// Say everything on standard output as JSON.
    pub json: bool,
}

/// What a checkpoint holds beside tensors. Random streams are keyed by the counters, so these are their state too.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Iterations done.
    iteration: u64,
    /// Where in the training tasks the run is.
    tasks: TaskCursor,
    /// Of the policy's optimiser.
    policy: Counters,
    /// Of the critic's, where there is one.
    critic: Option<Counters>,
    /// Coefficient of KL in the reward, where there is one.
    kl_coefficient: Option<KlCoefficient>,
    /// Fingerprint of the weights that the adapters belong to, where there are adapters.
    start_model: Option<String>,
}

impl State {
    /// Before the first iteration.
    fn new(tasks: TaskCursor) -> Self {
        let policy = Counters::default();
        Self { iteration: 0, tasks, policy, critic: None, kl_coefficient: None, start_model: None }
    }
}

/// What a checkpoint holds of an optimiser beside its moments.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Counters {
    /// Optimiser steps done.
    optimizer_steps: u64,
    /// Optimiser steps skipped since the last good one.
    skipped_in_a_row: u32,
}

impl Counters {
    fn of(network: &Network) -> Self {
        Self { optimizer_steps: network.optimizer.steps, skipped_in_a_row: network.skipped_in_a_row }
    }

    fn restore(self, network: &mut Network) {
        network.optimizer.steps = self.optimizer_steps;
        network.skipped_in_a_row = self.skipped_in_a_row;
    }
}

/// What one iteration's update saw: of the policy, unless the critic still warms up, and of the critic, where there is
/// one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpdateReports {
    /// Of the policy.
    pub policy: Option<UpdateReport>,
    /// Of the critic.
    pub critic: Option<CriticReport>,
}

/// An iteration that a signal stopped in the middle of its update. Part of a checkpoint; a resumed run ends it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct InterruptedUpdate {
    /// What was played.
    episodes: Vec<Episode>,
    /// The same, scored.
    batch: Batch,
    /// What was measured so far.
    metrics: Metrics,
    /// How far the update came.
    reports: UpdateReports,
}

impl InterruptedUpdate {
    /// Optimiser steps that are done.
    fn steps(&self) -> usize {
        let UpdateReports { policy, critic } = &self.reports;
        policy.as_ref().map_or(0, |p| p.each.len()) + critic.as_ref().map_or(0, |c| c.each.len())
    }

    /// As a checkpoint holds it.
    fn saved(&self) -> Result<SavedUpdate> {
        Ok(SavedUpdate { steps: self.steps(), bytes: postcard::to_stdvec(self)? })
    }
}

/// A run between two iterations.
pub struct Run {
    recipe: Recipe,
    dir: PathBuf,
    ranks: Ranks,
    policy: Network,
    critic: Option<Network>,
    reference: Option<Model>,
    player: Player,
    estimator: Estimator,
    tracker: Tracker,
    checkpoints: Checkpoints,
    /// The folder that holds the policy's config.json and tokenizer.
    model_files: PathBuf,
    phases: Phases,
    speed: Speed,
    metrics: Metrics,
    state: State,
    /// The next iteration, where a signal stopped it in its update.
    interrupted: Option<InterruptedUpdate>,
    /// Whether the warm start and the first evaluation are done.
    baseline: bool,
    /// What the newest checkpoint is of: the iterations, and the optimiser steps of the next one.
    saved: Option<(u64, usize)>,
    /// Where in the training tasks the run is once the iteration under way counts.
    tasks: TaskCursor,
}

impl Run {
    /// The number of the next iteration, from 1; none when all are done.
    pub fn next_iteration(&self) -> Option<u64> {
        let next = self.state.iteration + 1;
        (next <= self.recipe.iterations).then_some(next)
    }

    /// Plays one group of episodes for each of the next tasks, and more in place of those that dynamic sampling drops.
    pub fn collect(&mut self, iteration: u64) -> Result<Vec<Episode>> {
        if let Some(interrupted) = &mut self.interrupted {
            return Ok(std::mem::take(&mut interrupted.episodes));
        }
        self.phases.start("rollout");
        let _bar = self.ranks.progress.phase("rollout", "episodes");
        let rollout = &self.recipe.rollout;
        let settings = PlaySettings::train(rollout, iteration);
        let mut selection = Selection::new(rollout);
        self.tasks = self.state.tasks.clone();
        while let Some(groups) = selection.missing() {
            let tasks = self.tasks.next(groups.len());
            let plan = plan_from(groups.start, &tasks, rollout.group_size, self.recipe.seed, iteration);
            let episodes = self
                .player
                .play_among(&*self.ranks.comm, &self.policy.model, &plan, &settings)
                .context("playing episodes")?;
            selection.add(episodes);
        }
        if rollout.dynamic_sampling.is_some() {
            selection.report(&mut self.metrics);
        }
        Ok(selection.into_episodes())
    }

    /// Episodes as sequences and rows, and what it took to generate them.
    pub fn pack(&mut self, episodes: &[Episode]) -> Result<Batch> {
        self.phases.start("pack");
        if let Some(interrupted) = &mut self.interrupted {
            return Ok(std::mem::take(&mut interrupted.batch));
        }
        let batch = pack(episodes, &self.recipe.rollout);
        let Generated { prefilled, generated, .. } = self.player.take_counters();
        let all = exchange(&*self.ranks.comm, Ok([prefilled, generated]))?;
        let [prefilled, generated] = all.iter().fold([0; 2], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]]);
        self.speed.count(generation_flops(&self.policy.model.config, &batch, prefilled, generated));
        let seconds = self.phases.seconds("rollout").max(1e-9);
        self.metrics.set("rollout/tokens_per_s", generated as f64 / seconds);
        Ok(batch)
    }

    /// Adds, where the recipe asks: the update's own log-probs, the reference's, the critic's values; and takes KL off
    /// the rewards.
    pub fn reference(&mut self, batch: &mut Batch) -> Result<()> {
        if self.interrupted.is_some() {
            return Ok(()); // it was done before the stop
        }
        let update = &self.recipe.update;
        let (tokens, temperature) = (update.micro_batch_tokens, self.recipe.rollout.temperature);
        let ranks = &self.ranks;
        if update.old_logprobs == OldLogprobs::Recompute {
            self.phases.start("old_logprobs");
            let _bar = ranks.progress.phase("old log-probs", "sequences");
            batch.recomputed = Some(ragged_logprobs(ranks, &self.policy.model, batch, tokens, temperature)?);
            self.speed.count(forward_flops(&self.policy.model.config, batch));
        }
        if let Some(reference) = &self.reference {
            self.phases.start("reference");
            let _bar = ranks.progress.phase("reference", "sequences");
            batch.rows.ref_logprobs = Some(ragged_logprobs(ranks, reference, batch, tokens, temperature)?);
            self.speed.count(forward_flops(&reference.config, batch));
        }
        if let Some(critic) = &self.critic {
            self.phases.start("values");
            let _bar = ranks.progress.phase("values", "sequences");
            batch.rows.values = Some(ragged_values(ranks, &critic.model, batch, tokens)?);
            self.speed.count(forward_flops(&critic.model.config, batch));
        }
        if let (Some(section), Some(coefficient)) = (&update.kl_in_reward, &mut self.state.kl_coefficient) {
            let kl = subtract_kl(batch, section, *coefficient);
            self.metrics.set("reward/kl", kl);
            self.metrics.set("reward/kl_coef", coefficient.0);
            coefficient.update(section, kl, batch.rows.len());
        }
        Ok(())
    }

    /// Lets the estimator fill in advantages and returns: once, at rank 0, which sees the whole batch as all ranks do.
    pub fn score(&mut self, batch: &mut Batch) -> Result<()> {
        if self.interrupted.is_some() {
            return Ok(());
        }
        self.phases.start("advantage");
        let rows = &mut batch.rows;
        (rows.advantages, rows.returns) = from_root(&*self.ranks.comm, || {
            self.estimator.score(rows)?;
            Ok((std::mem::take(&mut rows.advantages), std::mem::take(&mut rows.returns)))
        })?;
        Ok(())
    }

    /// Updates the critic, then the policy, on a scored batch. When a signal asks to stop, what is done of it is kept for
    /// the checkpoint.
    pub fn update(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch) -> Result<UpdateReports> {
        let mut reports = UpdateReports::default();
        if let Some(interrupted) = self.interrupted.take() {
            (reports, self.metrics) = (interrupted.reports, interrupted.metrics);
        }
        // From here on the iteration is not given up any more.
        self.state.tasks = self.tasks.clone();
        let ended = self.run_remaining(iteration, batch, &mut reports);
        if ended.as_ref().is_err_and(|error| error.is::<Stopped>()) {
            let (episodes, batch, metrics) = (episodes.to_vec(), batch.clone(), std::mem::take(&mut self.metrics));
            self.interrupted = Some(InterruptedUpdate { episodes, batch, metrics, reports: reports.clone() });
        }
        ended.map(|()| reports)
    }

    fn run_remaining(&mut self, iteration: u64, batch: &Batch, reports: &mut UpdateReports) -> Result<()> {
        let lr = learning_rate(&self.recipe.update, iteration - 1, self.recipe.iterations);
        let settings = UpdateSettings {
            update: &self.recipe.update,
            lr,
            temperature: self.recipe.rollout.temperature,
            max_response_tokens: self.recipe.rollout.max_response_tokens,
            seed: stream_seed(self.recipe.seed, noise::SHUFFLE, iteration),
        };
        let Self { policy, critic, .. } = self;
        let mut policy_learns = true;
        if let (Some(critic), Some(section)) = (critic, &self.recipe.critic) {
            self.phases.start("critic");
            let _bar = critic.ranks.progress.phase("critic", "sequences");
            let report = reports.critic.get_or_insert_default();
            let before = report.each.len();
            critic::run_remaining(critic, batch, section, &settings, report)?;
            // Others were done, and counted, before a signal stopped the run in this update.
            let share = (report.each.len() - before) as f64 / report.each.len().max(1) as f64;
            let epochs = f64::from(self.recipe.update.epochs) * share;
            self.speed.count(TRAINED * epochs * forward_flops(&critic.model.config, batch));
            policy_learns = iteration > section.warmup;
        }
        if policy_learns {
            self.phases.start("update");
            let _bar = policy.ranks.progress.phase("update", "sequences");
            let report = reports.policy.get_or_insert_default();
            let before = report.tokens;
            update::run_remaining(policy, batch, &settings, report)?;
            let (seconds, tokens) = (self.phases.seconds("update").max(1e-9), (report.tokens - before) as f64);
            let whole: usize = batch.sequences.iter().map(|s| s.tokens.len()).sum();
            let flops = TRAINED * forward_flops(&policy.model.config, batch) * tokens / whole.max(1) as f64;
            self.speed.count(flops);
            self.metrics.set("update/tokens_per_s", tokens / seconds);
            self.metrics.set("update/mfu", self.speed.share(flops, seconds));
            self.metrics.set("lr", lr);
        }
        Ok(())
    }

    /// Gathers the iteration's metrics and writes its episodes.
    pub fn track(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch, update: &UpdateReports) -> Result<()> {
        self.phases.start("track");
        report::episodes(&mut self.metrics, episodes, self.player.tokenizer().eos());
        report::rows(&mut self.metrics, &batch.rows);
        report::update(&mut self.metrics, update, &batch.rows);
        if let Some(policy) = &update.policy {
            self.tracker.record_steps(iteration, report::steps(policy))?;
        }
        let due = |every: u64| every > 0 && iteration.is_multiple_of(every);
        let file = due(self.recipe.checkpoint.rollouts_every);
        let table = self.recipe.wandb.as_ref().filter(|section| due(section.table_every));
        if self.ranks.comm.rank() != 0 || !(file || table.is_some()) {
            return Ok(());
        }
        let parts = &self.estimator.parts(&batch.rows)?;
        let scored = Scored { episodes, batch, parts, tokenizer: self.player.tokenizer() };
        if file {
            let dir = self.dir.join("rollouts");
            std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
            scored.write(&dir.join(format!("iteration-{iteration:06}.jsonl")))?;
        }
        if let Some(section) = table {
            self.tracker.wandb.table(scored.lines().take(section.table_episodes));
        }
        Ok(())
    }

    /// Ends the iteration: evaluates and saves where the recipe says so, and writes the row of metrics between the two,
    /// so that a checkpoint never runs ahead of the metrics.
    pub fn evaluate_and_save(&mut self, iteration: u64) -> Result<()> {
        let last = iteration == self.recipe.iterations;
        let every = self.recipe.eval.every;
        if last || (every > 0 && iteration.is_multiple_of(every)) {
            match self.evaluate() {
                Err(error) if error.is::<Stopped>() => {} // the update is done, and is saved at the end
                evaluated => evaluated?,
            }
        }
        self.state.iteration = iteration;
        self.record()?;
        let every = self.recipe.checkpoint.every;
        if last || (every > 0 && iteration.is_multiple_of(every)) {
            self.save()?;
        }
        Ok(())
    }

    /// Tells the other ranks and W&B that the run failed.
    pub fn fail(&mut self, error: &anyhow::Error) {
        let message = message(error);
        self.ranks.comm.abort(&message); // the others need not wait for W&B
        self.tracker.wandb.failed(&message);
        self.tracker.close(1);
    }

    /// Says how the run ended.
    pub fn close(mut self) -> Result<Status> {
        self.tracker.draw()?;
        if self.state.iteration < self.recipe.iterations {
            if !self.baseline {
                return self.end(Status::Stopped, false);
            }
            if self.saved != Some(self.progress()) {
                self.save()?;
            }
            return self.end(Status::Stopped, true);
        }
        if let [(_, before), .., (_, after)] = self.tracker.evaluations() {
            self.tracker.log(&format!(
                "success on the evaluation tasks: {before:.3} before reinforcement learning, {after:.3} after it"
            ))?;
        }
        self.end(Status::Done, true)
    }

    fn end(&mut self, status: Status, saved: bool) -> Result<Status> {
        self.tracker.close(if status == Status::Done { 0 } else { 130 });
        self.tracker.emit(&Event::End { status, run_dir: &self.dir, saved })?;
        Ok(status)
    }

    /// Iterations done, and optimiser steps of the next one.
    fn progress(&self) -> (u64, usize) {
        (self.state.iteration, self.interrupted.as_ref().map_or(0, InterruptedUpdate::steps))
    }

    /// Success on the fixed task list.
    fn evaluate(&mut self) -> Result<()> {
        self.phases.start("evaluate");
        let _bar = self.ranks.progress.phase("evaluate", "episodes");
        let evaluation =
            evaluate(&*self.ranks.comm, &mut self.player, &self.policy.model, &self.recipe.eval, self.recipe.seed)?;
        report::evaluation(&mut self.metrics, &evaluation);
        Ok(())
    }

    /// Writes the row of metrics of the iterations done so far.
    fn record(&mut self) -> Result<()> {
        let comm = &*self.ranks.comm;
        let env_errors: u64 = exchange(comm, Ok(self.player.take_env_errors()))?.iter().sum();
        self.metrics.set("env/errors", env_errors as f64);
        report::memory(&mut self.metrics, comm.device());
        self.phases.finish(&mut self.metrics, "track"); // of the next row
        let seconds = self.metrics.get("time/iteration_s").unwrap_or(0.0);
        let done = self.speed.take();
        if self.state.iteration > 0 {
            self.metrics.set("perf/mfu", self.speed.share(done, seconds));
            self.metrics.set("perf/peak_flops", self.speed.peak);
        }
        self.tracker.record(self.state.iteration, &std::mem::take(&mut self.metrics))
    }

    /// Saves a checkpoint; its time counts into the next row.
    fn save(&mut self) -> Result<()> {
        self.phases.start("checkpoint");
        let _bar = self.ranks.progress.phase("checkpoint", "");
        self.state.policy = Counters::of(&self.policy);
        self.state.critic = self.critic.as_ref().map(Counters::of);
        let interrupted = self.interrupted.as_ref().map(InterruptedUpdate::saved).transpose()?;
        let saved = Saved::new(&self.policy, self.critic.as_ref(), &self.model_files, interrupted);
        let (iteration, keep) = (self.state.iteration, self.recipe.checkpoint.keep);
        self.checkpoints.save(&*self.ranks.comm, iteration, &saved, &self.state, keep)?;
        self.saved = Some(self.progress());
        self.phases.start("track"); // of the next row
        Ok(())
    }
}

/// Seed of one iteration's draws in a stream of their own.
fn stream_seed(seed: u64, stream: u32, iteration: u64) -> u64 {
    NoiseKey { stream, iteration, ..NoiseKey::default() }.rng(seed, 0).next_u64()
}
