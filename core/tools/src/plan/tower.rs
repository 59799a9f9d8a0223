//! The vision tower in a plan: the memory and time of its passes.
//!
//! P: patches, M: tokens of images, a quarter of P in the published models. W: the tower's width, E the language model's.
//! A plan assumes one image a step, and that no two steps show the same.

use super::memory::UpdateSetup;
use super::time::{TimeSetup, slices};
use super::units::UnitSizes;
use crate::model::Config;
use crate::model::VisionConfig;
use crate::model::flops::{merger_flops, tower_flops};
use crate::model::images::PASS_PATCHES;
use crate::recipe::{Recompute, VisionTrain};

/// Bytes of the tower's passes in an update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TowerBytes {
    /// Held from the forward pass of the tower to its backward pass, while the language model's passes run.
    pub kept: u64,
    /// The backward pass of a block, or a pass without gradients, if that is larger; no pass of the language model runs then.
    pub pass: u64,
    /// Elements of the largest unit whose gradient is reduced.
    pub reduced: u64,
}

impl UpdateSetup<'_> {
    /// Memory of the tower's passes on a micro-batch.
    pub(super) fn tower(&self) -> TowerBytes {
        let Some(v) = &self.config.vision else { return TowerBytes::default() };
        let b = self.kind.elt_size_in_bytes() as u64;
        let (width, hidden) = (v.hidden_size as u64, self.config.hidden_size as u64);
        let tokens = self.image_tokens;
        let patches = tokens * v.merged() as u64;
        let units = UnitSizes::new(self.config, self.ranks);
        let trained = units.tower_of(self.images.train);
        // The merger's input, norm, first product and its GELU; the last product is the embeddings.
        let merger = patches * (4 * width * b + 4);
        let embeddings = tokens * hidden * b;
        let graph = patches * self.graph_of_patch(v);
        let (kept, backward) = match self.images.train {
            VisionTrain::None => (embeddings, 0),
            VisionTrain::Merger => (embeddings + merger, patches * 3 * width * b),
            VisionTrain::All => {
                let keeps = self.recompute == Recompute::None;
                let each = if keeps { graph } else { patches * width * b };
                // Graphs hold the weights that were gathered for them.
                let weights = if keeps && self.gathers() { b * trained.iter().sum::<u64>() } else { 0 };
                let input = patches * (v.patch_numel() as u64 + 2 * v.head_dim() as u64) * b;
                // Gradients of each linear layer's output, and those between the layers.
                let flowing = patches * b * (3 * v.intermediate_size as u64 + 6 * width);
                (embeddings + merger + input + weights + v.depth as u64 * each, graph + flowing)
            }
        };
        let reduced = trained.iter().copied().max().unwrap_or(0);
        TowerBytes { kept, pass: backward.max(self.tower_pass(patches)), reduced }
    }

    /// Bytes of a pass without gradients over this many patches, or over the most of one pass.
    pub(super) fn tower_pass(&self, patches: u64) -> u64 {
        let Some(v) = &self.config.vision else { return 0 };
        let b = self.kind.elt_size_in_bytes() as u64;
        let patches = patches.min(PASS_PATCHES.max(self.images.largest * v.merged() as u64));
        // The stream, its norm, queries, keys and values before and after the rotation and in the order of windows, what
        // attention gives, gate and up and their product; the patches, on the CPU in float32.
        let row = 12 * v.hidden_size as u64 + 3 * v.intermediate_size as u64 + v.patch_numel() as u64;
        patches * (b * row + if self.cpu { 4 * v.patch_numel() as u64 } else { 0 })
    }

    /// Bytes for each patch that the graph of one block keeps: its input and norm, queries, keys and values, the same in the
    /// order of windows, the attention's output in both orders, the sum with it and its norm, gate and up, and their product.
    /// Scales of norms and log-sums of attention are float32.
    fn graph_of_patch(&self, v: &VisionConfig) -> u64 {
        let elements = (12 * v.hidden_size + 3 * v.intermediate_size) as u64;
        elements * self.kind.elt_size_in_bytes() as u64 + 4 * (2 + v.num_heads as u64)
    }

    /// Bytes of what a network keeps of images: their embeddings and, where the merger alone is trained, the tower's states.
    pub(super) fn kept_images(&self, config: &Config, trains: bool) -> u64 {
        let Some(v) = &config.vision else { return 0 };
        let states = if trains && self.images.train == VisionTrain::Merger { v.hidden_size } else { 0 };
        self.images.cache_tokens * (config.hidden_size + states) as u64 * self.kind.elt_size_in_bytes() as u64
    }
}

/// The passes of a tower in a phase.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TowerPasses {
    /// Computation, communication and exposed communication in seconds.
    pub seconds: [f64; 3],
    /// Calls and elements of all-gathers.
    pub gathered: (f64, f64),
}

impl TowerPasses {
    pub fn times(self, count: f64) -> Self {
        let (calls, numel) = self.gathered;
        Self { seconds: self.seconds.map(|s| s * count), gathered: (calls * count, numel * count) }
    }

    pub fn sum(all: &[Self]) -> Self {
        all.iter().fold(Self::default(), |sum, one| Self {
            seconds: [0, 1, 2].map(|i| sum.seconds[i] + one.seconds[i]),
            gathered: (sum.gathered.0 + one.gathered.0, sum.gathered.1 + one.gathered.1),
        })
    }
}

impl TimeSetup<'_> {
    /// Images of one rank in an iteration.
    fn rank_images(&self) -> f64 {
        self.workload.all_steps() / self.cluster.ranks as f64
    }

    /// True if what a rank computed of an iteration's images still serves later passes. With several ranks, another rank may
    /// train on an episode than played it.
    fn keeps_images(&self) -> bool {
        let tokens = self.rank_images() * self.workload.images.tokens;
        self.cluster.ranks == 1 && tokens <= self.workload.images.cache_tokens as f64
    }

    /// Passes without gradients of the tower over `images` images, in `passes` passes.
    pub(super) fn tower_forward(&self, c: &Config, images: f64, passes: f64) -> TowerPasses {
        let Some(v) = &c.vision else { return TowerPasses::default() };
        let patches = self.workload.images.tokens * v.merged() as f64;
        let compute = images * tower_flops(v, c.hidden_size, patches) / self.hardware.flops;
        let units = UnitSizes::new(c, self.cluster.ranks);
        self.tower_passes(compute, units.tower().iter().map(|&numel| (passes, numel)))
    }

    /// Passes of this computation that gather units this many times. Nothing hides their communication.
    fn tower_passes(&self, compute: f64, gathers: impl Iterator<Item = (f64, u64)>) -> TowerPasses {
        let mut all = TowerPasses { seconds: [compute, 0.0, 0.0], gathered: (0.0, 0.0) };
        for (times, numel) in gathers.filter(|_| self.update.gathers()) {
            let seconds = times * self.cluster.seconds(&self.hardware, self.bytes() * numel, slices(numel));
            all.seconds[1] += seconds;
            all.seconds[2] += seconds;
            all.gathered.0 += times * slices(numel) as f64;
            all.gathered.1 += times * numel as f64;
        }
        all
    }

    /// The tower in a pass over a micro-batch that reads log-probs or values, by a network that has not seen its images, or
    /// by the policy, which has embedded them in the rollout.
    pub(super) fn tower_scoring(&self, c: &Config, images: f64, is_policy: bool) -> TowerPasses {
        match is_policy && self.keeps_images() {
            true => TowerPasses::default(),
            false => self.tower_forward(c, images, self.passes_of(c, images)),
        }
    }

    /// Passes that many images take.
    fn passes_of(&self, c: &Config, images: f64) -> f64 {
        let merged = c.vision.as_ref().map_or(1, VisionConfig::merged) as f64;
        (images * self.workload.images.tokens * merged / PASS_PATCHES as f64).ceil()
    }

    /// The tower in the forward and backward pass of a micro-batch.
    pub(super) fn tower_update(&self, c: &Config, images: f64) -> TowerPasses {
        let Some(v) = &c.vision else { return TowerPasses::default() };
        let w = &self.workload.images;
        let patches = w.tokens * v.merged() as f64;
        let seconds = |flops: f64| images * flops / self.hardware.flops;
        let merger = merger_flops(v, c.hidden_size) * patches;
        let below = tower_flops(v, c.hidden_size, patches) - merger;
        let sizes = UnitSizes::new(c, self.cluster.ranks);
        let units = sizes.tower();
        let mut passes = match w.train {
            VisionTrain::None => self.tower_scoring(c, images, true),
            VisionTrain::Merger => {
                // Its states are new to the first epoch; each image has a pass of its own.
                let epochs = if self.keeps_images() { self.workload.epochs as f64 } else { 1.0 };
                let states = units[1..].iter().map(|&numel| (images / epochs, numel));
                let compute = seconds(3.0 * merger + below / epochs);
                self.tower_passes(compute, states.chain([(1.0, units[0])]))
            }
            VisionTrain::All => {
                let keeps = self.update.recompute == Recompute::None;
                let again = if keeps { 0.0 } else { 1.0 };
                // Merger and patch embedding are not computed again.
                let blocks = 1..=v.depth as usize;
                let times = |unit: usize| if blocks.contains(&unit) { 1.0 + again } else { 1.0 };
                let gathers = units.iter().enumerate().map(|(unit, &numel)| (times(unit), numel));
                self.tower_passes(seconds(3.0 * merger + (3.0 + again) * below), gathers)
            }
        };
        // A unit's gradient is reduced while the unit before it computes.
        let reduced = sizes.tower_of(w.train);
        let reduce: f64 =
            reduced.iter().map(|&numel| self.cluster.seconds(&self.hardware, 4 * numel, slices(numel))).sum();
        let [compute, communication, exposed] = passes.seconds;
        passes.seconds = [compute, communication + reduce, exposed + (reduce - compute / 2.0).max(0.0)];
        passes
    }
}
