//! The episodes of an iteration: groups to train on, and a greedy episode for each where the estimator asks for it.

use std::collections::HashMap;

use anyhow::{Context, Result};

use super::group_filter::Selection;
use super::{Run, report};
use crate::agent::{EpisodePlan, PlaySettings, Success, plan_from};
use crate::data::Episode;
use crate::plugin::Column;

impl Run {
    /// Plays one group of episodes for each of the next tasks. Dynamic sampling replaces groups that it drops.
    pub fn collect(&mut self, iteration: u64) -> Result<Vec<Episode>> {
        self.meter.phases.start("rollout");
        let _bar = self.ranks.progress.phase("rollout", "episodes");
        // An evaluation or a warm start before is none of this rollout's work.
        self.learner.policy.model.images.borrow_mut().take_counters();
        self.player.take_time();
        let rollout = &self.recipe.rollout;
        let settings = PlaySettings::train(rollout, iteration);
        let mut selection = Selection::new(rollout);
        let (mut success, curriculum) = (Vec::new(), rollout.curriculum.as_ref());
        self.ledger.tasks = self.ledger.state.tasks.clone();
        let weights = self.player.environments().weights();
        while let Some(groups) = selection.missing() {
            let tasks = self.ledger.tasks.next(groups.len(), &weights, curriculum);
            let plan = plan_from(groups.start, &tasks, rollout.group_size, self.recipe.seed, iteration);
            let episodes = self
                .player
                .play_among(&*self.ranks.comm, &self.learner.policy.model, &plan, &settings)
                .context("playing episodes")?;
            success.extend(success_of_groups(&episodes));
            selection.add(episodes);
        }
        self.ledger.tasks.finish(&success, curriculum, &mut self.meter.metrics);
        if rollout.dynamic_sampling.is_some() {
            selection.report(&mut self.meter.metrics);
        }
        let mut played = selection.episodes_played();
        let mut episodes = selection.into_episodes();
        if self.estimator.asked().iter().any(|asked| asked.column == Column::GreedyReturn) {
            played += self.play_greedy(iteration, &mut episodes)?;
        }
        self.ledger.totals.episodes = self.ledger.state.totals.episodes + played;
        self.count_env_errors()?;
        report::environment(&mut self.meter.metrics, &episodes)?;
        Ok(episodes)
    }

    /// Plays one greedy episode from the start of each group, and notes its return in the group's episodes. A group whose
    /// greedy episode failed keeps its failed episodes alone: there is nothing to compare the others with. Returns the number
    /// of greedy episodes.
    fn play_greedy(&mut self, iteration: u64, episodes: &mut Vec<Episode>) -> Result<u64> {
        let rollout = &self.recipe.rollout;
        let first = |(number, group): (usize, &[Episode])| {
            let Episode { group, task, seed, .. } = group[0];
            EpisodePlan { group, episode: number as u32, task, seed }
        };
        let groups = episodes.chunk_by(|a, b| a.group == b.group).filter(|group| !group.iter().all(Episode::failed));
        let plan: Vec<EpisodePlan> = groups.enumerate().map(first).collect();
        let settings = PlaySettings::greedy(rollout, iteration);
        let greedy = self
            .player
            .play_among(&*self.ranks.comm, &self.learner.policy.model, &plan, &settings)
            .context("playing greedy episodes")?;
        let finished = greedy.iter().filter(|one| !one.failed());
        let returns: HashMap<u32, f64> = finished.map(|one| (one.group, one.episode_return())).collect();
        for episode in episodes.iter_mut() {
            episode.greedy_return = returns.get(&episode.group).copied();
        }
        episodes.retain(|episode| episode.failed() || episode.greedy_return.is_some());
        Ok(plan.len() as u64)
    }
}

/// The task of each group and the share of its episodes that won; groups whose episodes all failed are left out.
fn success_of_groups(episodes: &[Episode]) -> Vec<(u64, f64)> {
    let groups = episodes.chunk_by(|a, b| a.group == b.group);
    let counted = groups.map(|group| (group[0].task, Success::of(group).all));
    counted.filter(|(_, count)| count.played > 0).map(|(task, count)| (task, count.rate())).collect()
}
