//! Communication of an iteration, and the seconds of its phases: what hides behind what.
//!
//! With `full` a unit is gathered while the one before it computes, and a block's gradient is reduced while the next
//! block's is computed; what takes longer than its cover is exposed, and so are the first gather and the last reduction.

use serde::Serialize;

use super::hardware::{Hardware, Cluster};
use super::memory::{SLICE_BYTES, Units, UpdateSetup, adapter_units, cache_bytes};
use crate::model::Config;
use crate::model::config::Output;
use crate::model::flops::{block_flops, head_flops};

/// What is played and trained on in one iteration; counts of steps and tokens are means.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Workload {
    /// Groups.
    pub tasks: u64,
    /// Episodes of a group.
    pub group_size: u64,
    /// Steps of an episode.
    pub steps: f64,
    /// Tokens of a prompt; in a transcript of its new part.
    pub prompt: f64,
    /// Tokens of a response.
    pub response: f64,
    /// Whether an episode is one sequence.
    pub transcript: bool,
    /// Steps per optimiser step.
    pub mini_batch: u64,
    /// Passes over the steps.
    pub epochs: u64,
    /// Tokens per forward and backward pass.
    pub micro_batch_tokens: u64,
    /// Requests decoded at once.
    pub slots: u64,
    /// Forward passes of the policy and of a reference for log-probs alone.
    pub logprob_passes: u64,
    /// Whether a critic is trained.
    pub critic: bool,
}

impl Workload {
    /// Steps of all episodes.
    pub fn all_steps(&self) -> f64 {
        (self.tasks * self.group_size) as f64 * self.steps
    }

    /// Steps of one sequence.
    fn sequence_steps(&self) -> f64 {
        if self.transcript { self.steps } else { 1.0 }
    }

    fn sequence_tokens(&self) -> f64 {
        self.sequence_steps() * (self.prompt + self.response)
    }

    /// Optimiser steps of an iteration.
    pub fn mini_batches(&self) -> u64 {
        (self.all_steps() / self.mini_batch as f64).ceil().max(1.0) as u64 * self.epochs
    }

    /// Sequences of a mini-batch.
    pub fn sequences(&self) -> f64 {
        self.all_steps() * self.epochs as f64 / self.mini_batches() as f64 / self.sequence_steps()
    }

    /// The micro-batches that the busiest of so many ranks computes of a mini-batch, and the sequences of one of them.
    fn micro_batches(&self, ranks: u64) -> (f64, f64) {
        let sequences = (self.sequences() / ranks as f64).ceil();
        let most = (self.micro_batch_tokens as f64 / self.sequence_tokens()).floor().max(1.0);
        let count = (sequences / most).ceil();
        (count, sequences / count)
    }

    /// Bytes of batch and episodes on the host of every rank: ids twice and text, the columns of response tokens, and what a
    /// row has beside them.
    pub fn host_bytes(&self) -> u64 {
        (self.all_steps() * (12.0 * (self.prompt + self.response) + 36.0 * self.response + 400.0)) as u64
    }
}

/// One kind of collective in an iteration.
#[derive(Debug, Clone, Serialize)]
pub struct Collective {
    /// The operation.
    pub operation: &'static str,
    /// What goes through it.
    pub what: &'static str,
    /// Calls.
    pub calls: u64,
    /// Bytes that each rank sends.
    pub bytes: u64,
}

/// Seconds of one phase.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// Its name, as in the metrics.
    pub name: &'static str,
    /// Computing.
    pub compute: f64,
    /// Communicating, hidden or not.
    pub communication: f64,
    /// The part of communication that nothing hides.
    pub exposed: f64,
}

impl Phase {
    /// From begin to end.
    pub fn seconds(&self) -> f64 {
        self.compute + self.exposed
    }
}

/// An iteration on one number of ranks.
#[derive(Debug, Clone, Serialize)]
pub struct Iteration {
    /// Ranks.
    pub ranks: u64,
    /// Communication; empty on one rank.
    pub collectives: Vec<Collective>,
    /// Seconds.
    pub phases: Vec<Phase>,
    /// Ranks that play at least one group.
    pub playing: u64,
    /// Tokens of a micro-batch of the busiest rank.
    pub micro_batch_tokens: f64,
    /// Tokens of a micro-batch from which on the communication of a block is hidden behind its arithmetic.
    pub hidden_from: f64,
    /// The same if a collective took no time but for its bytes.
    pub hidden_from_without_latency: f64,
}

impl Iteration {
    /// Seconds of all phases.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(Phase::seconds).sum()
    }

    /// Whether an update's communication is hidden, but for its ends.
    pub fn hidden(&self) -> bool {
        self.micro_batch_tokens >= self.hidden_from
    }

    /// One phase.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// What an iteration's time depends on.
#[derive(Debug, Clone, Copy)]
pub struct TimeSetup<'a> {
    /// The network and how it is spread; `ranks` is that of `world`.
    pub update: UpdateSetup<'a>,
    /// Blocks that the backward pass computes again.
    pub recomputed: u64,
    /// The work.
    pub workload: Workload,
    /// The rates.
    pub hardware: Hardware,
    /// The ranks.
    pub world: Cluster,
}

/// What one network's passes cost on a rank.
struct Costs {
    /// Seconds of the forward pass of a block.
    block: f64,
    /// Seconds of the head's forward pass.
    head: f64,
    /// Number of blocks.
    blocks: f64,
    /// Seconds to gather the first unit, and a block.
    gather: [f64; 2],
    /// Seconds to reduce the gradients of the first unit, and of a block.
    reduce: [f64; 2],
}

impl Costs {
    /// A forward pass alone.
    fn forward(&self) -> [f64; 3] {
        let [outer, block] = self.gather;
        let compute = self.blocks * self.block + self.head;
        let exposed = outer + block + (self.blocks - 1.0) * over(block, self.block) + over(outer, self.block);
        [compute, 2.0 * outer + self.blocks * block, exposed]
    }

    /// A backward pass that computes the first so many blocks again. While a block computes, the one below it is gathered
    /// and the gradient of the one above is reduced.
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
        [compute, again as f64 * gather + self.blocks * reduce + outer, exposed + reduce + outer]
    }
}

/// What is left of a time behind another.
fn over(time: f64, cover: f64) -> f64 {
    (time - cover).max(0.0)
}

fn plus(a: [f64; 3], b: [f64; 3], times: f64) -> [f64; 3] {
    [0, 1, 2].map(|i| a[i] + times * b[i])
}

/// Calls in which a unit of so many elements goes.
fn slices(numel: u64) -> u64 {
    (4 * numel).div_ceil(SLICE_BYTES)
}

impl TimeSetup<'_> {
    /// The seconds and the communication of an iteration.
    pub fn iteration(&self) -> Iteration {
        let w = &self.workload;
        let ranks = self.world.ranks;
        let (micro, sequences) = w.micro_batches(ranks);
        let steps = w.mini_batches() as f64;
        let costs = self.costs(self.update.config, sequences);
        let pass = costs.forward();
        let both = plus(pass, costs.backward(self.recomputed), 1.0);

        let mut phases = vec![self.generation()];
        let mut phase = |name, [compute, communication, exposed]: [f64; 3]| {
            phases.push(Phase { name, compute, communication, exposed });
        };
        if w.logprob_passes > 0 {
            // Every step once, whatever the epochs.
            let passes = w.logprob_passes as f64 * steps / w.epochs as f64 * micro;
            phase("log-probs", plus([0.0; 3], pass, passes));
        }
        if w.critic {
            let config = Config { output: Output::Value, ..self.update.config.clone() };
            let costs = self.costs(&config, sequences);
            let values = plus([0.0; 3], costs.forward(), steps / w.epochs as f64 * micro);
            let both = plus(costs.forward(), costs.backward(self.recomputed), 1.0);
            phase("critic", plus(plus(values, both, steps * micro), self.after_step(&config), steps));
        }
        phase("update", plus(plus([0.0; 3], both, steps * micro), self.after_step(self.update.config), steps));

        Iteration {
            ranks,
            collectives: self.collectives(micro),
            phases,
            playing: ranks.min(w.tasks),
            micro_batch_tokens: sequences * w.sequence_tokens(),
            hidden_from: self.hidden_from(sequences),
            hidden_from_without_latency: Self { hardware: Hardware { latency: [0.0; 3], ..self.hardware }, ..*self }
                .hidden_from(sequences),
        }
    }

    /// Tokens of a micro-batch whose arithmetic takes as long as what a block sends, forward and backward.
    fn hidden_from(&self, sequences: f64) -> f64 {
        let costs = self.costs(self.update.config, sequences);
        let per_token = costs.block / (sequences * self.workload.sequence_tokens());
        let ([_, gather], [_, reduce]) = (costs.gather, costs.reduce);
        let backward = if self.recomputed > 0 { (gather + reduce) / 3.0 } else { reduce / 2.0 };
        gather.max(backward) / per_token
    }

    /// What a network's passes cost on a micro-batch of so many sequences.
    fn costs(&self, c: &Config, sequences: f64) -> Costs {
        let w = &self.workload;
        let units = Units::new(c, self.world.ranks);
        let tokens = sequences * w.sequence_tokens();
        let responses = sequences * w.sequence_steps() * w.response;
        let head = head_flops(c) * responses;
        let gather = |numel: u64| match self.update.gathers() {
            true => self.world.seconds(&self.hardware, self.bytes() * numel, slices(numel)),
            false => 0.0,
        };
        let reduce = |numel: u64| self.world.seconds(&self.hardware, 4 * numel, slices(numel));
        let (outer, block) = self.reduced(&units, c);
        Costs {
            block: tokens * block_flops(c, w.sequence_tokens()) / self.hardware.flops,
            head: head / self.hardware.flops,
            blocks: c.num_hidden_layers as f64,
            gather: [gather(units.outer()), gather(units.block())],
            reduce: [if outer > 0 { reduce(outer) } else { 0.0 }, reduce(block)],
        }
    }

    /// Elements of the first unit's and of a block's gradient that are reduced; adapters have none of the first.
    fn reduced(&self, units: &Units, c: &Config) -> (u64, u64) {
        match self.update.lora {
            Some(lora) if c.output == Output::Tokens => (0, adapter_units(c, lora, self.world.ranks).numel[0]),
            _ => (units.outer(), units.block()),
        }
    }

    fn bytes(&self) -> u64 {
        self.update.kind.elt_size_in_bytes() as u64
    }

    /// Bytes and calls gathered once an optimiser step is made: all weights where every rank holds them, or the adapters
    /// that every rank merges into what it holds.
    fn refreshed(&self, c: &Config) -> (u64, u64) {
        let calls = |units: &Units| units.numel.iter().map(|&n| slices(n)).sum();
        match self.update.lora {
            Some(lora) if c.output == Output::Tokens => {
                let units = adapter_units(c, lora, self.world.ranks);
                (4 * units.all(), calls(&units))
            }
            _ if self.update.gathers() => (0, 0),
            _ => {
                let units = Units::new(c, self.world.ranks);
                (self.bytes() * units.all(), calls(&units))
            }
        }
    }

    /// The seconds of that.
    fn after_step(&self, c: &Config) -> [f64; 3] {
        let (bytes, calls) = self.refreshed(c);
        let seconds = self.world.seconds(&self.hardware, bytes, calls);
        [0.0, seconds, seconds]
    }

    /// Prompts are computed without what the cache may share.
    fn generation(&self) -> Phase {
        let (w, h, c) = (&self.workload, &self.hardware, self.update.config);
        let episodes = w.tasks.div_ceil(self.world.ranks) * w.group_size;
        let steps = episodes as f64 * w.steps;
        let units = Units::new(c, self.world.ranks);
        let weights = (units.all() - units.outer()) + (c.vocab_size * c.hidden_size) as u64;
        let context = if w.transcript { w.sequence_tokens() / 2.0 } else { w.prompt + w.response / 2.0 };
        let prefill = steps * w.prompt * c.num_hidden_layers as f64 * block_flops(c, w.prompt) / h.flops;
        let at_once = w.slots.min(episodes) as f64;
        // On a GPU keys and values are gathered for every pass, and repeated for the heads that share them.
        let reads = match self.update.cpu {
            true => 1.0,
            false => 3.0 + 2.0 * c.num_attention_heads as f64 / c.num_key_value_heads as f64,
        };
        let cache = at_once * context * cache_bytes(c, self.update.kind, self.update.cpu) as f64 * reads;
        let read = ((self.bytes() * weights) as f64 + cache) / h.memory_rate;
        let arithmetic = at_once * 2.0 * weights as f64 / h.flops;
        let pass = read.max(arithmetic).max(h.launch * c.num_hidden_layers as f64);
        let compute = prefill + steps * w.response / at_once * pass;
        let gathered = if self.update.gathers() {
            let calls = units.numel.iter().map(|&n| slices(n)).sum();
            self.world.seconds(h, self.bytes() * units.all(), calls)
        } else {
            0.0
        };
        Phase { name: "rollout", compute, communication: gathered, exposed: gathered }
    }

    fn collectives(&self, micro: f64) -> Vec<Collective> {
        let w = &self.workload;
        let mut list = Vec::new();
        let mut add = |operation, what, calls, bytes| {
            if calls > 0 {
                list.push(Collective { operation, what, calls, bytes });
            }
        };
        if self.world.ranks == 1 {
            return list;
        }
        let share = |bytes| self.world.share(bytes);
        let c = self.update.config;
        let critic = w.critic.then(|| Config { output: Output::Value, ..c.clone() });
        let (blocks, steps, b) = (c.num_hidden_layers as u64, w.mini_batches(), self.bytes());
        let micro = micro as u64 * steps;
        for (config, log_probs) in std::iter::once((c, w.logprob_passes)).chain(critic.as_ref().map(|c| (c, 1))) {
            let units = Units::new(config, self.world.ranks);
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
            let (outer, block) = self.reduced(&units, config);
            let calls = micro * (slices(outer) + blocks * slices(block));
            let what = if policy { "gradients" } else { "the critic's gradients" };
            add("reduce_scatter", what, calls, micro * share(4 * (outer + blocks * block)));
            let (bytes, calls) = self.refreshed(config);
            let what = if policy { "weights after each step" } else { "the critic's after each step" };
            add("all_gather", what, steps * calls, steps * share(bytes));
        }
        let networks = 1 + u64::from(w.critic);
        add("all_gather", "episodes", 1, share(w.host_bytes()));
        add("broadcast", "advantages and returns", 1, (w.all_steps() * w.response * 8.0) as u64);
        add("all_reduce", "counts and norms", 2 * networks * steps, 32 * networks * steps);
        list
    }
}
