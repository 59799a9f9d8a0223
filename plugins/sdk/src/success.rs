//! Tests of an episode's success.

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::returns::Order;
use crate::{Asked, Column, Rows};

/// Defines which episodes count as solved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Success {
    /// The environment's flag.
    #[default]
    Flag,
    /// The sum of the episode's rewards is above this number.
    ReturnAbove(f64),
    /// The sum of the episode's rewards equals this number.
    ReturnEquals(f64),
}

impl Success {
    /// Returns the columns that [`Success::read`] needs.
    pub fn columns(self) -> Vec<Asked> {
        if self == Self::Flag { vec![Column::Success.into()] } else { vec![] }
    }

    /// `[B]` Returns whether the episode of each row was solved.
    pub fn read(self, rows: &Rows<'_>, order: &Order) -> Result<Vec<bool>> {
        let solved = |test: &dyn Fn(f64) -> bool| order.episode_sums(rows.reward).into_iter().map(test).collect();
        Ok(match self {
            Self::Flag => rows.success()?.iter().map(|&flag| flag == 1).collect(),
            Self::ReturnAbove(bound) => solved(&|sum| sum > bound),
            Self::ReturnEquals(number) => solved(&|sum| sum == number),
        })
    }
}
