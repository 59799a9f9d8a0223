//! Winning: the expert always does, chance and idleness do not.

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::Observation;

use super::episode::MOST_STEPS;
use super::player::{Form, Player};
use super::{Loaded, Start};
use crate::Env;
use crate::kit::{Clock, Finding, Subject, passed, skipped};

/// Most steps of an expert's episode.
const EXPERT_STEPS: usize = 2_000;
/// Shares of episodes that doing nothing, and playing at random, must stay below the share of the expert.
const IDLE_MARGIN: f64 = 0.5;
const RANDOM_MARGIN: f64 = 0.05;

fn is_over(seen: &Observation) -> bool {
    seen.terminated || seen.truncated
}

/// As the trainer counts it.
fn won(seen: &Observation) -> bool {
    let won = &seen.info.get("won");
    won.is_some_and(|won| won.as_bool().unwrap_or(false) || won.as_f64().is_some_and(|number| number > 0.0))
}

/// The expert wins all sampled tasks, and all its responses are valid.
pub fn oracle_max(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    if !shared.has_expert() {
        return skipped("there is no expert (extension nestor.env.expert/1)");
    }
    let (mut env, clock) = (shared.spawn()?, subject.clock());
    let (mut returns, mut lost, mut example) = (Vec::new(), 0, None);
    for start in loaded.sampled(&shared)?.iter().take_while(|_| !clock.is_over()) {
        let (last, total) = follow_expert(&mut env, start)?;
        returns.push(total);
        if !won(&last) {
            lost += 1;
            example.get_or_insert_with(|| start.to_string());
        }
    }
    let played = returns.len();
    ensure!(lost == 0, "the expert lost {lost} of {played} episodes, among them {}", example.unwrap_or_default());
    let mean = returns.iter().sum::<f64>() / played.max(1) as f64;
    passed(format!("won {played} of {played}, mean return {mean:.3}"))
}

fn follow_expert(env: &mut Env, start: &Start) -> Result<(Observation, f64)> {
    let mut seen = env.reset(&start.split, start.task, start.seed)?;
    let mut total = 0.0;
    for step in 0..EXPERT_STEPS {
        let action = env.expert_action(&seen.admissible)?;
        let response = env.expert_response(&action)?;
        seen = env.step(&response)?;
        total += seen.reward;
        ensure!(seen.valid, "{start}, step {step}: the expert's response {response:?} is not valid");
        if is_over(&seen) {
            return Ok((seen, total));
        }
    }
    bail!("{start}: the expert plays more than {EXPERT_STEPS} steps")
}

/// The share of episodes that a policy wins, and the number played.
fn share(
    env: &mut Env,
    starts: &[Start],
    clock: Clock,
    mut policy: impl FnMut(&mut Env, &Observation) -> String,
) -> Result<(f64, usize)> {
    let (mut wins, mut played) = (0, 0);
    for start in starts.iter().take_while(|_| !clock.is_over()) {
        let mut seen = env.reset(&start.split, start.task, start.seed)?;
        for _ in 0..MOST_STEPS {
            if is_over(&seen) {
                break;
            }
            let response = policy(env, &seen);
            seen = env.step(&response)?;
        }
        wins += u32::from(won(&seen) && is_over(&seen));
        played += 1;
    }
    Ok((f64::from(wins) / played.max(1) as f64, played))
}

/// Doing nothing and playing at random win a margin less than an expert, which wins everything.
pub fn floor_gap(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let (mut env, starts, clock) = (shared.spawn()?, loaded.sampled(&shared)?, subject.clock());
    let (idle, played) = share(&mut env, &starts, clock, |_, _| String::new())?;
    ensure!(
        idle <= 1.0 - IDLE_MARGIN,
        "empty responses win {:.0} % of {played} episodes; at most {:.0} % would leave something to learn",
        100.0 * idle,
        100.0 * (1.0 - IDLE_MARGIN)
    );
    let form = Form::find(&mut env, starts.first().context("there is no task")?)?;
    if form.is_none() {
        return passed(format!("empty responses win {:.0} % of {played} episodes", 100.0 * idle));
    }
    let mut player = Player::new(form, 1);
    let (random, _) = share(&mut env, &starts, clock, |env, seen| player.act(env, seen).unwrap_or_default())?;
    ensure!(
        random <= 1.0 - RANDOM_MARGIN,
        "random admissible actions win {:.0} % of {played} episodes; there is nothing to learn",
        100.0 * random
    );
    passed(format!(
        "of {played} episodes empty responses win {:.0} %, random actions {:.0} %",
        100.0 * idle,
        100.0 * random
    ))
}

/// A step accepts every action that is listed.
pub fn admissible_accepted(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let (mut env, starts, clock) = (shared.spawn()?, loaded.sampled(&shared)?, subject.clock());
    let first = starts.first().context("there is no task")?;
    if env.reset(&first.split, first.task, first.seed)?.admissible.is_empty() {
        return skipped("no admissible actions are listed");
    }
    let Some(form) = Form::find(&mut env, first)? else {
        let expert = if shared.has_expert() { "not in the expert's form" } else { "not as it is, tagged or as JSON" };
        bail!("{first}: the first admissible action is not accepted, {expert}");
    };
    let mut tried = 0;
    let mut player = Player::new(Some(form), 2);
    for start in starts.iter().take_while(|_| !clock.is_over()) {
        let mut seen = env.reset(&start.split, start.task, start.seed)?;
        for step in 0..MOST_STEPS {
            if is_over(&seen) {
                break;
            }
            let Some(response) = player.act(&mut env, &seen) else { break };
            seen = env.step(&response)?;
            ensure!(seen.valid, "{start}, step {step}: {response:?} carries an admissible action and is not valid");
            tried += 1;
        }
    }
    passed(format!("{tried} random ones"))
}
