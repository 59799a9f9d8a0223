//! Warm start: imitation of the environment's expert, so that a random model wins often enough to learn from.
//!
//! Maximum likelihood on the responses of episodes that the expert plays. Random valid actions replace a share of the
//! expert's: the policy then depends on the state but is far from greedy, and leaves room for reinforcement learning.

use anyhow::{Result, ensure};
use tch::Kind;

use crate::agent::{Player, TaskCursor, pack, plan};
use crate::data::{Batch, Episode};
use crate::dist::{Comm, exchange};
use crate::policy::batching::balanced_micro_batches;
use crate::policy::update::differentiate;
use crate::policy::{Network, Packed, PassOptions, policy_gradients};
use crate::recipe::{Rollout, Update, WarmStart};

/// Number of episodes that the expert plays at once.
const EPISODES: usize = 32;

fn steps_of(episodes: &[Episode]) -> usize {
    episodes.iter().map(|e| e.steps.len()).sum()
}

/// Imitation learning from the expert. The ranks of `comm` share the work.
pub struct Imitation<'a> {
    pub comm: &'a dyn Comm,
    pub player: &'a mut Player,
    pub tasks: TaskCursor,
    /// Seed of the environments and the noise.
    pub seed: u64,
    pub settings: &'a WarmStart,
    pub rollout: &'a Rollout,
    /// Optimiser settings and micro-batches.
    pub update: &'a Update,
}

impl Imitation<'_> {
    /// Trains the policy, then resets the optimiser. Calls `progress` with each optimiser step (from 1) and its loss;
    /// an error of `progress` ends the training.
    pub fn teach(&mut self, policy: &mut Network, mut progress: impl FnMut(u64, f64) -> Result<()>) -> Result<()> {
        let mut played = Vec::new();
        let mut round = 0;
        for step in 1..=self.settings.steps {
            while steps_of(&played) < self.settings.batch {
                let more = self.play(round)?;
                ensure!(!more.is_empty(), "warm start: the expert played no step in {EPISODES} episodes");
                played.extend(more);
                round += 1;
            }
            let mut steps = 0;
            let fit = played.iter().take_while(|part| {
                steps += part.steps.len();
                steps <= self.settings.batch
            });
            let parts: Vec<Episode> = played.drain(..fit.count()).collect();
            let batch = pack(&parts, self.rollout);
            progress(step, self.imitate(policy, &batch)?)?;
        }
        policy.optimizer.reset();
        Ok(())
    }

    /// Episodes that the expert plays, for a transcript recipe; otherwise one episode per step.
    fn play(&mut self, round: u64) -> Result<Vec<Episode>> {
        let plan = plan(&self.tasks.next(EPISODES), 1, self.seed, round);
        let episodes = self.player.demonstrate_among(self.comm, &plan, self.settings.expert_noise, self.seed)?;
        if self.rollout.is_transcript() {
            // An environment that failed may have left an episode without a step.
            return Ok(episodes.into_iter().filter(|e| !e.steps.is_empty()).collect());
        }
        let part = |step| Episode { steps: vec![step], ..Episode::default() };
        Ok(episodes.into_iter().flat_map(|e| e.steps).map(part).collect())
    }

    /// Takes one optimiser step of maximum likelihood. Returns the mean negative log-likelihood per token.
    fn imitate(&self, policy: &mut Network, batch: &Batch) -> Result<f64> {
        let tokens = batch.rows.token_offsets.last().copied().unwrap_or(0);
        let options = PassOptions {
            temperature: 1.0,
            recompute: self.update.recompute,
            loss_factor: policy.optimizer.loss_factor(),
        };
        let all: Vec<usize> = (0..batch.sequences.len()).collect();
        let ranks = policy.ranks.clone();
        policy.optimizer.zero_grad();
        let mut total = 0.0;
        for micro in balanced_micro_batches(&ranks, batch, &all, self.update.micro_batch_tokens) {
            let Some(micro) = micro else {
                policy.idle(self.update.recompute)?;
                continue;
            };
            let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
            let (model, sums) = policy.for_backward();
            let packed = Packed::new(&sequences, &batch.rows, model.device());
            total += policy_gradients(model, &packed, options, sums, |stats| {
                differentiate(stats, false, |logprobs, _| {
                    let loss = -logprobs.sum(Kind::Double) / tokens as f64;
                    let value = loss.detach().double_value(&[]);
                    (loss, value)
                })
            })?;
        }
        let total = exchange(self.comm, Ok(total))?.into_iter().sum();
        policy.step(self.update, self.settings.lr, self.update.grad_clip)?;
        Ok(total)
    }
}
