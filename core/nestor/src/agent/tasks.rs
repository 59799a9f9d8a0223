//! Chooses tasks and seeds.

use std::ops::Range;

use anyhow::{Context, Result};
use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use crate::engine::{NoiseKey, noise};
use crate::input_error;
use crate::plugin::SharedEnv;
use crate::recipe::{Eval, EvalTasks};

/// Most episodes of one evaluation.
const MOST_EPISODES: u64 = 1 << 20;

/// Number of tasks of the split that a recipe's `key` names.
///
/// # Errors
/// If the split has no tasks.
pub fn count_tasks(shared_env: &SharedEnv, key: &str, split: &str) -> Result<u64> {
    match shared_env.tasks(split).with_context(|| format!("recipe key `{key}`"))? {
        0 => Err(input_error!("recipe key `{key}`: split `{split}` of environment `{}` has no tasks", shared_env.id())),
        count => Ok(count),
    }
}

/// Number of tasks of the split that an evaluation plays on.
///
/// # Errors
/// If the split has no tasks, or fewer than the evaluation wants: a task played twice is no new evidence.
pub fn count_eval_tasks(shared_env: &SharedEnv, eval: &Eval) -> Result<u64> {
    let count = count_tasks(shared_env, "eval.split", &eval.split)?;
    match eval.tasks {
        EvalTasks::Panel(tasks) if u64::from(tasks) > count => Err(input_error!(
            "recipe key `eval.tasks`: split `{}` of environment `{}` has {count} tasks, not {tasks}, and a task played \
             twice is no new evidence; set it to {count} or all, or give the environment more tasks",
            eval.split,
            shared_env.id()
        )),
        tasks if tasks.number(count).saturating_mul(eval.samples.into()) > MOST_EPISODES => Err(input_error!(
            "recipe key `eval.tasks`: {} tasks of split `{}`, {} samples each, are more than {MOST_EPISODES} episodes; lower \
             `eval.tasks` or `eval.samples`",
            tasks.number(count),
            eval.split,
            eval.samples
        )),
        _ => Ok(count),
    }
}

/// Number of tasks of each environment in a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCounts(Vec<u64>);

impl From<u64> for TaskCounts {
    fn from(count: u64) -> Self {
        Self(vec![count])
    }
}

impl FromIterator<u64> for TaskCounts {
    fn from_iter<I: IntoIterator<Item = u64>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}

impl TaskCounts {
    /// In the order of the environments.
    pub fn each(&self) -> &[u64] {
        &self.0
    }

    /// Number of all tasks; that of 64 bits where there are more.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Number of tasks of an evaluation.
    pub fn evaluated(&self, tasks: EvalTasks) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(tasks.number(*count)))
    }

    /// A cursor over the tasks of each. The first one's order is that of a run with it alone.
    pub fn cursors(&self, seed: u64) -> Vec<TaskCursor> {
        let seed = |member: u32| match member {
            0 => seed,
            _ => seed_of(seed, noise::TASKS, 0, member),
        };
        (0..).zip(&self.0).map(|(member, &count)| TaskCursor::new(count, seed(member))).collect()
    }
}

/// One episode to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpisodePlan {
    /// Number of the group inside the iteration.
    pub group: u32,
    /// Number of the episode inside the iteration.
    pub episode: u32,
    /// The task of the split, by its number among those of all environments.
    pub task: u64,
    /// Seed of the environment's reset, one for the whole group.
    pub seed: u64,
}

/// Seed of one group's environments.
fn seed_of(seed: u64, stream: u32, iteration: u64, group: u32) -> u64 {
    NoiseKey { stream, iteration, episode: group, step: 0 }.rng(seed, 0).next_u64()
}

/// One group of `group_size` episodes per task.
pub fn plan(tasks: &[u64], group_size: u32, seed: u64, iteration: u64) -> Vec<EpisodePlan> {
    plan_from(0, tasks, group_size, seed, iteration)
}

/// As [`plan`], with groups numbered from `first`: for a later round of an iteration, so that its episodes draw other
/// noise than those of the rounds before.
pub fn plan_from(first: u32, tasks: &[u64], group_size: u32, seed: u64, iteration: u64) -> Vec<EpisodePlan> {
    let group = |(index, &task): (usize, &u64)| {
        let group = first + index as u32;
        let seed = seed_of(seed, noise::ENVIRONMENTS, iteration, group);
        (0..group_size).map(move |i| EpisodePlan { group, episode: group * group_size + i, task, seed })
    };
    tasks.iter().enumerate().flat_map(group).collect()
}

/// The same episodes each time, a group of `samples` per task, one environment after the other: all tasks of its split in
/// their order, or a panel that the seed draws from the whole split. The first tasks of a split may be of one kind, so a panel never takes those.
/// Further samples leave the first ones of the tasks as they are.
///
/// # Panics
/// When the split has no task, or fewer than the panel; callers check that first.
pub fn eval_plan(counts: &TaskCounts, tasks: EvalTasks, samples: u32, seed: u64) -> Vec<EpisodePlan> {
    let environments = counts.0.len() as u64;
    let drawn: Vec<u64> = (0..)
        .zip(&counts.0)
        .flat_map(|(member, &count)| {
            let own = eval_tasks(member, count, tasks, seed).into_iter();
            own.map(move |task| task * environments + u64::from(member))
        })
        .collect();
    let number = drawn.len() as u32;
    let group = |(group, task): (u32, u64)| {
        let seed = seed_of(seed, noise::EVAL_ENVIRONMENTS, 0, group);
        (0..samples).map(move |sample| EpisodePlan { group, episode: sample * number + group, task, seed })
    };
    (0..).zip(drawn).flat_map(group).collect()
}

/// The evaluation tasks of one environment, by its own numbers.
fn eval_tasks(member: u32, count: u64, tasks: EvalTasks, seed: u64) -> Vec<u64> {
    let number = tasks.number(count);
    assert!(count > 0 && number <= count, "a split of {count} tasks cannot be evaluated on {number}");
    match number < count {
        true => TaskCursor::new(count, seed_of(seed, noise::EVAL_TASKS, 0, member)).next(number as usize),
        false => (0..count).collect(),
    }
}

/// Draws the tasks of a split in random order, all of them once before any repeats. Part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCursor {
    seed: u64,
    count: u64,
    /// Tasks drawn so far.
    position: u64,
}

impl TaskCursor {
    /// A cursor over a split of `count` tasks.
    ///
    /// # Panics
    /// When the split has no task; callers check that first.
    pub fn new(count: u64, seed: u64) -> Self {
        assert!(count > 0, "a split without tasks cannot be drawn from");
        Self { seed, count, position: 0 }
    }

    /// Number of tasks of the split.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// True if both draw the same tasks in the same order, wherever they are.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.seed, self.count) == (other.seed, other.count)
    }

    /// Seed of the order.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of tasks drawn so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next `n` tasks.
    pub fn next(&mut self, n: usize) -> Vec<u64> {
        self.advance(n).map(|p| self.shuffled(p / self.count, p % self.count)).collect()
    }

    /// Counts `n` draws, and returns their numbers in the run.
    pub fn advance(&mut self, n: usize) -> Range<u64> {
        let first = self.position;
        self.position += n as u64;
        first..self.position
    }

    /// Entry `index` of one epoch's permutation. A Feistel network permutes the smallest square that holds all tasks,
    /// and is applied until it hits one of them; so the order takes no memory, however many tasks there are.
    fn shuffled(&self, epoch: u64, index: u64) -> u64 {
        let bits = 64 - (self.count - 1).leading_zeros();
        let half = bits.div_ceil(2).max(1);
        let mask = (1 << half) - 1;
        let mut rng = NoiseKey { stream: noise::TASKS, iteration: epoch, ..NoiseKey::default() }.rng(self.seed, 0);
        let keys: [u64; 6] = std::array::from_fn(|_| rng.next_u64());
        let mut at = index;
        loop {
            let (mut left, mut right) = (at >> half, at & mask);
            for key in keys {
                (left, right) = (right, left ^ (mix(right ^ key) & mask));
            }
            at = left << half | right;
            if at < self.count {
                return at;
            }
        }
    }
}

/// The finaliser of splitmix64: every bit of the result depends on every bit of x.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_draws_every_task_once_in_another_order() {
        for count in [1, 2, 7, 64, 65] {
            let mut cursor = TaskCursor::new(count, 3);
            let epochs: Vec<Vec<u64>> = (0..3).map(|_| cursor.next(count as usize)).collect();
            for epoch in &epochs {
                let mut sorted = epoch.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            }
            assert!(count < 7 || epochs[0] != epochs[1]);
        }
        let mut large = TaskCursor::new(u64::MAX, 3);
        assert!(large.next(3) != large.next(3));
    }

    #[test]
    fn an_empty_split_is_refused() {
        assert!(std::panic::catch_unwind(|| TaskCursor::new(0, 3)).is_err());
        for tasks in [EvalTasks::All, EvalTasks::Panel(1)] {
            assert!(std::panic::catch_unwind(|| eval_plan(&0.into(), tasks, 1, 3)).is_err());
        }
    }

    #[test]
    fn a_saved_cursor_resumes_at_its_position() -> anyhow::Result<()> {
        let mut cursor = TaskCursor::new(10, 3);
        cursor.next(13);
        let mut saved: TaskCursor = serde_json::from_str(&serde_json::to_string(&cursor)?)?;
        assert_eq!(saved.next(9), cursor.next(9));
        Ok(())
    }

    #[test]
    fn groups_share_a_seed_and_evaluation_repeats_itself() {
        let plan = plan(&[5, 6], 3, 1, 2);
        assert_eq!(plan.iter().map(|p| (p.group, p.episode, p.task)).nth(4), Some((1, 4, 6)));
        assert!(plan[..3].iter().all(|p| p.seed == plan[0].seed) && plan[3].seed != plan[0].seed);
        let later = plan_from(1, &[6], 3, 1, 2);
        assert_eq!(later, plan[3..]);
        let eval = eval_plan(&3.into(), EvalTasks::All, 1, 1);
        assert_eq!(eval, eval_plan(&3.into(), EvalTasks::Panel(3), 1, 1));
        assert_eq!(eval.iter().map(|p| p.task).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(eval[0].seed != eval[2].seed);
        let twice = eval_plan(&3.into(), EvalTasks::All, 2, 1);
        assert_eq!(twice.iter().step_by(2).copied().collect::<Vec<_>>(), eval);
        assert_eq!(twice[3], EpisodePlan { episode: 4, ..eval[1] });
        // Another environment behind it: task t of environment e among n has number t n + e.
        let both = eval_plan(&[3, 5].into_iter().collect(), EvalTasks::Panel(2), 1, 1);
        let alone = eval_plan(&3.into(), EvalTasks::Panel(2), 1, 1);
        let tasks: Vec<u64> = both.iter().map(|p| p.task).collect();
        assert_eq!(tasks[..2], [alone[0].task * 2, alone[1].task * 2]);
        assert!(tasks[2..].iter().all(|task| task % 2 == 1 && task / 2 < 5) && tasks[2] != tasks[3], "{tasks:?}");
    }

    /// A split is often sorted by kind: 140 games of six types, in the order of their paths.
    #[test]
    fn a_panel_is_drawn_by_seed_from_the_whole_split() {
        let tasks =
            |seed| eval_plan(&140.into(), EvalTasks::Panel(70), 1, seed).iter().map(|p| p.task).collect::<Vec<_>>();
        let mut drawn = tasks(1);
        assert_eq!(drawn, tasks(1));
        assert!(drawn != tasks(2));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 70);
        let late = drawn.iter().filter(|&&task| task >= 70).count();
        assert!((20..=50).contains(&late), "{late} of 70 are from the second half");
    }
}
