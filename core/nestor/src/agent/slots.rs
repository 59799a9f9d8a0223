//! Instances for all slots at once, before a run: a server or a machine with room for fewer is found by `nestor train --check`.

use std::time::Duration;

use anyhow::{Context, Result};

use super::failures::Failures;
use super::pool::{Answer, Pool};
use super::tasks::EpisodePlan;
use crate::plugin::SharedEnv;
use crate::recipe::Rollout;

/// Resets an instance for each of the episodes that the slots of one rank play side by side, and keeps all of them until the
/// last one has begun.
///
/// # Errors
/// With the first failure beyond `rollout.env_errors`.
pub fn fill_slots(shared_env: &SharedEnv, rollout: &Rollout, plan: &[EpisodePlan]) -> Result<()> {
    let mut pool = Pool::new(shared_env, rollout.env_threads)?;
    let plan = &plan[..plan.len().min(rollout.slots).min(rollout.open_episodes.unwrap_or(usize::MAX))];
    for (index, &EpisodePlan { task, seed, .. }) in plan.iter().enumerate() {
        let split = rollout.split.clone();
        pool.submit(index, None, move |env| env.reset(&split, task, seed).map(drop));
    }
    let (mut open, mut failures) = (Vec::new(), Failures::new(rollout.env_errors));
    while open.len() + (failures.count as usize) < plan.len() {
        for Answer { outcome, .. } in pool.collect(true, Duration::ZERO)? {
            match outcome {
                Ok((env, ())) => open.push(env),
                Err(error) => {
                    failures.survive(error).with_context(|| {
                        format!(
                            "{} of {} instances for rollout.slots ({}) are open side by side, and one more fails",
                            open.len(),
                            plan.len(),
                            rollout.slots
                        )
                    })?;
                }
            }
        }
    }
    Ok(())
}
