//! The origin of a key, as errors name it.

use std::fmt;
use std::sync::Arc;

use saphyr_parser::Marker;

use super::secret;

/// The origin of a key or item: a line of a file, or a `--set` argument.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Location {
    source: Arc<str>,
    /// Line and column from 1; `None` for a `--set` argument.
    position: Option<(usize, usize)>,
}

impl Location {
    /// The first character of a file.
    pub(super) fn start_of(source: &str) -> Self {
        Self { source: source.into(), position: Some((1, 1)) }
    }

    pub(super) fn argument(argument: &str) -> Self {
        Self { source: format!("--set {}", secret::masked(argument)).into(), position: None }
    }

    /// A key that sorts locations as people read them: the file `first`, other files, arguments.
    pub(super) fn order(&self, first: &Self) -> (u8, String, (usize, usize)) {
        let (class, source) = match self.position {
            Some(_) if self.source == first.source => (0, String::new()),
            Some(_) => (1, self.source.to_string()),
            None => (2, String::new()),
        };
        (class, source, self.position.unwrap_or_default())
    }

    pub(super) fn moved(&self, marker: &Marker) -> Self {
        Self { source: self.source.clone(), position: self.position.map(|_| (marker.line(), marker.col() + 1)) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.source),
            None => write!(f, "{}", self.source),
        }
    }
}
