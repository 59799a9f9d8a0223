//! Graphs of the states that episodes visited.

use std::collections::VecDeque;

use anyhow::Result;

use crate::anchor::{Keys, number};

/// The key of the node that solved episodes end in.
pub const SUCCESS: &[u8] = b"success";

/// Keys of the states before and after a step.
pub type Edge<'a> = (&'a [u8], &'a [u8]);

/// Returns the edge of a step. The last step of a solved episode leads to [`SUCCESS`].
pub fn edge<'a>(keys: &'a Keys<'_>, row: usize, solved: bool) -> Result<Edge<'a>> {
    let wins = solved && keys.next(row).is_none();
    Ok((keys.before(row), if wins { SUCCESS } else { keys.after(row)? }))
}

/// Returns the distances to [`SUCCESS`] of both ends of each edge, as [`distances_or_beyond`] has them. With `similarity`, the
/// nodes are similar keys, in the order of the edges.
pub fn success_distances(edges: &[Edge<'_>], similarity: Option<f64>) -> Result<Vec<[f64; 2]>> {
    let nodes = number(edges.iter().flat_map(|&(from, to)| [from, to]).chain([SUCCESS]), similarity)?;
    let count = nodes.iter().max().map_or(0, |last| last + 1);
    let numbered: Vec<(usize, usize)> = nodes.chunks_exact(2).map(|ends| (ends[0], ends[1])).collect();
    let distances = distances_or_beyond(&numbered, nodes[nodes.len() - 1], count);
    Ok(numbered.into_iter().map(|(from, to)| [distances[from], distances[to]]).collect())
}

/// Returns the number of edges on the shortest path from each node to `goal`, by breadth-first search against the edges'
/// direction; none where there is no path.
pub fn distances(edges: &[(usize, usize)], goal: usize, nodes: usize) -> Vec<Option<u32>> {
    let mut sources = vec![Vec::new(); nodes];
    for &(from, to) in edges {
        sources[to].push(from);
    }
    let mut distance = vec![None; nodes];
    distance[goal] = Some(0);
    let mut queue = VecDeque::from([(goal, 0)]);
    while let Some((node, steps)) = queue.pop_front() {
        for &from in &sources[node] {
            if distance[from].is_none() {
                distance[from] = Some(steps + 1);
                queue.push_back((from, steps + 1));
            }
        }
    }
    distance
}

/// Returns the distances to `goal` as numbers. A node without a path has the largest distance of the others plus 1.
pub fn distances_or_beyond(edges: &[(usize, usize)], goal: usize, nodes: usize) -> Vec<f64> {
    let distances = distances(edges, goal, nodes);
    let beyond = distances.iter().flatten().max().map_or(0, |largest| largest + 1);
    distances.into_iter().map(|distance| f64::from(distance.unwrap_or(beyond))).collect()
}

/// Returns the least potentials V with V(x) = max(reward(x), gamma V(y) for every edge x to y), for rewards of at least 0
/// and gamma of at most 1 (RewardFlow, arXiv 2603.18859).
pub fn potentials(edges: &[(usize, usize)], rewards: &[f64], gamma: f64) -> Vec<f64> {
    let mut sources = vec![Vec::new(); rewards.len()];
    for &(from, to) in edges {
        sources[to].push(from);
    }
    let mut potential = rewards.to_vec();
    // It ends: a node returns only with a larger potential, and a path with a loop gives none.
    let mut queue: VecDeque<usize> = (0..rewards.len()).collect();
    while let Some(node) = queue.pop_front() {
        let reached = gamma * potential[node];
        for &from in &sources[node] {
            if reached > potential[from] {
                potential[from] = reached;
                queue.push_back(from);
            }
        }
    }
    potential
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 -> 1 -> 2 (goal), 3 -> 0, 0 -> 0, and 4 apart.
    const EDGES: [(usize, usize); 4] = [(0, 1), (1, 2), (3, 0), (0, 0)];

    #[test]
    fn distances_follow_the_edges_backwards() {
        assert_eq!(distances(&EDGES, 2, 5), [Some(2), Some(1), Some(0), Some(3), None]);
        assert_eq!(distances_or_beyond(&EDGES, 2, 5), [2.0, 1.0, 0.0, 3.0, 4.0]);
        assert_eq!(distances_or_beyond(&[(0, 0)], 1, 2), [1.0, 0.0]);
    }

    #[test]
    fn potentials_are_the_least_fixed_point() {
        let rewards = [0.0, 0.0, 8.0, 3.0, 0.5];
        assert_eq!(potentials(&EDGES, &rewards, 0.5), [2.0, 4.0, 8.0, 3.0, 0.5]);
        // A loop without a reward has potential 0, though every value of gamma V = V at gamma 1 would do.
        assert_eq!(potentials(&[(0, 1), (1, 0)], &[0.0, 0.0], 0.9), [0.0, 0.0]);
    }
}
