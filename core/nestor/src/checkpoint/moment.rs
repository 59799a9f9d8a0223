//! Names of checkpoints: the moment of the run that each one records.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The directory of the frozen reference, beside the checkpoints.
pub const REFERENCE: &str = "reference";

/// The moment of a run that a checkpoint records. Later moments are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Moment {
    /// Finished iterations; none before the first evaluation.
    iteration: Option<u64>,
    /// Finished optimizer steps of the warm start, or of the next iteration's update.
    steps: Option<u64>,
}

impl Moment {
    /// Before the first evaluation, after this number of optimizer steps of the warm start.
    pub fn warm_start(steps: u64) -> Self {
        Self { iteration: None, steps: Some(steps) }
    }

    /// Between two iterations, after this number of them.
    pub fn iteration(iteration: u64) -> Self {
        Self { iteration: Some(iteration), steps: None }
    }

    /// Inside the iteration after `iteration` finished ones, after this number of optimizer steps of its update.
    pub fn update(iteration: u64, steps: u64) -> Self {
        Self { iteration: Some(iteration), steps: Some(steps) }
    }

    /// Finished iterations; none before the first evaluation.
    pub fn finished(self) -> Option<u64> {
        self.iteration
    }

    /// The moment of a checkpoint's folder, by its name; none for another folder.
    pub fn of_folder(folder: &Path) -> Option<Self> {
        let folder = folder.canonicalize().ok()?; // `latest` and `best` are links
        Self::of_name(folder.file_name()?.to_str()?)
    }

    /// The moment of a checkpoint's name; none for another name.
    pub fn of_name(name: &str) -> Option<Self> {
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            if plain { digits.parse().ok() } else { None }
        };
        if let Some(steps) = name.strip_prefix("warm-start-") {
            return number(steps).map(Self::warm_start);
        }
        let rest = name.strip_prefix("iteration-")?;
        match rest.split_once('+') {
            None => number(rest).map(Self::iteration),
            Some((iteration, steps)) => Some(Self::update(number(iteration)?, number(steps)?)),
        }
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.to_string()
    }
}

impl TryFrom<String> for Moment {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::of_name(&name).ok_or_else(|| format!("`{name}` is no name of a checkpoint"))
    }
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match (self.iteration, self.steps) {
            (None, steps) => write!(f, "warm-start-{:06}", steps.unwrap_or(0)),
            (Some(iteration), None) => write!(f, "iteration-{iteration:06}"),
            (Some(iteration), Some(steps)) => write!(f, "iteration-{iteration:06}+{steps:06}"),
        }
    }
}

/// True for the name of a directory that an interrupted save or removal left.
pub fn is_leftover(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".tmp") else { return false };
    let name = name.strip_suffix(".old").unwrap_or(name);
    name == REFERENCE || Moment::of_name(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_in_the_order_of_a_run() {
        let order = [
            Moment::warm_start(0),
            Moment::warm_start(1_000_000),
            Moment::iteration(0),
            Moment::update(0, 0),
            Moment::update(0, 12),
            Moment::iteration(1),
            Moment::update(9, 2),
            Moment::iteration(1_000_000),
        ];
        assert!(order.is_sorted());
        for moment in order {
            assert_eq!(Moment::of_name(&moment.to_string()), Some(moment));
        }
        for name in
            ["latest", "best", "reference", "iteration-", "iteration-1+", "iteration-+1", "warm-start-x", "note.tmp"]
        {
            assert_eq!(Moment::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn only_what_a_save_left_is_removed() {
        for name in
            ["iteration-000003.tmp", "iteration-000003+000001.old.tmp", "warm-start-000003.tmp", "reference.tmp"]
        {
            assert!(is_leftover(name), "{name}");
        }
        for name in ["note.tmp", "iteration-000003", "latest.tmp", ".tmp", "old.tmp"] {
            assert!(!is_leftover(name), "{name}");
        }
    }
}
