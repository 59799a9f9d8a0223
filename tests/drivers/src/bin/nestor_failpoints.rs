//! The program `nestor`, except that it kills or stops itself at a named place (`nestor_model::failpoint` lists them).
//!
//! `NESTOR_FAILPOINT=name:n` sends SIGKILL at the n-th pass (from 1) of that place in a process. `name:n@r` means rank
//! r alone (torchrun's variable `RANK`). A trailing `=term` sends SIGTERM instead, `=stop` SIGSTOP, and `=hang` has the
//! thread sleep and never wake.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use nestor_model::failpoint;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Passes of the named place.
static PASSES: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    failpoint::install(pass);
    nestor_tools::program::main()
}

fn pass(name: &str) {
    let Ok(armed) = std::env::var("NESTOR_FAILPOINT") else { return };
    let (armed, action) = armed.split_once('=').unwrap_or((&armed, "kill"));
    let Some((armed_name, n)) = armed.rsplit_once(':') else { return };
    let (n, rank) = n.split_once('@').map_or((n, None), |(n, rank)| (n, Some(rank)));
    if rank.is_some_and(|rank| std::env::var("RANK").unwrap_or("0".into()) != rank) {
        return;
    }
    if armed_name == name && n.parse() == Ok(PASSES.fetch_add(1, Ordering::Relaxed) + 1) {
        let signal = match action {
            "hang" => loop {
                std::thread::park();
            },
            "term" => Signal::SIGTERM,
            "stop" => Signal::SIGSTOP,
            _ => Signal::SIGKILL,
        };
        // A process may always send itself a signal.
        let _ = kill(Pid::this(), signal);
    }
}
