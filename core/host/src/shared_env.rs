//! An environment of a plugin: the part that all episodes share (the header's world), and the part that plays one episode
//! at a time (the header's env).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use nestor_args::terminal;
use nestor_plugin::{Observation, ffi};
use serde_json::Value;

use crate::call::{Handle, Out, Texts, open};
use crate::calls::{Call, Function, Name, Position};
use crate::environment_call::{EnvironmentCall as Request, TakenResponse, lacks};
use crate::isolate::{Process, World};
use crate::library::{EnvironmentTables, PluginFile};
use crate::observation::{of_reset, of_step};
use crate::supervise::{Limits, Supervisor};

/// An open environment; clones share it.
#[derive(Clone)]
pub struct SharedEnv {
    inner: Arc<Inner>,
    /// By split the numbers of the tasks that are not played, in order. The others are numbered without them.
    dropped: Arc<BTreeMap<String, Vec<u64>>>,
}

struct Inner {
    id: &'static str,
    file: PluginFile,
    name: Name,
    has_expert: bool,
    has_snapshots: bool,
    takes_responses: bool,
    place: Place,
    limits: Limits,
    /// A warning that an episode ended without `won` is out.
    warned: AtomicBool,
    /// A close function took too long or died, so that no other one is called.
    gave_up: AtomicBool,
}

/// The extensions that an open environment has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extensions {
    pub expert: bool,
    pub snapshots: bool,
    pub respond: bool,
}

/// The process that has the environment open.
enum Place {
    Here { tables: EnvironmentTables, handle: Handle, supervisor: Supervisor },
    Elsewhere(World),
}

impl Drop for Inner {
    fn drop(&mut self) {
        let under = self.call(Function::CloseWorld);
        self.close(under, |inner| match &inner.place {
            Place::Here { tables, handle, supervisor } => {
                // The envs, which hold this value, are gone.
                here(supervisor, under, *tables, *handle, Request::CloseWorld).map(|_| ())
            }
            Place::Elsewhere(world) => world.close(),
        });
    }
}

impl Inner {
    fn call(&self, function: Function) -> Call {
        Call { plugin: self.name, function, position: None }
    }

    /// Calls a close function. A failure becomes a warning, since no caller waits for the result. Does nothing after a call
    /// was given up: the plugin may hang again.
    fn close(&self, under: Call, body: impl FnOnce(&Self) -> Result<()>) {
        let gave_up = matches!(&self.place, Place::Here { supervisor, .. } if supervisor.gave_up());
        if gave_up || self.gave_up.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = body(self) {
            terminal::warn(&format!("warning: {under}: closing: {error:#}"));
        }
    }
}

/// Makes a call in this process, on a thread that may be left behind.
fn here(
    supervisor: &Supervisor,
    call: Call,
    tables: EnvironmentTables,
    handle: Handle,
    request: Request,
) -> Result<(Texts, Out)> {
    // SAFETY: the handle is open, of the kind that the call is for, and used by its owner alone.
    supervisor.run(call, move || unsafe { request.perform(&tables, handle) }.result())
}

impl SharedEnv {
    pub(super) fn open(
        (id, file): (&'static str, PluginFile),
        mut tables: EnvironmentTables,
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        let (name, supervisor, text) = (Name::of_opened(id), Supervisor::new(limits.clone()), config.to_string());
        let (function, under) =
            (tables.functions.open, Call { plugin: name, function: Function::Open, position: None });
        let (handle, lacks) = supervisor
            .run(under, move || open(function, &text).result())
            .and_then(|(mut texts, out)| Ok((out.handle()?, lacks(&mut texts)?)))
            .with_context(|| under.to_string())?;
        let has = |extension: &str| lacks.iter().all(|id| id != extension);
        tables.expert = tables.expert.filter(|_| has(ffi::EXPERT));
        tables.snapshot = tables.snapshot.filter(|_| has(ffi::SNAPSHOT));
        tables.respond = tables.respond.filter(|_| has(ffi::RESPOND));
        let can = Extensions {
            expert: tables.expert.is_some(),
            snapshots: tables.snapshot.is_some(),
            respond: tables.respond.is_some(),
        };
        let place = Place::Here { tables, handle, supervisor };
        Ok(Self::of((id, file), can, place, limits))
    }

    /// An environment in processes of its own.
    pub(super) fn elsewhere(
        (id, file): (&'static str, PluginFile),
        extensions: Extensions,
        world: World,
        limits: &Limits,
    ) -> Self {
        Self::of((id, file), extensions, Place::Elsewhere(world), limits)
    }

    fn of((id, file): (&'static str, PluginFile), can: Extensions, place: Place, limits: &Limits) -> Self {
        let Extensions { expert: has_expert, snapshots: has_snapshots, respond: takes_responses } = can;
        let (name, limits) = (Name::of(id), limits.clone());
        let (warned, gave_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let inner = Arc::new(Inner {
            id,
            file,
            name,
            has_expert,
            has_snapshots,
            takes_responses,
            place,
            limits,
            warned,
            gave_up,
        });
        Self { inner, dropped: Arc::default() }
    }

    /// The environment without these tasks, in order, of each split. The others are numbered anew, without gaps.
    pub fn without(&self, dropped: BTreeMap<String, Vec<u64>>) -> Self {
        Self { inner: self.inner.clone(), dropped: Arc::new(dropped) }
    }

    /// The dropped tasks of a split.
    fn dropped(&self, split: &str) -> &[u64] {
        self.dropped.get(split).map_or(&[], Vec::as_slice)
    }

    pub fn id(&self) -> &str {
        self.inner.id
    }

    /// The plugin file.
    pub fn file(&self) -> &PluginFile {
        &self.inner.file
    }

    /// The limits of its calls.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// True if the environment runs in processes of its own. A call that takes too long then ends by itself, with its
    /// process.
    pub fn is_isolated(&self) -> bool {
        matches!(self.inner.place, Place::Elsewhere(_))
    }

    /// The plugin's default prompt template.
    pub fn template(&self) -> Result<String> {
        self.call(Request::PromptTemplate)
            .and_then(|(mut texts, _)| texts.required(ffi::TEMPLATE, "template", "NESTOR_TEMPLATE"))
            .with_context(|| format!("plugin {}: template", self.id()))
    }

    /// Number of tasks in a split.
    pub fn tasks(&self, split: &str) -> Result<u64> {
        self.call(Request::Tasks { split: split.to_string() })
            .and_then(|(_, out)| out.count())
            .map(|count| count.saturating_sub(self.dropped(split).len() as u64))
            .with_context(|| format!("plugin {}", self.id()))
    }

    pub fn has_expert(&self) -> bool {
        self.inner.has_expert
    }

    /// True if the state of an episode can be copied ([`Env::save`]).
    pub fn has_snapshots(&self) -> bool {
        self.inner.has_snapshots
    }

    /// Makes an environment that plays episodes.
    pub fn spawn(&self) -> Result<Env> {
        let place = match &self.inner.place {
            Place::Here { .. } => self.call(Request::Spawn).and_then(|(_, out)| out.handle()).map(EnvPlace::Here),
            Place::Elsewhere(world) => world.spawn(self.inner.call(Function::Spawn)).map(EnvPlace::Elsewhere),
        };
        place
            .map(|place| Env { shared: self.clone(), place, position: None })
            .with_context(|| format!("plugin {}: spawn", self.id()))
    }

    /// Makes a call of the shared part.
    fn call(&self, request: Request) -> Result<(Texts, Out)> {
        let call = self.inner.call(request.function());
        match &self.inner.place {
            Place::Here { tables, handle, supervisor } => here(supervisor, call, *tables, *handle, request),
            Place::Elsewhere(world) => world.call(call, request),
        }
    }
}

/// A copy of the state of an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub(crate) position: Option<Position>,
    pub(crate) state: Vec<u8>,
}

/// Plays one episode at a time; a reset starts the next one.
pub struct Env {
    shared: SharedEnv,
    place: EnvPlace,
    position: Option<Position>,
}

/// The process of an instance.
enum EnvPlace {
    Here(Handle),
    Elsewhere(Process),
}

impl Drop for Env {
    fn drop(&mut self) {
        let is_over = || matches!(&self.place, EnvPlace::Elsewhere(process) if process.is_over());
        if is_over() {
            return; // the instance died with its process
        }
        let inner = &self.shared.inner;
        inner.close(self.under(Function::Close), |_| self.call(Request::Close).map(|_| ()));
        if is_over() {
            inner.gave_up.store(true, Ordering::Relaxed);
        }
    }
}

/// The plugin's number of the task with this number among those that are not dropped.
fn numbered(dropped: &[u64], task: u64) -> u64 {
    dropped.iter().fold(task, |task, &gone| task + u64::from(gone <= task))
}

/// True if an action is an entry of the list of admissible ones, such as `left`, or one that an entry with a placeholder
/// describes, such as `search[<your query>]`.
fn admits(entry: &str, action: &str) -> bool {
    let placeholder = entry.split_once('<').and_then(|(before, rest)| Some((before, rest.split_once('>')?.1)));
    let fills = |(before, after): (&str, &str)| {
        action.strip_prefix(before).is_some_and(|rest| rest.len() > after.len() && rest.ends_with(after))
    };
    entry == action || placeholder.is_some_and(fills)
}

impl Env {
    /// The part that it shares with the other instances.
    pub fn shared_env(&self) -> &SharedEnv {
        &self.shared
    }

    /// Starts a task.
    pub fn reset(&mut self, split: &str, task: u64, seed: u64) -> Result<Observation> {
        let task = numbered(self.shared.dropped(split), task);
        self.reset_unchecked(split, task, seed)
            .and_then(|(texts, out)| of_reset(texts, out))
            .with_context(|| self.under(Function::Reset).to_string())
    }

    /// As [`Env::reset`], with all that the plugin gave and no check of it.
    pub(crate) fn reset_unchecked(&mut self, split: &str, task: u64, seed: u64) -> Result<(Texts, ffi::Step)> {
        self.position = Some(Position { split: Name::of(split), task, seed, steps: 0 });
        let (texts, out) = self.call(Request::Reset { split: split.to_string(), task, seed })?;
        Ok((texts, out.step()?))
    }

    /// Plays one response.
    pub fn step(&mut self, response: &str) -> Result<Observation> {
        let under = self.under(Function::Step); // before the step counts
        let seen = self
            .step_unchecked(response.as_bytes())
            .and_then(|(texts, out)| of_step(texts, out))
            .with_context(|| under.to_string())?;
        self.check_outcome(&seen, under);
        Ok(seen)
    }

    /// Plays one response, taken apart where the environment asks for that.
    pub fn respond(&mut self, response: TakenResponse) -> Result<Observation> {
        if !self.shared.inner.takes_responses {
            return self.step(&response.text);
        }
        let under = self.under(Function::Step); // before the step counts
        let seen = self
            .stepped(Request::Respond(Box::new(response)))
            .and_then(|(texts, out)| of_step(texts, out))
            .with_context(|| under.to_string())?;
        self.check_outcome(&seen, under);
        Ok(seen)
    }

    /// As [`Env::step`], with bytes that need not be text, all that the plugin gave, and no check of it.
    pub(crate) fn step_unchecked(&mut self, response: &[u8]) -> Result<(Texts, ffi::Step)> {
        self.stepped(Request::Step { response: response.to_vec() })
    }

    fn stepped(&mut self, request: Request) -> Result<(Texts, ffi::Step)> {
        self.playing()?;
        let (texts, out) = self.call(request)?;
        let step = out.step()?;
        if let Some(position) = &mut self.position {
            position.steps += 1;
        }
        Ok((texts, step))
    }

    /// The expert's next action. It must be one of the `admissible` ones, unless there is no list. Part of an entry in angle
    /// brackets stands for any text.
    pub fn expert_action(&mut self, admissible: &[String]) -> Result<String> {
        self.playing()
            .and_then(|()| self.expert())
            .and_then(|()| self.call(Request::NextAction))
            .and_then(|(mut texts, _)| {
                let action = texts.required(ffi::ACTION, "expert action", "NESTOR_ACTION")?;
                let fits = admissible.is_empty() || admissible.iter().any(|entry| admits(entry, &action));
                ensure!(fits, "the expert's action {action:?} is not one of the admissible actions");
                Ok(action)
            })
            .with_context(|| self.under(Function::NextAction).to_string())
    }

    /// A whole response that carries an action.
    pub fn expert_response(&mut self, action: &str) -> Result<String> {
        self.expert()
            .and_then(|()| self.call(Request::Response { action: action.to_string() }))
            .and_then(|(mut texts, _)| texts.required(ffi::RESPONSE, "expert response", "NESTOR_RESPONSE"))
            .with_context(|| self.under(Function::Response).to_string())
    }

    /// A copy of the state of the episode under way.
    pub fn save(&self) -> Result<Snapshot> {
        let position = self.position;
        self.playing()
            .and_then(|()| self.snapshots())
            .and_then(|()| self.call(Request::Save))
            .and_then(|(mut texts, _)| texts.required_bytes(ffi::STATE, "state", "NESTOR_STATE"))
            .map(|state| Snapshot { position, state })
            .with_context(|| self.under(Function::Save).to_string())
    }

    /// Continues from a copy that [`Env::save`] made, of this environment or another one of the same plugin and config.
    pub fn load(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.position = snapshot.position;
        self.snapshots()
            .and_then(|()| self.call(Request::Load { state: snapshot.state.clone() }))
            .map(|_| ())
            .with_context(|| self.under(Function::Load).to_string())
    }

    fn snapshots(&self) -> Result<()> {
        let has = self.shared.has_snapshots();
        ensure!(has, "this environment has no snapshots (extension nestor.env.snapshot/1)");
        Ok(())
    }

    fn playing(&self) -> Result<()> {
        ensure!(self.position.is_some(), "stepped before the first reset");
        Ok(())
    }

    fn expert(&self) -> Result<()> {
        ensure!(self.shared.has_expert(), "this environment has no expert (extension nestor.env.expert/1)");
        Ok(())
    }

    /// Warns once of an episode that ends without saying whether it was won: it counts as lost.
    fn check_outcome(&self, seen: &Observation, under: Call) {
        let over = seen.terminated || seen.truncated;
        let named = seen.info.get("won").is_some_and(|won| !won.is_null());
        if over && !named && !self.shared.inner.warned.swap(true, Ordering::Relaxed) {
            terminal::warn(&format!(
                "warning: {under}: the episode ended without `won` in its info; all such episodes count as lost"
            ));
        }
    }

    fn under(&self, function: Function) -> Call {
        Call { position: self.position, ..self.shared.inner.call(function) }
    }

    /// Makes a call of this instance.
    fn call(&self, request: Request) -> Result<(Texts, Out)> {
        let call = self.under(request.function());
        match (&self.place, &self.shared.inner.place) {
            (EnvPlace::Here(handle), Place::Here { tables, supervisor, .. }) => {
                here(supervisor, call, *tables, *handle, request)
            }
            (EnvPlace::Elsewhere(process), _) => process.environment(call, request),
            (EnvPlace::Here(_), Place::Elsewhere(_)) => unreachable!("an instance is where its environment is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_numbered_without_those_dropped() {
        let numbers: Vec<u64> = (0..4).map(|task| numbered(&[0, 2, 3], task)).collect();
        assert_eq!(numbers, [1, 4, 5, 6]);
        assert_eq!(numbered(&[], 7), 7);
    }

    #[test]
    fn a_placeholder_admits_any_text_in_its_place() {
        assert!(admits("left", "left") && !admits("left", "right") && !admits("left", "lef"));
        let search = "search[<your query>]";
        assert!(admits(search, "search[red shoes]") && admits(search, search));
        assert!(!admits(search, "search[]") && !admits(search, "search[red") && !admits(search, "click[red]"));
        assert!(admits("click[< prev]", "click[< prev]") && !admits("click[< prev]", "click[x]"));
    }
}
