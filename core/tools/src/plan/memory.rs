//! Memory of one rank, item by item.
//!
//! b: bytes of the compute type, N: parameters, W: ranks. Every mode shards the optimizer's float32 tensors (master weights,
//! gradient sums, its state). With W > 1 `full` also shards the weights and all-gathers each unit for use; otherwise every
//! rank holds all weights. Units are padded, so rank 0's shards are the largest.

use nestor_torch::PAGE;
use nestor_torch::ops::Ops;
use serde::Serialize;
use tch::{Device, Kind};

use super::images::Images;
use super::offload::Offloaded;
use super::units::{Trained, UnitSizes, adapter_units, held};
use crate::engine::{pass_rows, recorded_rows};
use crate::model::Config;
use crate::model::config::Output;
use crate::model::flops::block_matrices;
use crate::policy::recompute::{PassBytes, PassSize};
use crate::recipe::{Lora, Offload, Optimizer, Recompute, Sharding};
use crate::shard::update_rule;

/// Bytes of one gathered or reduced slice, in float32.
pub const SLICE_BYTES: u64 = 64 << 20;

/// A CPU's allocator (glibc's) takes tensors of less than 32 MiB from its heap, where freed ones leave holes that later
/// tensors do not fill. Measured by `tests/slow/plan_fit.py`: as much as one block's tensors, and at most this.
const HOLES: u64 = 384 << 20;
/// Bytes on a CPU of the heap's free top, of kernels compiled for new shapes, and of a checkpoint on its way to the disk.
const HEAP: u64 = 160 << 20;

/// One consumer of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Item {
    pub name: &'static str,
    /// Bytes at each moment.
    pub bytes: Vec<u64>,
}

/// Memory of a rank at some moments of an iteration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// The names of the moments: the columns.
    pub moments: Vec<&'static str>,
    /// The rows.
    pub items: Vec<Item>,
    /// Number of blocks that the update recomputes in its backward pass.
    pub recomputed: u64,
}

impl Memory {
    fn new(moments: Vec<&'static str>) -> Self {
        Self { moments, items: Vec::new(), recomputed: 0 }
    }

    /// Bytes at each moment.
    pub fn totals(&self) -> Vec<u64> {
        (0..self.moments.len()).map(|moment| self.items.iter().map(|item| item.bytes[moment]).sum()).collect()
    }

    /// The moment with the largest total, and its bytes.
    pub fn peak(&self) -> (&'static str, u64) {
        let totals = self.totals().into_iter().zip(&self.moments);
        totals.max_by_key(|(bytes, _)| *bytes).map_or(("", 0), |(bytes, moment)| (*moment, bytes))
    }

    /// An item's bytes at each moment; `None` if it takes no memory.
    pub fn item(&self, name: &str) -> Option<&[u64]> {
        self.items.iter().find(|item| item.name == name).map(|item| &item.bytes[..])
    }

    fn push(&mut self, name: &'static str, bytes: impl Into<Vec<u64>>) {
        let bytes = bytes.into();
        if bytes.iter().any(|&b| b > 0) {
            self.items.push(Item { name, bytes });
        }
    }
}

/// Inputs of an update's memory.
#[derive(Debug, Clone, Copy)]
pub struct UpdateSetup<'a> {
    pub config: &'a Config,
    /// The compute type.
    pub kind: Kind,
    /// True on a CPU, whose operations need fewer temporaries than a GPU's.
    pub cpu: bool,
    pub ranks: u64,
    pub sharding: Sharding,
    /// The adapters, if only they are trained.
    pub lora: Option<&'a Lora>,
    pub optimizer: &'a Optimizer,
    /// Its tensors that rest in the host's memory.
    pub offload: Offload,
    /// Tokens of one rank's micro-batch.
    pub micro_batch_tokens: u64,
    /// Response tokens among them.
    pub response_tokens: u64,
    /// Tokens of images among them.
    pub image_tokens: u64,
    pub images: Images,
    /// Blocks that the backward pass recomputes.
    pub recompute: Recompute,
    /// Memory of the device in bytes; `recompute: auto` uses the free part.
    pub memory: u64,
    /// Bytes of the process before it holds a tensor.
    pub process: u64,
}

impl UpdateSetup<'_> {
    /// True if units are all-gathered for use.
    pub fn gathers(&self) -> bool {
        self.ranks > 1 && self.sharding == Sharding::Full
    }

    fn device(&self) -> Device {
        if self.cpu { Device::Cpu } else { Device::Cuda(0) }
    }

    /// The form of the network's operations there.
    fn ops(&self) -> Ops {
        Ops::of(self.kind, self.device())
    }

    fn bytes(&self) -> u64 {
        self.kind.elt_size_in_bytes() as u64
    }

    /// Bytes that a rank always holds of a trained network: weights, master weights, gradient sums, the optimizer's state.
    /// Units of a vision tower that are not trained have weights alone.
    fn state(&self, config: &Config) -> [u64; 4] {
        let units = &UnitSizes::new(config, self.ranks);
        let weights = match (self.gathers(), self.kind, self.ranks) {
            // Those that are trained are the master weights.
            (_, Kind::Float, 1) | (true, Kind::Float, _) => self.frozen(&units.frozen(self.images.train)),
            (true, _, _) => self.bytes() * units.shard(),
            (false, _, _) => self.bytes() * units.all(),
        };
        let [master_weights, state] = held(&self.trained(config, None).tensors());
        [weights, master_weights, master_weights, state]
    }

    /// The trained part of a network; `lora`: only adapters of it.
    fn trained<'a>(&'a self, config: &'a Config, lora: Option<&'a Lora>) -> Trained<'a> {
        Trained { config, lora, vision: self.images.train, optimizer: self.optimizer, ranks: self.ranks }
    }

    /// The tensors of a network that rest on the host.
    pub fn offloaded(&self, config: &Config, lora: Option<&Lora>) -> Offloaded {
        Offloaded::new(&self.trained(config, lora).tensors(), self.offload, self.cpu)
    }

    /// The tensors that a device holds of a trained network, without those that rest on the host. A CPU is the host.
    fn on_device(&self, held: [u64; 4], offloaded: &Offloaded) -> [u64; 4] {
        if self.cpu {
            return held;
        }
        let [weights, master_weights, sums, state] = held;
        [weights, master_weights - offloaded.master_weights, sums, state - offloaded.state]
    }

    /// Bytes that a rank holds of a network that is not trained.
    fn frozen(&self, units: &UnitSizes) -> u64 {
        self.bytes() * if self.gathers() { units.shard() } else { units.all() }
    }

    /// Bytes of the tensors of the policy that a rank always holds, wherever they rest, as [`Self::state`].
    fn policy_state(&self) -> [u64; 4] {
        let Some(lora) = self.lora else { return self.state(self.config) };
        let [master_weights, state] = held(&self.trained(self.config, Some(lora)).tensors());
        [self.frozen(&UnitSizes::new(self.config, self.ranks)), master_weights, master_weights, state]
    }

    /// Names and bytes of the tensors of the policy that a rank always holds on its device.
    fn policy(&self) -> [(&'static str, u64); 4] {
        let offloaded = self.offloaded(self.config, self.lora);
        let [weights, master_weights, sums, state] = self.on_device(self.policy_state(), &offloaded);
        let name = if self.lora.is_some() { "frozen base of the adapters" } else { "weights" };
        let rule = update_rule(self.optimizer);
        [(name, weights), ("master weights", master_weights), ("gradient sums", sums), (rule.state_in_words(), state)]
    }
}

/// Memory of an update alone, as in `nestor bench update`. The moments are the head, with all checkpointed inputs and the
/// logits, and the backward pass over the blocks.
pub fn update_memory(setup: &UpdateSetup) -> Memory {
    let mut memory = Memory::new(vec!["update: head", "update: blocks"]);
    for (name, bytes) in setup.policy() {
        memory.push(name, [bytes; 2]);
    }
    passes(setup, &setup.offloaded(setup.config, setup.lora), &mut memory);
    memory.push("process", [setup.process; 2]);
    memory
}

/// Adds the temporary memory of an update's passes and steps to the last two moments of `memory`. Returns the part that is as
/// large with one block.
fn passes(setup: &UpdateSetup, offloaded: &Offloaded, memory: &mut Memory) -> u64 {
    let held = memory.totals();
    let c = setup.config;
    let (b, tokens) = (setup.bytes(), setup.micro_batch_tokens);
    let units = UnitSizes::new(c, setup.ranks);
    let (outer, block, blocks) = (units.outer(), units.block(), c.num_hidden_layers as u64);
    let before = memory.moments.len() - 2;
    let at = |head: u64, blocks: u64| [vec![0; before], vec![head, blocks]].concat();

    // Weight gradients are added to the float32 sums as they are computed. With several ranks there are buffers to reduce: one
    // block's while the next one's is filled, and the first unit's, to which embedding and head both add.
    let own = setup.lora.map(|lora| adapter_units(c, lora, setup.ranks));
    let tower = setup.tower();
    let reduced = own.as_ref().map_or(block.max(tower.reduced), |own| own.numel[0]);
    let (outer_buffer, block_buffers) = match (setup.ranks, &own) {
        (1, _) => (0, 0),
        (_, None) => (4 * outer, 8 * reduced),
        (_, Some(_)) => (0, 8 * reduced),
    };

    let size = PassSize { tokens, states: setup.response_tokens, image_tokens: setup.image_tokens };
    let pass = PassBytes::new(c, setup.kind, setup.ops(), size);
    let gathered = |units: u64| if setup.gathers() { b * units } else { 0 };
    let gathering = if setup.gathers() { pass.with_weights(setup.kind, block) } else { pass };
    let auto = |free: u64| gathering.blocks_without_room(blocks as usize, free, setup.device()) as u64;
    let again = match setup.recompute {
        Recompute::All => blocks,
        Recompute::Auto => auto(setup.memory.saturating_sub(held[before])),
        Recompute::None => 0,
        Recompute::Blocks(n) => (n as u64).min(blocks),
    };
    let kept = blocks - again;
    memory.recomputed = again;

    memory.push(
        "gathered units",
        at(gathered(outer + block + kept * block), gathered(2 * block + kept.saturating_sub(1) * block)),
    );
    memory.push("gradient buffers", at(outer_buffer, outer_buffer + block_buffers));
    memory.push("checkpointed inputs", at(again * pass.input, again * pass.input));
    memory.push("graphs of blocks", at(kept * pass.graph, kept.max(1) * pass.graph));
    memory.push("gradients of activations", at(0, pass.gradients));
    memory.push("logits and states of the head", at(pass.head, 0));
    memory.push("vision tower's activations", at(tower.kept, tower.kept));
    // It passes before the language model and after it.
    let others = again * pass.input + kept.max(1) * pass.graph + pass.gradients;
    memory.push("vision tower's passes", at(0, tower.pass.saturating_sub(others)));
    if setup.cpu && setup.ranks > 1 {
        memory.push("slices in flight", at(2 * SLICE_BYTES, 2 * SLICE_BYTES));
    }
    // A step follows the passes, whose memory is free by then.
    let last = before + 1;
    memory.push(
        "one unit's tensors in a step",
        at(0, offloaded.staged.saturating_sub(memory.totals()[last] - held[last])),
    );
    pass.graph + pass.gradients + pass.head
}

/// Inputs of a whole iteration's memory.
#[derive(Debug, Clone, Copy)]
pub struct IterationSetup<'a> {
    pub update: UpdateSetup<'a>,
    /// True if there is a frozen copy of the policy, the reference.
    pub reference: bool,
    /// Other frozen networks.
    pub frozen: &'a [Frozen],
    /// True if a critic is trained.
    pub critic: bool,
    /// Requests that one rank decodes at once.
    pub slots: u64,
    /// Longest request in tokens.
    pub longest: u64,
    /// Capacity of the cache in tokens.
    pub cache_tokens: u64,
    /// Bytes of the batch and the episodes on the host.
    pub batch: u64,
    /// Bytes of the plugins' data and of the environments in play, on the host.
    pub plugins: u64,
    /// Memory that the allocator cannot use.
    pub fragments: u64,
    /// A thread writes checkpoints from a copy on the host.
    pub background: bool,
}

impl IterationSetup<'_> {
    /// Bytes of the copy that a thread writes to a checkpoint: master weights and the optimizer's state, also those of a critic.
    pub fn checkpoint_copy(&self) -> u64 {
        if !self.background {
            return 0;
        }
        let [_, master_weights, _, state] = self.update.policy_state();
        let critic = self.critic.then(|| self.update.state(&critic_config(self.update.config)));
        master_weights + state + critic.map_or(0, |[_, master_weights, _, state]| master_weights + state)
    }

    /// The tensors of the policy and the critic that rest on the host.
    pub fn offloaded(&self) -> Offloaded {
        let critic = self.critic.then(|| self.update.offloaded(&critic_config(self.update.config), None));
        self.update.offloaded(self.update.config, self.update.lora) + critic.unwrap_or_default()
    }
}

/// The network of a critic beside a policy.
fn critic_config(policy: &Config) -> Config {
    Config { output: Output::Value, ..policy.clone() }
}

/// A frozen network beside the policy, which scores its responses.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// Its part: `reference` or `teacher`.
    pub name: &'static str,
    pub config: Config,
}

/// Memory of a whole iteration: generation, then the update's two moments.
pub fn iteration_memory(setup: &IterationSetup) -> Memory {
    let IterationSetup { update, .. } = setup;
    let mut memory = Memory::new(vec!["rollout", "update: head", "update: blocks"]);
    for (name, bytes) in update.policy() {
        memory.push(name, [bytes; 3]);
    }
    if setup.reference {
        let bytes = match update.lora {
            // It shares the policy's base.
            Some(lora) => 4 * adapter_units(update.config, lora, update.ranks).all(),
            // It shares what is not trained.
            None => update.frozen(&UnitSizes::new(update.config, update.ranks).trained(update.images.train)),
        };
        memory.push("reference", [bytes; 3]);
    }
    for Frozen { name, config } in setup.frozen {
        memory.push(name, [update.frozen(&UnitSizes::new(config, update.ranks)); 3]);
    }
    if setup.critic {
        let config = critic_config(update.config);
        let state = update.on_device(update.state(&config), &update.offloaded(&config, None));
        memory.push("critic and its optimizer", [state.iter().sum::<u64>(); 3]);
    }
    let networks = [(update.config, true)].into_iter().chain(setup.critic.then_some((update.config, true)));
    let networks = networks.chain(setup.reference.then_some((update.config, false)));
    let networks = networks.chain(setup.frozen.iter().map(|frozen| (&frozen.config, false)));
    let images = networks.map(|(config, trains)| update.kept_images(config, trains)).sum::<u64>();
    memory.push("kept embeddings of images", [images; 3]);
    memory.push("process", [update.process; 3]);
    if !update.cpu {
        memory.push("unusable to the allocator", [setup.fragments; 3]);
    } else {
        memory.push("batch and episodes", [setup.batch; 3]);
        memory.push("plugins and environments", [setup.plugins; 3]);
        memory.push("copy for a checkpoint", [setup.checkpoint_copy(); 3]);
    }
    let held = memory.totals()[0];
    generation(setup, &mut memory);
    let played = memory.totals()[0] - held;
    let block = passes(update, &setup.offloaded(), &mut memory);
    if update.cpu {
        let [rollout, update] = [played / 4, block].map(|bytes| HEAP + bytes.min(HOLES));
        memory.push("holes and top of the heap", [rollout, update, update]);
    }
    memory
}

fn generation(setup: &IterationSetup, memory: &mut Memory) {
    let IterationSetup { update, slots, longest, cache_tokens, .. } = *setup;
    let (c, b) = (update.config, update.bytes());
    let at = |bytes: u64| [bytes, 0, 0];
    if update.gathers() {
        memory.push("whole copy for rollout", at(b * UnitSizes::new(c, update.ranks).all()));
    }
    // The generic operations read the very weights that the update trains.
    if update.ops() == Ops::Fused {
        let matrices = c.num_hidden_layers as u64 * block_matrices(c) + (c.vocab_size * c.hidden_size) as u64;
        memory.push("packed copy of the matrices", at(b * matrices));
    }
    let cache = (cache_tokens + PAGE as u64) * cache_bytes(c, update.kind, update.cpu);
    memory.push("cache of keys and values", at(cache));

    let (heads, kv, dim) = (c.num_attention_heads as u64, c.num_key_value_heads as u64, c.head_dim() as u64);
    let row = b * (4 * c.hidden_size as u64 + 3 * c.intermediate_size as u64 + (3 * heads + 2 * kv) * dim);
    // Without a fused sampler, in float32: logits, log-probs, probabilities, their sums.
    let of_row = c.vocab_size as u64 * if update.ops() == Ops::Fused { b } else { 4 * 4 };
    // A GPU also copies the pages that a pass sees, one block's at a time.
    let seen = if update.cpu { 0 } else { longest * b * 2 * kv * dim };
    // A pass embeds the images among its rows, of which two may be there in part.
    let rows = pass_rows(slots as usize, !update.cpu) as u64;
    let patches = c.vision.as_ref().map_or(0, |vision| (rows + 2 * update.images.largest) * vision.merged() as u64);
    memory.push("vision tower's pass", at(update.tower_pass(patches)));
    memory.push("passes of generation", at(rows * row + slots * (of_row + seen)));
    if !update.cpu {
        // Their memory is not returned between passes.
        let rows = recorded_rows(slots as usize) as u64;
        memory.push("recorded passes of decoding", at(rows * (row + of_row + seen)));
    }
}

/// Bytes of the cache per token. A CPU's kernels round the head size up to a multiple of 32.
pub fn cache_bytes(c: &Config, kind: Kind, cpu: bool) -> u64 {
    let dim = if cpu { (c.head_dim() as u64).next_multiple_of(32) } else { c.head_dim() as u64 };
    2 * (c.num_hidden_layers * c.num_key_value_heads) as u64 * dim * kind.elt_size_in_bytes() as u64
}
