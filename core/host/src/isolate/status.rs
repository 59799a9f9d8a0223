//! The end of a process in words.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

/// Exit code of a process that can no longer read from its connection, since its plugin closed it.
pub const LOST: i32 = 121;

const GIB: f64 = (1u64 << 30) as f64;

/// The facts about a process that ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ending {
    /// As `waitpid` says it; none if the process was killed because it would not end, or is unknown.
    pub status: Option<i32>,
    /// Bytes of data at the moment of a fault.
    pub data: Option<u64>,
}

/// The limits of a process, and the section of the recipe that sets them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    pub section: &'static str,
    /// Bytes.
    pub memory: Option<u64>,
    /// Seconds.
    pub cpu: Option<u64>,
}

impl Ending {
    /// The end of a sentence that begins with the call: "died by SIGSEGV".
    pub fn words(&self, bounds: &Bounds) -> String {
        let Some(status) = self.status.map(ExitStatus::from_raw) else {
            return "closed its connection to nestor".into();
        };
        let section = bounds.section;
        match (status.signal(), status.code()) {
            (Some(libc::SIGXCPU), _) if bounds.cpu.is_some() => {
                format!("used more than {} s of CPU time (recipe key `{section}.cpu_s`)", bounds.cpu.unwrap_or(0))
            }
            (Some(libc::SIGKILL), _) => "was killed by SIGKILL; perhaps the machine has run out of memory".into(),
            (Some(signal), _) => {
                let name = Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.to_string());
                format!("died by {name}{}", self.memory(bounds))
            }
            (_, Some(LOST)) => "closed its connection to nestor".into(),
            (_, Some(code)) => format!("left with exit code {code}"),
            _ => "ended its process".into(),
        }
    }

    /// A process whose data fills half of its limit may have asked for as much again.
    fn memory(&self, bounds: &Bounds) -> String {
        match (self.data, bounds.memory) {
            (Some(data), Some(limit)) if data >= limit / 2 => format!(
                " at its memory limit: it held {:.2} GiB of {:.2} GiB (recipe key `{}.memory_gib`)",
                data as f64 / GIB,
                limit as f64 / GIB,
                bounds.section
            ),
            _ => String::new(),
        }
    }
}
