//! The same responses give the same episode: again, in another process, between others, on many threads.

use anyhow::{Context, Result, anyhow};

use super::Loaded;
use super::episode::{Episode, Seen};
use crate::kit::{Finding, Subject, apart, passed};
use crate::{SharedEnv, calls};

/// Episodes to compare.
const EPISODES: usize = 16;
/// Threads that use one world.
const THREADS: usize = 8;
/// Times that each thread plays all episodes, at most.
const ROUNDS: usize = 10;

/// On the same instance, on another one, and in another world.
pub fn episode_determinism(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let episodes = loaded.record(&shared, EPISODES)?;
    let (mut same, mut other) = (shared.spawn()?, shared.spawn()?);
    let second = loaded.open()?;
    let mut apart = second.spawn()?;
    let mut is_seeded = false;
    for episode in &episodes {
        episode.check(&mut other).context("on another instance")?;
        episode.check(&mut same).context("on an instance that has played before")?;
        episode.check(&mut apart).context("in another world")?;
        let start = &episode.start;
        is_seeded |= Seen::from(same.reset(&start.split, start.task, start.seed + 1)?) != episode.seen[0];
    }
    let steps: usize = episodes.iter().map(|episode| episode.responses.len()).sum();
    let seed = if is_seeded { "the seed changes them" } else { "the seed does not change their beginnings" };
    passed(format!("{} episodes, {steps} steps, four times each; {seed}", episodes.len()))
}

/// In a process that has played nothing else.
pub fn replayability(subject: &Subject) -> Result<Finding> {
    let recorded = apart::in_child(&subject.kit.budget, || {
        let record = || {
            let loaded = Loaded::new(subject)?;
            loaded.record(&loaded.open()?, EPISODES)
        };
        let recorded: Result<Vec<Episode>, String> = record().map_err(|error: anyhow::Error| format!("{error:#}"));
        serde_json::to_vec(&recorded).unwrap_or_default()
    });
    let recorded = recorded.map_err(|error| anyhow!(error))?;
    let episodes = serde_json::from_slice::<Result<Vec<Episode>, String>>(&recorded)
        .context("reading recorded episodes")?
        .map_err(|error| anyhow!(error))?;
    let shared = Loaded::new(subject)?.open()?;
    let mut env = shared.spawn()?;
    for episode in episodes.iter().rev() {
        episode.check(&mut env).context("recorded in another process")?;
    }
    passed(format!("{} episodes of another process", episodes.len()))
}

/// Step by step in turn, with instances of two worlds.
pub fn episode_isolation(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let worlds = [loaded.open()?, loaded.open()?];
    let episodes = loaded.record(&worlds[0], EPISODES)?;
    let spawned = (0..episodes.len()).map(|at| worlds[at % 2].spawn());
    let mut envs = spawned.collect::<Result<Vec<_>>>()?;
    let mut seen: Vec<Vec<Seen>> = Vec::new();
    for (env, Episode { start, .. }) in envs.iter_mut().zip(&episodes) {
        seen.push(vec![env.reset(&start.split, start.task, start.seed)?.into()]);
    }
    let longest = episodes.iter().map(|episode| episode.responses.len()).max().unwrap_or(0);
    for step in 0..longest {
        for (at, episode) in episodes.iter().enumerate() {
            if let Some(response) = episode.responses.get(step) {
                let place = || format!("{}, played in turn with others", episode.start);
                seen[at].push(envs[at].step(response).with_context(place)?.into());
            }
        }
    }
    for (episode, seen) in episodes.iter().zip(&seen) {
        episode.compare(0, seen).context("played in turn with others")?;
    }
    passed(format!("{} episodes, step by step in turn", episodes.len()))
}

/// Many threads use one world at once.
pub fn many_threads(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let episodes = loaded.record(&shared, EPISODES)?;
    let (world, episodes) = (&shared, &episodes[..]);
    let clock = subject.clock();
    let played = std::thread::scope(|scope| -> Result<usize> {
        let threads: Vec<_> =
            (0..THREADS).map(|own| scope.spawn(move || play(world, episodes, own, || clock.is_over()))).collect();
        let mut played = 0;
        for thread in threads {
            played += thread.join().map_err(|_| anyhow!("a thread of the kit panicked"))??;
        }
        Ok(played)
    })?;
    passed(format!("{played} episodes on {THREADS} threads"))
}

/// Plays all episodes in rounds, each thread in another order.
fn play(shared: &SharedEnv, episodes: &[Episode], own: usize, is_over: impl Fn() -> bool) -> Result<usize> {
    calls::supervise_this_thread();
    let mut env = shared.spawn()?;
    for round in 0..ROUNDS {
        for at in 0..episodes.len() {
            if is_over() {
                return Ok(round * episodes.len() + at);
            }
            let episode = &episodes[(at + own) % episodes.len()];
            episode.check(&mut env).with_context(|| format!("while {THREADS} threads play"))?;
        }
    }
    Ok(ROUNDS * episodes.len())
}
