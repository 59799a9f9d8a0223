//! Copies of the state of an episode.

use anyhow::{Context, Result, bail, ensure};

use super::Loaded;
use super::episode::{Episode, Seen};
use crate::call::Panicked;
use crate::kit::{Finding, Subject, passed, skipped};
use crate::{Env, Snapshot};

/// Saves at several steps, plays on, and continues from the copies on this instance and another one.
pub fn snapshot(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    if !shared.has_snapshots() {
        return skipped("there is no extension nestor.env.snapshot/1");
    }
    let episodes = loaded.record(&shared, 16)?;
    let (mut env, mut other) = (shared.spawn()?, shared.spawn()?);
    let (mut copies, mut longest) = (0, 0);
    for (at, episode) in episodes.iter().enumerate() {
        let saved = save(&mut env, episode)?;
        let elsewhere = &episodes[(at + 1) % episodes.len()].start;
        for (step, copy) in &saved {
            longest = longest.max(copy.state.len());
            other.reset(&elsewhere.split, elsewhere.task, elsewhere.seed)?;
            for (env, place) in [(&mut other, "on another instance"), (&mut env, "on the same instance")] {
                continue_from(env, episode, *step, copy)
                    .with_context(|| format!("from a copy after {step} steps, {place}"))?;
            }
            copies += 1;
        }
        if let Some((_, copy)) = saved.first() {
            refuse_other_bytes(&mut other, copy)?;
        }
    }
    passed(format!("{copies} copies of at most {longest} bytes, loaded twice each"))
}

/// Plays an episode and saves at some of its steps, before the last.
fn save(env: &mut Env, episode: &Episode) -> Result<Vec<(usize, Snapshot)>> {
    let steps = episode.responses.len();
    let places = [0, 1, steps / 2, steps.saturating_sub(1)];
    let mut seen = vec![Seen::from(env.reset(&episode.start.split, episode.start.task, episode.start.seed)?)];
    let mut saved = Vec::new();
    for (step, response) in episode.responses.iter().enumerate() {
        if places.contains(&step) {
            saved.push((step, env.save()?));
        }
        seen.push(env.step(response)?.into());
    }
    episode.compare(0, &seen).context("after a save")?;
    Ok(saved)
}

fn continue_from(env: &mut Env, episode: &Episode, step: usize, copy: &Snapshot) -> Result<()> {
    env.load(copy)?;
    let rest = episode.responses[step..].iter().map(|response| Ok(env.step(response)?.into()));
    let seen = rest.collect::<Result<Vec<Seen>>>()?;
    episode.compare(step + 1, &seen)?;
    let anchors = seen.iter().zip(&episode.seen[step + 1..]).all(|(now, before)| now.anchor == before.anchor);
    ensure!(anchors, "{}: the anchors are other ones", episode.start);
    Ok(())
}

/// Bytes that no save gave must be an error; a part of what it gave must not panic.
fn refuse_other_bytes(env: &mut Env, copy: &Snapshot) -> Result<()> {
    let other = Snapshot { state: vec![0xff; 33], ..copy.clone() };
    let Err(error) = env.load(&other) else { bail!("33 bytes that no save gave were loaded without an error") };
    ensure!(!error.chain().any(|cause| cause.is::<Panicked>()), "33 bytes that no save gave: {error:#}");
    let part = Snapshot { state: copy.state[..copy.state.len() / 2].to_vec(), ..copy.clone() };
    let panicked = env.load(&part).is_err_and(|error| error.chain().any(|cause| cause.is::<Panicked>()));
    ensure!(!panicked, "the first half of a copy makes load panic");
    Ok(())
}
