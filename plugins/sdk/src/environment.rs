//! The traits that an environment author implements, and the C functions generated from them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::guard::{Out, guard, utf8};
use crate::{Image, Message, config, ffi};

/// The data that all episodes of an environment share: indices, settings, files. Many threads use it at once.
pub trait Environment: Sized + Send + Sync + 'static {
    /// The name that recipes use: lower case letters, digits, underscores.
    const ID: &'static str;
    /// A description in one line.
    const DOC: &'static str;
    /// The keys of `env.config`; derive with `#[serde(deny_unknown_fields)]`.
    type Config: DeserializeOwned + JsonSchema;
    /// Plays one episode at a time.
    type Instance: Instance<World = Self>;

    /// Checks the config and loads the data. Errors are reported as the user's mistakes.
    fn open(config: Self::Config) -> anyhow::Result<Self>;
    /// Returns the default prompt template (minijinja). Its variables: observation, image (its images), task, admissible,
    /// history (step, observation, image, action), step, steps_taken, chat (true if the observation is a list of messages),
    /// and follow_up (true if the prompt continues a conversation that holds the earlier steps).
    fn template(&self) -> String;
    /// Returns the number of tasks in a split. An unknown split is an error that names the known ones
    /// ([`crate::unknown_split`]).
    fn tasks(&self, split: &str) -> anyhow::Result<u64>;
    /// Makes an instance that plays episodes.
    fn spawn(&self) -> anyhow::Result<Self::Instance>;

    /// Returns false if this world has no expert although its instances implement [`Expert`]. Only an environment whose
    /// config decides that needs it.
    fn has_expert(&self) -> bool {
        true
    }

    /// The same for snapshots, where the instances implement [`Snapshot`].
    fn has_snapshots(&self) -> bool {
        true
    }

    /// The same for responses that are taken apart, where the instances implement [`crate::Respond`].
    fn takes_responses(&self) -> bool {
        true
    }
}

/// Plays one episode at a time, on one thread at a time. It is used again after a reset.
pub trait Instance: Send + 'static {
    /// The environment that it belongs to.
    type World;

    /// Starts a task. The same start and the same responses give the same episode.
    fn reset(&mut self, world: &Self::World, start: Start<'_>) -> anyhow::Result<Observation>;
    /// Plays one response, raw as the policy wrote it.
    fn step(&mut self, world: &Self::World, response: &str) -> anyhow::Result<Observation>;
}

/// An instance with an expert (extension `nestor.env.expert/1`), which the warm start imitates.
pub trait Expert: Instance {
    /// Returns the expert's next action, one of the admissible actions. A part of these in angle brackets, as in
    /// `search[<your query>]`, stands for any text.
    fn next_action(&mut self, world: &Self::World) -> anyhow::Result<String>;
    /// Returns a complete, valid response that carries the action.
    fn response(&self, world: &Self::World, action: &str) -> anyhow::Result<String>;
}

/// An instance whose state can be copied (extension `nestor.env.snapshot/1`).
pub trait Snapshot: Instance {
    /// Returns a copy of the state of the episode under way.
    fn save(&self, world: &Self::World) -> anyhow::Result<Vec<u8>>;
    /// Takes a state that [`Snapshot::save`] returned in an instance of the same world. The same responses then give the
    /// same steps.
    fn load(&mut self, world: &Self::World, state: &[u8]) -> anyhow::Result<()>;
}

/// Identifies the episode to start.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Split of the tasks, such as `train`.
    pub split: &'a str,
    /// Number of the task, below `tasks(split)`.
    pub task: u64,
    /// Seed of the randomness inside the episode.
    pub seed: u64,
}

/// The result of a reset or a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// The text that the policy sees.
    pub text: String,
    /// The chat that the policy sees, where the observation is one ([`Message::chat`]); else empty. Its last message has `text`
    /// as its content, and the template writes that message alone.
    pub messages: Vec<Message>,
    /// The messages are the whole conversation so far, the policy's responses among them. The host then continues the tokens of the
    /// step whose conversation they extend, and uses no prompt template.
    pub conversation: bool,
    /// Tools that the policy may call, as OpenAI has them; they hold until a step names others. The instance then implements
    /// [`crate::Respond`].
    pub tools: Vec<Value>,
    /// The images that the policy sees, in order; only a policy that reads images can play such an environment. At most 64
    /// of 16 Mi pixels together. The template shows them by `{{ image }}`.
    pub images: Vec<Image>,
    /// The task's text; empty if the observation contains it.
    pub task: String,
    /// The admissible actions; empty if there is no list.
    pub admissible: Vec<String>,
    /// Key of the state in which the next step is taken. Set it after the last step too, where the state has one. A digest
    /// of the images will do where they alone show the state.
    pub anchor: Vec<u8>,
    /// The action parsed from the response; empty after a reset.
    pub action: String,
    /// The reward of the step; 0 after a reset.
    pub reward: f64,
    /// The episode ended by the environment's own rules.
    pub terminated: bool,
    /// A limit of the environment cut the episode.
    pub truncated: bool,
    /// The response had the right form; true after a reset.
    pub valid: bool,
    /// `won` (bool), `task_type` (string), and anything else worth recording. It is written with the episode, and
    /// estimators can ask for its numbers.
    pub info: Map<String, Value>,
    /// Numbers for metrics.jsonl, by name: the mean over episodes of those set last is written as `env/NAME`.
    pub metrics: BTreeMap<String, f64>,
}

impl Observation {
    pub(crate) fn put(&self, out: &mut Out<'_>) -> ffi::Step {
        out.text(ffi::OBSERVATION, &self.text);
        for message in &self.messages {
            out.text(ffi::MESSAGE, &json!(message).to_string());
        }
        if self.conversation {
            out.text(ffi::CONVERSATION, "");
        }
        for tool in &self.tools {
            out.text(ffi::TOOL, &tool.to_string());
        }
        for image in &self.images {
            out.bytes(ffi::IMAGE, &image.to_bytes());
        }
        out.text(ffi::TASK, &self.task);
        for action in &self.admissible {
            out.text(ffi::ADMISSIBLE, action);
        }
        out.bytes(ffi::ANCHOR, &self.anchor);
        out.text(ffi::ACTION, &self.action);
        if !self.info.is_empty() {
            out.text(ffi::INFO, &Value::Object(self.info.clone()).to_string());
        }
        if !self.metrics.is_empty() {
            out.text(ffi::METRICS, &json!(self.metrics).to_string());
        }
        ffi::Step {
            reward: self.reward,
            terminated: self.terminated.into(),
            truncated: self.truncated.into(),
            valid: self.valid.into(),
        }
    }
}

/// The target of an env handle. It shares the world, so the order of closing cannot matter.
struct Env<E: Environment> {
    world: Arc<E>,
    instance: E::Instance,
}

/// The C functions for one environment type.
pub struct Functions<E>(PhantomData<E>);

impl<E: Environment> Functions<E> {
    /// The function table of `nestor_environment`.
    pub const TABLE: &'static ffi::Environment = &ffi::Environment {
        open: Self::open,
        prompt_template: Self::prompt_template,
        tasks: Self::tasks,
        spawn: Self::spawn,
        reset: Self::reset,
        step: Self::step,
        close: Self::close,
        close_world: Self::close_world,
    };

    unsafe extern "C" fn open(text: ffi::Str, sink: *mut ffi::Sink, world: *mut *mut c_void) -> i32 {
        // SAFETY: the host's arguments, as nestor_plugin.h has them; the world goes back in `close_world`.
        unsafe {
            guard(sink, ffi::INPUT, |out| {
                let opened = E::open(config::parse(utf8(text, "config")?)?)?;
                let had = [
                    (ffi::EXPERT, opened.has_expert()),
                    (ffi::SNAPSHOT, opened.has_snapshots()),
                    (ffi::RESPOND, opened.takes_responses()),
                ];
                for (extension, _) in had.iter().filter(|(_, has)| !has) {
                    out.text(ffi::LACKS, extension);
                }
                *world = Box::into_raw(Box::new(Arc::new(opened))).cast();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn prompt_template(world: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `world` is from `open`.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                out.text(ffi::TEMPLATE, &Self::world(world).template());
                Ok(())
            })
        }
    }

    unsafe extern "C" fn tasks(world: *mut c_void, split: ffi::Str, sink: *mut ffi::Sink, count: *mut u64) -> i32 {
        // SAFETY: `world` is from `open`, the rest the host's.
        unsafe {
            guard(sink, ffi::INPUT, |_| {
                *count = Self::world(world).tasks(utf8(split, "split")?)?;
                Ok(())
            })
        }
    }

    unsafe extern "C" fn spawn(world: *mut c_void, sink: *mut ffi::Sink, env: *mut *mut c_void) -> i32 {
        // SAFETY: `world` is from `open`; the env goes back in `close`.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                let world = Arc::clone(Self::world(world));
                let instance = world.spawn()?;
                *env = Box::into_raw(Box::new(Env { world, instance })).cast();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn reset(
        env: *mut c_void,
        split: ffi::Str,
        task: u64,
        seed: u64,
        sink: *mut ffi::Sink,
        out: *mut ffi::Step,
    ) -> i32 {
        // SAFETY: `env` is from `spawn` and used by this thread alone, the rest the host's.
        unsafe {
            guard(sink, ffi::FAILED, |text| {
                let Env { world, instance } = Self::env(env);
                let start = Start { split: utf8(split, "split")?, task, seed };
                *out = instance.reset(world, start)?.put(text);
                Ok(())
            })
        }
    }

    unsafe extern "C" fn step(env: *mut c_void, response: ffi::Str, sink: *mut ffi::Sink, out: *mut ffi::Step) -> i32 {
        // SAFETY: as for `reset`.
        unsafe {
            guard(sink, ffi::FAILED, |text| {
                let Env { world, instance } = Self::env(env);
                *out = instance.step(world, utf8(response, "response")?)?.put(text);
                Ok(())
            })
        }
    }

    unsafe extern "C" fn close(env: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `env` is from `spawn` and never used again.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                drop(Box::from_raw(env.cast::<Env<E>>()));
                Ok(())
            })
        }
    }

    unsafe extern "C" fn close_world(world: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `world` is from `open` and never used again.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                drop(Box::from_raw(world.cast::<Arc<E>>()));
                Ok(())
            })
        }
    }

    unsafe fn world<'a>(world: *mut c_void) -> &'a Arc<E> {
        // SAFETY: a box of this type from `open`.
        unsafe { &*world.cast() }
    }

    /// # Safety
    /// `env` is from `spawn`, used by one thread at a time.
    pub(crate) unsafe fn parts<'a>(env: *mut c_void) -> (&'a E, &'a mut E::Instance) {
        // SAFETY: the caller's promise.
        let Env { world, instance } = unsafe { Self::env(env) };
        (world, instance)
    }

    unsafe fn env<'a>(env: *mut c_void) -> &'a mut Env<E> {
        // SAFETY: a box of this type from `spawn`, used by one thread at a time.
        unsafe { &mut *env.cast() }
    }
}

impl<E: Environment> Functions<E>
where
    E::Instance: Expert,
{
    /// The function table of the expert extension.
    pub const EXPERT: &'static ffi::Expert = &ffi::Expert { next_action: Self::next_action, response: Self::response };

    unsafe extern "C" fn next_action(env: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `env` is from `spawn` and used by this thread alone.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                let Env { world, instance } = Self::env(env);
                out.text(ffi::ACTION, &instance.next_action(world)?);
                Ok(())
            })
        }
    }

    unsafe extern "C" fn response(env: *mut c_void, action: ffi::Str, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: as for `next_action`.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                let Env { world, instance } = Self::env(env);
                out.text(ffi::RESPONSE, &instance.response(world, utf8(action, "action")?)?);
                Ok(())
            })
        }
    }
}

impl<E: Environment> Functions<E>
where
    E::Instance: Snapshot,
{
    /// The function table of the snapshot extension.
    pub const SNAPSHOT: &'static ffi::State = &ffi::State { save: Self::save, load: Self::load };

    unsafe extern "C" fn save(env: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `env` is from `spawn` and used by this thread alone.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                let Env { world, instance } = Self::env(env);
                out.bytes(ffi::STATE, &instance.save(world)?);
                Ok(())
            })
        }
    }

    unsafe extern "C" fn load(env: *mut c_void, state: ffi::Str, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: as for `save`; the bytes are the host's.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                let Env { world, instance } = Self::env(env);
                instance.load(world, state.bytes())
            })
        }
    }
}
