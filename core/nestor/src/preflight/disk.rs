//! Room for a run's checkpoints.

use std::path::Path;

use anyhow::Result;
use nestor_args::free_disk::free_disk;
use serde::Serialize;

use crate::input_error;
use crate::model::{Config, kind, unit_weights};
use crate::recipe::{Recipe, VisionTrain};
use crate::shard::{Adapters, Layout, update_rule};

/// Bytes of float32, in which weights and the optimizer's state are saved.
const FLOAT: u64 = 4;

/// Bytes that a run writes, and those that its disk has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Space {
    /// One checkpoint: weights and optimizer's state of the policy and the critic.
    pub checkpoint: u64,
    /// Files that are written once: a new model, and the frozen reference.
    pub once: u64,
    /// Free bytes; none where the system does not report them.
    pub free: Option<u64>,
}

impl Space {
    /// The room that a run of this network takes in a directory that need not exist yet. `saves_reference`: it keeps a frozen copy of the
    /// policy.
    pub fn of(recipe: &Recipe, config: &Config, saves_reference: bool, dir: &Path) -> Self {
        let layouts = unit_weights::layouts(config);
        let sum = |layouts: &[Layout]| layouts.iter().map(|layout| layout.numel() as u64).sum::<u64>();
        let all = sum(&layouts);
        let rule = update_rule(&recipe.update.optimizer);
        let state = |layouts: &[Layout]| layouts.iter().map(|unit| FLOAT * rule.state_numel(unit) as u64).sum::<u64>();
        // Units of a vision tower that are not trained have no state.
        let trained = state(&layouts[..trained_units(&layouts, config, recipe.model.vision_train())]);
        let policy = match &recipe.model.lora {
            Some(lora) => {
                let adapters = Adapters::layouts_of(&unit_weights::block_layouts(config), lora);
                FLOAT * sum(&adapters) + state(&adapters)
            }
            None => FLOAT * all + trained,
        };
        let critic = recipe.critic.as_ref().map_or(0, |_| FLOAT * all + trained);
        let reference = if saves_reference { all * kind(recipe.dtype).elt_size_in_bytes() as u64 } else { 0 };
        let new = recipe.model.new.as_ref().map_or(0, |_| FLOAT * all);
        Self { checkpoint: policy + critic, once: reference + new, free: free_disk(dir) }
    }

    /// Refuses a disk without room for one checkpoint. Returns a warning if it has none for all that are kept at once.
    pub fn check(&self, recipe: &Recipe) -> Result<Option<String>> {
        let Some(free) = self.free else { return Ok(None) };
        let kept = recipe.checkpoint.keep as u64;
        let size = |bytes: u64| match bytes {
            0..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
            _ => format!("{:.2} GB", bytes as f64 / 1e9),
        };
        if self.once + self.checkpoint > free {
            return Err(input_error!(
                "the run directory's disk has {} free, and a checkpoint of this run takes {} (and {} more once); free some \
                 space, or choose another --run-dir",
                size(free),
                size(self.checkpoint),
                size(self.once)
            ));
        }
        // The best one may be older, and a new one is complete before the oldest is removed.
        let most = self.once.saturating_add(self.checkpoint.saturating_mul(kept.saturating_add(2)));
        Ok((most > free).then(|| {
            format!(
                "the run directory's disk has {} free, and {kept} checkpoints, the best, and the one being written take {}; free \
                 some space, or lower checkpoint.keep",
                size(free),
                size(most)
            )
        }))
    }
}

/// Number of a network's units that are trained with this part of its vision tower.
fn trained_units(layouts: &[Layout], config: &Config, train: VisionTrain) -> usize {
    let language = 1 + config.num_hidden_layers as usize;
    match train {
        VisionTrain::None => language,
        VisionTrain::Merger => (language + 1).min(layouts.len()),
        VisionTrain::All => layouts.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::load_resolved;

    /// Parameters of Qwen2.5-VL-3B, of its vision tower and of the merger: those of transformers'
    /// `Qwen2_5_VLForConditionalGeneration` with the published sizes.
    #[test]
    fn frozen_parts_of_a_tower_are_saved_without_state() {
        let config = Config::shape("qwen2.5-vl-3b").expect("a shape");
        let (all, tower, merger) = (3_754_622_976, 668_684_288, 36_708_608);
        let bytes = |train: &str| {
            let text = format!(
                "iterations: 1\nmodel: {{path: m, vision: {{train: {train}}}}}\nenv: {{plugin: maze}}\nestimator: {{plugin: stars}}\n\
                 rollout: {{tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 8, max_response_tokens: 8}}\n\
                 update: {{mini_batch: 2, lr: 1.0e-6}}\neval: {{tasks: 4}}\n"
            );
            let recipe = load_resolved("recipe", &text).expect("a recipe");
            Space::of(&recipe, &config, false, Path::new(".")).checkpoint
        };
        assert_eq!(bytes("all"), 12 * all);
        assert_eq!(bytes("merger"), 12 * all - 8 * (tower - merger));
        assert_eq!(bytes("none"), 12 * all - 8 * tower);
    }
}
