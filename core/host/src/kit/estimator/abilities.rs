//! Optional columns, and the parts of advantages.

use anyhow::{Context, Result, ensure};

use super::rows::Plan;
use super::{Loaded, scored};
use crate::kit::{Finding, Subject, passed, skipped};

/// Scores rows without the optional columns.
pub fn optional_columns(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let optional: Vec<String> =
        estimator.asked().iter().filter(|asked| asked.optional).map(|asked| asked.column.to_string()).collect();
    if optional.is_empty() {
        return skipped("it asks for no optional column");
    }
    let plan = Plan { optional: false, ..Plan::default() };
    scored(&estimator, plan.rows(&estimator)).with_context(|| format!("without {}", optional.join(", ")))?;
    passed(format!("scored without {}", optional.join(", ")))
}

/// Names and numbers of the parts.
pub fn parts(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let rows = scored(&estimator, Plan::default().rows(&estimator))?;
    let parts = estimator.parts(&rows)?;
    if parts.is_empty() {
        return skipped("there is no extension nestor.estimator.parts/1");
    }
    let names: Vec<&str> = parts.of(0).map(|(name, _)| name).collect();
    let plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    for (at, name) in names.iter().enumerate() {
        ensure!(plain(name), "the part {name:?} has other characters than lower case letters, digits and underscores");
        ensure!(!names[..at].contains(name), "there are two parts `{name}`");
    }
    let mut present = 0;
    for row in 0..rows.len() {
        for (name, value) in parts.of(row) {
            ensure!(!value.is_infinite(), "part {name} of row {row} is {value}; it must be finite, or NaN");
            present += usize::from(!value.is_nan());
        }
    }
    ensure!(present > 0, "every number of the parts is NaN");
    passed(names.join(", "))
}
