//! GraphGPO (arXiv 2605.26684): steps are worth more the nearer they lead to success in the graph of all visited states.
//!
//! In each group every step is an edge from its state to the next one; the last step of a successful episode leads to the
//! node "success". d(x) is the number of edges from x to that node.
//!
//! ```text
//! A_i = step_weight (q_i - mean_C q) / (std_C q + 1e-6) + episode_weight AE_i      C: rows of i's group with i's anchor
//! q_i = 10 gamma^d(n_i), or 10 gamma^(d(n_i) - d(s_i) + 1); then less the step's own penalty
//! ```
//!
//! AE is GRPO's. A state that does not reach success has the largest finite distance plus 1; without any success all have 1.
//! Success is the environment's flag; the published code takes a return above 0.

use std::collections::HashMap;

use nestor_plugin::anyhow::{Context, Result, ensure};
use nestor_plugin::difflib::Text;
use nestor_plugin::stats::{Norm, Summary, Weighting, episode_advantages, group_by};
use nestor_plugin::{Asked, Bytes, Column, Columns, Estimator, Needs, Rows, Scores, schemars, serde};

/// The node that successful episodes end in.
const SUCCESS: &[u8] = b"success";

struct GraphGpo(Config);

/// The keys of `estimator.config`.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(crate = "nestor_plugin::serde", deny_unknown_fields)]
#[schemars(crate = "nestor_plugin::schemars")]
struct Config {
    /// Divide by standard deviations, on both levels, or not.
    #[serde(default)]
    norm: Norm,
    /// Factor for each edge between a state and success.
    #[serde(default = "default_gamma")]
    gamma: f64,
    /// Compare the distance after a step with that before it.
    #[serde(default)]
    normalize_distance: bool,
    /// Weight of the step-level advantage.
    #[serde(default = "one")]
    step_weight: f64,
    /// Weight of the episode-level advantage.
    #[serde(default = "one")]
    episode_weight: f64,
    /// States at least this similar (difflib's ratio) are one node of the graph; null: only equal ones.
    #[serde(default)]
    similarity: Option<f64>,
}

fn default_gamma() -> f64 {
    0.1
}

fn one() -> f64 {
    1.0
}

impl Estimator for GraphGpo {
    const ID: &'static str = "graphgpo";
    const DOC: &'static str = "GraphGPO: distances to success in the graph of all visited states";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let gamma = config.gamma;
        ensure!(gamma > 0.0 && gamma <= 1.0, "config key `gamma` must be above 0 and at most 1, not {gamma}");
        Ok(Self(config))
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let Config { norm, step_weight, episode_weight, .. } = self.0;
        let anchors = rows.anchors.context("the host gave no anchors")?;
        let mut advantages = episode_advantages(rows, norm, Weighting::Row);
        advantages.iter_mut().for_each(|advantage| *advantage *= episode_weight);
        for group in group_by(rows.group) {
            let values = self.step_values(rows, &anchors, &group)?;
            for state in group_by(group.iter().map(|&row| anchors.of(row))) {
                let own: Vec<f64> = state.iter().map(|&member| values[member]).collect();
                let Some(summary) = Summary::of(&own) else { continue };
                for (&member, &value) in state.iter().zip(&own) {
                    advantages[group[member]] += step_weight * summary.advantage(value, norm);
                }
            }
        }
        out.broadcast(rows, &advantages);
        Ok(())
    }
}

impl Columns for GraphGpo {
    fn columns(&self) -> Vec<Asked> {
        vec![Column::NextAnchor.into(), Column::Success.into()]
    }
}

impl GraphGpo {
    /// q of each row of a group.
    fn step_values(&self, rows: &Rows<'_>, anchors: &Bytes<'_>, group: &[usize]) -> Result<Vec<f64>> {
        let (next_anchors, won) = (rows.next_anchor()?, rows.success()?);
        let next = |row: usize| {
            let ends = rows.terminated[row] + rows.truncated[row] > 0;
            if ends && won[row] == 1 { SUCCESS } else { next_anchors.of(row) }
        };
        let states = group.iter().flat_map(|&row| [anchors.of(row), next(row)]).chain([SUCCESS]);
        let nodes = nodes(states, self.0.similarity)?;
        let edges: Vec<_> = group.iter().map(|&row| (nodes[anchors.of(row)], nodes[next(row)])).collect();
        let distance = distances(&edges, nodes[SUCCESS], nodes.len());
        let value = |(&row, &(from, to)): (&usize, &(usize, usize))| {
            let before = if self.0.normalize_distance { distance[from] - 1.0 } else { 0.0 };
            10.0 * self.0.gamma.powf(distance[to] - before) - rows.penalty[row]
        };
        Ok(group.iter().zip(&edges).map(value).collect())
    }
}

/// Numbers of states in the order met. A state that is similar to the first one of a number shares it.
fn nodes<'a>(states: impl Iterator<Item = &'a [u8]>, similarity: Option<f64>) -> Result<HashMap<&'a [u8], usize>> {
    let (mut numbers, mut first): (HashMap<&[u8], usize>, Vec<Text>) = (HashMap::new(), Vec::new());
    for state in states {
        let next = numbers.len();
        if let (Some(threshold), false) = (similarity, numbers.contains_key(state)) {
            let text = Text::new(std::str::from_utf8(state).context("`similarity` compares texts; an anchor is none")?);
            let near = first.iter().position(|first| text.similar(first, threshold));
            numbers.insert(state, near.unwrap_or(first.len()));
            first.extend(near.is_none().then_some(text));
        }
        numbers.entry(state).or_insert(next);
    }
    Ok(numbers)
}

/// The number of edges between each node and success, by Bellman and Ford.
fn distances(edges: &[(usize, usize)], success: usize, nodes: usize) -> Vec<f64> {
    let mut distance = vec![f64::INFINITY; nodes];
    distance[success] = 0.0;
    for _ in 1..nodes {
        edges.iter().for_each(|&(from, to)| distance[from] = distance[from].min(distance[to] + 1.0));
    }
    let largest = distance.iter().copied().filter(|d| d.is_finite()).fold(0.0, f64::max);
    distance.into_iter().map(|d| d.min(largest + 1.0)).collect()
}

nestor_plugin::export! { estimators: [GraphGpo + columns] }

#[cfg(test)]
mod tests;
