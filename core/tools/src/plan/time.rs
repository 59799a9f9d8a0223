//! Communication of an iteration, and the seconds of its phases, with the overlap of the two.
//!
//! With `full` each unit is all-gathered while the previous one computes, and a block's gradient is reduced while the next
//! block's is computed. Communication beyond that computation is exposed, and so are the first gather and last reduction.

use super::memory::Frozen;
use serde::Serialize;

use super::hardware::{Cluster, Hardware};
use super::memory::{SLICE_BYTES, UpdateSetup, cache_bytes};
use super::units::{UnitSizes, adapter_units};
use super::workload::PlannedWork;
use crate::model::Config;
use crate::model::config::Output;
use crate::model::flops::{block_flops, head_flops};

/// Seconds of one phase.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedPhase {
    /// Name as in the metrics.
    pub name: &'static str,
    pub compute: f64,
    /// Hidden and exposed communication.
    pub communication: f64,
    /// Communication that no computation hides.
    pub exposed: f64,
}

impl PlannedPhase {
    /// Computation and exposed communication.
    pub fn seconds(&self) -> f64 {
        self.compute + self.exposed
    }
}

/// An iteration on one number of ranks.
#[derive(Debug, Clone, Serialize)]
pub struct Iteration {
    pub ranks: u64,
    /// Empty on one rank.
    pub collectives: Vec<Collective>,
    pub phases: Vec<PlannedPhase>,
    /// Ranks that play at least one group.
    pub playing: u64,
    /// Tokens that the busiest rank's micro-batch computes.
    pub micro_batch_tokens: f64,
    /// Tokens of its sequences by those, without states that recur.
    pub tree_factor: f64,
    /// Fewest tokens of a micro-batch with which a block's computation hides its communication.
    pub hidden_from: f64,
    /// The same for collectives without latency.
    pub hidden_from_without_latency: f64,
}

impl Iteration {
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(PlannedPhase::seconds).sum()
    }

    /// True if an update's communication is hidden, except at its ends.
    pub fn hidden(&self) -> bool {
        self.micro_batch_tokens >= self.hidden_from
    }

    pub fn phase(&self, name: &str) -> Option<&PlannedPhase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// One kind of collective in an iteration.
#[derive(Debug, Clone, Serialize)]
pub struct Collective {
    pub operation: &'static str,
    /// The data that it transfers.
    pub what: &'static str,
    pub calls: u64,
    /// Bytes that each rank sends.
    pub bytes: u64,
}

/// Inputs of an iteration's time.
#[derive(Debug, Clone, Copy)]
pub struct TimeSetup<'a> {
    /// The network and its sharding; its `ranks` are those of the cluster.
    pub update: UpdateSetup<'a>,
    /// Frozen networks that are no copy of the policy.
    pub frozen: &'a [Frozen],
    /// Blocks that the backward pass recomputes.
    pub recomputed: u64,
    pub workload: PlannedWork,
    pub hardware: Hardware,
    pub cluster: Cluster,
}

/// Costs of one network's passes on a rank, in seconds.
struct Costs {
    /// A block's forward pass.
    block: f64,
    /// The head's forward pass.
    head: f64,
    /// Number of blocks.
    blocks: f64,
    /// Seconds of a forward pass whatever its tokens: reading the weights, and launches.
    pass: f64,
    /// Adding a backward pass's gradients to their sums in float32.
    sums: f64,
    /// All-gather of the first unit, and of a block.
    gather: [f64; 2],
    /// Reduction of the gradients of the first unit, and of a block.
    reduce: [f64; 2],
}

impl Costs {
    /// Computation, communication and exposed communication of a forward pass.
    fn forward(&self) -> [f64; 3] {
        let [outer, block] = self.gather;
        let compute = self.blocks * self.block + self.head + self.pass;
        let exposed = outer + block + (self.blocks - 1.0) * over(block, self.block) + over(outer, self.block);
        [compute, 2.0 * outer + self.blocks * block, exposed]
    }

    /// The same of a backward pass that recomputes the first `again` blocks. While a block computes, the block below is
    /// gathered and the gradient of the block above is reduced.
    fn backward(&self, again: u64) -> [f64; 3] {
        let [_, gather] = self.gather;
        let [outer, reduce] = self.reduce;
        let gathers = |block: u64| if block < again { gather } else { 0.0 };
        let blocks = self.blocks as u64;
        let mut compute = 2.0 * self.head;
        let mut exposed = over(gathers(blocks - 1), compute);
        for block in (0..blocks).rev() {
            let own = self.block * if block < again { 3.0 } else { 2.0 };
            let below = if block > 0 { gathers(block - 1) } else { 0.0 };
            let above = if block + 1 < blocks { reduce } else { 0.0 };
            compute += own;
            exposed += over(below + above, own);
        }
        compute += self.sums + (2.0 + again as f64 / self.blocks) * self.pass;
        [compute, again as f64 * gather + self.blocks * reduce + outer, exposed + reduce + outer]
    }
}

/// The part of `time` beyond `cover`.
fn over(time: f64, cover: f64) -> f64 {
    (time - cover).max(0.0)
}

fn plus(a: [f64; 3], b: [f64; 3], times: f64) -> [f64; 3] {
    [0, 1, 2].map(|i| a[i] + times * b[i])
}

/// Number of calls that transfer a unit of `numel` elements.
pub(super) fn slices(numel: u64) -> u64 {
    (4 * numel).div_ceil(SLICE_BYTES)
}

impl TimeSetup<'_> {
    pub fn iteration(&self) -> Iteration {
        let w = &self.workload;
        let ranks = self.cluster.ranks;
        let (micro, sequences) = w.micro_batches(w.sequences(), ranks);
        let steps = w.mini_batches() as f64;
        let costs = self.costs(self.update.config, sequences);
        let pass = costs.forward();
        let both = plus(pass, costs.backward(self.recomputed), 1.0);
        let images = self.images(sequences);

        let mut phases = vec![self.generation()];
        let mut phase = |name, [compute, communication, exposed]: [f64; 3]| {
            phases.push(PlannedPhase { name, compute, communication, exposed });
        };
        if w.logprob_passes > 0 {
            // Every step once, whatever the epochs.
            let once = steps / w.epochs as f64 * micro;
            let mut all = plus([0.0; 3], pass, w.logprob_passes as f64 * once);
            for network in 0..w.logprob_passes {
                let is_policy = network > 0 || !w.reference;
                all = plus(all, self.tower_scoring(self.update.config, images, is_policy).seconds, once);
            }
            phase("log-probs", all);
        }
        for Frozen { name, config } in self.frozen {
            let pass = self.costs(config, sequences).forward();
            let pass = plus(pass, self.tower_scoring(config, images, false).seconds, 1.0);
            phase(name, plus([0.0; 3], pass, steps / w.epochs as f64 * micro));
        }
        if w.critic {
            let config = Config { output: Output::Value, ..self.update.config.clone() };
            let costs = self.costs(&config, sequences);
            let pass = plus(costs.forward(), self.tower_scoring(&config, images, false).seconds, 1.0);
            let values = plus([0.0; 3], pass, steps / w.epochs as f64 * micro);
            let both = plus(costs.forward(), costs.backward(self.recomputed), 1.0);
            let both = plus(both, self.tower_update(&config, images).seconds, 1.0);
            phase("critic", plus(plus(values, both, steps * micro), self.after_step(&config), steps));
        }
        let both = plus(both, self.tower_update(self.update.config, images).seconds, 1.0);
        phase("update", plus(plus([0.0; 3], both, steps * micro), self.after_step(self.update.config), steps));

        Iteration {
            ranks,
            collectives: self.collectives(micro, sequences),
            phases,
            playing: ranks.min(w.tasks),
            micro_batch_tokens: w.distinct_tokens(sequences),
            tree_factor: w.tree_factor(sequences),
            hidden_from: self.hidden_from(sequences),
            hidden_from_without_latency: Self { hardware: Hardware { latency: [0.0; 3], ..self.hardware }, ..*self }
                .hidden_from(sequences),
        }
    }

    /// Seconds of one optimizer step of the policy on `rows` steps of episodes, as in a warm start.
    pub fn optimizer_step(&self, rows: f64) -> f64 {
        let (micro, sequences) = self.workload.micro_batches(rows / self.workload.sequence_steps(), self.cluster.ranks);
        let costs = self.costs(self.update.config, sequences);
        let both = plus(costs.forward(), costs.backward(self.recomputed), 1.0);
        let both = plus(both, self.tower_update(self.update.config, self.images(sequences)).seconds, 1.0);
        let [compute, _, exposed] = plus(plus([0.0; 3], both, micro), self.after_step(self.update.config), 1.0);
        compute + exposed
    }

    /// Images of this many sequences: one a step.
    pub(super) fn images(&self, sequences: f64) -> f64 {
        sequences * self.workload.sequence_steps()
    }

    /// Tokens of a micro-batch whose arithmetic takes as long as what a block sends, forward and backward.
    fn hidden_from(&self, sequences: f64) -> f64 {
        let costs = self.costs(self.update.config, sequences);
        let per_token = costs.block / self.workload.distinct_tokens(sequences);
        let ([_, gather], [_, reduce]) = (costs.gather, costs.reduce);
        let backward = if self.recomputed > 0 { (gather + reduce) / 3.0 } else { reduce / 2.0 };
        gather.max(backward) / per_token
    }

    /// Costs of a network's passes on a micro-batch of `sequences`.
    fn costs(&self, c: &Config, sequences: f64) -> Costs {
        let w = &self.workload;
        let units = UnitSizes::new(c, self.cluster.ranks);
        let tokens = w.distinct_tokens(sequences);
        let responses = sequences * w.sequence_steps() * w.response;
        let head = head_flops(c) * responses;
        let gather = |numel: u64| match self.update.gathers() {
            true => self.cluster.seconds(&self.hardware, self.bytes() * numel, slices(numel)),
            false => 0.0,
        };
        let reduce = |numel: u64| self.cluster.seconds(&self.hardware, 4 * numel, slices(numel));
        let (outer, block) = self.reduced(&units, c);
        Costs {
            block: tokens * block_flops(c, w.sequence_tokens()) / self.hardware.flops,
            head: head / self.hardware.flops,
            blocks: c.num_hidden_layers as f64,
            pass: (self.bytes() * units.language()) as f64 / self.hardware.memory_rate
                + self.hardware.launch * c.num_hidden_layers as f64,
            // Read and written.
            sums: 8.0 * (outer + c.num_hidden_layers as u64 * block) as f64 / self.hardware.memory_rate,
            gather: [gather(units.outer()), gather(units.block())],
            reduce: [if outer > 0 { reduce(outer) } else { 0.0 }, reduce(block)],
        }
    }

    /// Reduced elements of the first unit's gradient and of a block's; adapters have none in the first unit.
    pub(super) fn reduced(&self, units: &UnitSizes, c: &Config) -> (u64, u64) {
        match self.update.lora {
            Some(lora) if c.output == Output::Tokens => (0, adapter_units(c, lora, self.cluster.ranks).numel[0]),
            _ => (units.outer(), units.block()),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.update.kind.elt_size_in_bytes() as u64
    }

    /// Bytes and calls of the all-gather after an optimizer step: the trained weights if every rank holds all, or the adapters, which
    /// every rank merges into its weights.
    pub(super) fn refreshed(&self, c: &Config) -> (u64, u64) {
        let calls = |units: &UnitSizes| units.numel.iter().map(|&n| slices(n)).sum();
        match self.update.lora {
            Some(lora) if c.output == Output::Tokens => {
                let units = adapter_units(c, lora, self.cluster.ranks);
                (4 * units.all(), calls(&units))
            }
            _ if self.update.gathers() => (0, 0),
            _ => {
                let units = UnitSizes::new(c, self.cluster.ranks).trained(self.update.images.train);
                (self.bytes() * units.all(), calls(&units))
            }
        }
    }

    /// Seconds of that all-gather, and of the copies of a step's tensors that rest on the host.
    fn after_step(&self, c: &Config) -> [f64; 3] {
        let (bytes, calls) = self.refreshed(c);
        let lora = self.update.lora.filter(|_| c.output == Output::Tokens);
        let offloaded = self.update.offloaded(c, lora);
        // Weights that are gathered come from the host once more.
        let gathered = if bytes > 0 { offloaded.master_weights as f64 / self.hardware.host_rate } else { 0.0 };
        let copies = offloaded.seconds(&self.hardware) + gathered;
        let seconds = self.cluster.seconds(&self.hardware, bytes, calls) + copies;
        [0.0, seconds, seconds]
    }

    /// The rollout; assumes that the cache shares no prefixes, and that every step shows another image.
    pub fn generation(&self) -> PlannedPhase {
        let (w, h, c) = (&self.workload, &self.hardware, self.update.config);
        let episodes = w.tasks.div_ceil(self.cluster.ranks) * w.group_size;
        let steps = episodes as f64 * w.steps;
        let units = UnitSizes::new(c, self.cluster.ranks);
        let weights = (units.language() - units.outer()) + (c.vocab_size * c.hidden_size) as u64;
        let context = w.context() + w.response / 2.0;
        let prefill = steps * w.prompt * c.num_hidden_layers as f64 * block_flops(c, w.prompt) / h.flops;
        let at_once = (w.slots.min(episodes) as f64).min(w.cache_tokens as f64 / w.held()).max(1.0);
        // A GPU gathers keys and values for every pass, and repeats them for the heads that share them.
        let reads = match self.update.cpu {
            true => 1.0,
            false => 3.0 + 2.0 * c.num_attention_heads as f64 / c.num_key_value_heads as f64,
        };
        let cache = at_once * context * cache_bytes(c, self.update.kind, self.update.cpu) as f64 * reads;
        let read = ((self.bytes() * weights) as f64 + cache) / h.memory_rate;
        let arithmetic = at_once * 2.0 * weights as f64 / h.flops;
        let pass = read.max(arithmetic).max(h.launch * c.num_hidden_layers as f64);
        let [tower, ..] = self.tower_forward(c, steps, 0.0).seconds;
        let compute = prefill + tower + steps * w.response / at_once * pass;
        let gathered = if self.update.gathers() {
            let calls = units.numel.iter().map(|&n| slices(n)).sum();
            self.cluster.seconds(h, self.bytes() * units.all(), calls)
        } else {
            0.0
        };
        PlannedPhase { name: "rollout", compute, communication: gathered, exposed: gathered }
    }
}
