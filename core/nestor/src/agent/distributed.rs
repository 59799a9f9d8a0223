//! Episodes that ranks play together: each rank plays whole groups, then all ranks gather all episodes.

use std::collections::HashMap;

use anyhow::{Context, Result};

use super::player::{PlaySettings, Player};
use super::tasks::EpisodePlan;
use crate::data::Episode;
use crate::model::Model;
use crate::ranks::{Comm, exchange};

impl Player {
    /// Plays a plan with all ranks; every rank gets all episodes, in the order of the plan.
    pub fn play_among(
        &mut self,
        comm: &dyn Comm,
        model: &Model,
        plan: &[EpisodePlan],
        settings: &PlaySettings,
    ) -> Result<Vec<Episode>> {
        let played = self.play(model, &assigned(plan, comm), settings);
        gathered(comm, plan, played)
    }

    /// As [`Player::play_among`], by the environment's expert.
    pub fn demonstrate_among(
        &mut self,
        comm: &dyn Comm,
        plan: &[EpisodePlan],
        noise: f64,
        seed: u64,
    ) -> Result<Vec<Episode>> {
        let played = self.demonstrate(&assigned(plan, comm), noise, seed);
        gathered(comm, plan, played)
    }
}

/// The episodes of a plan that this rank plays: every W-th group.
fn assigned(plan: &[EpisodePlan], comm: &dyn Comm) -> Vec<EpisodePlan> {
    let groups = plan.chunk_by(|a, b| a.group == b.group);
    groups.skip(comm.rank()).step_by(comm.world()).flatten().copied().collect()
}

fn gathered(comm: &dyn Comm, plan: &[EpisodePlan], own: Result<Vec<Episode>>) -> Result<Vec<Episode>> {
    let all = exchange(comm, own)?.into_iter().flatten();
    let mut by_number: HashMap<u32, Episode> = all.map(|episode| (episode.episode, episode)).collect();
    let missing = || "an episode was played by no rank";
    plan.iter().map(|planned| by_number.remove(&planned.episode).with_context(missing)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::plan;
    use crate::ranks::{Pending, Reduce};
    use tch::{Device, Tensor};

    /// A rank whose collectives are never called.
    #[derive(Debug)]
    struct Alone(usize, usize);

    impl Comm for Alone {
        fn rank(&self) -> usize {
            self.0
        }
        fn world(&self) -> usize {
            self.1
        }
        fn device(&self) -> Device {
            Device::Cpu
        }
        fn all_gather_into(&self, _: &Tensor, _: &Tensor) -> Result<Pending> {
            unreachable!()
        }
        fn reduce_scatter_into(&self, _: &Tensor, _: &Tensor) -> Result<Pending> {
            unreachable!()
        }
        fn all_reduce(&self, _: &Tensor, _: Reduce) -> Result<()> {
            unreachable!()
        }
        fn broadcast(&self, _: &Tensor) -> Result<()> {
            unreachable!()
        }
        fn barrier(&self) -> Result<()> {
            unreachable!()
        }
        fn abort(&self, _: &str) {}
    }

    #[test]
    fn every_group_is_assigned_to_one_rank() {
        let plan = plan(&[5, 6, 7, 8, 9], 3, 1, 2);
        for world in 1..7 {
            let shares: Vec<_> = (0..world).map(|rank| assigned(&plan, &Alone(rank, world))).collect();
            assert!(shares.iter().flat_map(|p| p.chunk_by(|a, b| a.group == b.group)).all(|group| group.len() == 3));
            let most = shares.iter().map(Vec::len).max().expect("ranks");
            let least = shares.iter().map(Vec::len).min().expect("ranks");
            assert!(most - least <= 3);
            let mut all = shares.concat();
            all.sort_by_key(|p| p.episode);
            assert_eq!(all, plan);
        }
    }
}
