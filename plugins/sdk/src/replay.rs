//! Episodes that replay: the task and the actions make the state, so a saved state is played again.

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Environment, Observation, Start};

/// An episode whose state is its task and the actions played. Seeds of episodes play no part in it.
pub trait Replay: Sized + Send + 'static {
    /// The environment that it belongs to.
    type World: Environment;
    /// An action that changes the state.
    type Action: Clone + Serialize + DeserializeOwned + Send;

    /// Starts a task.
    fn start(world: &Self::World, split: &str, task: u64) -> Result<Self>;
    /// Plays an action. An observation that terminates or truncates ends the episode.
    fn play(&mut self, world: &Self::World, action: Self::Action) -> Result<Observation>;
}

/// The episode of an instance, if it was reset, with its task and actions. `reset` calls [`start`](Self::start), `step` and
/// the expert [`running`](Self::running), [`Snapshot`](crate::Snapshot) [`save`](Self::save) and [`load`](Self::load).
pub struct Replayed<E: Replay>(Option<Running<E>>);

struct Running<E: Replay> {
    episode: E,
    saved: Saved<E::Action>,
    over: bool,
}

/// The form of a saved state.
#[derive(Debug, Serialize, Deserialize)]
struct Saved<A> {
    split: String,
    task: u64,
    actions: Vec<A>,
}

impl<E: Replay> Default for Replayed<E> {
    fn default() -> Self {
        Self(None)
    }
}

impl<E: Replay> Replayed<E> {
    /// Starts a task. If that fails, the instance must be reset again.
    pub fn start(&mut self, world: &E::World, start: Start<'_>) -> Result<&mut E> {
        self.0 = None;
        let running = Running::start(world, start.split.to_owned(), start.task)?;
        Ok(&mut self.0.insert(running).episode)
    }

    /// Returns the episode if it can continue.
    pub fn running(&mut self) -> Result<&mut E> {
        Ok(&mut running(&mut self.0, |it| it.over)?.episode)
    }

    /// Plays an action in an episode that can continue.
    pub fn play(&mut self, world: &E::World, action: E::Action) -> Result<Observation> {
        running(&mut self.0, |it| it.over)?.play(world, action)
    }

    /// Returns the state: task and actions, as JSON.
    pub fn save(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.0.as_ref().context(NOT_RESET)?.saved)?)
    }

    /// Starts the task of a saved state and plays its actions again.
    pub fn load(&mut self, world: &E::World, state: &[u8]) -> Result<()> {
        let saved: Saved<E::Action> = serde_json::from_slice(state)
            .with_context(|| format!("this is no saved state of {}", <E::World as Environment>::ID))?;
        let mut running = Running::<E>::start(world, saved.split, saved.task)?;
        for action in saved.actions {
            ensure!(!running.over, "the saved state has actions after the end of its episode");
            running.play(world, action)?;
        }
        self.0 = Some(running);
        Ok(())
    }
}

impl<E: Replay> Running<E> {
    fn start(world: &E::World, split: String, task: u64) -> Result<Self> {
        let episode = E::start(world, &split, task)?;
        Ok(Self { episode, saved: Saved { split, task, actions: Vec::new() }, over: false })
    }

    fn play(&mut self, world: &E::World, action: E::Action) -> Result<Observation> {
        let seen = self.episode.play(world, action.clone())?;
        self.saved.actions.push(action);
        self.over = seen.terminated || seen.truncated;
        Ok(seen)
    }
}

const NOT_RESET: &str = "not reset yet";

/// Returns an instance's episode if it can continue; else the error that the host expects of a step.
pub fn running<E>(episode: &mut Option<E>, over: impl Fn(&E) -> bool) -> Result<&mut E> {
    let episode = episode.as_mut().context(NOT_RESET)?;
    ensure!(!over(episode), "the episode is over: reset before the next step");
    Ok(episode)
}
