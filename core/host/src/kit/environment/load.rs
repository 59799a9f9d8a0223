//! Much of the same, without growth.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::episode::MOST_STEPS;
use super::player::{Form, Player};
use super::{Loaded, Start};
use crate::Env;
use crate::kit::usage::repeat;
use crate::kit::{Finding, Subject, passed};

/// Many episodes on one instance.
pub fn many_episodes(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let (mut env, all) = (shared.spawn()?, subject.kit.budget.episodes);
    // Few enough that a cache of tasks is full after the first quarter.
    let most = subject.kit.budget.tasks.min(all.div_ceil(16));
    let starts = loaded.starts(&shared, most)?;
    let form = Form::find(&mut env, starts.first().context("there is no task")?)?;
    let mut player = Player::new(form, 3);
    let (mut steps, mut took) = (0, Duration::ZERO);
    let played = repeat(subject, all, "episodes", |at| {
        let start = &starts[at as usize % starts.len()];
        let (more, time) = play(&mut env, &Start { seed: at, ..start.clone() }, &mut player)?;
        steps += more;
        took += time;
        Ok(())
    })?;
    let rate = steps as f64 / took.as_secs_f64().max(1e-9);
    let note = format!("{played} of {all} episodes, {steps} steps");
    Ok(Finding::Measured(note, rate, "steps/s on one thread, resets included".into()))
}

/// The number of steps of an episode, and the time in reset and step.
fn play(env: &mut Env, start: &Start, player: &mut Player) -> Result<(u64, Duration)> {
    let begin = Instant::now();
    let mut seen = env.reset(&start.split, start.task, start.seed)?;
    let (mut took, mut steps) = (begin.elapsed(), 0);
    while !(seen.terminated || seen.truncated) && steps < MOST_STEPS as u64 {
        let response = player.respond(env, &seen);
        let begin = Instant::now();
        seen = env.step(&response)?;
        took += begin.elapsed();
        steps += 1;
    }
    Ok((steps, took))
}

/// A world and an instance, opened, played and closed.
pub fn open_close(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let all = subject.kit.budget.opens;
    let start = loaded.starts(&loaded.open()?, 1)?.remove(0);
    let opened = repeat(subject, all, "times opened and closed", |_| {
        let shared = loaded.open()?;
        shared.spawn()?.reset(&start.split, start.task, start.seed)?;
        Ok(())
    })?;
    passed(format!("{opened} of {all} times"))
}
