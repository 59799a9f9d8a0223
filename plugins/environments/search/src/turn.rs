//! A turn of an episode, as the session keeps it and the expert reads it.

use serde::{Deserialize, Serialize};

/// A turn of an episode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// `<search>…</search>`, `<answer>…</answer>`, or empty if the response had neither.
    pub action: String,
    /// The results of the search, in their tags; empty if nothing was searched.
    pub information: String,
}
