//! The end of the process. A plugin that calls `exit`, `_exit` or the like would end a run early, with the exit code of
//! its choice; it then ends with a message and exit code 1.
//!
//! `exit` is seen by a function that the C library calls at exit. `_exit`, `_Exit` and `quick_exit` are defined here: the dynamic linker
//! binds a plugin's calls to the program's definition, since that of the C library comes later. A system call that a
//! plugin makes itself cannot be seen; the launcher notices it by the exit code.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{calls, crash, supervise};

/// Nestor itself ends the process.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Has this process name the plugin and the call if a fault kills it or a plugin ends it. `mark` begins the message;
/// `events` is a descriptor that takes the message as a JSON event too.
pub fn watch_process(mark: &str, events: Option<c_int>) {
    crash::install(mark, events);
    watch();
}

/// Watches the end of this process. Called again after a plugin was loaded, it runs before whatever that plugin does at
/// exit.
pub fn watch() {
    if crash::watches_this_process() {
        // SAFETY: the function lives as long as the process. A failure has no remedy and does no harm.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Says that Nestor itself ends the process from here on, with this exit code. Where a thread was left behind in a plugin,
/// does not return but ends it now: destructors would run while that thread uses what they destroy.
pub fn ending(code: u8) {
    LEAVING.store(true, Ordering::Relaxed);
    if supervise::left_behind() {
        now(code.into());
    }
}

/// Ends this process now, without the watch and without destructors, which other threads would run into.
pub fn now(code: c_int) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    std::process::abort() // not reached
}

/// True in the watched process, unless Nestor itself ends it. A process that a plugin forks may end as it likes.
fn is_watched() -> bool {
    crash::watches_this_process() && !LEAVING.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    if is_watched() {
        crash::report(format_args!("left the process by `exit`"));
        now(1);
    }
}

/// The C library's function of this name, for all callers in the process.
///
/// # Safety
/// As the C library's.
// SAFETY: the same signature and the same effect as the C library's, but for the exit code after a report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    leave(code)
}

/// As [`_exit`], by C99's name.
///
/// # Safety
/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    leave(code)
}

/// As [`_exit`]: Nestor itself never calls it, and has no functions to call at a quick exit.
///
/// # Safety
/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quick_exit(code: c_int) -> ! {
    leave(code)
}

/// Nestor's own calls come from no plugin call and with another code than 0.
fn leave(code: c_int) -> ! {
    if is_watched() && (code == 0 || calls::of_this_thread().is_some()) {
        crash::report(format_args!("left the process with code {code}"));
        now(1);
    }
    now(code)
}
