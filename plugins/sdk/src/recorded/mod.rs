//! Recorded steps: the JSON form that `nestor advantage` reads and that tests keep, and its conversion to columns.

pub mod cases;
mod named;
mod order;

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{Bytes, Column, Rows, Values, View};
pub use named::NamedCells;

/// The recorded steps of one iteration.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Recorded {
    /// The steps; those of one episode in the order played.
    pub rows: Vec<RecordedRow>,
    /// The discount with which the steps were recorded.
    #[serde(default)]
    pub gamma: Option<f64>,
    /// The penalty of an invalid response.
    #[serde(default)]
    pub penalty_coef: f64,
    /// The split of the tasks (column `split`).
    #[serde(default)]
    pub split: Option<String>,
    /// Number of the iteration (column `iteration`).
    #[serde(default)]
    pub iteration: Option<u64>,
}

/// One recorded step.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct RecordedRow {
    /// Number of the group.
    pub group: u32,
    /// Name of the episode, unique inside its group.
    pub traj: String,
    /// Key of the state in which the step was taken.
    pub anchor: String,
    /// The environment's reward of the step.
    pub reward: f64,
    /// Undiscounted sum of the episode's rewards. If omitted, it is computed from its rows.
    #[serde(default)]
    pub episode_reward: Option<f64>,
    /// The response had the right form.
    pub valid: bool,
    /// Number of response tokens.
    pub resp_len: u32,
    /// Number of the row that this one copies.
    #[serde(default)]
    pub dup_of: Option<usize>,
    /// The critic's values, `resp_len + 1` of them.
    #[serde(default)]
    pub values: Option<Vec<f32>>,
    /// Rewards per token, everything included. If omitted, the last token carries the episode reward, less the penalty
    /// of an invalid response.
    #[serde(default)]
    pub token_rewards: Option<Vec<f64>>,
    /// Cells of the columns that estimators ask for by name.
    #[serde(flatten)]
    pub named: NamedCells,
}

/// Owned columns; [`Columns::view`] borrows them as [`Rows`].
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // the fields of `Rows`
pub struct Columns {
    pub group: Vec<u32>,
    pub episode: Vec<u32>,
    pub step: Vec<u32>,
    pub sequence: Vec<u32>,
    pub span_start: Vec<u32>,
    pub span_length: Vec<u32>,
    pub reward: Vec<f64>,
    pub penalty: Vec<f64>,
    pub valid: Vec<u8>,
    pub terminated: Vec<u8>,
    pub truncated: Vec<u8>,
    pub anchor_data: Vec<u8>,
    pub anchor_offsets: Vec<u64>,
    pub duplicate_of: Vec<i64>,
    pub token_offsets: Vec<u64>,
    pub token_rewards: Vec<f64>,
    pub values: Option<Vec<f32>>,
    pub logprobs: Option<Vec<f32>>,
    pub ref_logprobs: Option<Vec<f32>>,
    pub named: Vec<(Column, Values)>,
}

impl Columns {
    /// Borrows the columns that the file has beside the usual ones, for [`Columns::view_with`].
    pub fn asked(&self) -> Vec<(Column, Option<View<'_>>)> {
        self.named.iter().map(|(column, values)| (column.clone(), Some(values.view()))).collect()
    }

    /// Borrows the usual columns.
    pub fn view(&self) -> Rows<'_> {
        self.view_with(&[])
    }

    /// Borrows the usual columns and those that were asked for.
    pub fn view_with<'a>(&'a self, asked: &'a [(Column, Option<View<'a>>)]) -> Rows<'a> {
        Rows {
            group: &self.group,
            episode: &self.episode,
            step: &self.step,
            sequence: &self.sequence,
            span_start: &self.span_start,
            span_length: &self.span_length,
            reward: &self.reward,
            penalty: &self.penalty,
            valid: &self.valid,
            terminated: &self.terminated,
            truncated: &self.truncated,
            anchors: Some(Bytes { data: &self.anchor_data, offsets: &self.anchor_offsets }),
            duplicate_of: &self.duplicate_of,
            token_offsets: &self.token_offsets,
            token_rewards: &self.token_rewards,
            values: self.values.as_deref(),
            logprobs: self.logprobs.as_deref(),
            ref_logprobs: self.ref_logprobs.as_deref(),
            asked,
        }
    }
}

impl Recorded {
    /// Converts the steps to columns. Every row is a sequence of its own without a prompt. The last step of an episode
    /// counts as its terminal one.
    pub fn columns(&self) -> Result<Columns> {
        let mut out = Columns { anchor_offsets: vec![0], token_offsets: vec![0], ..Columns::default() };
        let sums = self.episode_rewards();
        let mut episodes: HashMap<(u32, &str), u32> = HashMap::new();
        let mut steps: Vec<u32> = Vec::new();
        for (i, row) in self.rows.iter().enumerate() {
            self.check(i).with_context(|| format!("row {i}"))?;
            let next = episodes.len() as u32;
            let episode = *episodes.entry((row.group, &row.traj)).or_insert(next);
            steps.resize(episodes.len(), 0);
            out.group.push(row.group);
            out.episode.push(episode);
            out.step.push(steps[episode as usize]);
            steps[episode as usize] += u32::from(row.dup_of.is_none());
            out.sequence.push(i as u32);
            out.span_start.push(0);
            out.span_length.push(row.resp_len);
            out.reward.push(row.reward);
            let penalty = if row.valid { 0.0 } else { self.penalty_coef };
            out.penalty.push(penalty);
            out.valid.push(row.valid.into());
            out.truncated.push(0);
            out.anchor_data.extend_from_slice(row.anchor.as_bytes());
            out.anchor_offsets.push(out.anchor_data.len() as u64);
            out.duplicate_of.push(row.dup_of.map_or(-1, |source| source as i64));
            match &row.token_rewards {
                Some(rewards) => out.token_rewards.extend(rewards),
                None => {
                    out.token_rewards.extend(std::iter::repeat_n(0.0, row.resp_len as usize - 1));
                    out.token_rewards.push(row.episode_reward.unwrap_or(sums[&(row.group, &*row.traj)]) - penalty);
                }
            }
            out.token_offsets.push(out.token_rewards.len() as u64);
            if let Some(values) = &row.values {
                out.values.get_or_insert_default().extend(values);
            }
        }
        for (i, row) in self.rows.iter().enumerate() {
            if let Some(source) = row.dup_of {
                out.step[i] = out.step[source];
            }
        }
        out.terminated =
            out.episode.iter().zip(&out.step).map(|(&e, &s)| u8::from(s + 1 == steps[e as usize])).collect();
        out.named = named::columns(self)?;
        Ok(out)
    }

    /// The sum of the rewards of each episode, without copies.
    fn episode_rewards(&self) -> HashMap<(u32, &str), f64> {
        let mut sums = HashMap::new();
        for row in &self.rows {
            *sums.entry((row.group, &*row.traj)).or_insert(0.0) += if row.dup_of.is_none() { row.reward } else { 0.0 };
        }
        sums
    }

    /// Checks the rules that serde cannot.
    fn check(&self, i: usize) -> Result<()> {
        let row = &self.rows[i];
        ensure!(row.resp_len > 0, "resp_len must be at least 1");
        if let Some(source) = row.dup_of {
            let source =
                self.rows.get(source).with_context(|| format!("dup_of names row {source}, which does not exist"))?;
            ensure!(source.dup_of.is_none(), "dup_of names a row that is a copy itself");
            ensure!((source.group, &source.traj) == (row.group, &row.traj), "dup_of names a row of another episode");
        }
        if let Some(rewards) = &row.token_rewards {
            ensure!(
                rewards.len() == row.resp_len as usize,
                "{} token_rewards for {} tokens",
                rewards.len(),
                row.resp_len
            );
        }
        let values = row.values.as_ref().map(|v| v.len());
        ensure!(
            values.is_none_or(|n| n == row.resp_len as usize + 1),
            "values must be one more than the {} tokens",
            row.resp_len
        );
        ensure!(values.is_some() == self.rows[0].values.is_some(), "values must be given in all rows or in none");
        Ok(())
    }
}
