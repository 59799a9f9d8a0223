//! The set-up of a process before it runs a plugin: a session and descriptors of its own, its limits, and a last word to the
//! trainer when a signal ends it.

use std::ffi::c_int;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, Result, ensure};
use nestor_child::signal_at_end_of;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, setpgid, setsid};

/// The socket that takes the last word; -1 for none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// First descriptor after the standard ones.
pub const FIRST: RawFd = 3;

/// Makes this process a session of its own, which gets no signal from the trainer's terminal. One that leads a group
/// already has it.
pub fn lead_session() {
    let _ = setsid();
}

/// A copy of a standard descriptor at this number or above, that programs which run here do not inherit.
pub fn moved(standard: RawFd, first: RawFd) -> Result<OwnedFd> {
    // SAFETY: the descriptor is only read during the call; the copy is new.
    unsafe {
        let copy = libc::fcntl(standard, libc::F_DUPFD_CLOEXEC, first);
        ensure!(copy >= 0, "cannot copy a standard descriptor: {}", std::io::Error::last_os_error());
        Ok(OwnedFd::from_raw_fd(copy))
    }
}

/// Has the kernel kill this process when its parent ends.
pub fn die_with(parent: Pid) -> Result<()> {
    let lives = signal_at_end_of(parent, Signal::SIGKILL).context("cannot ask for a signal at the parent's end")?;
    ensure!(lives, "the parent has ended");
    Ok(())
}

/// Makes a copy of a process a group of its own, so that it can be ended with all that its plugin starts.
pub fn lead_group() -> Result<()> {
    setpgid(Pid::from_raw(0), Pid::from_raw(0)).context("cannot make a process group")
}

/// Limits the memory for data.
pub fn limit_memory(bytes: u64) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_DATA).context("cannot read the limit of memory")?;
    let bytes = bytes.min(most);
    setrlimit(Resource::RLIMIT_DATA, bytes, bytes).context("cannot limit the memory")
}

/// Lets this process use this number of seconds of CPU time from here on.
pub fn limit_cpu(seconds: u64) -> Result<()> {
    let used = getrusage(UsageWho::RUSAGE_SELF).context("cannot read the CPU time")?;
    let so_far = (used.user_time().tv_sec() + used.system_time().tv_sec()) as u64;
    let (_, most) = getrlimit(Resource::RLIMIT_CPU).context("cannot read the limit of CPU time")?;
    // The limit is in whole seconds; one more, since those so far were rounded down.
    setrlimit(Resource::RLIMIT_CPU, (so_far + seconds + 1).min(most), most).context("cannot limit the CPU time")
}

/// True if a fork copies all of this process: it has one thread, and no descriptor beside its own. A copy shares the position
/// in an open file, and the other end of a connection, with the original.
pub fn can_be_copied(own: &[RawFd]) -> Result<bool> {
    let count = |folder: &str| fs::read_dir(folder).map(Iterator::count).with_context(|| format!("reading {folder}"));
    let descriptors = || -> Result<bool> {
        let listing = fs::read_dir("/proc/self/fd").context("reading /proc/self/fd")?;
        let numbers = listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
        let others = numbers.filter(|number| *number >= FIRST && !own.contains(number)).count();
        Ok(others <= 1) // the listing itself
    };
    Ok(count("/proc/self/task")? == 1 && descriptors()?)
}

/// Has this process tell the trainer how much data it held when a fault ends it.
pub fn report_faults(socket: &impl AsRawFd) {
    SOCKET.store(socket.as_raw_fd(), Ordering::Relaxed);
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: zeroed is a valid `sigaction`; the handler has the type that the flags ask for and is safe in a signal
        // handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Sends the last word. Then the process dies by the signal, whose default the kernel has restored.
extern "C" fn handle(signal: c_int) {
    let mut packet = [2; 9];
    packet[1..].copy_from_slice(&data().to_le_bytes());
    // SAFETY: these functions are safe in a signal handler; the bytes are this function's own.
    unsafe {
        let socket = SOCKET.load(Ordering::Relaxed);
        libc::send(socket, packet.as_ptr().cast(), packet.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        libc::raise(signal);
    }
}

/// Bytes of data of this process, 0 if unknown. Safe in a signal handler.
fn data() -> u64 {
    let mut text = [0u8; 256];
    // SAFETY: these functions are safe in a signal handler; the buffer has the length that they get.
    let (length, page) = unsafe {
        let file = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        (length, libc::sysconf(libc::_SC_PAGESIZE))
    };
    let read = &text[..usize::try_from(length).unwrap_or(0)];
    // size, resident, shared, text, lib, data
    let field = read.split(|&byte| byte == b' ').nth(5).unwrap_or_default();
    let pages =
        field.iter().filter(|byte| byte.is_ascii_digit()).fold(0u64, |sum, byte| sum * 10 + u64::from(byte - b'0'));
    pages.saturating_mul(u64::try_from(page).unwrap_or(0))
}
