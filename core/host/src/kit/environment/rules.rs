//! What a reset and a step put into their results.

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Observation, ffi};

use super::episode::MOST_STEPS;
use super::player::{Form, Player};
use super::{Loaded, Start};
use crate::Env;
use crate::call::Texts;
use crate::kit::{Finding, Subject, passed};
use crate::observation::of_step;

/// Numbers as a plugin gave them, and the observation that its texts make with sound numbers.
struct Given {
    numbers: ffi::Step,
    seen: Result<Observation>,
}

impl Given {
    fn of((texts, numbers): (Texts, ffi::Step)) -> Self {
        let terminated = u8::from(numbers.terminated > 0);
        let truncated = u8::from(numbers.truncated > 0 && terminated == 0);
        let sound = ffi::Step { reward: 0.0, terminated, truncated, valid: 1 };
        Self { numbers, seen: of_step(texts, sound) }
    }
}

/// Plays sampled tasks and shows each result to `look`, with true for a reset. Returns the numbers of episodes and steps.
fn walk(subject: &Subject, mut look: impl FnMut(bool, &Given) -> Result<()>) -> Result<(usize, usize)> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let (mut env, clock) = (shared.spawn()?, subject.clock());
    let (mut episodes, mut steps, mut form) = (0, 0, None);
    for start in loaded.sampled(&shared)? {
        if clock.is_over() {
            break;
        }
        if episodes == 0 {
            // Fails only where the walk does too.
            form = Form::find(&mut env, &start).unwrap_or(None);
        }
        let mut player = Player::new(form, episodes as u64);
        steps += episode(&mut env, &start, &mut player, &mut look)?;
        episodes += 1;
    }
    Ok((episodes, steps))
}

fn episode(
    env: &mut Env,
    start: &Start,
    player: &mut Player,
    look: &mut impl FnMut(bool, &Given) -> Result<()>,
) -> Result<usize> {
    let mut result = Given::of(env.reset_unchecked(&start.split, start.task, start.seed)?);
    look(true, &result).with_context(|| format!("{start}, reset"))?;
    for step in 0..MOST_STEPS {
        let Ok(seen) = result.seen else { return Ok(step) };
        if seen.terminated || seen.truncated {
            return Ok(step);
        }
        let response = player.respond(env, &seen);
        let place = || format!("{start}, step {step}");
        result = Given::of(env.step_unchecked(response.as_bytes()).with_context(place)?);
        look(false, &result).with_context(place)?;
    }
    Ok(MOST_STEPS)
}

/// The texts, info and metrics.
pub fn observation_schema(subject: &Subject) -> Result<Finding> {
    let (mut over, mut named) = (0, 0);
    let (episodes, steps) = walk(subject, |_, result| match &result.seen {
        Err(error) => bail!("{error:#}"),
        Ok(seen) => {
            let at_end = seen.terminated || seen.truncated;
            over += u32::from(at_end);
            named += u32::from(at_end && seen.info.get("won").is_some_and(|won| !won.is_null()));
            Ok(())
        }
    })?;
    ensure!(
        over == 0 || named > 0,
        "{over} episodes ended and none said `won` in its info; such episodes count as lost"
    );
    passed(format!("{episodes} episodes, {steps} steps; {over} ended, {named} of them with `won`"))
}

/// The reward and the flags.
pub fn reward_well_formed(subject: &Subject) -> Result<Finding> {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    let (episodes, steps) = walk(subject, |is_reset, result| {
        let ffi::Step { reward, terminated, truncated, valid } = result.numbers;
        ensure!(reward.is_finite(), "the reward is {reward}, which is not finite");
        for (name, flag) in [("terminated", terminated), ("truncated", truncated), ("valid", valid)] {
            ensure!(flag <= 1, "the flag `{name}` is {flag}; a flag is 0 or 1");
        }
        ensure!(terminated + truncated < 2, "both `terminated` and `truncated` are set");
        if is_reset {
            ensure!(terminated + truncated == 0, "the episode is over before its first step");
            ensure!(reward == 0.0, "the reward of a reset is {reward}, not 0");
            ensure!(valid == 1, "the flag `valid` of a reset is 0, not 1");
        } else {
            (least, most) = (least.min(reward), most.max(reward));
        }
        Ok(())
    })?;
    passed(format!("{episodes} episodes, {steps} steps, rewards from {least} to {most}"))
}
