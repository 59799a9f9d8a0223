//! The comparison of groups of runs in the page's index.

use nestor_compare::{CompareError, Options, Report, Run, compare};
use serde::Serialize;

use crate::read::RunDir;

/// The report of `nestor compare`, or the reasons that there is none.
#[derive(Serialize)]
pub(crate) struct Comparison {
    report: Option<Report>,
    refusals: Vec<String>,
}

impl Comparison {
    /// Compares the runs; none if all are of one group.
    pub fn of(runs: &[RunDir]) -> Option<Self> {
        let read = runs.iter().map(|run| Run::read(&run.dir)).collect::<Result<Vec<Run>, CompareError>>();
        match read.and_then(|runs| compare(&runs, &Options::default())) {
            Ok(comparison) if comparison.differences.is_empty() => None,
            Ok(comparison) => Some(Self { report: Some(Report::of(&comparison)), refusals: Vec::new() }),
            Err(CompareError::Incomparable(refusals)) => Some(Self { report: None, refusals }),
            Err(error) => Some(Self { report: None, refusals: vec![error.to_string()] }),
        }
    }
}
