//! `nestor sweep`: trains a grid of recipes and seeds, some at a time. Each run is a process of its own, so that a run's
//! failure, memory or threads do not touch the others. The state is in the run directories alone: a sweep that was killed
//! continues where they are.

mod disk;
mod file;
mod job;
mod progress;
mod schedule;
mod table;
mod warm_start;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nestor_host::lock::{Lock, LockKind};
use serde_json::json;

use nestor_args::SweepArgs;
use nestor_args::output::{print, print_line, shell_word};
use nestor_args::oversubscribe::Asked;

use self::file::Sweep;
use self::schedule::Schedule;
use self::warm_start::warm_starts;

/// The lock of a folder of runs: one sweep at a time. Hidden, so that `DIR/*` are the runs.
const LOCK: LockKind = LockKind { file: ".sweep.lock", option: "`dir` in the sweep's file" };

/// Runs what is left of a sweep, and prints its table. Returns the exit code: 1 if a run failed, 130 after a signal.
pub fn sweep(args: &SweepArgs) -> Result<u8> {
    let sweep = Sweep::read(&args.file)?;
    let mut jobs = sweep.jobs()?;
    let code = match args.list {
        true => 0,
        false => {
            let count = sweep.file.parallel.min(jobs.len());
            Asked { count, name: "runs side by side", option: "`parallel`" }.check(args.oversubscribe)?;
            let warm_starts = warm_starts(&sweep, &mut jobs)?;
            fs::create_dir_all(&sweep.dir).with_context(|| format!("making {}", sweep.dir.display()))?;
            let _lock = Lock::take(&sweep.dir, LOCK, Duration::ZERO)?;
            Schedule::new(&sweep, &jobs, warm_starts, args.json)?.run()?
        }
    };
    let table = table::rows(&jobs);
    print(args.json, &json!({ "runs": table }), || table::text(&table))?;
    if !args.json && !args.list && code == 0 {
        print_line(&format!("next: nestor compare {}", shell_word(&sweep.dir.display().to_string())))?;
    }
    Ok(code)
}
