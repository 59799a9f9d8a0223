//! The collectives of an iteration: number of calls, and bytes that each rank sends.

use super::memory::Frozen;
use super::time::{Collective, TimeSetup, slices};
use super::tower::TowerPasses;
use super::units::UnitSizes;
use crate::model::Config;
use crate::model::config::Output;

impl TimeSetup<'_> {
    /// The collectives of an iteration with `micro` micro-batches a mini-batch, of `sequences` each.
    pub(super) fn collectives(&self, micro: f64, sequences: f64) -> Vec<Collective> {
        let w = &self.workload;
        let mut list = Vec::new();
        let mut add = |operation, what, calls, bytes| {
            if calls > 0 {
                list.push(Collective { operation, what, calls, bytes });
            }
        };
        if self.cluster.ranks == 1 {
            return list;
        }
        let share = |bytes| self.cluster.share(bytes);
        let c = self.update.config;
        let critic = w.critic.then(|| Config { output: Output::Value, ..c.clone() });
        let (blocks, steps, b) = (c.num_hidden_layers as u64, w.mini_batches(), self.bytes());
        let micro = micro as u64 * steps;
        for (config, log_probs) in std::iter::once((c, w.logprob_passes)).chain(critic.as_ref().map(|c| (c, 1))) {
            let units = UnitSizes::new(config, self.cluster.ranks);
            let (outer, block) = (units.outer(), units.block());
            let policy = config.output == Output::Tokens;
            if self.update.gathers() {
                if policy {
                    let calls = units.numel.iter().map(|&n| slices(n)).sum();
                    add("all_gather", "whole copy for rollout", calls, share(b * units.all()));
                }
                let passes = log_probs * micro / w.epochs;
                let (calls, bytes) = (2 * slices(outer) + blocks * slices(block), b * (2 * outer + blocks * block));
                let what = if policy { "units for log-probs" } else { "units for values" };
                add("all_gather", what, passes * calls, passes * share(bytes));
                let again = self.recomputed;
                let what = if policy { "units in the update" } else { "units in the critic's update" };
                let bytes = bytes + again * b * block;
                add("all_gather", what, micro * (calls + again * slices(block)), micro * share(bytes));
            }
            let images = self.images(sequences);
            let mut tower = [self.tower_update(config, images)].map(|passes| passes.times(micro as f64)).to_vec();
            let scored = |is_policy| self.tower_scoring(config, images, is_policy).times((micro / w.epochs) as f64);
            tower.extend((0..log_probs).map(|network| scored(policy && (network > 0 || !w.reference))));
            let TowerPasses { gathered: (calls, numel), .. } = TowerPasses::sum(&tower);
            let what = if policy { "vision tower" } else { "the critic's vision tower" };
            add("all_gather", what, calls as u64, share(b * numel as u64));
            let (outer, block) = self.reduced(&units, config);
            let tower = units.tower_of(self.update.images.train);
            let (tower_calls, tower) = (tower.iter().map(|&n| slices(n)).sum::<u64>(), tower.iter().sum::<u64>());
            let calls = micro * (slices(outer) + blocks * slices(block) + tower_calls);
            let what = if policy { "gradients" } else { "the critic's gradients" };
            add("reduce_scatter", what, calls, micro * share(4 * (outer + blocks * block + tower)));
            let (bytes, calls) = self.refreshed(config);
            let what = if policy { "weights after each step" } else { "the critic's after each step" };
            add("all_gather", what, steps * calls, steps * share(bytes));
        }
        for Frozen { name, config } in self.frozen.iter().filter(|_| self.update.gathers()) {
            let units = UnitSizes::new(config, self.cluster.ranks);
            let (outer, block, blocks) = (units.outer(), units.block(), config.num_hidden_layers as u64);
            let passes = micro / w.epochs;
            let (calls, bytes) = (2 * slices(outer) + blocks * slices(block), b * (2 * outer + blocks * block));
            let units = if *name == "teacher" { "units of the teacher" } else { "units of the reference" };
            add("all_gather", units, passes * calls, passes * share(bytes));
        }
        let networks = 1 + u64::from(w.critic);
        add("all_gather", "episodes", 1, share(w.host_bytes()));
        add("broadcast", "advantages and returns", 1, (w.all_steps() * w.response * 8.0) as u64);
        add("all_reduce", "counts and norms", 2 * networks * steps, 32 * networks * steps);
        list
    }
}
