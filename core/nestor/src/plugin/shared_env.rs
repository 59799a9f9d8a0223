//! An environment of a plugin: the part that all episodes share (the header's world), and the part that plays one episode
//! at a time (the header's env).

use std::ffi::c_void;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Observation, ffi};
use serde_json::{Map, Value};

use super::call::{Texts, call, close};
use crate::data::PluginFile;

/// An open environment; clones share it.
#[derive(Clone)]
pub struct SharedEnv {
    inner: Arc<Inner>,
}

struct Inner {
    id: &'static str,
    file: PluginFile,
    functions: &'static ffi::Environment,
    expert: Option<&'static ffi::Expert>,
    handle: *mut c_void,
}

// SAFETY: the border asks of a world that many threads may use it at once.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle is from `open`; the envs, which hold this value, are gone.
        close(self.id, |sink| unsafe { (self.functions.close_world)(self.handle, sink) });
    }
}

impl SharedEnv {
    pub(super) fn open(
        (id, file): (&'static str, PluginFile),
        functions: &'static ffi::Environment,
        expert: Option<&'static ffi::Expert>,
        config: &Value,
    ) -> Result<Self> {
        let text = config.to_string();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a checked table; `handle` outlives the call.
        call(|sink| unsafe { (functions.open)(ffi::Str::new(text.as_bytes()), sink, &mut handle) })
            .with_context(|| format!("plugin {id}"))?;
        Ok(Self { inner: Arc::new(Inner { id, file, functions, expert, handle }) })
    }

    pub fn id(&self) -> &str {
        self.inner.id
    }

    /// The plugin file.
    pub fn file(&self) -> &PluginFile {
        &self.inner.file
    }

    /// The plugin's default prompt template.
    pub fn template(&self) -> Result<String> {
        let Inner { id, functions, handle, .. } = *self.inner;
        // SAFETY: the handle is open.
        call(|sink| unsafe { (functions.prompt_template)(handle, sink) })
            .and_then(|mut texts| texts.text(ffi::TEMPLATE, "template"))
            .with_context(|| format!("plugin {id}: template"))
    }

    /// Number of tasks in a split.
    pub fn tasks(&self, split: &str) -> Result<u64> {
        let Inner { id, functions, handle, .. } = *self.inner;
        let mut count = 0;
        // SAFETY: the handle is open; `count` outlives the call.
        call(|sink| unsafe { (functions.tasks)(handle, ffi::Str::new(split.as_bytes()), sink, &mut count) })
            .with_context(|| format!("plugin {id}"))?;
        Ok(count)
    }

    pub fn has_expert(&self) -> bool {
        self.inner.expert.is_some()
    }

    /// Makes an environment that plays episodes.
    pub fn spawn(&self) -> Result<Env> {
        let Inner { id, functions, handle, .. } = *self.inner;
        let mut env = std::ptr::null_mut();
        // SAFETY: the handle is open; `env` outlives the call.
        call(|sink| unsafe { (functions.spawn)(handle, sink, &mut env) })
            .with_context(|| format!("plugin {id}: spawn"))?;
        Ok(Env { shared: self.clone(), handle: env, position: None })
    }
}

/// Plays one episode at a time; a reset starts the next one.
pub struct Env {
    shared: SharedEnv,
    handle: *mut c_void,
    position: Option<TaskPosition>,
}

/// The task and the step of an episode, for messages.
struct TaskPosition {
    split: String,
    task: u64,
    seed: u64,
    steps: u32,
}

// SAFETY: the border asks of an env that it may move between threads; `&mut` keeps it on one at a time.
unsafe impl Send for Env {}

impl Drop for Env {
    fn drop(&mut self) {
        let Inner { id, functions, .. } = *self.shared.inner;
        // SAFETY: the handle is from `spawn`, its world is still open.
        close(id, |sink| unsafe { (functions.close)(self.handle, sink) });
    }
}

impl Env {
    /// Starts a task.
    pub fn reset(&mut self, split: &str, task: u64, seed: u64) -> Result<Observation> {
        self.position = Some(TaskPosition { split: split.to_string(), task, seed, steps: 0 });
        let mut out = ffi::Step::default();
        let reset = self.shared.inner.functions.reset;
        // SAFETY: the handle is open and used by this thread alone; `out` outlives the call.
        call(|sink| unsafe { reset(self.handle, ffi::Str::new(split.as_bytes()), task, seed, sink, &mut out) })
            .and_then(|texts| observation(texts, out))
            .with_context(|| self.describe("reset"))
    }

    /// Plays one response.
    pub fn step(&mut self, response: &str) -> Result<Observation> {
        let mut out = ffi::Step::default();
        let step = self.shared.inner.functions.step;
        let seen = self
            .playing()
            // SAFETY: as for `reset`.
            .and_then(|()| {
                call(|sink| unsafe { step(self.handle, ffi::Str::new(response.as_bytes()), sink, &mut out) })
            })
            .and_then(|texts| observation(texts, out))
            .with_context(|| self.describe("step"))?;
        if let Some(position) = &mut self.position {
            position.steps += 1;
        }
        Ok(seen)
    }

    /// The expert's next action.
    pub fn expert_action(&mut self) -> Result<String> {
        self.playing()
            .and_then(|()| self.expert())
            // SAFETY: as for `reset`.
            .and_then(|expert| call(|sink| unsafe { (expert.next_action)(self.handle, sink) }))
            .and_then(|mut texts| texts.text(ffi::ACTION, "expert action"))
            .with_context(|| self.describe("expert's action at step"))
    }

    /// A whole response that carries an action.
    pub fn expert_response(&mut self, action: &str) -> Result<String> {
        let text = ffi::Str::new(action.as_bytes());
        self.expert()
            // SAFETY: as for `reset`.
            .and_then(|expert| call(|sink| unsafe { (expert.response)(self.handle, text, sink) }))
            .and_then(|mut texts| texts.text(ffi::RESPONSE, "expert response"))
            .with_context(|| self.describe("expert's response at step"))
    }

    fn playing(&self) -> Result<()> {
        ensure!(self.position.is_some(), "stepped before the first reset");
        Ok(())
    }

    fn expert(&self) -> Result<&'static ffi::Expert> {
        self.shared.inner.expert.context("this environment has no expert (extension nestor.env.expert/1)")
    }

    /// "plugin toy: task 3 of split train, seed 7, step 2", steps counted from 0.
    fn describe(&self, what: &str) -> String {
        let id = self.shared.inner.id;
        match &self.position {
            Some(TaskPosition { split, task, seed, .. }) if what == "reset" => {
                format!("plugin {id}: task {task} of split {split}, seed {seed}, reset")
            }
            Some(TaskPosition { split, task, seed, steps }) => {
                format!("plugin {id}: task {task} of split {split}, seed {seed}, {what} {steps}")
            }
            None => format!("plugin {id}"),
        }
    }
}

fn observation(mut texts: Texts, out: ffi::Step) -> Result<Observation> {
    if !out.reward.is_finite() {
        bail!("the plugin gave the reward {}, which is not finite", out.reward);
    }
    let info = texts.text(ffi::INFO, "info")?;
    let info: Map<String, Value> = match info.as_str() {
        "" => Map::new(),
        text => serde_json::from_str(text).context("the plugin's info is not a JSON object")?,
    };
    Ok(Observation {
        text: texts.text(ffi::OBSERVATION, "observation")?,
        task: texts.text(ffi::TASK, "task text")?,
        admissible: texts.all(ffi::ADMISSIBLE, "admissible action")?,
        anchor: texts.bytes(ffi::ANCHOR),
        action: texts.text(ffi::ACTION, "action")?,
        reward: out.reward,
        terminated: out.terminated != 0,
        truncated: out.truncated != 0,
        valid: out.valid != 0,
        info,
    })
}
