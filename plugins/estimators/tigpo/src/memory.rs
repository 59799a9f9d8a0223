//! The memory of a task: the edges between its states, and its scores. The saved state holds it for every task.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use nestor_plugin::graph::{Edge, SUCCESS, distances_or_beyond};
use nestor_plugin::{State, serde_json};
use serde::{Deserialize, Serialize};

use crate::Tigpo;

/// An edge by the fingerprints of its states.
pub type Link = (u64, u64);

/// The memory of a task.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Task {
    /// Edges of all iterations.
    pub links: BTreeSet<Link>,
    /// Scores of the last iteration that had the task.
    pub scores: Vec<f64>,
}

impl Task {
    /// Takes the edges and scores of an iteration.
    pub fn learn(&mut self, (links, scores): (Vec<Link>, Vec<f64>)) {
        self.links.extend(links);
        self.scores = scores;
    }
}

/// Returns an edge by fingerprints: FNV-1a of 64 bits, since a task has far fewer than 2^32 states.
pub fn link((from, to): Edge<'_>) -> Link {
    (fingerprint(from), fingerprint(to))
}

fn fingerprint(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the distance to success from the end of each current edge, over these and the remembered edges.
pub fn distances(past: Option<&Task>, now: &[Link]) -> Vec<f64> {
    let mut numbers: BTreeMap<u64, usize> = BTreeMap::new();
    let mut number = |key: u64| {
        let next = numbers.len();
        *numbers.entry(key).or_insert(next)
    };
    let goal = number(fingerprint(SUCCESS));
    let all = now.iter().chain(past.iter().flat_map(|task| &task.links));
    let edges: Vec<(usize, usize)> = all.map(|&(from, to)| (number(from), number(to))).collect();
    let distances = distances_or_beyond(&edges, goal, numbers.len());
    edges[..now.len()].iter().map(|&(_, to)| distances[to]).collect()
}

impl State for Tigpo {
    fn save(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.tasks)?)
    }

    fn load(&mut self, state: &[u8]) -> Result<()> {
        self.tasks = serde_json::from_slice(state)?;
        Ok(())
    }
}
