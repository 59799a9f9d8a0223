//! The reward of an answer, by comparison with the task's.

use std::sync::LazyLock;

use anyhow::{Result, ensure};
use regex::Regex;

use crate::config::{Match, Reward};

/// The end of a thought.
const THOUGHT: &str = "</think>";

#[expect(clippy::unwrap_used, reason = "a constant pattern")]
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?|-?\.\d+").unwrap());

impl Reward {
    /// Refuses an answer of a task that no text could equal.
    pub fn check_answer(&self, answer: &str) -> Result<()> {
        match self.answer {
            Some(Match::Number) => {
                ensure!(last_number(answer).is_some(), "`answer` is {answer:?}, which has no number");
            }
            Some(Match::Contains) => ensure!(!answer.trim().is_empty(), "`answer` is empty, and any text contains it"),
            _ => {}
        }
        Ok(())
    }

    /// 1 for the right answer, 0 for any other.
    pub fn of(&self, rule: Match, said: &str, right: &str) -> f64 {
        let is_right = match rule {
            Match::Exact => said == right.trim(),
            Match::Contains => said.contains(right.trim()),
            Match::Number => match (last_number(said), last_number(right)) {
                (Some(said), Some(right)) => (said - right).abs() <= self.tolerance * right.abs().max(1.0),
                _ => false,
            },
        };
        f64::from(u8::from(is_right))
    }
}

/// The answer in the content of a response: the text behind its thought.
pub fn answer(content: &str) -> &str {
    content.rsplit_once(THOUGHT).map_or(content, |(_, behind)| behind).trim()
}

fn last_number(text: &str) -> Option<f64> {
    NUMBER.find_iter(text).last()?.as_str().replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_by_the_rule() {
        let reward = Reward { answer: None, tolerance: 1e-6, score_tool: None };
        for (rule, said, right, expected) in [
            (Match::Exact, "12", " 12\n", 1.0),
            (Match::Exact, "It is 12", "12", 0.0),
            (Match::Contains, "It is Rome.", "Rome", 1.0),
            (Match::Contains, "It is rome.", "Rome", 0.0),
            (Match::Number, "First 3, then 1,234.50 dollars.", "1234.5", 1.0),
            (Match::Number, "12 or 13", "12", 0.0),
            (Match::Number, "-1.5e3", "-1500", 1.0),
            (Match::Number, "1000000.5", "1000000", 1.0),
            (Match::Number, "1000002", "1000000", 0.0),
            (Match::Number, "1, 2, 3", "3", 1.0),
            (Match::Number, "none", "3", 0.0),
        ] {
            assert_eq!(reward.of(rule, said, right), expected, "{rule:?} {said}");
        }
        assert_eq!(answer("<think>\n5\n</think>\n\n 6 "), "6");
    }
}
