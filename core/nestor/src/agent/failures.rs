//! Failures of environments that a plan survives (`rollout.env_errors`).

use std::collections::HashMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::error::{EnvironmentFailed, InputError, Stopped, message};

/// Tries to reset an episode, after which its task is given up: the task's other episodes then get no further try.
const TRIES: u32 = 3;
/// Kinds of faults that have lines of their own. A plugin's texts may differ each time.
const KINDS: usize = 20;
/// Words before the number of a place.
const PLACES: [&str; 6] = ["task", "seed", "step", "episode", "group", "line"];

/// The failures of one plan of episodes at this rank.
#[derive(Debug, Clone)]
pub struct Failures {
    allowed: u64,
    /// Failures so far.
    pub count: u64,
    pub faults: Faults,
    /// Failed tries of the tasks whose last reset failed.
    tries: HashMap<u64, u32>,
}

/// The reset that failed: the task gets another one, or its episode ends with this message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailedReset {
    Repeat,
    GiveUp(String),
}

impl Failures {
    pub fn new(allowed: u64) -> Self {
        Self { allowed, count: 0, faults: Faults::default(), tries: HashMap::new() }
    }

    /// Counts an environment's error and returns its message. Returns the error where it ends the run.
    pub fn survive(&mut self, error: anyhow::Error) -> Result<String> {
        let error = survivable(error)?;
        if self.count >= self.allowed {
            return Err(error.context(EnvironmentFailed(match self.allowed {
                0 => "an environment failed, and `rollout.env_errors` (0) allows no failure; raise it, or mend the \
                      environment"
                    .into(),
                allowed => format!(
                    "more failures than `rollout.env_errors` allows ({allowed}); raise it, or mend the environment"
                ),
            })));
        }
        self.count += 1;
        let message = message(&error);
        let place = format!("failure {} of {}", self.count, self.allowed);
        self.faults.add(Fault { kind: kind(&message), first: message.clone(), place, count: 1 });
        Ok(message)
    }

    /// As [`Failures::survive`], for the `tried`-th reset of an episode, from 1. Episodes of one task are reset side by
    /// side, so each try of the task counts once.
    pub fn survive_reset(&mut self, task: u64, tried: u32, error: anyhow::Error) -> Result<FailedReset> {
        let counted = self.tries.get(&task).copied().unwrap_or(0);
        let message = match tried > counted {
            true => self.survive(error)?,
            false => message(&survivable(error)?),
        };
        let tries = counted.max(tried);
        self.tries.insert(task, tries);
        if tries < TRIES {
            return Ok(FailedReset::Repeat);
        }
        self.faults.given_up += u64::from(counted < TRIES);
        Ok(FailedReset::GiveUp(format!("the task was given up after {TRIES} failed resets: {message}")))
    }

    /// Notes a reset that succeeded.
    pub fn reset_succeeded(&mut self, task: u64) {
        self.tries.remove(&task);
    }
}

/// An error of an environment; returned where it is none.
fn survivable(error: anyhow::Error) -> Result<anyhow::Error> {
    let other = error.is::<Stopped>() || error.chain().any(|cause| cause.is::<InputError>());
    if other { Err(error) } else { Ok(error) }
}

/// The faults behind survived failures, for warnings: equal ones are one line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    each: Vec<Fault>,
    /// Tasks that were given up.
    given_up: u64,
}

/// Failures that differ at most in task, seed and step, in long numbers, and in quoted text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fault {
    /// The message without these.
    kind: String,
    /// The message of the first one.
    first: String,
    /// Its number among the failures allowed.
    place: String,
    count: u64,
}

impl Faults {
    fn add(&mut self, fault: Fault) {
        match self.each.iter_mut().find(|known| known.kind == fault.kind) {
            Some(known) => known.count += fault.count,
            None => self.each.push(fault),
        }
    }

    /// Adds those of another plan or rank.
    pub fn extend(&mut self, other: Faults) {
        other.each.into_iter().for_each(|fault| self.add(fault));
        self.given_up += other.given_up;
    }

    /// One line for each kind of fault, and one for the tasks that were given up.
    pub fn lines(&self) -> Vec<String> {
        let line = |Fault { first, place, count, .. }: &Fault| match count {
            1 => format!("{first} ({place})"),
            _ => format!("{first} ({place}, the first of {count} such failures)"),
        };
        let (shown, rest) = self.each.split_at(self.each.len().min(KINDS));
        let mut lines: Vec<String> = shown.iter().map(line).collect();
        if let Some(last) = rest.last() {
            let count: u64 = rest.iter().map(|fault| fault.count).sum();
            lines.push(format!("{count} failures of {} other kinds, the last one: {}", rest.len(), last.first));
        }
        if self.given_up > 0 {
            let tasks = if self.given_up == 1 { "1 task was" } else { &format!("{} tasks were", self.given_up) };
            lines.push(format!("{tasks} given up after {TRIES} failed resets each"));
        }
        lines
    }
}

/// A message in which the numbers of a place, long numbers and quoted texts have become one sign each. Short numbers stay: an
/// exit code tells faults apart.
fn kind(message: &str) -> String {
    let mut kind = String::with_capacity(message.len());
    let (mut rest, mut before) = (message, "");
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let quoted = matches!(first, '"' | '\'').then(|| rest[1..].find(first)).flatten();
        let end = match quoted {
            Some(length) => length + 2,
            None if word > 0 => word,
            None => first.len_utf8(),
        };
        let (piece, after) = rest.split_at(end);
        let number = word > 0 && piece.contains(|c: char| c.is_ascii_digit());
        let varies = number && (piece.len() > 3 || PLACES.contains(&before));
        kind.push_str(if varies || quoted.is_some() { "#" } else { piece });
        (rest, before) = (after, if word > 0 { piece } else { before });
    }
    kind
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn equal_faults_are_one_line_with_a_count() -> Result<()> {
        let mut failures = Failures::new(100);
        for step in 0..35 {
            let place = format!("plugin maze: task {} of split train, seed {}, step {step}", step / 7, 1000 + step);
            failures.survive(anyhow!("`step` died by SIGABRT").context(place.clone()))?;
            failures.survive(anyhow!("cannot read '{step}x' at 0x{:x}", 4096 * (step + 1)).context(place))?;
        }
        let lines = failures.faults.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(
            lines[0],
            "plugin maze: task 0 of split train, seed 1000, step 0: `step` died by SIGABRT (failure 1 of 100, the first of 35 such \
             failures)"
        );
        // Faults of many kinds do not flood the log either.
        let letters = |n: u8| format!("exit code {n}");
        (0..24).try_for_each(|n| failures.survive(anyhow!(letters(n))).map(drop))?;
        let lines = failures.faults.lines();
        assert_eq!((lines.len(), &*lines[2]), (21, "exit code 0 (failure 71 of 100)"));
        assert_eq!(lines[20], "6 failures of 6 other kinds, the last one: exit code 23");
        // Those of other ranks join them.
        let mut all = failures.faults.clone();
        all.extend(failures.faults);
        assert!(all.lines()[0].ends_with("the first of 70 such failures)"));
        Ok(())
    }

    #[test]
    fn a_task_whose_reset_always_fails_costs_three_failures() -> Result<()> {
        let mut failures = Failures::new(10);
        for task in [4, 9] {
            let mut reset = |tried| failures.survive_reset(task, tried, anyhow!("no such level"));
            // Eight episodes side by side.
            for tried in [1; 8].into_iter().chain([2; 8]) {
                assert_eq!(reset(tried)?, FailedReset::Repeat);
            }
            for tried in [3, 2, 3] {
                let FailedReset::GiveUp(message) = reset(tried)? else { panic!("a further try") };
                assert_eq!(message, "the task was given up after 3 failed resets: no such level");
            }
        }
        assert_eq!(failures.count, 6);
        assert_eq!(
            failures.faults.lines(),
            [
                "no such level (failure 1 of 10, the first of 6 such failures)",
                "2 tasks were given up after 3 failed resets each"
            ]
        );
        // A task that starts now and then is played.
        for _ in 0..4 {
            assert_eq!(failures.survive_reset(1, 1, anyhow!("busy"))?, FailedReset::Repeat);
            failures.reset_succeeded(1);
        }
        assert_eq!(failures.count, 10);
        Ok(())
    }

    #[test]
    fn the_failure_that_ends_a_run_names_the_key() -> Result<()> {
        for allowed in [0, 2] {
            let mut failures = Failures::new(allowed);
            (0..allowed).try_for_each(|_| failures.survive(anyhow!("gone")).map(drop))?;
            let error = failures.survive(anyhow!("gone")).expect_err("one too many").context("playing episodes");
            assert!(error.is::<EnvironmentFailed>());
            assert!(
                format!("{error:#}")
                    .contains(&format!("`rollout.env_errors` {}", if allowed == 0 { "(0)" } else { "allows (2)" }))
            );
        }
        let stopped = Failures::new(9).survive(Stopped.into()).expect_err("a signal");
        assert!(stopped.is::<Stopped>());
        Ok(())
    }
}
