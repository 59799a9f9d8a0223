//! Instances for all slots at once, before a run: a server or a machine with room for fewer is found by `nestor train --check`.

use std::time::Duration;

use anyhow::{Context, Result};

use super::environments::{Environments, Instance};
use super::failures::Failures;
use super::pool::{Answer, Pool};
use super::tasks::EpisodePlan;
use crate::recipe::Rollout;

/// Resets an instance for each of the episodes that the slots of one rank play side by side, and keeps all of them until the
/// last one has begun.
///
/// # Errors
/// With the first failure beyond `rollout.env_errors`.
pub fn fill_slots(environments: &Environments, rollout: &Rollout, plan: &[EpisodePlan]) -> Result<()> {
    let mut pool = Pool::new(environments, rollout.env_threads)?;
    let plan = &plan[..plan.len().min(rollout.slots).min(rollout.open_episodes.unwrap_or(usize::MAX))];
    for (index, &EpisodePlan { task, seed, .. }) in plan.iter().enumerate() {
        let place = environments.place(&rollout.split, task);
        let instance = Instance::New(environments.members()[place.member].shared_env.clone());
        pool.submit(index, instance, move |env| env.reset(&place.split, place.task, seed).map(drop));
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
