//! SIGINT and SIGTERM: the first asks the run to stop, the second ends the process without saving.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use nestor_torch::exit_now;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::ranks::launch::SAME_SIGNAL;
use crate::stop_notice::StopNotice;
use crate::terminal;

/// Returns a flag that the first signal sets. A thread answers the signals; it prints the answers if `prints` is set.
pub fn watch(notice: StopNotice, prints: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, stop.clone()).context("watching for signals")?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let answer = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    if prints {
                        terminal::warn(&notice.first());
                    }
                }
                Some(begin) if signal == SIGTERM && begin.elapsed() < SAME_SIGNAL => {}
                Some(_) => {
                    if prints {
                        terminal::warn(&notice.second());
                    }
                    terminal::clear();
                    exit_now(1)
                }
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(answer).context("watching for signals")?;
    Ok(stop)
}
