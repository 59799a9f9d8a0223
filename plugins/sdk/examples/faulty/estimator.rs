//! An estimator with columns, parts and a state, with one planted fault on demand.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use nestor_plugin::stats::{Summary, group_by, row_scores};
use nestor_plugin::{Asked, Column, Columns, Estimator, Parts, Rows, Scores, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scores against the group's mean and a running mean of the task.
pub struct PlantedEstimator {
    fault: Option<Fault>,
    /// By task: the number of batches and the sum of their means.
    seen: BTreeMap<u64, (u64, f64)>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default)]
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fault {
    WritesPast,
    Unwritten,
    NanEqualRewards,
    NanSingleEpisode,
    PanicOnEmptyRow,
    CountsCalls,
    NeedsRowOrder,
    CopiesGetNothing,
    OptionalColumnRequired,
    InfinitePart,
    StateForgets,
    LeakInScore,
}

impl PlantedEstimator {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn advantages(&self, rows: &Rows<'_>) -> Result<Vec<f64>> {
        let (scores, tasks) = (row_scores(rows), rows.task()?);
        let mut advantages = vec![0.0; rows.len()];
        for members in group_by(rows.group) {
            let of_group: Vec<f64> = members.iter().map(|&row| scores[row]).collect();
            let Some(Summary { mean, std, .. }) = Summary::of(&of_group) else { continue };
            let past = self.seen.get(&tasks[members[0]]).map_or(mean, |(count, sum)| sum / *count as f64);
            let one_episode = members.iter().all(|&row| rows.episode[row] == rows.episode[members[0]]);
            for row in members {
                advantages[row] = scores[row] - 0.5 * (mean + past);
                if self.has(Fault::NanSingleEpisode) && one_episode {
                    advantages[row] /= 0.0 * std;
                }
                if self.has(Fault::NeedsRowOrder) {
                    advantages[row] += row as f64;
                }
                if self.has(Fault::CopiesGetNothing) && rows.duplicate_of[row] >= 0 {
                    advantages[row] = 0.0;
                }
            }
        }
        if self.has(Fault::NanEqualRewards) && scores.iter().all(|score| *score == scores[0]) && scores[0] == 1.0 {
            advantages.fill(f64::NAN);
        }
        Ok(advantages)
    }
}

impl Estimator for PlantedEstimator {
    const ID: &'static str = "planted_estimator";
    const DOC: &'static str = "Running means with one planted fault.";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        Ok(Self { fault: config.fault, seen: BTreeMap::new() })
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let mut advantages = self.advantages(rows)?;
        match self.fault {
            Some(Fault::CountsCalls) => {
                let calls = CALLS.fetch_add(1, Ordering::Relaxed) as f64;
                advantages.iter_mut().for_each(|advantage| *advantage += calls);
            }
            Some(Fault::PanicOnEmptyRow) => {
                assert!((0..rows.len()).all(|row| !rows.tokens(row).is_empty()), "a row without tokens");
            }
            Some(Fault::OptionalColumnRequired) => ensure!(rows.entropy().is_ok(), "there are no entropies"),
            Some(Fault::LeakInScore) => std::mem::forget(black_box(vec![1u8; 256 << 10])),
            _ => {}
        }
        let unwritten = out.advantages.last().copied().filter(|_| self.fault == Some(Fault::Unwritten));
        out.broadcast(rows, &advantages);
        if let Some((last, unwritten)) = out.advantages.last_mut().zip(unwritten) {
            *last = unwritten;
        }
        if self.has(Fault::WritesPast) {
            // SAFETY: none; the host has room behind the end, where it looks for such a fault.
            unsafe { out.returns.as_mut_ptr().add(out.returns.len()).write(1.0) };
        }
        let (scores, tasks) = (row_scores(rows), rows.task()?);
        for members in group_by(rows.group) {
            let mean = members.iter().map(|&row| scores[row]).sum::<f64>() / members.len() as f64;
            let (count, sum) = self.seen.entry(tasks[members[0]]).or_default();
            *count += 1;
            *sum += mean;
        }
        Ok(())
    }
}

impl Columns for PlantedEstimator {
    fn columns(&self) -> Vec<Asked> {
        vec![Column::Task.into(), Column::Entropy.optional(), Column::Info("score".into()).into()]
    }
}

impl Parts for PlantedEstimator {
    const NAMES: &'static [&'static str] = &["row_score"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let mut scores = row_scores(rows);
        if self.has(Fault::InfinitePart) {
            scores[0] = f64::INFINITY;
        }
        Ok(vec![scores])
    }
}

impl State for PlantedEstimator {
    fn save(&self) -> Result<Vec<u8>> {
        let forgets = self.has(Fault::StateForgets);
        let kept: BTreeMap<_, _> = self.seen.iter().filter(|(task, _)| !forgets || **task % 2 == 0).collect();
        Ok(serde_json::to_vec(&kept)?)
    }

    fn load(&mut self, state: &[u8]) -> Result<()> {
        self.seen = serde_json::from_slice(state)?;
        Ok(())
    }
}
