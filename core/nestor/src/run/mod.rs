//! A run: the steps of the training loop, and the state they share between iterations.

mod check;
mod directory;
mod group_filter;
mod identity;
mod ledger;
mod lock;
mod record;
mod report;
mod resume;
mod speed;
mod start;

use std::path::PathBuf;

use anyhow::{Context, Result};
use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use crate::agent::{PlaySettings, Player, Scored, pack, plan_from};
use crate::checkpoint::Contents;
use crate::data::{Batch, Episode};
use crate::dist::{exchange, from_root};
use crate::engine::{Counters as Generated, NoiseKey, noise};
use crate::error::{InputError, Stopped, message};
use crate::eval::evaluate;
use crate::model::Model;
use crate::plugin::Estimator;
use crate::policy::Network;
use crate::policy::critic::{self, CriticReport, ragged_values};
use crate::policy::kl_reward::subtract_kl;
use crate::policy::logprobs::ragged_logprobs;
use crate::policy::update::{self, UpdateReport, UpdateSettings, learning_rate};
use crate::recipe::{Critic, OldLogprobs, Recipe};
use crate::shard::Ranks;
use crate::track::{Event, Metrics, Phases, Status, Tracker};
use directory::RunDir;
pub use directory::{RECIPE, check_empty, make_first_free, remove_empty, to_resume};
use group_filter::Selection;
use ledger::{InterruptedUpdate, Ledger, OptimizerCounters};
use speed::{Speed, TRAINED, TRAINED_THROUGH_ADAPTERS, forward_flops, generation_flops};
pub use start::join;

/// Options of `nestor train`.
#[derive(Debug, Clone, Default)]
pub struct TrainArgs {
    /// The run directory; by default the first free `runs/<recipe>[-n]`.
    pub run_dir: Option<PathBuf>,
    /// Resume from the newest undamaged checkpoint of `run_dir`.
    pub resume: bool,
    /// Keys of the recipe that may change on resume although they belong to the run's start.
    pub allow_change: Vec<String>,
    /// The launcher restarted the ranks: resume if the directory holds a run, else start over in it.
    pub restarted: bool,
    /// Write JSON to standard output.
    pub json: bool,
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
    estimator: Estimator,
    learner: Learner,
    meter: Meter,
    ledger: Ledger,
    /// The run directory, at rank 0. Dropped last.
    claim: Option<RunDir>,
}

/// The networks.
struct Learner {
    policy: Network,
    critic: Option<Network>,
    /// The policy before reinforcement learning, frozen.
    reference: Option<Model>,
}

/// The measurements of the iteration under way, and where they are written.
struct Meter {
    phases: Phases,
    speed: Speed,
    metrics: Metrics,
    tracker: Tracker,
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

    /// Plays one group of episodes for each of the next tasks. Dynamic sampling replaces groups that it drops.
    pub fn collect(&mut self, iteration: u64) -> Result<Vec<Episode>> {
        self.meter.phases.start("rollout");
        let _bar = self.ranks.progress.phase("rollout", "episodes");
        let rollout = &self.recipe.rollout;
        let settings = PlaySettings::train(rollout, iteration);
        let mut selection = Selection::new(rollout);
        self.ledger.tasks = self.ledger.state.tasks.clone();
        while let Some(groups) = selection.missing() {
            let tasks = self.ledger.tasks.next(groups.len());
            let plan = plan_from(groups.start, &tasks, rollout.group_size, self.recipe.seed, iteration);
            let episodes = self
                .player
                .play_among(&*self.ranks.comm, &self.learner.policy.model, &plan, &settings)
                .context("playing episodes")?;
            selection.add(episodes);
        }
        if rollout.dynamic_sampling.is_some() {
            selection.report(&mut self.meter.metrics);
        }
        Ok(selection.into_episodes())
    }

    /// Packs episodes into a batch: sequences to train on, and one row per step.
    pub fn pack(&mut self, episodes: &[Episode]) -> Result<Batch> {
        self.meter.phases.start("pack");
        let batch = pack(episodes, &self.recipe.rollout);
        self.count_generation(&batch)?;
        Ok(batch)
    }

    /// Adds the columns that the recipe asks for: log-probs recomputed before the update, log-probs of the reference,
    /// values of the critic. Then subtracts KL from the rewards.
    pub fn reference(&mut self, batch: &mut Batch) -> Result<()> {
        let Self { recipe, ranks, learner: Learner { policy, critic, reference }, meter, ledger, .. } = self;
        let update = &recipe.update;
        let (tokens, temperature) = (update.micro_batch_tokens, recipe.rollout.temperature);
        if update.old_logprobs == OldLogprobs::Recompute {
            meter.phases.start("old_logprobs");
            let _bar = ranks.progress.phase("old log-probs", "sequences");
            batch.recomputed = Some(ragged_logprobs(ranks, &policy.model, batch, tokens, temperature)?);
            meter.speed.count(forward_flops(&policy.model.config, batch));
        }
        if let Some(reference) = reference {
            meter.phases.start("reference");
            let _bar = ranks.progress.phase("reference", "sequences");
            batch.rows.ref_logprobs = Some(ragged_logprobs(ranks, reference, batch, tokens, temperature)?);
            meter.speed.count(forward_flops(&reference.config, batch));
        }
        if let Some(critic) = critic {
            meter.phases.start("values");
            let _bar = ranks.progress.phase("values", "sequences");
            batch.rows.values = Some(ragged_values(ranks, &critic.model, batch, tokens)?);
            meter.speed.count(forward_flops(&critic.model.config, batch));
        }
        if let (Some(section), Some(coefficient)) = (&update.kl_in_reward, &mut ledger.state.kl_coefficient) {
            let kl = subtract_kl(batch, section, *coefficient);
            meter.metrics.set("reward/kl", kl);
            meter.metrics.set("reward/kl_coef", coefficient.0);
            coefficient.update(section, kl, batch.rows.len());
        }
        Ok(())
    }

    /// Calls the estimator, which computes advantages and returns. Rank 0 computes them for all, since it has the full
    /// batch.
    pub fn score(&mut self, batch: &mut Batch) -> Result<()> {
        self.meter.phases.start("advantage");
        let rows = &mut batch.rows;
        (rows.advantages, rows.returns) = from_root(&*self.ranks.comm, || {
            self.estimator.score(rows)?;
            Ok((std::mem::take(&mut rows.advantages), std::mem::take(&mut rows.returns)))
        })?;
        Ok(())
    }

    /// Updates the critic, then the policy, on a scored batch.
    pub fn update(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch) -> Result<UpdateReports> {
        // From here on a signal interrupts the iteration instead of discarding it.
        self.ledger.state.tasks = self.ledger.tasks.clone();
        self.update_from(UpdateReports::default(), iteration, episodes, batch)
    }

    /// Finishes the iteration whose update a signal interrupted before this run was resumed.
    pub fn finish_interrupted(&mut self) -> Result<()> {
        let Some(iteration) = self.next_iteration() else { return Ok(()) };
        let Some(interrupted) = self.ledger.interrupted.take() else { return Ok(()) };
        let InterruptedUpdate { episodes, batch, metrics, reports } = interrupted;
        self.meter.metrics = metrics;
        let update = self.update_from(reports, iteration, &episodes, &batch)?;
        self.track(iteration, &episodes, &batch, &update)?;
        self.evaluate_and_save(iteration)
    }

    /// Adds the iteration's metrics and writes its episodes.
    pub fn track(&mut self, iteration: u64, episodes: &[Episode], batch: &Batch, update: &UpdateReports) -> Result<()> {
        let Meter { phases, metrics, tracker, .. } = &mut self.meter;
        phases.start("track");
        report::episodes(metrics, episodes, self.player.tokenizer().eos());
        report::rows(metrics, &batch.rows);
        report::update(metrics, update, &batch.rows);
        if let Some(policy) = &update.policy {
            tracker.record_steps(iteration, report::steps(policy))?;
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
            tracker.wandb.table(scored.lines().take(section.table_episodes));
        }
        Ok(())
    }

    /// Evaluates and saves where the recipe asks for it. Writes the row of metrics in between, so that a checkpoint is
    /// never ahead of the metrics.
    pub fn evaluate_and_save(&mut self, iteration: u64) -> Result<()> {
        let last = iteration == self.recipe.iterations;
        let every = self.recipe.eval.every;
        if last || (every > 0 && iteration.is_multiple_of(every)) {
            match self.evaluate() {
                Err(error) if error.is::<Stopped>() => {} // closing the run saves the update
                evaluated => evaluated?,
            }
        }
        self.ledger.state.iteration = iteration;
        self.record()?;
        let every = self.recipe.checkpoint.every;
        if last || (every > 0 && iteration.is_multiple_of(every)) {
            self.save()?;
        }
        Ok(())
    }

    /// Reports a failure to the other ranks and to W&B.
    pub fn fail(&mut self, error: &anyhow::Error) {
        let message = message(error);
        self.ranks.comm.abort(&message); // first, so that the others do not wait for W&B
        if !error.is::<InputError>() {
            self.keep(); // for its log
        }
        self.meter.tracker.wandb.failed(&message);
        self.meter.tracker.close(1);
    }

    /// Ends the run and reports how. A stopped run saves what its newest checkpoint lacks.
    pub fn close(mut self) -> Result<Status> {
        self.keep();
        self.meter.tracker.draw()?;
        if self.ledger.state.iteration < self.recipe.iterations {
            if !self.ledger.baseline {
                return self.end(Status::Stopped, false);
            }
            if self.ledger.saved != Some(self.ledger.progress()) {
                self.save()?;
            }
            return self.end(Status::Stopped, true);
        }
        if let Some(line) = report::success(self.meter.tracker.evaluations(), self.ledger.state.comparable_from) {
            self.meter.tracker.log(&line)?;
        }
        self.end(Status::Done, true)
    }

    /// Keeps the run directory. Until then a refused run leaves none behind.
    fn keep(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.keep();
        }
    }

    fn end(&mut self, status: Status, saved: bool) -> Result<Status> {
        self.meter.tracker.close(if status == Status::Done { 0 } else { 130 });
        self.meter.tracker.emit(&Event::End { status, run_dir: &self.dir, saved })?;
        Ok(status)
    }

    /// Counts the tokens that all ranks generated, and their FLOPs.
    fn count_generation(&mut self, batch: &Batch) -> Result<()> {
        let Generated { prefilled, generated, .. } = self.player.take_counters();
        let all = exchange(&*self.ranks.comm, Ok([prefilled, generated]))?;
        let [prefilled, generated] = all.iter().fold([0; 2], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]]);
        let config = &self.learner.policy.model.config;
        self.meter.speed.count(generation_flops(config, batch, prefilled, generated));
        let seconds = self.meter.phases.seconds("rollout").max(1e-9);
        self.meter.metrics.set("rollout/tokens_per_s", generated as f64 / seconds);
        Ok(())
    }

    /// Runs the update's mini-batches after those in `reports`. When a signal interrupts it, keeps the iteration for
    /// the checkpoint.
    fn update_from(
        &mut self,
        mut reports: UpdateReports,
        iteration: u64,
        episodes: &[Episode],
        batch: &Batch,
    ) -> Result<UpdateReports> {
        let ended = self.run_remaining(iteration, batch, &mut reports);
        if ended.as_ref().is_err_and(|error| error.is::<Stopped>()) {
            let (episodes, batch) = (episodes.to_vec(), batch.clone());
            let metrics = std::mem::take(&mut self.meter.metrics);
            self.ledger.interrupted = Some(InterruptedUpdate { episodes, batch, metrics, reports: reports.clone() });
        }
        ended.map(|()| reports)
    }

    fn run_remaining(&mut self, iteration: u64, batch: &Batch, reports: &mut UpdateReports) -> Result<()> {
        let Self { recipe, learner, meter, .. } = self;
        let settings = UpdateSettings {
            update: &recipe.update,
            lr: learning_rate(&recipe.update, iteration - 1, recipe.iterations),
            temperature: recipe.rollout.temperature,
            max_response_tokens: recipe.rollout.max_response_tokens,
            seed: stream_seed(recipe.seed, noise::SHUFFLE, iteration),
        };
        let mut policy_learns = true;
        if let (Some(critic), Some(section)) = (&mut learner.critic, &recipe.critic) {
            meter.update_critic(critic, batch, section, &settings, reports.critic.get_or_insert_default())?;
            policy_learns = iteration > section.warmup;
        }
        if policy_learns {
            meter.update_policy(&mut learner.policy, batch, &settings, reports.policy.get_or_insert_default())?;
        }
        Ok(())
    }

    /// Measures success on the fixed task list.
    fn evaluate(&mut self) -> Result<()> {
        self.meter.phases.start("evaluate");
        let _bar = self.ranks.progress.phase("evaluate", "episodes");
        let (policy, recipe) = (&self.learner.policy.model, &self.recipe);
        let evaluation = evaluate(&*self.ranks.comm, &mut self.player, policy, &recipe.eval, recipe.seed)?;
        report::evaluation(&mut self.meter.metrics, &evaluation);
        Ok(())
    }

    /// Writes the row of metrics of the last finished iteration.
    fn record(&mut self) -> Result<()> {
        let comm = &*self.ranks.comm;
        let env_errors: u64 = exchange(comm, Ok(self.player.take_env_errors()))?.iter().sum();
        let Meter { phases, speed, metrics, tracker } = &mut self.meter;
        metrics.set("env/errors", env_errors as f64);
        report::memory(metrics, comm.device());
        phases.finish(metrics, "track"); // of the next row
        let seconds = metrics.get("time/iteration_s").unwrap_or(0.0);
        let flops = speed.take();
        let iteration = self.ledger.state.iteration;
        if iteration > 0 {
            metrics.set("perf/mfu", speed.share(flops, seconds));
            metrics.set("perf/peak_flops", speed.peak);
        }
        tracker.record(iteration, &std::mem::take(metrics))
    }

    /// Saves a checkpoint. Its time counts towards the next row.
    fn save(&mut self) -> Result<()> {
        self.meter.phases.start("checkpoint");
        let _bar = self.ranks.progress.phase("checkpoint", "");
        let Self { learner: Learner { policy, critic, .. }, ledger, .. } = self;
        ledger.state.policy = OptimizerCounters::of(policy);
        ledger.state.critic = critic.as_ref().map(OptimizerCounters::of);
        let interrupted = ledger.interrupted.as_ref().map(InterruptedUpdate::serialized).transpose()?;
        let contents = Contents::new(policy, critic.as_ref(), &self.model_files, interrupted);
        let (iteration, keep) = (ledger.state.iteration, self.recipe.checkpoint.keep);
        ledger.checkpoints.save(&*self.ranks.comm, iteration, &contents, &ledger.state, keep)?;
        ledger.saved = Some(ledger.progress());
        self.meter.phases.start("track"); // of the next row
        Ok(())
    }
}

impl Meter {
    /// Runs the critic's remaining mini-batches and counts their FLOPs.
    fn update_critic(
        &mut self,
        critic: &mut Network,
        batch: &Batch,
        section: &Critic,
        settings: &UpdateSettings,
        report: &mut CriticReport,
    ) -> Result<()> {
        self.phases.start("critic");
        let _bar = critic.ranks.progress.phase("critic", "sequences");
        let before = report.each.len();
        critic::run_remaining(critic, batch, section, settings, report)?;
        // Mini-batches before an interruption were counted by the run that did them.
        let share = (report.each.len() - before) as f64 / report.each.len().max(1) as f64;
        let epochs = f64::from(settings.update.epochs) * share;
        self.speed.count(TRAINED * epochs * forward_flops(&critic.model.config, batch));
        Ok(())
    }

    /// Runs the policy's remaining mini-batches and measures their speed.
    fn update_policy(
        &mut self,
        policy: &mut Network,
        batch: &Batch,
        settings: &UpdateSettings,
        report: &mut UpdateReport,
    ) -> Result<()> {
        self.phases.start("update");
        let _bar = policy.ranks.progress.phase("update", "sequences");
        let before = report.tokens;
        update::run_remaining(policy, batch, settings, report)?;
        let (seconds, tokens) = (self.phases.seconds("update").max(1e-9), (report.tokens - before) as f64);
        let all: usize = batch.sequences.iter().map(|s| s.tokens.len()).sum();
        let trained = if policy.model.adapters.is_some() { TRAINED_THROUGH_ADAPTERS } else { TRAINED };
        let flops = trained * forward_flops(&policy.model.config, batch) * tokens / all.max(1) as f64;
        self.speed.count(flops);
        self.metrics.set("update/tokens_per_s", tokens / seconds);
        self.metrics.set("update/mfu", self.speed.share(flops, seconds));
        self.metrics.set("lr", settings.lr);
        Ok(())
    }
}

/// Seed of one iteration's draws in a stream of their own.
fn stream_seed(seed: u64, stream: u32, iteration: u64) -> u64 {
    NoiseKey { stream, iteration, ..NoiseKey::default() }.rng(seed, 0).next_u64()
}
