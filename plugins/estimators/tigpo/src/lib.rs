//! TIGPO (arXiv:2609.03383), FROM NOTES ONLY. No code is public, and the notes leave open how scores and edges are counted:
//! numbers of this plugin are no reproduction of the paper. It is an example of an estimator with saved state: GraphGPO on a
//! graph for each task that keeps the edges of earlier iterations,
//!
//! ```text
//! A_i = step_weight Z_C(q_i) + episode_weight (S_i - mean) / (std + 1e-6)     C: rows of i's group with i's state
//! q_i = 10 gamma^d(n_i), less the step's own penalty      d: distance to success over the task's edges, old and new
//! ```
//!
//! Z_C standardises over current rows only. Mean and std, with n - 1, are those of the task's scores at its last visit and
//! now (`reference: false`: now only). Old rows never train: they count in d, mean and std. `norm: none` omits divisions.
//! The paper also visits half of the tasks again after 10 updates; here the recipe decides. No edge is dropped.

#![forbid(unsafe_code)]

mod config;
mod memory;

use std::collections::BTreeMap;

use anyhow::Result;
use nestor_plugin::anchor::anchor_group;
use nestor_plugin::graph::edge;
use nestor_plugin::returns::penalise;
use nestor_plugin::stats::{Spread, Summary, counted, group_advantages, group_by, row_scores};
use nestor_plugin::{Asked, Column, Columns, Estimator, Needs, Parts, Rows, Scores};

use self::config::Config;
use self::memory::{Link, Task, link};

pub struct Tigpo {
    config: Config,
    /// The memory of each task.
    tasks: BTreeMap<u64, Task>,
    /// Those of the last score, which the memory has learned since.
    parts: Vec<Vec<f64>>,
}

impl Estimator for Tigpo {
    const ID: &'static str = "tigpo";
    const DOC: &'static str = "TIGPO, from notes: GraphGPO on graphs and scores that it remembers for each task";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self { config, tasks: BTreeMap::new(), parts: vec![] })
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let Config { norm, weighting, gamma, step_weight, episode_weight, reference, .. } = self.config;
        let (keys, task, scores) = (self.config.anchor.read(rows)?, rows.task()?, row_scores(rows));
        let solved = self.config.success.read(rows, &keys.order)?;
        let (mut values, mut episodes) = (vec![0.0; rows.len()], vec![0.0; rows.len()]);
        let mut seen = Vec::new();
        for group in group_by(rows.group) {
            let of_row = |&row: &usize| edge(&keys, row, solved[row]).map(link);
            let links: Vec<Link> = group.iter().map(of_row).collect::<Result<_>>()?;
            let (past, now) = (self.tasks.get(&task[group[0]]), counted(rows, &group, &scores, weighting));
            let earlier = past.filter(|_| reference).map_or(&[][..], |past| &past.scores);
            let Some(summary) = Summary::of_scores(&[earlier, &now].concat()) else { continue };
            for (&row, distance) in group.iter().zip(memory::distances(past, &links)) {
                values[row] = 10.0 * gamma.powf(distance);
                episodes[row] = summary.advantage(scores[row], norm);
            }
            seen.push((task[group[0]], (links, now)));
        }
        penalise(rows, &mut values);
        let states = keys.states(rows, None)?;
        let steps = group_advantages(&values, &group_by(&states), norm, Spread::Sample);
        self.parts = vec![episodes, steps, anchor_group(&states)];
        seen.into_iter().for_each(|(task, seen)| self.tasks.entry(task).or_default().learn(seen));
        out.metric("tasks", self.tasks.len() as f64);
        out.weighted_sum::<Self>(rows, &self.parts, &[episode_weight, step_weight])
    }
}

impl Parts for Tigpo {
    const NAMES: &'static [&'static str] = &["episode_advantage", "step_advantage", "anchor_group"];

    fn parts(&self, _: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        Ok(self.parts.clone())
    }
}

impl Columns for Tigpo {
    fn columns(&self) -> Vec<Asked> {
        let own = vec![Column::Task.into(), Column::NextAnchor.into()];
        [own, self.config.anchor.columns(), self.config.success.columns()].concat()
    }
}

nestor_plugin::export! { estimators: [Tigpo + parts + columns + state] }

#[cfg(test)]
mod tests;
