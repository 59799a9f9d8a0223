//! Names the plugin, the call, the task and the seed when the process dies by a signal such as SIGSEGV, or leaves early.
//!
//! The handler runs in whatever state the process is in: it reads atomics, formats into a buffer on the stack and calls
//! `write`. Then the process dies by the signal as it would have without the handler.

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::calls;

/// The signals of faults, and their names.
const FAULTS: [(c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV, an access to memory that is not its own"),
    (libc::SIGBUS, "SIGBUS, an access to memory behind the end of a file"),
    (libc::SIGABRT, "SIGABRT, an abort"),
    (libc::SIGFPE, "SIGFPE, a division by zero"),
    (libc::SIGILL, "SIGILL, an instruction that does not exist"),
];
/// Most calls of other threads that are named.
const MOST_CALLS: usize = 8;

/// The handlers from before, in the order of [`FAULTS`]: the Rust runtime has some, which report a stack overflow.
static BEFORE: [OnceLock<libc::sigaction>; FAULTS.len()] = [const { OnceLock::new() }; FAULTS.len()];
/// The process that is watched; 0 before [`install`]. What happens in a process that a plugin forks is not reported.
static WATCHED: AtomicI32 = AtomicI32::new(0);
/// The beginning of every message: the rank, where there are several.
static MARK: OnceLock<String> = OnceLock::new();
/// A report has begun, and one is out. There is one report only.
static BEGUN: AtomicBool = AtomicBool::new(false);
static OUT: AtomicBool = AtomicBool::new(false);
/// Longest wait for the report of another thread, in hundredths of a second.
const MOST_WAITS: u32 = 100;
/// Descriptor that takes the report as a JSON event; -1 for none.
static EVENTS: AtomicI32 = AtomicI32::new(-1);

/// Text of limited length without allocation.
struct Line {
    bytes: [u8; 1024],
    length: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; 1024], length: 0 }
    }

    /// Replaces what would end the line, or a text in JSON.
    fn clean(&mut self) {
        for byte in &mut self.bytes[..self.length] {
            if byte.is_ascii_control() || matches!(byte, b'"' | b'\\') {
                *byte = b'\'';
            }
        }
    }

    fn write_to(&self, fd: c_int) {
        // SAFETY: the bytes are this value's; a failure has no remedy here.
        unsafe { libc::write(fd, self.bytes.as_ptr().cast(), self.length) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}

/// Installs the handlers. `mark` begins each message; `events` is a descriptor that takes errors as JSON events.
pub fn install(mark: &str, events: Option<c_int>) {
    WATCHED.store(pid(), Ordering::Relaxed);
    let _ = MARK.set(mark.to_string());
    EVENTS.store(events.unwrap_or(-1), Ordering::Relaxed);
    for ((signal, _), before) in FAULTS.iter().zip(&BEFORE) {
        let mut old = MaybeUninit::uninit();
        // SAFETY: zeroed is a valid `sigaction`; the handler has the type that SA_SIGINFO asks for and is safe in a
        // signal handler; `old` is read only if the call has filled it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(*signal, std::ptr::null(), old.as_mut_ptr()) == 0 {
                let _ = before.set(old.assume_init());
                libc::sigaction(*signal, &action, std::ptr::null_mut());
            }
        }
    }
}

/// True in the process that [`install`] was called in.
pub fn watches_this_process() -> bool {
    WATCHED.load(Ordering::Relaxed) == pid()
}

fn pid() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// In a forked child: has signals end it, without a message.
pub fn forget_handlers() {
    for signal in FAULTS.iter().map(|(signal, _)| *signal).chain([libc::SIGINT, libc::SIGTERM]) {
        // SAFETY: restores a default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let at = FAULTS.iter().position(|(other, _)| *other == signal).unwrap_or(0);
    report(format_args!("died by signal {signal} ({})", FAULTS[at].1));
    let before = BEFORE[at].get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    // SAFETY: the handler from before has the type that its flags say; it gets what this one got. `signal` and `raise` are
    // safe in a signal handler.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_DFL);
        } else if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
            handler(signal);
        }
        // A fault occurs again once this returns. A signal that somebody sent must be sent again.
        if (*info).si_code <= 0 {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Prints one message that says which call of a plugin did something. Safe in a signal handler.
pub fn report(what: fmt::Arguments) {
    if !watches_this_process() {
        return;
    }
    if BEGUN.swap(true, Ordering::Relaxed) {
        // The caller is about to end the process, and with it the thread that prints.
        for _ in 0..MOST_WAITS {
            if OUT.load(Ordering::Relaxed) {
                return;
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // SAFETY: reads its first argument alone.
            unsafe { libc::nanosleep(&pause, std::ptr::null_mut()) };
        }
        return;
    }
    print(what);
    OUT.store(true, Ordering::Relaxed);
}

fn print(what: fmt::Arguments) {
    let mut line = Line::new();
    // Writing into the buffer cannot fail.
    let _ = match calls::of_this_thread() {
        Some(call) => write!(line, "{call}: `{}` {what}", call.function.name()),
        None => describe_others(&mut line, what),
    };
    line.clean();
    let mut text = Line::new();
    let message = std::str::from_utf8(&line.bytes[..line.length]).unwrap_or("a plugin ended the process");
    let _ = writeln!(text, "{}error: {message}", MARK.get().map_or("", String::as_str));
    text.write_to(libc::STDERR_FILENO);
    let events = EVENTS.load(Ordering::Relaxed);
    if events >= 0 {
        let mut event = Line::new();
        let _ = writeln!(event, "{{\"event\":\"error\",\"message\":\"{message}\"}}");
        event.write_to(events);
    }
}

/// A thread that is in no call of a plugin: a plugin's own, or one of Nestor.
fn describe_others(line: &mut Line, what: fmt::Arguments) -> fmt::Result {
    write!(line, "a thread in no call of a plugin {what}")?;
    let mut calls = calls::of_all_threads().take(MOST_CALLS).peekable();
    if calls.peek().is_some() {
        line.write_str("; calls under way: ")?;
    }
    for (at, call) in calls.enumerate() {
        write!(line, "{}{call} (`{}`)", if at > 0 { ", " } else { "" }, call.function.name())?;
    }
    line.write_str("; loaded plugins: ")?;
    for (at, name) in calls::opened().enumerate() {
        write!(line, "{}{name}", if at > 0 { ", " } else { "" })?;
    }
    Ok(())
}
