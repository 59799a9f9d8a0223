//! A run: the steps of the training loop, and the state they share between iterations.

mod alarms;
mod check;
mod collect;
mod columns;
mod directory;
mod diverged;
mod divergence;
mod end;
mod estimator_state;
mod failed;
mod file_system;
mod group_filter;
mod identity;
mod ledger;
mod mirror;
mod peaks;
mod record;
mod report;
mod resume;
mod save;
mod signals;
pub mod speed;
mod start;
mod summary;
mod verdict;

use std::path::PathBuf;

use anyhow::Result;
use nestor_torch::ops::Ops;
use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use crate::agent::{Faults, Player, RunColumns, Scored, episode_columns, evaluation_lines, pack, write_images};
use crate::data::{Batch, Episode};
use crate::engine::{Counters as Generated, NoiseKey, noise};
use crate::eval::{self, Evaluation, Panel};
use crate::files::write_lines;
use crate::model::Model;
use crate::plugin::{Estimator, Loss};
use crate::policy::Network;
use crate::policy::batching::all_mini_batches;
use crate::policy::critic::{self, CriticReport};
use crate::policy::losses::PluginLoss;
use crate::policy::update::{self, UpdateReport, UpdateSettings, learning_rate};
use crate::preflight::Findings;
use crate::ranks::{agree, exchange};
use crate::recipe::{Critic, Recipe};
use crate::shard::Ranks;
use crate::track::{Metrics, Phases, Tracker};
use crate::warm_start::Lessons;
use alarms::Alarms;
pub use directory::{RECIPE, check_free, default_dir, is_run, make_first_free, remove_empty, to_resume};
use directory::{RunDir, episodes_file};
use divergence::Updated;
use ledger::{Ledger, OpenRow, SaveClock, StartedUpdate};
use mirror::Mirror;
use speed::{Speed, generation_flops, image_flops, training_flops};
pub use start::join;
use summary::{RunState, RunSummary};
pub use verdict::{Verdict, verdict};

/// Returns a warning of a run that the memory of this machine does not hold, for some ranks.
pub type MemoryWarning = fn(&Recipe, &Findings, usize) -> Option<String>;

/// Options of `nestor train`.
#[derive(Debug, Clone, Default)]
pub struct TrainArgs {
    /// The run directory; by default the first free `runs/<recipe>[-n]`.
    pub run_dir: Option<PathBuf>,
    /// Resume from the newest undamaged checkpoint of `run_dir`.
    pub resume: bool,
    /// With `resume`: the checkpoint in place of the newest, as [`Checkpoints::named`] has it.
    pub resume_from: Option<String>,
    /// Keys of the recipe that may change on resume although they belong to the run's start.
    pub allow_change: Vec<String>,
    /// An earlier start may have begun the run: resume if the directory holds one, else start over in it.
    pub restarted: bool,
    /// Write JSON to standard output.
    pub json: bool,
    /// The arithmetic of `nestor plan`, which the program gives: the trainer does not depend on it.
    pub memory_warning: Option<MemoryWarning>,
}

/// Reports of one iteration's update. The policy has none while the critic warms up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpdateReports {
    pub policy: Option<UpdateReport>,
    pub critic: Option<CriticReport>,
}

/// A run between two iterations.
pub struct Run {
    recipe: Recipe,
    dir: PathBuf,
    /// The folder of the policy's `config.json` and tokenizer.
    model_files: PathBuf,
    ranks: Ranks,
    player: Player,
    /// The chats of a warm start that has not ended.
    lessons: Option<Lessons>,
    estimator: Estimator,
    /// The policy loss, where a plugin gives it.
    loss: Option<Loss>,
    learner: Learner,
    meter: Meter,
    ledger: Ledger,
    /// `run.json`, at rank 0.
    summary: Option<RunSummary>,
    /// The run's copy in an object store, at rank 0.
    mirror: Option<Mirror>,
    /// The run directory, at rank 0. Dropped last.
    claim: Option<RunDir>,
}

/// The networks.
struct Learner {
    policy: Network,
    critic: Option<Network>,
    /// The policy before reinforcement learning, frozen.
    reference: Option<Model>,
    /// The model of `estimator.teacher`, frozen.
    teacher: Option<Model>,
}

/// The measurements of the iteration under way, and where they are written.
struct Meter {
    phases: Phases,
    speed: Speed,
    metrics: Metrics,
    tracker: Tracker,
    alarms: Alarms,
}

impl Run {
    /// The number of the next iteration, from 1; none when all are done.
    pub fn next_iteration(&self) -> Option<u64> {
        let next = self.ledger.state.iteration + 1;
        (next <= self.recipe.iterations).then_some(next)
    }

    /// The phase that runs now.
    pub fn phase(&self) -> &'static str {
        self.meter.phases.running()
    }

    /// Packs the episodes that did not fail into a batch: sequences to train on, and one row per step with the columns that the estimator asks for
    /// and that need no network.
    pub fn pack(&mut self, iteration: u64, episodes: &[Episode]) -> Result<Batch> {
        self.meter.phases.start("pack");
        let rollout = &self.recipe.rollout;
        let mut batch = pack(episodes, rollout);
        let run = RunColumns { split: &rollout.split, iteration };
        batch.rows.columns = episode_columns(self.estimator.asked(), episodes, run);
        self.count_generation(&batch)?;
        Ok(batch)
    }

    /// Updates the critic, then the policy, on a scored batch, the policy also on failed episodes.
    /// Without a row there is no update.
    pub fn update(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch) -> Result<UpdateReports> {
        let failed = self.failed_episodes(episodes, batch)?;
        // From here on a signal interrupts the iteration instead of discarding it.
        let ledger = &mut self.ledger;
        (ledger.state.tasks, ledger.state.kl_coefficient) = (ledger.tasks.clone(), ledger.kl_coefficient);
        ledger.state.totals = ledger.totals;
        ledger.estimator = ledger.scored.take();
        let reports = UpdateReports::default();
        ledger.update = Some(StartedUpdate { episodes: episodes.to_vec(), batch: batch.clone(), failed, reports });
        self.finish_update(iteration)
    }

    /// Finishes the iteration whose update had begun when this run's checkpoint was saved.
    pub fn finish_interrupted(&mut self) -> Result<()> {
        let Some(iteration) = self.next_iteration() else { return Ok(()) };
        let Some(StartedUpdate { episodes, batch, .. }) = self.ledger.update.clone() else { return Ok(()) };
        let update = self.finish_update(iteration)?;
        self.track(iteration, &episodes, &batch, &update)?;
        self.evaluate_and_save(iteration)
    }

    /// Adds the iteration's metrics and writes its episodes.
    pub fn track(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch, update: &UpdateReports) -> Result<()> {
        let Meter { phases, metrics, tracker, alarms, .. } = &mut self.meter;
        phases.start("track");
        report::episodes(metrics, episodes, self.player.ends());
        if self.recipe.rollout.env_errors > 0 {
            report::failed(metrics, episodes);
        }
        report::rows(metrics, &batch.rows);
        report::update(metrics, update, &batch.rows);
        let updated = Updated { recipe: &self.recipe, metrics, rows: &batch.rows, reports: update };
        for alarm in alarms.of(iteration, updated) {
            tracker.alarm(alarm.cause, &alarm.message)?;
        }
        self.ledger.state.diverged = alarms.diverged;
        if let Some(policy) = &update.policy {
            tracker.record_steps(iteration, report::steps(policy))?;
        }
        tracker.record_histograms(iteration, || report::histograms(episodes, &batch.rows))?;
        let due = |every: u64| every > 0 && iteration.is_multiple_of(every);
        let file = due(self.recipe.checkpoint.rollouts_every);
        let table = self.recipe.wandb.as_ref().filter(|section| due(section.table_every));
        if !(file || table.is_some()) {
            return Ok(());
        }
        let root = self.ranks.comm.rank() == 0;
        let scores = root && !batch.rows.is_empty();
        let (parts, outcome) = match scores.then(|| self.estimator.parts(&batch.rows)).transpose() {
            Ok(parts) => (parts, Ok(())),
            Err(error) => (None, Err(error)),
        };
        agree(&*self.ranks.comm, outcome)?; // a signal may stop the call, and then all ranks
        let parts = &parts.unwrap_or_default();
        if !root {
            return Ok(());
        }
        let Some(StartedUpdate { failed, .. }) = &self.ledger.update else { return Ok(()) };
        let scored = Scored { episodes, batch, failed, parts, tokenizer: self.player.tokenizer() };
        if file {
            write_images(&self.dir, episodes)?;
            write_lines(&episodes_file(&self.dir, "rollouts", iteration), scored.lines())?;
        }
        if let Some(section) = table {
            tracker.wandb.table(scored.lines().take(section.table_episodes));
        }
        Ok(())
    }

    /// Evaluates and saves where the recipe asks for it, and saves the best evaluation so far. Writes the row of metrics in
    /// between, so that a checkpoint is never ahead of the metrics.
    pub fn evaluate_and_save(&mut self, iteration: u64) -> Result<()> {
        let last = iteration == self.recipe.iterations;
        let asked = |every: u64| last || (every > 0 && iteration.is_multiple_of(every));
        let evaluates = self.recipe.eval.evaluates() && asked(self.recipe.eval.every);
        let saves = asked(self.recipe.checkpoint.every);
        self.finish_save()?;
        let mut best = false;
        if evaluates {
            if self.save_is_due()? {
                self.save()?; // an evaluation may take long
            }
            // A signal ends it with the iteration under way: the resumed run repeats the evaluation.
            let success = self.evaluate(iteration)?;
            best = self.ledger.state.evaluated(iteration, success);
        }
        self.ledger.state.stuck = self.ledger.update.take().is_some_and(|update| update.is_stuck());
        self.ledger.state.iteration = iteration;
        self.record()?;
        if self.save_is_due()? || best || saves {
            self.save()?;
        }
        if last { self.check_last_steps() } else { Ok(()) }
    }

    /// Counts the tokens that all ranks generated, their FLOPs, and the time of the rollout's parts at this rank.
    fn count_generation(&mut self, batch: &Batch) -> Result<()> {
        report::play_time(&mut self.meter.metrics, self.player.take_time());
        let Generated { prefilled, generated, shared, alone, paged, .. } = self.player.take_counters();
        let all = exchange(&*self.ranks.comm, Ok([prefilled, generated, shared, alone, paged]))?;
        let [prefilled, generated, shared, alone, paged] =
            std::array::from_fn(|column| all.iter().map(|counts| counts[column]).sum::<u64>());
        self.count_images(["rollout/images_encoded", "rollout/images_reused"])?;
        let config = &self.learner.policy.model.config;
        let [tower, _] = image_flops(config, batch);
        self.meter.speed.count(generation_flops(config, batch, prefilled, generated) + tower);
        let seconds = self.meter.phases.seconds("rollout").max(1e-9);
        self.meter.metrics.set("rollout/tokens_per_s", generated as f64 / seconds);
        self.meter.metrics.set("rollout/prompt_cached", shared as f64 / (shared + prefilled).max(1) as f64);
        if self.learner.policy.model.ops == Ops::Generic && alone > 0 {
            self.meter.metrics.set("engine/paged_share", paged as f64 / alone as f64);
        }
        self.ledger.totals.tokens = self.ledger.state.totals.tokens + generated;
        report::totals(&mut self.meter.metrics, self.ledger.totals);
        Ok(())
    }

    /// Counts the images that the policy's tower embedded since the last call, and those that were in its cache, over all ranks.
    fn count_images(&mut self, [encoded, reused]: [&'static str; 2]) -> Result<()> {
        let model = &self.learner.policy.model;
        if model.config.vision.is_none() {
            return Ok(());
        }
        let own = model.images.borrow_mut().take_counters();
        let all = exchange(&*self.ranks.comm, Ok([own.encoded, own.reused]))?;
        for (name, column) in [(encoded, 0), (reused, 1)] {
            self.meter.metrics.set(name, all.iter().map(|counts| counts[column]).sum::<u64>() as f64);
        }
        Ok(())
    }

    /// Adds the failures of environments that the ranks survived to the row, and warns of them: equal ones are one line.
    pub(super) fn count_env_errors(&mut self) -> Result<()> {
        let own = (self.player.take_env_errors(), self.player.take_faults());
        let (mut all, mut faults) = (0, Faults::default());
        for (count, part) in exchange(&*self.ranks.comm, Ok(own))? {
            all += count;
            faults.extend(part);
        }
        for line in faults.lines() {
            self.meter.tracker.warn(&line)?;
        }
        let before = self.meter.metrics.get("env/errors").unwrap_or(0.0);
        self.meter.metrics.set("env/errors", before + all as f64);
        Ok(())
    }

    /// Runs the remaining mini-batches of the started update, and saves between two of them when it is time.
    fn finish_update(&mut self, iteration: u64) -> Result<UpdateReports> {
        while !self.update_until_due(iteration)? {
            self.save()?;
        }
        self.count_images(["update/images_encoded", "update/images_reused"])?;
        Ok(self.ledger.update.as_ref().map(|update| update.reports.clone()).unwrap_or_default())
    }

    /// Runs remaining mini-batches of the started update until a checkpoint is due. Returns true once none remains.
    fn update_until_due(&mut self, iteration: u64) -> Result<bool> {
        let Self { recipe, player, loss, learner, meter, ledger: Ledger { update, clock, .. }, .. } = self;
        let Some(StartedUpdate { batch, failed, reports, .. }) = update else { return Ok(true) };
        if batch.rows.is_empty() {
            return Ok(true);
        }
        let settings = UpdateSettings {
            update: &recipe.update,
            loss: loss.as_ref().map(|loss| PluginLoss { loss, iteration, iterations: recipe.iterations }),
            lr: learning_rate(&recipe.update, iteration - 1, recipe.iterations),
            temperature: recipe.rollout.temperature,
            max_response_tokens: recipe.rollout.max_response_tokens,
            seed: stream_seed(recipe.seed, noise::SHUFFLE, iteration),
        };
        let mut policy_learns = true;
        if let (Some(critic), Some(section)) = (&mut learner.critic, &recipe.critic) {
            let report = reports.critic.get_or_insert_default();
            if !meter.update_critic(critic, batch, section, &settings, report, clock)? {
                return Ok(false);
            }
            policy_learns = iteration > section.warmup;
        }
        if policy_learns {
            let report = reports.policy.get_or_insert_default();
            let trained = crate::agent::trained_batch(batch, failed, &recipe.update, player.ends());
            return meter.update_policy(&mut learner.policy, &trained, &settings, report, clock);
        }
        Ok(true)
    }

    /// True at every rank if rank 0's clock says that it is time for a checkpoint.
    fn save_is_due(&self) -> Result<bool> {
        Ok(exchange(&*self.ranks.comm, Ok(self.ledger.clock.is_due()))?.contains(&true))
    }

    /// Measures success on the fixed task list after an iteration, and writes the episodes.
    fn evaluate(&mut self, iteration: u64) -> Result<f64> {
        self.meter.phases.start("evaluate");
        let _bar = self.ranks.progress.phase("evaluate", "episodes");
        let (comm, recipe) = (&*self.ranks.comm, &self.recipe);
        let episodes = eval::play(comm, &mut self.player, &self.learner.policy.model, &recipe.eval, recipe.seed)?;
        let evaluation = Evaluation::of(&episodes, self.player.ends());
        report::evaluation(&mut self.meter.metrics, &evaluation);
        if recipe.rollout.env_errors > 0 {
            self.meter.metrics.set("eval/failed", evaluation.failed as f64);
        }
        if comm.rank() == 0 {
            let panel = Panel::of(recipe, &episodes);
            panel.write(&self.dir)?;
            self.meter.tracker.record_outcomes(&panel.outcomes(iteration, &episodes))?;
        }
        if recipe.eval.save_episodes && comm.rank() == 0 {
            let file = episodes_file(&self.dir, "evaluations", iteration);
            write_images(&self.dir, &episodes)?;
            write_lines(&file, evaluation_lines(&episodes, self.player.tokenizer()))?;
        }
        self.count_env_errors()?;
        if let Some(warning) = evaluation.failure_warning() {
            self.meter.tracker.warn(&warning)?;
        }
        Ok(evaluation.success.rate())
    }

    /// Writes the row of metrics of the last finished iteration.
    fn record(&mut self) -> Result<()> {
        let Meter { phases, speed, metrics, tracker, .. } = &mut self.meter;
        report::memory(metrics, self.ranks.comm.device());
        phases.finish(metrics, "track"); // of the next row
        let seconds = metrics.get("time/iteration_s").unwrap_or(0.0);
        speed.refresh(seconds);
        let flops = speed.take();
        let iteration = self.ledger.state.iteration;
        if iteration > 0 {
            metrics.set("perf/mfu", speed.share(flops, seconds));
            metrics.set("perf/peak_flops", speed.peak);
        }
        tracker.record(iteration, &std::mem::take(metrics))?;
        self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.tell(tracker))?;
        self.summarize(RunState::Running)
    }

    /// Writes the run's state, at rank 0.
    fn summarize(&mut self, state: RunState) -> Result<()> {
        self.summary.as_mut().map_or(Ok(()), |summary| summary.write(state))
    }
}

impl Meter {
    /// The row under way, for a checkpoint.
    fn open_row(&self) -> OpenRow {
        OpenRow { metrics: self.metrics.clone(), seconds: self.phases.so_far(), flops: self.speed.so_far() }
    }

    /// Continues a row that a checkpoint holds.
    fn resume_row(&mut self, row: OpenRow) {
        self.metrics = row.metrics;
        self.phases.resume(row.seconds);
        self.speed.count(row.flops);
    }

    /// Runs the critic's remaining mini-batches until a checkpoint is due, and counts their FLOPs. Returns true once none
    /// remains.
    fn update_critic(
        &mut self,
        critic: &mut Network,
        batch: &Batch,
        section: &Critic,
        settings: &UpdateSettings,
        report: &mut CriticReport,
        clock: &SaveClock,
    ) -> Result<bool> {
        self.phases.start("critic");
        let _bar = critic.ranks.progress.phase("critic", "sequences");
        let before = report.each.len();
        let done = critic::run_remaining(critic, batch, section, settings, report, || clock.is_due());
        // Those before an interruption are in the row already.
        let all = all_mini_batches(batch, settings.update, settings.seed).len();
        let epochs = f64::from(settings.update.epochs) * (report.each.len() - before) as f64 / all.max(1) as f64;
        self.speed.count(epochs * training_flops(&critic.model, batch));
        done
    }

    /// Runs the policy's remaining mini-batches until a checkpoint is due, and measures the update's speed. Returns true
    /// once none remains.
    fn update_policy(
        &mut self,
        policy: &mut Network,
        batch: &Batch,
        settings: &UpdateSettings,
        report: &mut UpdateReport,
        clock: &SaveClock,
    ) -> Result<bool> {
        self.phases.start("update");
        let _bar = policy.ranks.progress.phase("update", "sequences");
        let before = report.distinct_tokens;
        let done = update::run_remaining(policy, batch, settings, report, || clock.is_due());
        let all: usize = batch.sequences.iter().map(|s| s.tokens.len()).sum();
        let each = training_flops(&policy.model, batch) / all.max(1) as f64;
        // Tokens before an interruption are in the row already.
        self.speed.count(each * (report.distinct_tokens - before) as f64);
        let seconds = self.phases.seconds("update").max(1e-9);
        let (tokens, distinct) = (report.tokens as f64, report.distinct_tokens as f64);
        self.metrics.set("update/tokens_per_s", tokens / seconds);
        self.metrics.set("update/mfu", self.speed.share(each * distinct, seconds));
        self.metrics.set("perf/tree_factor", tokens / distinct.max(1.0));
        self.metrics.set("lr", settings.lr);
        done
    }
}

/// Seed of one iteration's draws in a stream of their own.
fn stream_seed(seed: u64, stream: u32, iteration: u64) -> u64 {
    NoiseKey { stream, iteration, ..NoiseKey::default() }.rng(seed, 0).next_u64()
}
