//! The report of the kit, as text and as JSON.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::Check;
use crate::library::Kind;

/// What the kit found in a file.
#[derive(Debug, Serialize)]
pub struct Report {
    pub file: PathBuf,
    /// One per component.
    #[serde(rename = "components")]
    pub sections: Vec<Section>,
}

/// What the kit found in one component.
#[derive(Debug, Serialize)]
pub struct Section {
    pub kind: Kind,
    pub id: String,
    /// The config that it was opened with, with the defaults of its schema.
    pub config: Value,
    #[serde(rename = "checks")]
    pub lines: Vec<Line>,
    /// A rate and its unit, if it was measured.
    pub throughput: Option<(f64, String)>,
}

/// The outcome of one check.
#[derive(Debug, Serialize)]
pub struct Line {
    pub name: &'static str,
    pub status: Status,
    /// What was measured, why it failed, or why there was nothing to check.
    pub note: String,
    /// The way to mend it, for a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
    /// Checks that need this one are left out.
    #[serde(skip)]
    stops: bool,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Passed,
    Failed,
    Skipped,
}

impl Line {
    pub(super) fn new(check: &Check, status: Status, note: String, stops: bool) -> Self {
        let remedy = (status == Status::Failed).then_some(check.remedy);
        Self { name: check.name, status, note, remedy, stops }
    }

    pub(super) fn stops_others(&self) -> bool {
        self.stops
    }
}

impl Report {
    /// True if no check failed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The checks that failed, each with its component.
    pub fn failures(&self) -> impl Iterator<Item = (&Section, &Line)> {
        let all = self.sections.iter().flat_map(|section| section.lines.iter().map(move |line| (section, line)));
        all.filter(|(_, line)| line.status == Status::Failed)
    }

    /// Ends a test with the report if a check failed.
    ///
    /// # Panics
    /// A check failed.
    pub fn assert_passed(&self) {
        assert!(self.passed(), "{self}");
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.file.display())?;
        for section in &self.sections {
            write!(f, "\n{section}")?;
        }
        let all: Vec<Status> =
            self.sections.iter().flat_map(|section| &section.lines).map(|line| line.status).collect();
        let count = |status| all.iter().filter(|&&other| other == status).count();
        let [passed, failed, skipped] = [Status::Passed, Status::Failed, Status::Skipped].map(count);
        write!(f, "\n{passed} checks passed, {failed} failed, {skipped} skipped")
    }
}

impl Display for Section {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}, config {}", self.kind, self.id, self.config)?;
        for line in &self.lines {
            let Line { name, note, .. } = line;
            let (status, remedy) = match line.status {
                Status::Passed => ("ok", None),
                Status::Failed => ("FAILED", line.remedy),
                Status::Skipped => ("skipped", None),
            };
            let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
            writeln!(f, "  {name:<26} {status:<8} {}{remedy}", note.replace('\n', " "))?;
        }
        match &self.throughput {
            Some((rate, unit)) => writeln!(f, "  throughput: {rate:.0} {unit}"),
            None => Ok(()),
        }
    }
}
