//! Failed episodes: those that an environment did not finish. No estimator sees one, so the others' advantages are those of an
//! iteration without it. The policy's update alone gets its steps. Let a be the lowest advantage of a step in the iteration and m
//! the mean one, both at most 0. The step that the environment failed in has the advantage a, and the k-th step before it
//!
//! ```text
//! m + (a - m) 0.8^k
//! ```
//!
//! Without these rows the policy may learn to make an environment fail. The gradient of the others is
//! `sum_i A_i grad log pi(y_i)`. With s the probability of a response after which nothing fails, each term holds
//! `A_i grad log s`. Where the others' advantages have a negative mean, s falls: so it is where each step costs something,
//! since worse episodes have more steps. A response that fails and has that mean as its advantage cancels the term, and a
//! lower one raises s. The blame fades with each step, since an environment may fail some steps after the response that
//! broke it; a step without blame counts as an average one.
//!
//! A failure that no response causes costs variance but no bias in the step that failed: all its responses would have had
//! the advantage a, and the expectation of `a grad log pi(y)` is 0. docs/isolation.md has measurements.

use anyhow::Result;

use super::Run;
use crate::agent::pack_failed;
use crate::data::{Batch, Episode, Rows};
use crate::policy::batching::ScoringPasses;
use crate::recipe::OldLogprobs;

/// Share of a step's blame for a failure that the step before it has.
const BLAME: f64 = 0.8;

impl Run {
    /// The failed episodes for the update of a scored batch; none where nothing was scored.
    pub(super) fn failed_episodes(&mut self, episodes: &[Episode], batch: &Batch) -> Result<Batch> {
        let mut failed = pack_failed(episodes, &self.recipe.rollout);
        if failed.rows.is_empty() || batch.rows.is_empty() {
            return Ok(Batch::default());
        }
        let passes =
            ScoringPasses::new(self.learner.policy.micro_batching(self.recipe.update.micro_batch_tokens), &failed);
        if self.recipe.update.old_logprobs == OldLogprobs::Recompute {
            self.policy_columns(&mut failed, &passes)?;
        }
        self.reference_logprobs(&mut failed, &passes)?;
        blame(&mut failed.rows, &batch.rows);
        Ok(failed)
    }
}

/// Sets the advantages of failed episodes, given those of the others.
fn blame(failed: &mut Rows, scored: &Rows) {
    let each: Vec<f64> = (0..scored.len()).filter_map(|row| scored.advantage(row)).collect();
    let lowest = each.iter().copied().fold(0.0, f64::min);
    let mean = (each.iter().sum::<f64>() / each.len().max(1) as f64).min(0.0);
    let after = failed.episode.chunk_by(|a, b| a == b).flat_map(|steps| (0..steps.len()).rev());
    let advantage = |after: usize| (mean + (lowest - mean) * BLAME.powi(after as i32)) as f32;
    let rows = after.zip(failed.token_offsets.windows(2));
    failed.advantages = rows.flat_map(|(after, of)| vec![advantage(after); (of[1] - of[0]) as usize]).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(episode: &[u32], token_offsets: &[u64], advantages: &[f32]) -> Rows {
        let [group, step] = [vec![0; episode.len()], vec![0; episode.len()]];
        let (episode, token_offsets) = (episode.to_vec(), token_offsets.to_vec());
        Rows { group, step, episode, token_offsets, advantages: advantages.to_vec(), ..Rows::default() }
    }

    #[test]
    fn the_blame_fades_with_each_step_before_the_failure() {
        let mut failed = rows(&[3, 3, 3, 7], &[0, 1, 3, 4, 5], &[]);
        // Means of the rows: 1, -2, -0.5; their mean is -0.5.
        blame(&mut failed, &rows(&[0, 0, 1], &[0, 1, 3, 4], &[1.0, -3.0, -1.0, -0.5]));
        assert_eq!(failed.advantages, [-1.46, -1.7, -1.7, -2.0, -2.0]);
        // Never better than nothing.
        blame(&mut failed, &rows(&[0, 1], &[0, 1, 2], &[1.0, 3.0]));
        assert_eq!(failed.advantages, [0.0; 5]);
        blame(&mut failed, &rows(&[], &[0], &[]));
        assert_eq!(failed.advantages, [0.0; 5]);
    }
}
