//! Memory and time of a recipe under some settings: the arithmetic behind a plan, and behind the search of `--fit`.

use super::memory::Frozen;
use nestor_args::Gpu;
use serde::Serialize;

use super::hardware::{Cluster, Hardware};
use super::images::Images;
use super::knobs::Knobs;
use super::memory::{IterationSetup, Memory, UpdateSetup, iteration_memory};
use super::time::{Iteration, TimeSetup};
use super::workload::PlannedWork;
use crate::engine::PAGE;
use crate::model::{Config, kind};
use crate::recipe::{Recipe, Sharding};

/// Bytes of an environment in play, with its prompts and texts: half of what ALFWorld's take.
const ENVIRONMENT: u64 = 512 << 10;

/// Memory of a rank in one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    pub ranks: u64,
    pub sharding: Sharding,
    pub memory: Memory,
    /// The moment with the largest total.
    pub peak_phase: &'static str,
    /// The bytes at that moment.
    pub peak_bytes: u64,
    /// The bytes that a rank may take.
    pub capacity: u64,
    pub fits: bool,
}

/// The inputs of a plan.
#[derive(Debug, Clone)]
pub struct Planner {
    pub recipe: Recipe,
    pub config: Config,
    /// Frozen networks beside the policy.
    pub frozen: Vec<Frozen>,
    pub hardware: Hardware,
    pub per_node: u64,
    /// The work of an iteration under the recipe's own settings.
    pub workload: PlannedWork,
    /// Bytes of the plugins' data, as the checks loaded it.
    pub plugins: u64,
}

impl Planner {
    /// Ranks that share one CPU.
    pub fn sharing(&self, ranks: u64) -> u64 {
        if self.hardware.gpu == Gpu::Cpu { ranks.min(self.per_node) } else { 1 }
    }

    /// Bytes that a rank may take.
    pub fn capacity(&self, ranks: u64) -> u64 {
        self.hardware.memory / self.sharing(ranks)
    }

    /// Episodes that one rank plays at once, if nothing limits it.
    pub fn episodes(&self, ranks: u64) -> u64 {
        self.workload.tasks.div_ceil(ranks) * self.workload.group_size
    }

    /// Longest request in tokens, in whole pages of the cache.
    pub fn longest(&self) -> u64 {
        self.recipe.rollout.max_tokens().next_multiple_of(PAGE) as u64
    }

    /// The most tokens that one rank has at once for the network: those of a whole mini-batch of the update or of the warm
    /// start, with prompts and responses at their limits.
    pub fn most_tokens(&self, ranks: u64) -> u64 {
        let rollout = &self.recipe.rollout;
        let warm_start = self.recipe.warm_start.as_ref().map_or(0, |warm| warm.batch as u64);
        let played = self.workload.tasks * self.workload.group_size * u64::from(rollout.max_steps);
        let steps = (self.recipe.update.mini_batch as u64).min(played).max(warm_start).div_ceil(ranks);
        let longest = rollout.max_tokens() as u64;
        // Balancing leaves a rank at most one sequence over its share.
        let beyond = if ranks > 1 { longest } else { 0 };
        let chat = self.recipe.warm_start.as_ref().and_then(|warm| warm.max_tokens).unwrap_or(0) as u64;
        let each = ((rollout.max_prompt_tokens + rollout.max_response_tokens) as u64).max(chat);
        (steps * each + beyond).max(longest)
    }

    fn update_setup(&self, ranks: u64, knobs: &Knobs) -> UpdateSetup<'_> {
        let rollout = &self.recipe.rollout;
        let tokens = knobs.micro_batch_tokens.min(self.most_tokens(ranks));
        // The largest share of responses: each at its limit, after a prompt of the planned mean.
        let response = rollout.max_response_tokens as f64;
        let share = response / (response + self.workload.prompt - self.workload.common.min(self.workload.prompt));
        // The largest share of images: prompts of the planned mean with short responses.
        let images = self.workload.images;
        let image_tokens = (tokens as f64 * images.tokens / self.workload.prompt.max(1.0)) as u64;
        UpdateSetup {
            config: &self.config,
            kind: kind(self.recipe.dtype),
            cpu: self.hardware.gpu == Gpu::Cpu,
            ranks,
            sharding: knobs.sharding,
            lora: self.recipe.model.lora.as_ref(),
            optimizer: &self.recipe.update.optimizer,
            offload: self.recipe.update.offload,
            micro_batch_tokens: tokens,
            response_tokens: (tokens as f64 * share) as u64,
            image_tokens: image_tokens.min(tokens),
            images: Images { train: self.recipe.model.vision_train(), ..images },
            recompute: knobs.recompute,
            memory: self.capacity(ranks),
            process: self.hardware.process,
        }
    }

    /// Memory of a rank.
    pub fn fit(&self, ranks: u64, knobs: &Knobs) -> Fit {
        let memory = iteration_memory(&self.iteration_setup(ranks, knobs));
        let (peak_phase, peak_bytes) = memory.peak();
        let capacity = self.capacity(ranks);
        let sharding = knobs.sharding;
        Fit { ranks, sharding, memory, peak_phase, peak_bytes, capacity, fits: peak_bytes <= capacity }
    }

    /// The inputs of a rank's memory.
    pub fn iteration_setup(&self, ranks: u64, knobs: &Knobs) -> IterationSetup<'_> {
        let longest = self.longest();
        let slots = knobs.slots.min(self.episodes(ranks));
        IterationSetup {
            update: self.update_setup(ranks, knobs),
            reference: self.workload.reference,
            frozen: &self.frozen,
            critic: self.recipe.critic.is_some(),
            slots,
            longest,
            cache_tokens: knobs.cache_tokens.unwrap_or(u64::MAX).min(slots * longest),
            batch: self.workload.host_bytes(),
            plugins: self.plugins + self.episodes(ranks) * ENVIRONMENT,
            fragments: self.hardware.fragments,
            background: self.recipe.checkpoint.background,
        }
    }

    /// The inputs of a rank's times.
    pub fn time(&self, fit: &Fit, knobs: &Knobs) -> TimeSetup<'_> {
        let share = self.sharing(fit.ranks) as f64;
        TimeSetup {
            update: self.update_setup(fit.ranks, knobs),
            frozen: &self.frozen,
            recomputed: fit.memory.recomputed,
            workload: PlannedWork {
                micro_batch_tokens: knobs.micro_batch_tokens,
                slots: knobs.slots,
                cache_tokens: knobs.cache_tokens.unwrap_or(knobs.slots * self.longest()),
                ..self.workload
            },
            hardware: Hardware {
                flops: self.hardware.flops / share,
                memory_rate: self.hardware.memory_rate / share,
                ..self.hardware
            },
            cluster: Cluster { ranks: fit.ranks, per_node: self.per_node },
        }
    }

    /// Time and communication of an iteration.
    pub fn iteration(&self, fit: &Fit, knobs: &Knobs) -> Iteration {
        self.time(fit, knobs).iteration()
    }
}
