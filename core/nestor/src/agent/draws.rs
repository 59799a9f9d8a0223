//! Draws the training tasks of a run: the environments by their weights, and the tasks of each in its own order.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::curriculum::{DrawnTasks, TaskHistory};
use super::tasks::{TaskCounts, TaskCursor};
use crate::recipe::Curriculum;
use crate::track::Metrics;

/// The draws of a run so far. Part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskDraws {
    /// In the order of the environments.
    members: Vec<MemberDraws>,
}

/// Those of one environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct MemberDraws {
    cursor: TaskCursor,
    /// The success that a curriculum draws by.
    history: TaskHistory,
}

impl TaskDraws {
    /// Draws that have not begun. The draws of the first environment do not depend on the others.
    pub fn new(counts: &TaskCounts, seed: u64) -> Self {
        let cursors = counts.cursors(seed).into_iter();
        Self { members: cursors.map(|cursor| MemberDraws { cursor, history: TaskHistory::default() }).collect() }
    }

    /// Number of tasks of each environment.
    pub fn counts(&self) -> TaskCounts {
        self.members.iter().map(|member| member.cursor.count()).collect()
    }

    /// True if both draw the same tasks in the same order, wherever they are.
    pub fn is_like(&self, other: &Self) -> bool {
        let alike = |(one, two): (&MemberDraws, &MemberDraws)| one.cursor.is_like(&two.cursor);
        self.members.len() == other.members.len() && self.members.iter().zip(&other.members).all(alike)
    }

    /// The next `n` tasks, by their numbers in the run. The next one is of the environment that is furthest behind its
    /// weight, by Sainte-Laguë's divisors, so that the shares are right in every part of a run.
    pub fn next(&mut self, n: usize, weights: &[f64], curriculum: Option<&Curriculum>) -> Vec<u64> {
        let mut drawn: Vec<u64> = self.members.iter().map(|member| member.cursor.position()).collect();
        let turns: Vec<usize> = (0..n)
            .map(|_| {
                let behind =
                    |&member: &usize| (2 * drawn[member] + 1) as f64 / weights.get(member).copied().unwrap_or(1.0);
                let next = (0..drawn.len()).min_by(|a, b| behind(a).total_cmp(&behind(b))).unwrap_or_default();
                drawn[next] += 1;
                next
            })
            .collect();
        let count = self.members.len() as u64;
        let mut tasks: Vec<_> = self
            .members
            .iter_mut()
            .enumerate()
            .map(|(number, member)| {
                let n = turns.iter().filter(|&&turn| turn == number).count();
                member.next(n, curriculum).into_iter().map(move |task| task * count + number as u64)
            })
            .collect();
        turns.into_iter().filter_map(|member| tasks[member].next()).collect()
    }

    /// Ends an iteration: a curriculum learns the success of its groups, each with its task, and sets its metrics.
    pub fn finish(&mut self, groups: &[(u64, f64)], curriculum: Option<&Curriculum>, metrics: &mut Metrics) {
        let Some(settings) = curriculum else {
            // It would be out of date when a later resume asks for it.
            self.members.iter_mut().for_each(|member| member.history = TaskHistory::default());
            return;
        };
        let count = self.members.len() as u64;
        let mut all = DrawnTasks::default();
        for (number, member) in (0..).zip(&mut self.members) {
            let own = groups.iter().filter(|(task, _)| task % count == number);
            let own: Vec<(u64, f64)> = own.map(|&(task, success)| (task / count, success)).collect();
            all.add(member.history.finish(&own, settings));
        }
        all.report(metrics);
    }
}

impl MemberDraws {
    fn next(&mut self, n: usize, curriculum: Option<&Curriculum>) -> Vec<u64> {
        match curriculum {
            Some(settings) => self.history.draw(n, &mut self.cursor, settings),
            None => self.cursor.next(n),
        }
    }
}

/// The form of draws in `state.json`: an object for one environment, and a list of them for several.
pub mod saved {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Member {
        #[serde(flatten)]
        cursor: TaskCursor,
        #[serde(default, skip_serializing_if = "TaskHistory::is_empty")]
        history: TaskHistory,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Members {
        One(Member),
        Several(Vec<Member>),
    }

    pub fn serialize<S: Serializer>(draws: &TaskDraws, serializer: S) -> Result<S::Ok, S::Error> {
        let member = |MemberDraws { cursor, history }: MemberDraws| Member { cursor, history };
        let mut all: Vec<Member> = draws.members.iter().cloned().map(member).collect();
        match (all.len(), all.pop()) {
            (1, Some(one)) => Members::One(one).serialize(serializer),
            (_, last) => {
                all.extend(last);
                Members::Several(all).serialize(serializer)
            }
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TaskDraws, D::Error> {
        let all = match Members::deserialize(deserializer)? {
            Members::One(one) => vec![one],
            Members::Several(all) => all,
        };
        let member = |Member { cursor, history }: Member| MemberDraws { cursor, history };
        Ok(TaskDraws { members: all.into_iter().map(member).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[u64]) -> TaskCounts {
        all.iter().copied().collect()
    }

    #[test]
    fn environments_take_turns_by_their_weights() {
        let mut draws = TaskDraws::new(&counts(&[5, 1000, 7]), 3);
        let weights = [1.0, 2.5, 0.5];
        let mut turns = vec![0; 3];
        for played in 1..=80 {
            let task = draws.next(1, &weights, None)[0];
            turns[(task % 3) as usize] += 1;
            for (turn, weight) in turns.iter().zip(weights) {
                let due = played as f64 * weight / 4.0;
                assert!((f64::from(*turn) - due).abs() <= 1.0, "{turns:?} after {played}");
            }
        }
        assert_eq!(turns, [20, 50, 10]);
        // Together as one by one, and each environment's tasks as without the others.
        let mut again = TaskDraws::new(&counts(&[5, 1000, 7]), 3);
        let first: Vec<u64> = again.next(80, &weights, None).into_iter().filter(|task| task % 3 == 0).collect();
        assert_eq!(again, draws);
        let alone = TaskDraws::new(&counts(&[5]), 3).next(20, &[1.0], None);
        assert_eq!(first.iter().map(|task| task / 3).collect::<Vec<_>>(), alone);
    }

    #[test]
    fn draws_are_saved_as_an_object_for_one_environment_and_as_a_list_for_several() -> anyhow::Result<()> {
        #[derive(Serialize, Deserialize)]
        struct State(#[serde(with = "saved")] TaskDraws);
        let settings: Curriculum = serde_json::from_str("{}")?;
        for all in [&[9][..], &[9, 4]] {
            for curriculum in [None, Some(&settings)] {
                let weights = vec![1.0; all.len()];
                let mut draws = TaskDraws::new(&counts(all), 3);
                let groups: Vec<(u64, f64)> =
                    draws.next(6, &weights, curriculum).into_iter().map(|task| (task, (task % 2) as f64)).collect();
                draws.finish(&groups, curriculum, &mut Metrics::new());
                let text = serde_json::to_string(&State(draws.clone()))?;
                assert_eq!((text.starts_with('['), text.contains("history")), (all.len() > 1, curriculum.is_some()));
                let State(mut saved) = serde_json::from_str(&text)?;
                assert_eq!(saved, draws);
                assert_eq!(saved.next(9, &weights, curriculum), draws.next(9, &weights, curriculum));
                assert_eq!(postcard::from_bytes::<TaskDraws>(&postcard::to_stdvec(&draws)?)?.counts(), counts(all));
            }
        }
        let older = r#"{"seed": 3, "count": 9, "position": 2}"#;
        let State(older) = serde_json::from_str(older)?;
        assert!(older.is_like(&TaskDraws::new(&counts(&[9]), 3)));
        Ok(())
    }
}
