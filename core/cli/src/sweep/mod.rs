//! `nestor sweep`: trains a grid of recipes and seeds, some at a time. Each run is a process of its own, so that a run's
//! failure, memory or threads do not touch the others. The state is in the run directories alone: a sweep that was killed
//! continues where they are.

mod file;
mod job;
mod progress;
mod schedule;
mod table;

use anyhow::Result;
use serde_json::json;

use crate::args::SweepArgs;
use crate::output::{print, print_line};

use self::file::Sweep;
use self::job::warm_starts;
use self::schedule::Schedule;

/// Runs what is left of a sweep, and prints its table. Returns the exit code: 1 if a run failed, 130 after a signal.
pub fn sweep(args: &SweepArgs) -> Result<u8> {
    let sweep = Sweep::read(&args.file)?;
    let mut jobs = sweep.jobs()?;
    let code = match args.list {
        true => 0,
        false => {
            let warm_starts = warm_starts(&sweep, &mut jobs)?;
            Schedule::new(&sweep, &jobs, warm_starts, args.json)?.run()?
        }
    };
    let table = table::rows(&jobs);
    print(args.json, &json!({ "runs": table }), || table::text(&table))?;
    if !args.json && !args.list && code == 0 {
        print_line(&format!("next: nestor compare {}", sweep.dir.display()))?;
    }
    Ok(code)
}
