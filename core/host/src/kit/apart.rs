//! Runs a check in a child process, and says in one message how it died if it did.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Budget, Finding};
use crate::child::{self, Answer, End};
use crate::supervise::Limits;
use crate::{calls, crash, leave};

/// Time that a check has beyond that of its loops and of one call that hangs.
const MARGIN: Duration = Duration::from_secs(120);
/// Time between two looks at the calls under way.
const LOOK: Duration = Duration::from_millis(20);
/// Most bytes of what a child printed that become part of a message.
const LONGEST_TAIL: usize = 400;

/// Runs a check. An error is one message.
pub fn run(budget: &Budget, body: impl FnOnce() -> Result<Finding>) -> Result<Finding, String> {
    let answer = in_child(budget, || {
        let found: Result<Finding, String> = body().map_err(|error| format!("{error:#}"));
        serde_json::to_vec(&found).unwrap_or_default()
    })?;
    serde_json::from_slice::<Result<Finding, String>>(&answer)
        .unwrap_or_else(|_| Err("the plugin ended the process of the check".into()))
}

/// Runs `body` in a child and returns its answer. An error is one message.
pub fn in_child(budget: &Budget, body: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, String> {
    let printed = child::memory_file().map_err(|error| format!("{error:#}"))?;
    let limits = Limits { timeout: budget.time + budget.call + MARGIN, ..Limits::default() };
    let end = child::run(&limits, |answer| {
        // What a plugin prints is no part of the report.
        let _ = nix::unistd::dup2_stdout(printed.as_fd()).and(nix::unistd::dup2_stderr(printed.as_fd()));
        crash::install("", None);
        leave::watch();
        calls::supervise_this_thread();
        let call = budget.call;
        let watchdog = std::thread::Builder::new().name("watchdog".into()).spawn(move || watch(answer, call));
        match watchdog {
            Ok(_) => body(),
            Err(error) => failed(&format!("cannot start a thread: {error}")),
        }
    })
    .map_err(|error| format!("{error:#}"))?;
    let tail = || tail(&String::from_utf8_lossy(&child::content(&printed).unwrap_or_default()));
    match end {
        End::Answer(answer) => Ok(answer),
        End::Signal(signal) => Err(format!("the process died by {signal}{}", tail())),
        End::Left(code) => Err(format!("the process ended with code {code}{}", tail())),
        End::Late => Err(format!("the check took longer than {} s", limits.timeout.as_secs())),
    }
}

/// Ends the process if one call takes too long.
fn watch(answer: &Answer, longest: Duration) {
    let mut seen = Vec::new();
    loop {
        std::thread::sleep(LOOK);
        let now = Instant::now();
        let mut looked = Vec::new();
        for (number, call) in calls::numbered() {
            let begin = seen.iter().find(|(other, _)| *other == number).map_or(now, |(_, begin)| *begin);
            if now - begin >= longest {
                let (name, seconds) = (call.function.name(), longest.as_secs());
                answer.send(&failed(&format!("{call}: `{name}` did not return within {seconds} s")));
            }
            looked.push((number, begin));
        }
        seen = looked;
    }
}

/// The answer of a check that failed.
fn failed(why: &str) -> Vec<u8> {
    serde_json::to_vec(&Err::<Finding, &str>(why)).unwrap_or_default()
}

/// The end of what a process printed, as the end of a message.
fn tail(printed: &str) -> String {
    let printed = console::strip_ansi_codes(printed);
    let line = printed.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let from = line.char_indices().map(|(at, _)| at).find(|at| line.len() - at <= LONGEST_TAIL).unwrap_or_default();
    if line.is_empty() { String::new() } else { format!(": {}", line[from..].trim_start_matches("error: ")) }
}
