//! The structs of `nestor_plugin.h`, field by field. The header documents each field; `tests/layout.rs` compares the
//! two.

#![allow(missing_docs)]

use std::ffi::c_void;

pub const MAGIC: u64 = 0x4e45_5354_4f52_504c;
pub const ABI_MAJOR: u32 = 1;
pub const ABI_MINOR: u32 = 6;
/// The one exported function.
pub const ENTRY: &str = "nestor_plugin_entry";

pub const OK: i32 = 0;
pub const FAILED: i32 = 1;
pub const INPUT: i32 = 2;
pub const PANIC: i32 = 3;

/// Most bytes that one call puts.
pub const MOST_BYTES: usize = 4 << 20;
/// Most texts that one call puts.
pub const MOST_TEXTS: usize = 1 << 16;
/// Most bytes of one state.
pub const MOST_STATE: usize = 256 << 20;
/// Most images that one call puts.
pub const MOST_IMAGES: usize = 64;
/// Most pixels of all images that one call puts.
pub const MOST_PIXELS: u64 = 16 << 20;

pub const ERROR: u32 = 1;
pub const OBSERVATION: u32 = 2;
pub const TASK: u32 = 3;
pub const ADMISSIBLE: u32 = 4;
pub const ANCHOR: u32 = 5;
pub const ACTION: u32 = 6;
pub const INFO: u32 = 7;
pub const TEMPLATE: u32 = 8;
pub const RESPONSE: u32 = 9;
pub const PART: u32 = 10;
pub const COLUMN: u32 = 11;
pub const STATE: u32 = 12;
pub const METRICS: u32 = 13;
pub const LACKS: u32 = 14;
pub const IMAGE: u32 = 15;
pub const MESSAGE: u32 = 16;
pub const TOOL: u32 = 17;
pub const CONVERSATION: u32 = 18;

pub const ENVIRONMENT: u32 = 1;
pub const ESTIMATOR: u32 = 2;
pub const LOSS: u32 = 3;

pub const NEEDS_VALUES: u32 = 1;
pub const NEEDS_ANCHORS: u32 = 2;
pub const NEEDS_REFERENCE: u32 = 4;
pub const NEEDS_ENTROPY: u32 = 8;

/// Id of the expert extension.
pub const EXPERT: &str = "nestor.env.expert/1";
/// Id of the snapshot extension.
pub const SNAPSHOT: &str = "nestor.env.snapshot/1";
/// Id of the respond extension.
pub const RESPOND: &str = "nestor.env.respond/1";
/// Id of the parts extension.
pub const PARTS: &str = "nestor.estimator.parts/1";
/// Id of the state extension of an estimator.
pub const ESTIMATOR_STATE: &str = "nestor.estimator.state/1";
/// Id of the columns extension.
pub const COLUMNS: &str = "nestor.rows.columns/1";

pub const BYTES: u32 = 1;
pub const U8: u32 = 2;
pub const U32: u32 = 3;
pub const U64: u32 = 4;
pub const F32: u32 = 5;
pub const F64: u32 = 6;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    pub data: *const u8,
    pub len: usize,
}

impl Str {
    /// Borrows bytes for a call.
    pub fn new(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// Returns the bytes that it points at.
    ///
    /// # Safety
    /// `data` points at `len` readable bytes that stay unchanged for `'a`, or `len` is 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { slice(self.data, self.len) }
    }
}

/// Makes a slice of a pointer that may be null if the length is 0.
///
/// # Safety
/// `data` points at `len` readable values that stay unchanged for `'a`, or `len` is 0.
pub unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}

#[repr(C)]
pub struct Sink {
    pub context: *mut c_void,
    pub put: unsafe extern "C" fn(context: *mut c_void, field: u32, text: Str),
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Step {
    pub reward: f64,
    pub terminated: u8,
    pub truncated: u8,
    pub valid: u8,
}

#[repr(C)]
pub struct Environment {
    pub open: unsafe extern "C" fn(config: Str, sink: *mut Sink, world: *mut *mut c_void) -> i32,
    pub prompt_template: unsafe extern "C" fn(world: *mut c_void, sink: *mut Sink) -> i32,
    pub tasks: unsafe extern "C" fn(world: *mut c_void, split: Str, sink: *mut Sink, count: *mut u64) -> i32,
    pub spawn: unsafe extern "C" fn(world: *mut c_void, sink: *mut Sink, env: *mut *mut c_void) -> i32,
    pub reset: unsafe extern "C" fn(*mut c_void, split: Str, task: u64, seed: u64, *mut Sink, *mut Step) -> i32,
    pub step: unsafe extern "C" fn(env: *mut c_void, response: Str, sink: *mut Sink, out: *mut Step) -> i32,
    pub close: unsafe extern "C" fn(env: *mut c_void, sink: *mut Sink) -> i32,
    pub close_world: unsafe extern "C" fn(world: *mut c_void, sink: *mut Sink) -> i32,
}

#[repr(C)]
pub struct Expert {
    pub next_action: unsafe extern "C" fn(env: *mut c_void, sink: *mut Sink) -> i32,
    pub response: unsafe extern "C" fn(env: *mut c_void, action: Str, sink: *mut Sink) -> i32,
}

#[repr(C)]
pub struct Response {
    pub text: Str,
    pub message: Str,
    pub broken_call: u8,
    pub cut: u8,
    pub prompt: *const u32,
    pub prompt_tokens: u64,
    pub tokens: *const u32,
    pub logprobs: *const f32,
    pub count: u64,
}

#[repr(C)]
pub struct Respond {
    pub respond:
        unsafe extern "C" fn(env: *mut c_void, response: *const Response, sink: *mut Sink, out: *mut Step) -> i32,
}

#[repr(C)]
pub struct Rows {
    pub rows: u64,
    pub tokens: u64,
    pub group: *const u32,
    pub episode: *const u32,
    pub step: *const u32,
    pub sequence: *const u32,
    pub span_start: *const u32,
    pub span_length: *const u32,
    pub reward: *const f64,
    pub penalty: *const f64,
    pub valid: *const u8,
    pub terminated: *const u8,
    pub truncated: *const u8,
    pub anchor_data: *const u8,
    pub anchor_offsets: *const u64,
    pub duplicate_of: *const i64,
    pub token_offsets: *const u64,
    pub token_rewards: *const f64,
    pub values: *const f32,
    pub logprobs: *const f32,
    pub ref_logprobs: *const f32,
}

#[repr(C)]
pub struct Estimator {
    pub open: unsafe extern "C" fn(config: Str, sink: *mut Sink, estimator: *mut *mut c_void) -> i32,
    pub needs: unsafe extern "C" fn(estimator: *mut c_void, sink: *mut Sink, flags: *mut u32) -> i32,
    pub score: unsafe extern "C" fn(*mut c_void, *const Rows, *mut Sink, adv: *mut f32, returns: *mut f32) -> i32,
    pub close: unsafe extern "C" fn(estimator: *mut c_void, sink: *mut Sink) -> i32,
}

#[repr(C)]
pub struct Parts {
    pub names: unsafe extern "C" fn(estimator: *mut c_void, sink: *mut Sink) -> i32,
    pub fill: unsafe extern "C" fn(*mut c_void, *const Rows, *mut Sink, parts: *mut f64) -> i32,
}

#[repr(C)]
pub struct State {
    pub save: unsafe extern "C" fn(handle: *mut c_void, sink: *mut Sink) -> i32,
    pub load: unsafe extern "C" fn(handle: *mut c_void, state: Str, sink: *mut Sink) -> i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Column {
    pub kind: u32,
    pub count: u64,
    pub data: *const c_void,
    pub offsets: *const u64,
}

type Score =
    unsafe extern "C" fn(*mut c_void, *const Rows, *const Column, *mut Sink, adv: *mut f32, returns: *mut f32) -> i32;
type Fill = unsafe extern "C" fn(*mut c_void, *const Rows, *const Column, *mut Sink, parts: *mut f64) -> i32;

#[repr(C)]
pub struct Columns {
    pub names: unsafe extern "C" fn(estimator: *mut c_void, sink: *mut Sink) -> i32,
    pub score: Score,
    pub fill: Option<Fill>,
}

#[repr(C)]
pub struct Tokens {
    pub responses: u64,
    pub tokens: u64,
    pub token_offsets: *const u64,
    pub logprobs: *const f32,
    pub detached_logprobs: *const f32,
    pub old_logprobs: *const f32,
    pub behaviour: *const f32,
    pub ref_logprobs: *const f32,
    pub entropy: *const f32,
    pub advantages: *const f32,
    pub mini_batch_responses: u64,
    pub mini_batch_tokens: u64,
    pub most_response_tokens: u64,
    pub iteration: u64,
    pub iterations: u64,
}

type Compute = unsafe extern "C" fn(
    *mut c_void,
    *const Tokens,
    *mut Sink,
    losses: *mut f64,
    by_logprob: *mut f64,
    by_entropy: *mut f64,
) -> i32;

#[repr(C)]
pub struct Loss {
    pub open: unsafe extern "C" fn(config: Str, sink: *mut Sink, loss: *mut *mut c_void) -> i32,
    pub needs: unsafe extern "C" fn(loss: *mut c_void, sink: *mut Sink, flags: *mut u32) -> i32,
    pub compute: Compute,
    pub close: unsafe extern "C" fn(loss: *mut c_void, sink: *mut Sink) -> i32,
}

#[repr(C)]
pub struct Component {
    pub kind: u32,
    pub id: Str,
    pub doc: Str,
    pub config_schema: Str,
    pub functions: *const c_void,
    pub get_extension: Option<unsafe extern "C" fn(id: Str) -> *const c_void>,
}

#[repr(C)]
pub struct Plugin {
    pub head: Head,
    pub component_count: u64,
    pub components: *const Component,
}

/// The first fields of `nestor_plugin`. A host reads nothing else before it has compared them with its own
/// [`Head::OURS`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub magic: u64,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub size_plugin: u32,
    pub size_component: u32,
    pub size_str: u32,
    pub size_sink: u32,
    pub size_step: u32,
    pub size_environment: u32,
    pub size_rows: u32,
    pub size_estimator: u32,
}

impl Head {
    /// The version and struct sizes that this crate was built for.
    pub const OURS: Head = Head {
        magic: MAGIC,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        size_plugin: size_of::<Plugin>() as u32,
        size_component: size_of::<Component>() as u32,
        size_str: size_of::<Str>() as u32,
        size_sink: size_of::<Sink>() as u32,
        size_step: size_of::<Step>() as u32,
        size_environment: size_of::<Environment>() as u32,
        size_rows: size_of::<Rows>() as u32,
        size_estimator: size_of::<Estimator>() as u32,
    };
}

// SAFETY: a description is built once, and never changed afterwards.
unsafe impl Sync for Plugin {}
// SAFETY: as above.
unsafe impl Send for Plugin {}
// SAFETY: its pointers lead to static, unchanging text and tables.
unsafe impl Sync for Component {}
// SAFETY: as above.
unsafe impl Send for Component {}
