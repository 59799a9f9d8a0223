//! An environment of a plugin: the part that all episodes share (the header's world), and the part that plays one episode
//! at a time (the header's env).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use nestor_plugin::{Observation, ffi};
use serde_json::Value;

use crate::call::{Handle, HandleSlot, Texts, call};
use crate::calls::{Call, Function, Name, Position};
use crate::library::{EnvironmentTables, PluginFile};
use crate::observation::{of_reset, of_step};
use crate::supervise::{Limits, Supervisor};
use crate::terminal;

/// An open environment; clones share it.
#[derive(Clone)]
pub struct SharedEnv {
    inner: Arc<Inner>,
}

struct Inner {
    id: &'static str,
    file: PluginFile,
    name: Name,
    tables: EnvironmentTables,
    handle: Handle,
    supervisor: Supervisor,
    /// A warning that an episode ended without `won` is out.
    warned: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (close_world, handle) = (self.tables.functions.close_world, self.handle);
        // SAFETY: the handle is from `open`; the envs, which hold this value, are gone.
        close(&self.supervisor, self.call(Function::CloseWorld), move |sink| unsafe {
            close_world(handle.pointer(), sink)
        });
    }
}

impl Inner {
    fn call(&self, function: Function) -> Call {
        Call { plugin: self.name, function, position: None }
    }
}

/// Calls a close function. A failure becomes a warning, since no caller waits for the result. Does nothing after a call
/// was given up: the plugin may hang again.
pub(super) fn close(supervisor: &Supervisor, under: Call, body: impl FnOnce(*mut ffi::Sink) -> i32 + Send + 'static) {
    if supervisor.gave_up() {
        return;
    }
    if let Err(error) = supervisor.run(under, move || call((), |sink, _| body(sink))) {
        terminal::warn(&format!("warning: {under}: closing: {error:#}"));
    }
}

impl SharedEnv {
    pub(super) fn open(
        (id, file): (&'static str, PluginFile),
        tables: EnvironmentTables,
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        let (name, supervisor, text) = (Name::of_opened(id), Supervisor::new(limits.clone()), config.to_string());
        let (open, under) = (tables.functions.open, Call { plugin: name, function: Function::Open, position: None });
        let handle = supervisor
            .run(under, move || {
                // SAFETY: a checked table; the room for the handle outlives the call.
                call(HandleSlot::empty(), |sink, slot| unsafe {
                    open(ffi::Str::new(text.as_bytes()), sink, &mut slot.0)
                })
            })
            .and_then(|(_, slot)| slot.taken())
            .with_context(|| under.to_string())?;
        let warned = AtomicBool::new(false);
        Ok(Self { inner: Arc::new(Inner { id, file, name, tables, handle, supervisor, warned }) })
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
        &self.inner.supervisor.limits
    }

    /// The plugin's default prompt template.
    pub fn template(&self) -> Result<String> {
        let (prompt_template, handle) = (self.inner.tables.functions.prompt_template, self.inner.handle);
        // SAFETY: the handle is open.
        self.call(Function::PromptTemplate, (), move |sink, _| unsafe { prompt_template(handle.pointer(), sink) })
            .and_then(|(mut texts, ())| texts.required(ffi::TEMPLATE, "template", "NESTOR_TEMPLATE"))
            .with_context(|| format!("plugin {}: template", self.id()))
    }

    /// Number of tasks in a split.
    pub fn tasks(&self, split: &str) -> Result<u64> {
        let (tasks, handle, split) = (self.inner.tables.functions.tasks, self.inner.handle, split.to_string());
        // SAFETY: the handle is open; `count` outlives the call.
        self.call(Function::Tasks, 0, move |sink, count| unsafe {
            tasks(handle.pointer(), ffi::Str::new(split.as_bytes()), sink, count)
        })
        .map(|(_, count)| count)
        .with_context(|| format!("plugin {}", self.id()))
    }

    pub fn has_expert(&self) -> bool {
        self.inner.tables.expert.is_some()
    }

    /// True if the state of an episode can be copied ([`Env::save`]).
    pub fn has_snapshots(&self) -> bool {
        self.inner.tables.snapshot.is_some()
    }

    /// Makes an environment that plays episodes.
    pub fn spawn(&self) -> Result<Env> {
        let (spawn, handle) = (self.inner.tables.functions.spawn, self.inner.handle);
        // SAFETY: the handle is open; the room for the new handle outlives the call.
        self.call(Function::Spawn, HandleSlot::empty(), move |sink, slot| unsafe {
            spawn(handle.pointer(), sink, &mut slot.0)
        })
        .and_then(|(_, slot)| slot.taken())
        .map(|handle| Env { shared: self.clone(), handle, position: None })
        .with_context(|| format!("plugin {}: spawn", self.id()))
    }

    fn call<T: Send + 'static>(
        &self,
        function: Function,
        out: T,
        body: impl FnOnce(*mut ffi::Sink, &mut T) -> i32 + Send + 'static,
    ) -> Result<(Texts, T)> {
        self.inner.supervisor.run(self.inner.call(function), move || call(out, body))
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
    handle: Handle,
    position: Option<Position>,
}

impl Drop for Env {
    fn drop(&mut self) {
        let (shared, handle) = (&self.shared.inner, self.handle);
        let (close_env, under) = (shared.tables.functions.close, self.under(Function::Close));
        // SAFETY: the handle is from `spawn`, its world is still open.
        close(&shared.supervisor, under, move |sink| unsafe { close_env(handle.pointer(), sink) });
    }
}

impl Env {
    /// Starts a task.
    pub fn reset(&mut self, split: &str, task: u64, seed: u64) -> Result<Observation> {
        self.reset_unchecked(split, task, seed)
            .and_then(|(texts, out)| of_reset(texts, out))
            .with_context(|| self.under(Function::Reset).to_string())
    }

    /// As [`Env::reset`], with all that the plugin gave and no check of it.
    pub(crate) fn reset_unchecked(&mut self, split: &str, task: u64, seed: u64) -> Result<(Texts, ffi::Step)> {
        self.position = Some(Position { split: Name::of(split), task, seed, steps: 0 });
        let (reset, split) = (self.shared.inner.tables.functions.reset, split.to_string());
        // SAFETY: the handle is open and used by this thread alone; `out` outlives the call.
        self.call(Function::Reset, ffi::Step::default(), move |handle, sink, out| unsafe {
            reset(handle.pointer(), ffi::Str::new(split.as_bytes()), task, seed, sink, out)
        })
    }

    /// Plays one response.
    pub fn step(&mut self, response: &str) -> Result<Observation> {
        let seen = self
            .step_unchecked(response.as_bytes())
            .and_then(|(texts, out)| of_step(texts, out))
            .with_context(|| self.under(Function::Step).to_string())?;
        self.check_outcome(&seen);
        if let Some(position) = &mut self.position {
            position.steps += 1;
        }
        Ok(seen)
    }

    /// As [`Env::step`], with bytes that need not be text, all that the plugin gave, and no check of it.
    pub(crate) fn step_unchecked(&mut self, response: &[u8]) -> Result<(Texts, ffi::Step)> {
        self.playing()?;
        let (step, response) = (self.shared.inner.tables.functions.step, response.to_vec());
        // SAFETY: as for `reset_unchecked`.
        self.call(Function::Step, ffi::Step::default(), move |handle, sink, out| unsafe {
            step(handle.pointer(), ffi::Str::new(&response), sink, out)
        })
    }

    /// The expert's next action. It must be one of the `admissible` ones, unless there is no list.
    pub fn expert_action(&mut self, admissible: &[String]) -> Result<String> {
        self.playing()
            .and_then(|()| self.expert())
            .and_then(|expert| {
                let next_action = expert.next_action;
                // SAFETY: as for `reset_unchecked`.
                self.call(Function::NextAction, (), move |handle, sink, _| unsafe {
                    next_action(handle.pointer(), sink)
                })
            })
            .and_then(|(mut texts, ())| {
                let action = texts.required(ffi::ACTION, "expert action", "NESTOR_ACTION")?;
                let fits = admissible.is_empty() || admissible.contains(&action);
                ensure!(fits, "the expert's action {action:?} is not one of the admissible actions");
                Ok(action)
            })
            .with_context(|| self.under(Function::NextAction).to_string())
    }

    /// A whole response that carries an action.
    pub fn expert_response(&mut self, action: &str) -> Result<String> {
        let action = action.to_string();
        self.expert()
            .and_then(|expert| {
                let response = expert.response;
                // SAFETY: as for `reset_unchecked`.
                self.call(Function::Response, (), move |handle, sink, _| unsafe {
                    response(handle.pointer(), ffi::Str::new(action.as_bytes()), sink)
                })
            })
            .and_then(|(mut texts, ())| texts.required(ffi::RESPONSE, "expert response", "NESTOR_RESPONSE"))
            .with_context(|| self.under(Function::Response).to_string())
    }

    /// A copy of the state of the episode under way.
    pub fn save(&self) -> Result<Snapshot> {
        let position = self.position;
        self.playing()
            .and_then(|()| self.snapshots())
            .and_then(|table| {
                let save = table.save;
                // SAFETY: as for `reset_unchecked`.
                self.call(Function::Save, (), move |handle, sink, _| unsafe { save(handle.pointer(), sink) })
            })
            .and_then(|(mut texts, ())| texts.required_bytes(ffi::STATE, "state", "NESTOR_STATE"))
            .map(|state| Snapshot { position, state })
            .with_context(|| self.under(Function::Save).to_string())
    }

    /// Continues from a copy that [`Env::save`] made, of this environment or another one of the same plugin and config.
    pub fn load(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.position = snapshot.position;
        let state = snapshot.state.clone();
        self.snapshots()
            .and_then(|table| {
                let load = table.load;
                // SAFETY: as for `reset_unchecked`.
                self.call(Function::Load, (), move |handle, sink, _| unsafe {
                    load(handle.pointer(), ffi::Str::new(&state), sink)
                })
            })
            .map(|_| ())
            .with_context(|| self.under(Function::Load).to_string())
    }

    fn snapshots(&self) -> Result<&'static ffi::State> {
        self.shared.inner.tables.snapshot.context("this environment has no snapshots (extension nestor.env.snapshot/1)")
    }

    fn playing(&self) -> Result<()> {
        ensure!(self.position.is_some(), "stepped before the first reset");
        Ok(())
    }

    fn expert(&self) -> Result<&'static ffi::Expert> {
        self.shared.inner.tables.expert.context("this environment has no expert (extension nestor.env.expert/1)")
    }

    /// Warns once of an episode that ends without saying whether it was won: it counts as lost.
    fn check_outcome(&self, seen: &Observation) {
        let over = seen.terminated || seen.truncated;
        let named = seen.info.get("won").is_some_and(|won| !won.is_null());
        if over && !named && !self.shared.inner.warned.swap(true, Ordering::Relaxed) {
            terminal::warn(&format!(
                "warning: {}: the episode ended without `won` in its info; all such episodes count as lost",
                self.under(Function::Step)
            ));
        }
    }

    fn under(&self, function: Function) -> Call {
        Call { position: self.position, ..self.shared.inner.call(function) }
    }

    fn call<T: Send + 'static>(
        &self,
        function: Function,
        out: T,
        body: impl FnOnce(Handle, *mut ffi::Sink, &mut T) -> i32 + Send + 'static,
    ) -> Result<(Texts, T)> {
        let handle = self.handle;
        let body = move || call(out, move |sink, out| body(handle, sink, out));
        self.shared.inner.supervisor.run(self.under(function), body)
    }
}
