//! Warm start: imitation of the environment's expert, so that a random model wins often enough to learn from.
//!
//! Maximum likelihood on the responses of episodes that the expert plays. Random valid actions replace a share of the
//! expert's: the policy then depends on the state but is far from greedy, and leaves room for reinforcement learning.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::agent::{Player, TaskCursor, pack, plan};
use crate::data::{Batch, Episode};
use crate::failpoint::failpoint;
use crate::policy::recompute::agreed;
use crate::policy::update::differentiate;
use crate::policy::{Network, Packed, PassOptions, policy_gradients};
use crate::ranks::{Comm, exchange};
use crate::recipe::{Rollout, Update, WarmStart};
use crate::shard::StepReport;

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
    tasks: TaskCursor,
    /// Number of times that the expert has played.
    rounds: u64,
    /// Its episodes that no optimizer step has used.
    played: Vec<Episode>,
}

impl ImitationState {
    /// A warm start that has not begun.
    pub fn new(tasks: TaskCursor) -> Self {
        Self { steps: 0, loss: f64::NAN, tasks, rounds: 0, played: Vec::new() }
    }
}

/// A finished optimizer step of a warm start.
#[derive(Debug, Clone, Copy)]
pub struct ImitationStep {
    /// Its number, from 1.
    pub step: u64,
    /// Mean negative log-prob of the expert's tokens, in nats.
    pub loss: f64,
    /// The gradient was not finite, and no lower loss scale can help.
    pub skipped: bool,
}

/// Imitation learning from the expert. The ranks of `comm` share the work.
pub struct Imitation<'a> {
    pub comm: &'a dyn Comm,
    pub player: &'a mut Player,
    /// Seed of the environments and the noise.
    pub seed: u64,
    pub settings: &'a WarmStart,
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
        while self.state.steps < self.settings.steps {
            if pause()? {
                return Ok(false);
            }
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
            let batch = pack(&parts, self.rollout);
            let (loss, report) = self.imitate(policy, &batch)?;
            self.state.steps += 1;
            self.state.loss = loss;
            let hopeless = report.skipped && policy.skipped_in_a_row > 0;
            progress(ImitationStep { step: self.state.steps, loss, skipped: hopeless })?;
            policy.check_skipped(self.update.max_skipped).context("warm start")?;
            failpoint("mid-warm-start");
        }
        policy.optimizer.reset();
        Ok(true)
    }

    /// Has the expert play more: episodes for a transcript recipe, otherwise one episode per step. Changes nothing where a
    /// signal stops it.
    fn play(&mut self) -> Result<()> {
        let mut tasks = self.state.tasks.clone();
        let plan = plan(&tasks.next(EPISODES), 1, self.seed, self.state.rounds);
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
    fn imitate(&self, policy: &mut Network, batch: &Batch) -> Result<(f64, StepReport)> {
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
        Ok((total, policy.step(self.settings.lr, self.update.grad_clip)?))
    }
}
