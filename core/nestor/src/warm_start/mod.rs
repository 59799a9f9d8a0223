//! Warm start: supervised learning before reinforcement learning, so that a model wins often enough to learn from.
//!
//! Maximum likelihood on the responses of episodes that the environment's expert plays, or of the chats of files ([`lessons`]).
//! Random valid actions replace a share of the expert's: the policy then depends on the state but is far from greedy, and
//! leaves room for reinforcement learning.

mod chats;
mod lessons;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::agent::{Player, TaskDraws, pack, plan};
use crate::data::{Batch, Episode};
use crate::failpoint::failpoint;
use crate::input_error;
use crate::policy::batching::ScoringPasses;
use crate::policy::logprobs::ragged_logprobs;
use crate::policy::recompute::agreed;
use crate::policy::update::{LrSchedule, differentiate};
use crate::policy::{Network, Packed, PassOptions, policy_gradients};
use crate::progress::Progress;
use crate::ranks::{Comm, exchange};
use crate::recipe::{Rollout, Update, WarmStart};
use crate::shard::{Ranks, StepReport};
pub use lessons::Lessons;

/// Number of episodes that the expert plays at once.
const EPISODES: usize = 32;

fn steps_of(episodes: &[Episode]) -> usize {
    episodes.iter().map(|e| e.steps.len()).sum()
}

/// Progress of a warm start between two optimizer steps. A checkpoint holds it; the weights and the optimizer's state are beside it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImitationState {
    /// Finished optimizer steps.
    pub steps: u64,
    /// Loss of the last one.
    pub loss: f64,
    tasks: TaskDraws,
    /// Number of times that the expert has played.
    rounds: u64,
    /// Its episodes that no optimizer step has used.
    played: Vec<Episode>,
    /// Loss of the held-out chats when it was last measured.
    pub validation_loss: Option<f64>,
    /// Sums of the files of chats, once they are learned.
    sha256: Option<String>,
}

impl ImitationState {
    /// A warm start that has not begun.
    pub fn new(tasks: TaskDraws) -> Self {
        Self { steps: 0, loss: f64::NAN, tasks, rounds: 0, played: Vec::new(), validation_loss: None, sha256: None }
    }

    /// Begins with the chats, or continues: then it refuses others than those that it began with.
    pub fn begin(&mut self, lessons: &Lessons) -> Result<()> {
        if *self.sha256.get_or_insert_with(|| lessons.sha256.clone()) == lessons.sha256 {
            return Ok(());
        }
        Err(input_error!(
            "the files of `warm_start.data` or `warm_start.validation` are not those that the run began with; put them back, \
             or start another run"
        ))
    }
}

/// A finished optimizer step of a warm start.
#[derive(Debug, Clone, Copy)]
pub struct ImitationStep {
    /// Its number, from 1.
    pub step: u64,
    /// Mean negative log-prob of the learned tokens, in nats.
    pub loss: f64,
    /// That of the held-out chats' tokens after this step, where it is measured.
    pub validation_loss: Option<f64>,
    /// The step's learning rate.
    pub lr: f64,
    /// The gradient was not finite, and no lower loss scale can help.
    pub skipped: bool,
}

/// Imitation learning from the expert, or from chats. The ranks of `comm` share the work.
pub struct Imitation<'a> {
    pub comm: &'a dyn Comm,
    pub player: &'a mut Player,
    /// The chats that replace the expert.
    pub lessons: Option<&'a Lessons>,
    /// Seed of the environments, the noise and the order of chats.
    pub seed: u64,
    pub settings: &'a WarmStart,
    /// Number of optimizer steps.
    pub steps: u64,
    pub rollout: &'a Rollout,
    /// Optimizer settings and micro-batches.
    pub update: &'a Update,
    pub state: &'a mut ImitationState,
}

impl Imitation<'_> {
    /// Trains the policy, then resets the optimizer and returns true. Asks `pause` before each optimizer step, and returns
    /// false where it says so. Calls `progress` after each optimizer step.
    pub fn teach(
        &mut self,
        policy: &mut Network,
        mut pause: impl FnMut() -> Result<bool>,
        mut progress: impl FnMut(ImitationStep) -> Result<()>,
    ) -> Result<bool> {
        while self.state.steps < self.steps {
            if pause()? {
                return Ok(false);
            }
            let batch = match self.lessons {
                Some(lessons) => pack(&lessons.batch(self.settings, self.state.steps, self.seed), self.rollout),
                None => self.demonstrated()?,
            };
            let lr = self.learning_rate();
            let (loss, report) = self.imitate(policy, &batch, lr)?;
            self.state.steps += 1;
            self.state.loss = loss;
            let validation_loss = self.measure(policy)?;
            self.state.validation_loss = validation_loss.or(self.state.validation_loss);
            let hopeless = report.skipped && policy.skipped_in_a_row > 0;
            progress(ImitationStep { step: self.state.steps, loss, validation_loss, lr, skipped: hopeless })?;
            policy.check_skipped(self.update.max_skipped).context("warm start")?;
            failpoint("mid-warm-start");
        }
        policy.optimizer.reset();
        Ok(true)
    }

    /// Takes a batch of the expert's steps, and has it play where too few are left.
    fn demonstrated(&mut self) -> Result<Batch> {
        while steps_of(&self.state.played) < self.settings.batch {
            self.play()?;
        }
        let played = &mut self.state.played;
        let mut steps = 0;
        let fit = played.iter().take_while(|part| {
            steps += part.steps.len();
            steps <= self.settings.batch
        });
        let fit = fit.count();
        let parts: Vec<Episode> = played.drain(..fit).collect();
        Ok(pack(&parts, self.rollout))
    }

    /// The learning rate of the next optimizer step.
    fn learning_rate(&self) -> f64 {
        let WarmStart { lr, warmup, schedule, min_lr_ratio, .. } = *self.settings;
        lr * LrSchedule { schedule, warmup, min_lr_ratio, total: self.steps }.share(self.state.steps)
    }

    /// The loss of the held-out chats, where it is time to measure it.
    fn measure(&self, policy: &Network) -> Result<Option<f64>> {
        let held_out = self.lessons.map_or(&[][..], |lessons| &lessons.held_out);
        let (done, every) = (self.state.steps, self.settings.validate_every.unwrap_or(self.steps.div_ceil(10)));
        if held_out.is_empty() || (done < self.steps && !done.is_multiple_of(every)) {
            return Ok(None);
        }
        let batch = pack(held_out, self.rollout);
        let passes = ScoringPasses::new(policy.micro_batching(self.update.micro_batch_tokens), &batch);
        // The line of the warm start counts its steps alone.
        let ranks = Ranks { progress: Progress::hidden(), ..policy.ranks.clone() };
        let logprobs = ragged_logprobs(&ranks, &policy.model, &batch, &passes, 1.0)?;
        let sum: f64 = logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
        Ok(Some(-sum / logprobs.len().max(1) as f64))
    }

    /// Has the expert play more: episodes for a transcript recipe, otherwise one episode per step. Changes nothing where a
    /// signal stops it.
    fn play(&mut self) -> Result<()> {
        let mut tasks = self.state.tasks.clone();
        let weights = self.player.environments().weights();
        let plan = plan(&tasks.next(EPISODES, &weights, None), 1, self.seed, self.state.rounds);
        let episodes = self.player.demonstrate_among(self.comm, &plan, self.settings.expert_noise, self.seed)?;
        ensure!(steps_of(&episodes) > 0, "warm start: the expert played no step in {EPISODES} episodes");
        (self.state.tasks, self.state.rounds) = (tasks, self.state.rounds + 1);
        if self.rollout.is_transcript() {
            // An environment that failed may have left an episode without a step.
            self.state.played.extend(episodes.into_iter().filter(|e| !e.steps.is_empty()));
        } else {
            self.state.played.extend(episodes.into_iter().flat_map(Episode::into_steps));
        }
        Ok(())
    }

    /// Takes one optimizer step of maximum likelihood. Returns the mean negative log-likelihood per token.
    fn imitate(&self, policy: &mut Network, batch: &Batch, lr: f64) -> Result<(f64, StepReport)> {
        let tokens = batch.rows.token_offsets.last().copied().unwrap_or(0);
        let all: Vec<usize> = (0..batch.sequences.len()).collect();
        let micro_batches = policy.micro_batching(self.update.micro_batch_tokens).own(batch, &all);
        let recompute = agreed((&policy.model, &policy.ranks), batch, &micro_batches, self.update.recompute)?;
        let options = PassOptions { temperature: 1.0, recompute, loss_factor: policy.optimizer.loss_factor() };
        let ranks = policy.ranks.clone();
        policy.optimizer.zero_grad();
        let mut total = 0.0;
        for micro in micro_batches {
            let Some(micro) = micro else {
                policy.idle(recompute)?;
                continue;
            };
            let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
            let (model, sums) = policy.for_backward();
            let packed = Packed::new(&sequences, &batch.rows, model)?;
            total += policy_gradients(model, &packed, options, sums, |stats| {
                differentiate(stats, false, |logprobs, _| {
                    let loss = -logprobs.sum(Kind::Double) / tokens as f64;
                    let value = loss.detach().double_value(&[]);
                    (loss, value)
                })
            })?;
            // The line counts steps; tokens show that a long one moves.
            ranks.progress.advance(0, sequences.iter().map(|sequence| sequence.tokens.len()).sum());
        }
        let total = exchange(self.comm, Ok(total))?.into_iter().sum();
        Ok((total, policy.step(lr, self.update.grad_clip)?))
    }
}
