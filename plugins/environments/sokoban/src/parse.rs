//! Parses the player's answer, by the rule of the reference implementation.

use crate::board::Direction;

/// A parsed response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The word in the response: a direction, `still`, or nothing ("").
    pub action: &'static str,
    /// The direction, if the word was one.
    pub direction: Option<Direction>,
    /// The response had the right form.
    pub valid: bool,
}

const NOTHING: Reading = Reading { action: "", direction: None, valid: false };

/// Parses `<think>…</think><action>…</action>`: between the first `<action>` and the first `</action>` (case ignored)
/// the first of up, down, left, right, still that occurs anywhere, tried in this order. Without the think tags (exactly
/// in lower case) the action counts but is not valid.
pub fn tagged(response: &str) -> Reading {
    const OPEN: &str = "<action>";
    let lower = response.to_lowercase();
    let (Some(open), Some(close)) = (lower.find(OPEN), lower.find("</action>")) else { return NOTHING };
    // A closing tag in front of the opening one leaves nothing between them.
    let Some(inside) = lower.get(open + OPEN.len()..close) else { return NOTHING };
    let valid = nestor_plugin::parse::has_think(response);
    match words().find(|(word, _)| inside.contains(word)) {
        Some((action, direction)) => Reading { action, direction, valid },
        None => NOTHING,
    }
}

/// Parses a line that is the command itself; white space and case are ignored.
pub fn raw(line: &str) -> Reading {
    let line = line.trim().to_lowercase();
    match words().find(|(word, _)| line == *word) {
        Some((action, direction)) => Reading { action, direction, valid: true },
        None => NOTHING,
    }
}

/// The player's words, in the order in which they are tried.
fn words() -> impl Iterator<Item = (&'static str, Option<Direction>)> {
    Direction::ALL.into_iter().map(|d| (d.name(), Some(d))).chain([("still", None)])
}
