//! Selects the groups that an iteration trains on.
//!
//! Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476) drops a group whose episodes all have the same return,
//! since it carries no preference, and plays another task in its place. Each round plays exactly the missing groups.
//! The last allowed round is kept unfiltered, so that an iteration always trains on `rollout.tasks` groups. A run
//! without dynamic sampling has one round.
//!
//! Failed episodes have no return. Those of a dropped group stay, since the update knows them.

use std::ops::Range;

use crate::agent::Success;
use crate::data::Episode;
use crate::recipe::Rollout;
use crate::track::Metrics;

/// The groups of one iteration, gathered round by round.
#[derive(Debug)]
pub struct Selection {
    /// Number of groups to train on.
    wanted: u32,
    group_size: usize,
    /// Number of allowed rounds.
    rounds: u32,
    /// Number of finished rounds.
    round: u32,
    /// Number of groups played.
    played: u32,
    /// Number of groups dropped.
    dropped: u32,
    /// Success over all groups played.
    success: Success,
    episodes: Vec<Episode>,
}

impl Selection {
    pub fn new(rollout: &Rollout) -> Self {
        Self {
            wanted: rollout.tasks,
            group_size: rollout.group_size as usize,
            rounds: rollout.dynamic_sampling.as_ref().map_or(1, |d| d.rounds),
            round: 0,
            played: 0,
            dropped: 0,
            success: Success::default(),
            episodes: Vec::new(),
        }
    }

    /// Numbers of the groups that the next round plays; none when enough are kept. Numbers do not repeat in an
    /// iteration, because they key the group's noise and seed.
    pub fn missing(&self) -> Option<Range<u32>> {
        let missing = self.wanted - (self.played - self.dropped);
        (missing > 0).then(|| self.played..self.played + missing)
    }

    /// Adds the episodes of a round, group by group. Compares the environment's returns, without penalties.
    pub fn add(&mut self, episodes: Vec<Episode>) {
        self.round += 1;
        self.success.add(&episodes);
        let mut episodes = episodes.into_iter();
        while episodes.len() > 0 {
            let group: Vec<Episode> = episodes.by_ref().take(self.group_size).collect();
            self.played += 1;
            if self.round < self.rounds && returns_are_equal(&group) {
                self.dropped += 1;
                self.episodes.extend(group.into_iter().filter(Episode::failed));
            } else {
                self.episodes.extend(group);
            }
        }
    }

    pub fn report(&self, metrics: &mut Metrics) {
        metrics.set("rollout/rounds", f64::from(self.round));
        metrics.set("rollout/groups_played", f64::from(self.played));
        metrics.set("rollout/groups_dropped", f64::from(self.dropped));
        metrics.set("rollout/success", self.success.all.rate());
    }

    /// Number of episodes played, including those of dropped groups.
    pub fn episodes_played(&self) -> u64 {
        u64::from(self.played) * self.group_size as u64
    }

    /// The episodes to train on, in the order played.
    pub fn into_episodes(self) -> Vec<Episode> {
        self.episodes
    }
}

/// True if all returns are equal bit for bit, the estimators' test for a group without spread. Without a return they are.
fn returns_are_equal(group: &[Episode]) -> bool {
    let mut returns = group.iter().filter(|episode| !episode.failed()).map(Episode::episode_return);
    let first = returns.next();
    returns.all(|other| Some(other) == first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::{EpisodePlan, plan_from};
    use crate::data::Step;

    fn selection(rounds: Option<u32>) -> Selection {
        let sampling = rounds.map(|rounds| json!({ "rounds": rounds }));
        let rollout = json!({
            "tasks": 3, "group_size": 2, "max_steps": 1, "max_prompt_tokens": 1, "max_response_tokens": 1,
            "dynamic_sampling": sampling,
        });
        Selection::new(&serde_json::from_value(rollout).expect("a rollout section"))
    }

    /// Plays the missing groups. Episode i of a group returns 0.1 * i if `differs(group)`, else 0.1.
    fn round(selection: &mut Selection, differs: impl Fn(u32) -> bool) -> Vec<EpisodePlan> {
        let groups = selection.missing().expect("a round is due");
        let tasks: Vec<u64> = groups.clone().map(u64::from).collect();
        let plan = plan_from(groups.start, &tasks, 2, 0, 0);
        let episode = |p: &EpisodePlan| {
            let reward = if differs(p.group) { 0.1 * f64::from(p.episode % 2) } else { 0.1 };
            let step = Step { reward, valid: p.episode.is_multiple_of(2), ..Step::default() };
            Episode { group: p.group, episode: p.episode, task: p.task, steps: vec![step], ..Episode::default() }
        };
        selection.add(plan.iter().map(episode).collect());
        plan
    }

    fn groups(selection: Selection) -> Vec<u32> {
        let episodes = selection.into_episodes();
        assert!(episodes.windows(2).all(|pair| pair[0].episode < pair[1].episode));
        episodes.chunk_by(|a, b| a.group == b.group).map(|group| group[0].group).collect()
    }

    #[test]
    fn each_round_draws_what_is_missing_until_the_target_is_reached() {
        let mut selection = selection(Some(5));
        assert_eq!(round(&mut selection, |group| group == 1).len(), 6);
        let second = round(&mut selection, |group| group == 4);
        assert_eq!(second.iter().map(|p| (p.group, p.episode)).collect::<Vec<_>>(), [(3, 6), (3, 7), (4, 8), (4, 9)]);
        round(&mut selection, |_| true);
        assert_eq!(selection.missing(), None);
        let mut metrics = Metrics::new();
        selection.report(&mut metrics);
        let values = ["rounds", "groups_played", "groups_dropped"].map(|name| metrics.get(&format!("rollout/{name}")));
        assert_eq!(values, [Some(3.0), Some(6.0), Some(3.0)]);
        assert_eq!(groups(selection), [1, 4, 5]);
    }

    #[test]
    fn failed_episodes_have_no_return() {
        let mut selection = selection(Some(2));
        let episode = |number: u32, reward, failed: bool| Episode {
            group: number / 2,
            episode: number,
            steps: vec![Step { reward, ..Step::default() }],
            failure: failed.then(|| "died".to_string()),
            ..Episode::default()
        };
        // One return, none, and two that differ.
        let rewards = [(1.0, false), (0.0, true), (2.0, true), (0.0, true), (1.0, false), (2.0, false)];
        let numbered = rewards.into_iter().enumerate();
        selection.add(numbered.map(|(number, (reward, failed))| episode(number as u32, reward, failed)).collect());
        assert_eq!(selection.missing(), Some(3..5));
        assert_eq!(selection.success.all.played, 3);
        let kept: Vec<u32> = selection.into_episodes().iter().map(|episode| episode.episode).collect();
        assert_eq!(kept, [1, 2, 3, 4, 5], "failed ones stay");
    }

    #[test]
    fn the_last_round_is_kept_as_it_is() {
        let mut twice = selection(Some(2));
        round(&mut twice, |group| group == 2);
        round(&mut twice, |_| false);
        assert_eq!(twice.missing(), None);
        assert_eq!(groups(twice), [2, 3, 4]);

        let mut off = selection(None);
        round(&mut off, |_| false);
        assert_eq!(off.missing(), None);
        assert_eq!(groups(off), [0, 1, 2]);
    }
}
