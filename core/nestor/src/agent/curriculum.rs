//! Draws training tasks by the policy's recent success on them (`rollout.curriculum`).
//!
//! A task whose episodes win with probability p gives returns of variance p (1 - p): none where all win or all lose. It
//! weighs 4 p (1 - p), at least the floor, and 1 while it has not been played. An iteration draws without replacement.
//! Only played tasks are stored, because a split may have more tasks than memory holds.

use std::collections::BTreeSet;

use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use super::tasks::TaskCursor;
use crate::engine::{NoiseKey, noise};
use crate::recipe::Curriculum;
use crate::track::Metrics;

/// Success on the tasks played so far. Part of a checkpoint, which never holds the draws of an iteration under way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskHistory {
    /// In the order of tasks.
    played: Vec<Played>,
    #[serde(skip)]
    drawn: Drawn,
}

/// The success of a task's last groups, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Played {
    task: u64,
    success: Vec<f64>,
}

impl Played {
    fn weight(&self, floor: f64) -> f64 {
        let p = self.success.iter().sum::<f64>() / self.success.len().max(1) as f64;
        (4.0 * p * (1.0 - p)).max(floor)
    }
}

/// The draws of the iteration under way.
#[derive(Debug, Clone, Default, PartialEq)]
struct Drawn {
    /// Its tasks since all tasks of the split were drawn last.
    tasks: BTreeSet<u64>,
    count: DrawnTasks,
}

/// Counts of the tasks that an iteration drew.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DrawnTasks {
    drawn: u64,
    /// Those not played before.
    new: u64,
    /// Sum of their weights.
    weight: f64,
    /// Tasks with a known success after the iteration.
    seen: u64,
}

impl DrawnTasks {
    /// Adds those of another environment.
    pub fn add(&mut self, other: Self) {
        let Self { drawn, new, weight, seen } = other;
        self.drawn += drawn;
        self.new += new;
        self.weight += weight;
        self.seen += seen;
    }

    pub fn report(&self, metrics: &mut Metrics) {
        let drawn = self.drawn.max(1) as f64;
        metrics.set("curriculum/weight", self.weight / drawn);
        metrics.set("curriculum/new_ratio", self.new as f64 / drawn);
        metrics.set("curriculum/tasks_seen", self.seen as f64);
    }
}

impl TaskHistory {
    /// True if no task has been played.
    pub fn is_empty(&self) -> bool {
        self.played.is_empty()
    }

    /// The next `n` tasks of the split that the cursor counts.
    pub fn draw(&mut self, n: usize, cursor: &mut TaskCursor, settings: &Curriculum) -> Vec<u64> {
        let mut urn = None;
        let mut tasks = Vec::with_capacity(n);
        for number in cursor.advance(n) {
            if self.drawn.tasks.len() as u64 == cursor.count() {
                self.drawn.tasks.clear();
                urn = None;
            }
            // A draw of a task that is out is repeated from an urn without it. That is drawing without replacement.
            let mut attempt = 0;
            let task = loop {
                let urn = urn.get_or_insert_with(|| self.urn(cursor.count(), settings.floor));
                let task = urn.draw(
                    NoiseKey { stream: noise::CURRICULUM, iteration: number, episode: attempt, ..NoiseKey::default() }
                        .rng(cursor.seed(), 0),
                );
                if self.drawn.tasks.insert(task) {
                    break task;
                }
                *urn = self.urn(cursor.count(), settings.floor);
                attempt += 1;
            };
            let known = self.find(task).ok().map(|index| self.played[index].weight(settings.floor));
            self.drawn.count.add(DrawnTasks {
                drawn: 1,
                new: u64::from(known.is_none()),
                weight: known.unwrap_or(1.0),
                seen: 0,
            });
            tasks.push(task);
        }
        tasks
    }

    /// Ends the iteration: adds the success of its groups in the order played, and counts its draws.
    pub fn finish(&mut self, groups: &[(u64, f64)], settings: &Curriculum) -> DrawnTasks {
        let Drawn { count, .. } = std::mem::take(&mut self.drawn);
        for &(task, success) in groups {
            let index = self.find(task).unwrap_or_else(|index| {
                self.played.insert(index, Played { task, success: Vec::new() });
                index
            });
            let last = &mut self.played[index].success;
            last.push(success);
            last.drain(..last.len().saturating_sub(settings.window as usize));
        }
        DrawnTasks { seen: self.played.len() as u64, ..count }
    }

    fn find(&self, task: u64) -> Result<usize, usize> {
        self.played.binary_search_by_key(&task, |played| played.task)
    }

    /// The tasks that this iteration has not drawn yet, of a split of `count`.
    fn urn(&self, count: u64, floor: f64) -> Urn {
        let mut total = 0.0;
        let left = self.played.iter().filter(|played| !self.drawn.tasks.contains(&played.task));
        let played = left.map(|played| {
            total += played.weight(floor);
            (total, played.task)
        });
        let played = played.collect();
        let mut out = self.drawn.tasks.clone();
        out.extend(self.played.iter().map(|played| played.task));
        let new = count - out.len() as u64;
        Urn { played, total, before: (0..).zip(out).map(|(index, task)| task - index).collect(), new }
    }
}

/// Weighted tasks to draw one from.
struct Urn {
    /// Played tasks, each with the sum of the weights up to its own.
    played: Vec<(f64, u64)>,
    total: f64,
    /// For each task that is played or drawn, in their order: the number of others before it.
    before: Vec<u64>,
    /// The number of those others, which weigh 1 each.
    new: u64,
}

impl Urn {
    fn draw(&self, mut rng: impl Rng) -> u64 {
        let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let at = uniform * (self.total + self.new as f64);
        if self.new == 0 || at < self.total {
            let index = self.played.partition_point(|(sum, _)| *sum <= at);
            return self.played[index.min(self.played.len() - 1)].1; // a product may round up to the sum
        }
        let rank = ((u128::from(rng.next_u64()) * u128::from(self.new)) >> 64) as u64;
        rank + self.before.partition_point(|&before| before <= rank) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::CurriculumMeasure;

    fn settings(window: u32, floor: f64) -> Curriculum {
        Curriculum { by: CurriculumMeasure::Success, window, floor }
    }

    /// Plays one task per iteration `times` times without noting its success; returns how often each was drawn.
    fn frequencies(history: &TaskHistory, count: u64, settings: &Curriculum, times: usize) -> Vec<f64> {
        let (mut cursor, mut drawn) = (TaskCursor::new(count, 3), vec![0.0; count as usize]);
        for _ in 0..times {
            let mut history = history.clone();
            drawn[history.draw(1, &mut cursor, settings)[0] as usize] += 1.0 / times as f64;
        }
        drawn
    }

    #[test]
    fn tasks_are_drawn_by_their_weights() {
        let settings = settings(2, 0.25);
        let mut history = TaskHistory::default();
        // Two groups count: task 0 is hopeless, 1 is solved, 2 wins half, 4 wins 90 %; nobody has played 3.
        let groups = [(0, 1.0), (0, 0.0), (0, 0.0), (1, 1.0), (2, 1.0), (2, 0.0), (4, 0.8), (4, 1.0)];
        history.finish(&groups, &settings);
        let weights = [0.25, 0.25, 1.0, 1.0, 0.36];
        let drawn = frequencies(&history, 5, &settings, 20_000);
        for (task, weight) in weights.iter().enumerate() {
            let expected = weight / weights.iter().sum::<f64>();
            assert!((drawn[task] - expected).abs() < 0.012, "task {task}: {} instead of {expected}", drawn[task]);
        }
    }

    #[test]
    fn an_iteration_repeats_no_task_before_all_are_drawn() {
        let settings = settings(1, 0.01);
        let mut history = TaskHistory::default();
        history.finish(&[(1, 1.0), (3, 0.5), (5, 0.0)], &settings);
        let mut cursor = TaskCursor::new(7, 1);
        let mut first = history.draw(4, &mut cursor, &settings);
        first.extend(history.draw(3, &mut cursor, &settings)); // a later round of the same iteration
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4, 5, 6]);
        let mut again = history.draw(7, &mut cursor, &settings);
        again.sort_unstable();
        assert_eq!(again, [0, 1, 2, 3, 4, 5, 6]);
        let mut metrics = Metrics::new();
        history.finish(&[], &settings).report(&mut metrics);
        assert_eq!(metrics.get("curriculum/new_ratio"), Some(8.0 / 14.0));
        let weight = metrics.get("curriculum/weight").unwrap_or(0.0);
        assert!((weight - 2.0 * (4.0 + 1.0 + 0.02) / 14.0).abs() < 1e-12, "{weight}");
        assert_eq!(metrics.get("curriculum/tasks_seen"), Some(3.0));
    }

    #[test]
    fn a_huge_split_is_drawn_from_everywhere() {
        let settings = settings(1, 0.1);
        let mut history = TaskHistory::default();
        history.finish(&[(0, 0.5), (u64::MAX - 1, 0.5)], &settings);
        let tasks = history.draw(64, &mut TaskCursor::new(u64::MAX, 1), &settings);
        let late = tasks.iter().filter(|&&task| task > u64::MAX / 2).count();
        assert!((16..=48).contains(&late), "{late} of 64 are from the second half");
    }

    #[test]
    fn a_saved_history_draws_as_the_one_in_memory() -> anyhow::Result<()> {
        let settings = settings(3, 0.1);
        let (mut history, mut cursor) = (TaskHistory::default(), TaskCursor::new(20, 3));
        for iteration in 0..5 {
            let tasks = history.draw(6, &mut cursor, &settings);
            let groups: Vec<_> = tasks.iter().map(|&task| (task, ((task + iteration) % 5) as f64 / 4.0)).collect();
            history.finish(&groups, &settings);
        }
        let (mut saved, mut at): (TaskHistory, TaskCursor) =
            serde_json::from_str(&serde_json::to_string(&(&history, &cursor))?)?;
        assert_eq!(saved, history);
        assert_eq!(saved.draw(9, &mut at, &settings), history.draw(9, &mut cursor, &settings));
        Ok(())
    }
}
