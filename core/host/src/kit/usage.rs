//! What the process uses: memory, descriptors, threads. A leak is growth from quarter to quarter of the same work.

use std::time::Instant;

use anyhow::{Result, bail};

use super::Subject;

/// Growth of memory over the last three quarters that counts as a leak, if each of them adds to it.
const MOST_BYTES: u64 = 1 << 20;
/// Descriptors or threads that may be more at the end than after the first quarter.
const MOST_HANDLES: u64 = 3;

/// What the process uses at one moment.
#[derive(Debug, Clone, Copy)]
struct Usage {
    /// Resident memory that is no file's.
    bytes: u64,
    descriptors: u64,
    threads: u64,
}

impl Usage {
    fn now() -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let number = |key: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        Ok(Self { bytes: number("RssAnon:") * 1024, descriptors, threads: number("Threads:") })
    }
}

/// The use after each quarter of some work.
#[derive(Debug, Default)]
struct Quarters(Vec<Usage>);

impl Quarters {
    /// Looks, if a quarter of `all` is done with `done`.
    fn look(&mut self, done: u64, all: u64) -> Result<()> {
        if done * 4 >= all * (self.0.len() as u64 + 1) {
            self.0.push(Usage::now()?);
        }
        Ok(())
    }

    /// Fails if the work leaks.
    fn check(&self, done: u64, of_what: &str) -> Result<()> {
        // With fewer looks the work was too slow to judge.
        let [first, _, _, .., last] = self.0[..] else { return Ok(()) };
        let added: Vec<u64> = self.0.windows(2).map(|w| w[1].bytes.saturating_sub(w[0].bytes)).collect();
        let bytes = last.bytes.saturating_sub(first.bytes);
        if bytes > MOST_BYTES && added.iter().all(|&quarter| quarter > MOST_BYTES / 8) {
            bail!("memory grew by {} KiB over the last three quarters of {done} {of_what}", bytes / 1024);
        }
        for (name, before, after) in [
            ("open descriptors", first.descriptors, last.descriptors),
            ("running threads", first.threads, last.threads),
        ] {
            if after > before + MOST_HANDLES {
                bail!("{name} grew from {before} to {after} over the last three quarters of {done} {of_what}");
            }
        }
        Ok(())
    }
}

/// Repeats something until the time is over, and fails if the process grows. Returns the number of repetitions.
pub fn repeat(subject: &Subject, all: u64, of_what: &str, mut body: impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let (mut quarters, clock) = (Quarters::default(), subject.clock());
    let begin = Instant::now();
    // A short trial says how many fit into the time.
    let trial = (all / 100).max(1);
    let mut done = 0;
    while done < trial {
        body(done)?;
        done += 1;
    }
    let each = begin.elapsed().as_secs_f64() / trial as f64;
    let fit = (subject.kit.budget.time.as_secs_f64() / each.max(1e-9)) as u64;
    let aim = all.min(fit).max(done);
    while done < aim && !clock.is_over() {
        body(done)?;
        done += 1;
        quarters.look(done, aim)?;
    }
    quarters.look(done, done)?;
    quarters.check(done, of_what)?;
    Ok(done)
}
