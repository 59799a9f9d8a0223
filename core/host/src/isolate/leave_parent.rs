//! The first steps of `nestor-host`: it leaves the trainer that started it.

use std::ffi::c_int;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::dup2_stdin;

use super::guard::{FIRST, lead_session, moved};
use super::keeper;

/// Signals that a job or a terminal sends to all of its processes. They are the trainer's to act on, and a plugin may send
/// them too.
const NOT_MEANT: [c_int; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Takes the socket that is this process's standard input, and leaves all that the process inherited but its output. Returns
/// in a child of this process ([`keeper`]).
pub fn leave_parent() -> Result<OwnedFd> {
    lead_session();
    // SAFETY: this program has opened nothing yet, so no value owns these descriptors.
    ensure!(
        unsafe { libc::close_range(FIRST as u32, u32::MAX, 0) } == 0,
        "cannot close inherited descriptors: {}",
        std::io::Error::last_os_error()
    );
    setrlimit(Resource::RLIMIT_CORE, 0, 0).context("cannot turn core dumps off")?;
    let lifeline = keeper::take_lifeline(FIRST)?;
    keeper::divide(lifeline)?;
    let socket = moved(std::io::stdin().as_raw_fd(), FIRST)?;
    dup2_stdin(fs::File::open("/dev/null").context("opening /dev/null")?).context("cannot replace standard input")?;
    for signal in NOT_MEANT {
        // SAFETY: the handler does nothing. Programs that run here do not inherit it.
        unsafe { libc::signal(signal, nothing as *const () as usize) };
    }
    Ok(socket)
}

extern "C" fn nothing(_: c_int) {}
