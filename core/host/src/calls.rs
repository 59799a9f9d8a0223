//! The calls into plugins that are under way: which plugin, which function, which task, seed and step.
//!
//! Each thread has a slot of a static table. Its own thread writes the slot; a signal handler and threads that wait for a
//! call read it. So a slot consists of atomics, and nothing here allocates, locks or frees once a name is known.

use std::cell::Cell;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Number of threads whose calls are recorded. `rollout.env_threads` is at most 1024, twice during a warm start.
const SLOTS: usize = 4096;
/// Number of different names (plugins, splits). Later ones share the last place.
const NAMES: usize = 1024;
/// The value of `step` outside of an episode.
const NO_EPISODE: u32 = u32::MAX;

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
static TEXTS: [OnceLock<String>; NAMES] = [const { OnceLock::new() }; NAMES];
/// The names that are plugins which this process opened.
static OPENED: [AtomicBool; NAMES] = [const { AtomicBool::new(false) }; NAMES];

thread_local! {
    /// Without a destructor, so that a signal handler and an exit handler may read it at any time.
    static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    /// Another thread waits for the calls of this one, and gives them up when they take too long.
    static SUPERVISED: Cell<bool> = const { Cell::new(false) };
    static RELEASE: Release = const { Release };
}

/// A name that a signal handler can print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name(u16);

impl Name {
    /// Keeps a text for the rest of the process. There are few different ones.
    pub fn of(text: &str) -> Self {
        static ADDING: Mutex<()> = Mutex::new(());
        let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |place: &OnceLock<String>| place.get().is_none_or(|known| known == text);
        let at = TEXTS.iter().position(free).unwrap_or(NAMES - 1);
        TEXTS[at].get_or_init(|| text.to_string());
        Self(at as u16)
    }

    /// As [`Name::of`], for a plugin that is opened.
    pub fn of_opened(plugin: &str) -> Self {
        let name = Self::of(plugin);
        OPENED[usize::from(name.0)].store(true, Ordering::Relaxed);
        name
    }

    pub fn text(self) -> &'static str {
        TEXTS[usize::from(self.0)].get().map_or("", String::as_str)
    }
}

/// A function of the border.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Entry,
    Open,
    PromptTemplate,
    Tasks,
    Spawn,
    Reset,
    Step,
    Close,
    CloseWorld,
    NextAction,
    Response,
    Needs,
    Score,
    Compute,
    Names,
    Fill,
    Columns,
    Save,
    Load,
}

impl Function {
    const ALL: [(Self, &'static str); 19] = [
        (Self::Entry, "nestor_plugin_entry"),
        (Self::Open, "open"),
        (Self::PromptTemplate, "prompt_template"),
        (Self::Tasks, "tasks"),
        (Self::Spawn, "spawn"),
        (Self::Reset, "reset"),
        (Self::Step, "step"),
        (Self::Close, "close"),
        (Self::CloseWorld, "close_world"),
        (Self::NextAction, "next_action"),
        (Self::Response, "response"),
        (Self::Needs, "needs"),
        (Self::Score, "score"),
        (Self::Compute, "compute"),
        (Self::Names, "names"),
        (Self::Fill, "fill"),
        (Self::Columns, "names of columns"),
        (Self::Save, "save"),
        (Self::Load, "load"),
    ];

    /// Its name in nestor_plugin.h.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// An episode's task and the number of steps taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub split: Name,
    pub task: u64,
    pub seed: u64,
    pub steps: u32,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub plugin: Name,
    pub function: Function,
    pub position: Option<Position>,
}

/// The place: "plugin toy: task 3 of split train, seed 7, step 2", steps counted from 0.
impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {}", self.plugin.text())?;
        let Some(Position { split, task, seed, steps }) = self.position else { return Ok(()) };
        write!(f, ": task {task} of split {}, seed {seed}, ", split.text())?;
        match self.function {
            Function::Reset => f.write_str("reset"),
            Function::NextAction => write!(f, "expert's action at step {steps}"),
            Function::Response => write!(f, "expert's response at step {steps}"),
            _ => write!(f, "step {steps}"),
        }
    }
}

/// The call of one thread.
#[derive(Debug)]
pub struct Slot {
    taken: AtomicBool,
    /// Number of calls begun and ended: odd during a call.
    count: AtomicU64,
    plugin: AtomicU16,
    function: AtomicU8,
    split: AtomicU16,
    task: AtomicU64,
    seed: AtomicU64,
    step: AtomicU32,
}

impl Slot {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            count: AtomicU64::new(0),
            plugin: AtomicU16::new(0),
            function: AtomicU8::new(0),
            split: AtomicU16::new(0),
            task: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            step: AtomicU32::new(NO_EPISODE),
        }
    }

    fn begin(&self, call: &Call) {
        let Position { split, task, seed, steps } =
            call.position.unwrap_or(Position { split: call.plugin, task: 0, seed: 0, steps: NO_EPISODE });
        // No field changes before the end of the last call is seen.
        fence(Ordering::Release);
        self.plugin.store(call.plugin.0, Ordering::Relaxed);
        self.function.store(call.function as u8, Ordering::Relaxed);
        self.split.store(split.0, Ordering::Relaxed);
        self.task.store(task, Ordering::Relaxed);
        self.seed.store(seed, Ordering::Relaxed);
        self.step.store(steps, Ordering::Relaxed);
        self.advance();
    }

    /// Begins or ends a call. Only the slot's own thread writes, so this need not be one operation.
    fn advance(&self) {
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// The call under way, and its number among the calls of this slot. Another thread may see it end meanwhile: then
    /// there is none.
    pub fn call(&self) -> Option<(u64, Call)> {
        let count = self.count.load(Ordering::Acquire);
        if count.is_multiple_of(2) {
            return None;
        }
        let (function, _) = *Function::ALL.get(usize::from(self.function.load(Ordering::Relaxed)))?;
        let steps = self.step.load(Ordering::Relaxed);
        let position = (steps != NO_EPISODE).then(|| Position {
            split: Name(self.split.load(Ordering::Relaxed)),
            task: self.task.load(Ordering::Relaxed),
            seed: self.seed.load(Ordering::Relaxed),
            steps,
        });
        let call = Call { plugin: Name(self.plugin.load(Ordering::Relaxed)), function, position };
        fence(Ordering::Acquire);
        (self.count.load(Ordering::Relaxed) == count).then_some((count, call))
    }
}

/// Gives the slot of a thread that ends to the next one.
struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        // A plugin that ends its thread, or the process, does so inside a call: the record then stays.
        if let Some(slot) = OWN.get().filter(|slot| slot.call().is_none()) {
            OWN.set(None);
            slot.taken.store(false, Ordering::Release);
        }
    }
}

/// This thread's slot. None if the table is full.
pub fn own() -> Option<&'static Slot> {
    if let Some(slot) = OWN.get() {
        return Some(slot);
    }
    let slot = TABLE
        .iter()
        .find(|slot| slot.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok())?;
    // A thread that ends has no destructors left to register; its slot then stays taken.
    let _ = RELEASE.try_with(|_| ());
    OWN.set(Some(slot));
    Some(slot)
}

/// The call of this thread. Safe in a signal handler.
pub fn of_this_thread() -> Option<Call> {
    OWN.get()?.call().map(|(_, call)| call)
}

/// The calls of all threads. Safe in a signal handler.
pub fn of_all_threads() -> impl Iterator<Item = Call> {
    let taken = TABLE.iter().filter(|slot| slot.taken.load(Ordering::Relaxed));
    taken.filter_map(|slot| slot.call().map(|(_, call)| call))
}

/// The calls of all threads, each with a number that no other call has.
pub fn numbered() -> impl Iterator<Item = ((usize, u64), Call)> {
    let slots = TABLE.iter().enumerate().filter(|(_, slot)| slot.taken.load(Ordering::Relaxed));
    slots.filter_map(|(at, slot)| slot.call().map(|(count, call)| ((at, count), call)))
}

/// The names of the plugins that this process opened. Safe in a signal handler.
pub fn opened() -> impl Iterator<Item = &'static str> {
    let names = TEXTS.iter().zip(&OPENED).filter(|(_, opened)| opened.load(Ordering::Relaxed));
    names.filter_map(|(text, _)| text.get().map(String::as_str))
}

/// Runs one call and records it meanwhile.
pub fn recorded<T>(call: &Call, body: impl FnOnce() -> T) -> T {
    let slot = own();
    if let Some(slot) = slot {
        slot.begin(call);
    }
    let result = body();
    if let Some(slot) = slot {
        slot.advance();
    }
    result
}

/// Marks this thread as one whose calls another thread waits for with a limit.
pub fn supervise_this_thread() {
    SUPERVISED.set(true);
}

/// True if another thread waits for the calls of this one with a limit.
pub fn is_supervised() -> bool {
    SUPERVISED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_from_its_thread_and_from_others_while_it_runs() {
        for (at, (function, _)) in Function::ALL.into_iter().enumerate() {
            assert_eq!(function as usize, at);
        }
        let position = Position { split: Name::of("train"), task: 3, seed: 7, steps: 2 };
        let call = Call { plugin: Name::of("some_plugin"), function: Function::Step, position: Some(position) };
        assert_eq!(call.to_string(), "plugin some_plugin: task 3 of split train, seed 7, step 2");
        assert_eq!(Name::of("train"), Name::of("train"));
        recorded(&call, || {
            assert_eq!(of_this_thread(), Some(call));
            let others = std::thread::spawn(|| (of_this_thread(), of_all_threads().collect::<Vec<_>>())).join();
            let (own, all) = others.expect("no panic");
            assert!(own.is_none() && all.contains(&call));
        });
        assert_eq!(of_this_thread(), None);
        let open = Call { function: Function::Open, position: None, ..call };
        recorded(&open, || {
            assert_eq!(of_this_thread().map(|call| call.to_string()), Some("plugin some_plugin".into()))
        });
    }
}
