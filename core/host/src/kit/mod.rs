//! The kit: checks that a plugin file keeps the rules of nestor_plugin.h, and that its components can be trained with.
//!
//! `nestor plugin check` prints the report. A plugin's own tests use the same kit in one line:
//!
//! ```no_run
//! nestor_host::kit::check("target/release/libmine.so", serde_json::json!({})).assert_passed();
//! ```
//!
//! Each check runs in a child process, so a crash, an exit or a hang is the failure of that check alone. A check that OpenEnv
//! has too (RFC 008, environment auto-validation) has its name.

mod apart;
mod config;
mod environment;
mod estimator;
mod loss;
mod report;
mod usage;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use nestor_recipe::input_error;
use serde_json::{Value, json};

use crate::library::{Found, Kind};
use crate::plugins::{Plugins, file_and_id, fill_defaults};
use crate::probe;
use crate::supervise::Limits;

pub use report::{Line, Report, Section, Status};

/// The choices of one run of the kit.
#[derive(Debug, Clone)]
pub struct Kit {
    /// The config of the components.
    pub config: Value,
    /// The id of the one component to check; all of the file without it.
    pub component: Option<String>,
    /// Splits of an environment, which must share no task.
    pub splits: Vec<String>,
    /// Checks to leave out, by name, and with them those that need them.
    pub skip: Vec<String>,
    pub budget: Budget,
}

/// Amounts of work.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Episodes that an environment plays in `many_episodes`.
    pub episodes: u64,
    /// Times that a component is opened and closed in `open_close`.
    pub opens: u64,
    /// Scores of an estimator in `many_scores`, and calls of a loss in `many_losses`.
    pub scores: u64,
    /// Tasks to sample of each split.
    pub tasks: u64,
    /// Time after which a check does no more of the same.
    pub time: Duration,
    /// Longest time that one call may take.
    pub call: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        let (time, call) = (Duration::from_secs(20), Duration::from_secs(30));
        Self { episodes: 10_000, opens: 1_000, scores: 1_000, tasks: 40, time, call }
    }
}

impl Budget {
    /// A tenth of the work or less, for a test that runs often.
    pub fn small() -> Self {
        let (time, call) = (Duration::from_secs(3), Duration::from_secs(5));
        Self { episodes: 240, opens: 48, scores: 48, tasks: 8, time, call }
    }
}

impl Default for Kit {
    fn default() -> Self {
        Self {
            config: json!({}),
            component: None,
            splits: ["train", "eval"].map(String::from).to_vec(),
            skip: Vec::new(),
            budget: Budget::default(),
        }
    }
}

/// Checks all components of a file, in a test. [`Kit::check`] has more options.
///
/// # Panics
/// The file cannot be used.
pub fn check(file: impl AsRef<Path>, config: Value) -> Report {
    let kit = Kit { config, ..Kit::default() };
    kit.check(file.as_ref()).unwrap_or_else(|error| panic!("{error:#}"))
}

/// One check.
struct Check {
    name: &'static str,
    /// Checks without which this one says nothing.
    needs: &'static [&'static str],
    /// The way to mend what it finds.
    remedy: &'static str,
    body: fn(&Subject) -> Result<Finding>,
}

/// The result of a check. A failure is an error.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Finding {
    /// With what was measured.
    Passed(String),
    /// There is nothing to check, and why.
    Skipped(String),
    /// As `Passed`, with a throughput: a rate and its unit.
    Measured(String, f64, String),
}

fn passed(note: impl Into<String>) -> Result<Finding> {
    Ok(Finding::Passed(note.into()))
}

fn skipped(why: impl Into<String>) -> Result<Finding> {
    Ok(Finding::Skipped(why.into()))
}

/// The component that is checked.
struct Subject<'a> {
    kit: &'a Kit,
    found: &'a Found,
    config: Value,
}

impl Subject<'_> {
    /// The limits of calls that another process waits for.
    fn limits(&self) -> Limits {
        Limits { timeout: self.kit.budget.call, ..Limits::default() }
    }

    /// The end of this check's time.
    fn clock(&self) -> Clock {
        Clock { end: Instant::now() + self.kit.budget.time }
    }
}

/// The time of one check.
#[derive(Debug, Clone, Copy)]
struct Clock {
    end: Instant,
}

impl Clock {
    fn is_over(self) -> bool {
        Instant::now() >= self.end
    }
}

impl Kit {
    /// Checks a file, given by its path, as `path#id` or by an id. A file that cannot be used is an input error.
    pub fn check(&self, file: &Path) -> Result<Report> {
        let named = file.to_string_lossy();
        let (path, id) = match file_and_id(&named) {
            Some((path, id)) => (path, id),
            None if file.exists() => (file.to_path_buf(), None),
            None => (Plugins::discover()?.named(&named)?.swap_remove(0).path, Some(&*named)),
        };
        let wanted = id.or(self.component.as_deref());
        let limits = Limits { timeout: self.budget.call, ..Limits::default() };
        let all = probe::describe(&path, &limits)?.map_err(|why| input_error!("{why}"))?;
        let chosen: Vec<&Found> = all.iter().filter(|found| wanted.is_none_or(|id| found.id == id)).collect();
        if chosen.is_empty() {
            let ids: Vec<&str> = all.iter().map(|found| found.id.as_str()).collect();
            let lacks = wanted.map_or(String::new(), |id| format!(", not `{id}`"));
            let holds = if ids.is_empty() { "no components".to_string() } else { ids.join(", ") };
            return Err(input_error!("plugin file {} holds {holds}{lacks}", path.display()));
        }
        self.check_skip()?;
        config::check_object(&self.config)?;
        let sections = chosen.into_iter().map(|found| self.section(found)).collect();
        Ok(Report { file: path, sections })
    }

    fn check_skip(&self) -> Result<()> {
        let all = environment::CHECKS.iter().chain(estimator::CHECKS).chain(loss::CHECKS).map(|check| check.name);
        let known: Vec<&str> = all.collect::<BTreeSet<_>>().into_iter().collect();
        match self.skip.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(input_error!("there is no check `{name}`{}", nestor_plugin::suggest(name, &known))),
            None => Ok(()),
        }
    }

    /// Runs all checks of one component.
    fn section(&self, found: &Found) -> Section {
        let mut config = self.config.clone();
        fill_defaults(&mut config, &found.schema);
        let subject = Subject { kit: self, found, config };
        let checks = match found.kind {
            Kind::Environment => environment::CHECKS,
            Kind::Estimator => estimator::CHECKS,
            Kind::Loss => loss::CHECKS,
        };
        let (mut lines, mut throughput) = (Vec::<Line>::new(), None);
        for check in checks {
            let did_not_pass = |name: &&&str| lines.iter().any(|line| line.name == **name && line.stops_others());
            let line = if self.skip.iter().any(|name| name == check.name) {
                Line::new(check, Status::Skipped, "left out on request".into(), true)
            } else if let Some(needed) = check.needs.iter().find(did_not_pass) {
                Line::new(check, Status::Skipped, format!("needs {needed}, which did not pass"), true)
            } else {
                match apart::run(&self.budget, || (check.body)(&subject)) {
                    Ok(Finding::Passed(note)) => Line::new(check, Status::Passed, note, false),
                    Ok(Finding::Skipped(why)) => Line::new(check, Status::Skipped, why, false),
                    Ok(Finding::Measured(note, rate, unit)) => {
                        throughput = Some((rate, unit));
                        Line::new(check, Status::Passed, note, false)
                    }
                    Err(why) => Line::new(check, Status::Failed, why, true),
                }
            };
            lines.push(line);
        }
        Section { kind: found.kind, id: found.id.clone(), config: subject.config, lines, throughput }
    }
}
