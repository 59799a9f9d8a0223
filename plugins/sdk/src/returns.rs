//! Time order: the steps of an episode one after the other, and sums along them, in float64.
//!
//! Copies of rows are outside this order. A copy has the value and the neighbours of its source.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::Rows;

/// The rows of each episode in the order played, without copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The rows of each episode.
    pub episodes: Vec<Vec<usize>>,
    /// `[B]` The row itself, or the source of a copy.
    source: Vec<usize>,
}

impl Order {
    /// Reads the order of some rows. A copy of a row that does not exist is an error.
    pub fn of(rows: &Rows<'_>) -> Result<Self> {
        let mut episodes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut source = Vec::with_capacity(rows.len());
        for row in 0..rows.len() {
            match usize::try_from(rows.duplicate_of[row]) {
                Ok(original) => {
                    ensure!(original < rows.len(), "row {row} is a copy of row {original}, which does not exist");
                    source.push(original);
                }
                Err(_) => {
                    episodes.entry(rows.episode[row]).or_default().push(row);
                    source.push(row);
                }
            }
        }
        let mut episodes: Vec<Vec<usize>> = episodes.into_values().collect();
        for steps in &mut episodes {
            steps.sort_unstable_by_key(|&row| rows.step[row]);
        }
        Ok(Self { episodes, source })
    }

    /// Returns the row itself, or the source of a copy.
    pub fn source(&self, row: usize) -> usize {
        self.source[row]
    }

    /// Gives each copy the value of its source.
    pub fn fill_copies<T: Clone>(&self, values: &mut [T]) {
        for (row, &source) in self.source.iter().enumerate().filter(|&(row, &source)| row != source) {
            values[row] = values[source].clone();
        }
    }

    /// `[B]` Returns the next row of the same episode; none for its last step.
    pub fn next(&self) -> Vec<Option<usize>> {
        self.neighbours(|pair| (pair[0], pair[1]))
    }

    /// `[B]` Returns the previous row of the same episode; none for its first step.
    pub fn previous(&self) -> Vec<Option<usize>> {
        self.neighbours(|pair| (pair[1], pair[0]))
    }

    fn neighbours(&self, of_pair: impl Fn(&[usize]) -> (usize, usize)) -> Vec<Option<usize>> {
        let mut neighbours = vec![None; self.source.len()];
        for (row, neighbour) in self.episodes.iter().flat_map(|steps| steps.windows(2)).map(of_pair) {
            neighbours[row] = Some(neighbour);
        }
        self.fill_copies(&mut neighbours);
        neighbours
    }

    /// `[B]` Returns the number of steps from a row to the end of its episode: 1 for the last one.
    pub fn steps_left(&self) -> Vec<u32> {
        let mut left = vec![0; self.source.len()];
        for steps in &self.episodes {
            for (number, &row) in (1..).zip(steps.iter().rev()) {
                left[row] = number;
            }
        }
        self.fill_copies(&mut left);
        left
    }

    /// `[B]` Returns the sum of a value over the episode of each row, and so the return of an episode from its rewards.
    pub fn episode_sums(&self, values: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; values.len()];
        for steps in &self.episodes {
            let sum: f64 = steps.iter().map(|&row| values[row]).sum();
            steps.iter().for_each(|&row| sums[row] = sum);
        }
        self.fill_copies(&mut sums);
        sums
    }

    /// `[B]` Returns the discounted sums y_t = x_t + factor y_t+1 from each step to the end of its episode.
    pub fn discounted_sums(&self, values: &[f64], factor: f64) -> Vec<f64> {
        let mut sums = vec![0.0; values.len()];
        for steps in &self.episodes {
            let mut next = 0.0;
            for &row in steps.iter().rev() {
                next = values[row] + factor * next;
                sums[row] = next;
            }
        }
        self.fill_copies(&mut sums);
        sums
    }
}

/// Subtracts the penalty of each row from its value.
pub fn penalise(rows: &Rows<'_>, values: &mut [f64]) {
    for (value, penalty) in values.iter_mut().zip(rows.penalty) {
        *value -= penalty;
    }
}

/// The discounted return R of each step, R_t = r_t + gamma R_t+1, less the step's own penalty (Eq. 5 of the GiGPO paper).
/// Copies take their source's return. The penalty is subtracted after discounting, so that it never reaches earlier steps.
pub fn step_returns(rows: &Rows<'_>, gamma: f64) -> Result<Vec<f64>> {
    let mut returns = Order::of(rows)?.discounted_sums(rows.reward, gamma);
    penalise(rows, &mut returns);
    Ok(returns)
}
