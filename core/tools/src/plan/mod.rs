//! `nestor plan`: checks a recipe and estimates its needs before a run: memory per rank, communication, time per phase, and
//! the smallest cluster that fits. It allocates no tensor.
//!
//! A plan is arithmetic on the sizes that the trainer allocates (`memory`) and on assumed rates (`hardware`, `time`).

mod collectives;
mod format;
mod hardware;
mod images;
mod knobs;
mod machine;
mod memory;
mod offload;
mod planner;
mod print;
mod search;
#[cfg(test)]
mod search_tests;
#[cfg(test)]
mod tests;
mod time;
mod tower;
mod units;
mod whole;
mod workload;

use std::sync::Arc;

use anyhow::Result;
use nestor_args::{Gpu, MOST_RANKS, PlanArgs};
use nestor_torch::host;
use serde::Serialize;
use serde_json::Value;

pub use self::hardware::{Cluster, Hardware};
pub use self::images::Images;
use self::knobs::Knobs;
pub use self::memory::{Frozen, Item, IterationSetup, Memory, UpdateSetup, iteration_memory, update_memory};
use self::offload::{Offloaded, host_warning};
use self::planner::{Fit, Planner};
use self::search::Fitted;
pub use self::time::{Collective, Iteration, PlannedPhase};
use self::units::UnitSizes;
use self::whole::WholeRun;
pub use self::workload::PlannedWork;
use self::workload::{AskedPasses, Means, planned_work};
use crate::checkpoint::Source;
use crate::input_error;
use crate::model::{Config, arch::shape_names, kind, new::last_ids};
use crate::preflight::{Conditions, Findings, preflight};
use crate::recipe::{self, Recipe, Sharding, all_of};

/// The measured memory of plugins is rounded up to a multiple of these bytes.
const PLUGIN_BYTES: u64 = 32 << 20;

/// Ranks on one node where nobody says how many.
const PER_NODE: u64 = 8;

/// Numbers of ranks that every plan shows.
const SHOWN: [u64; 4] = [1, 2, 4, 8];

#[derive(Debug, Serialize)]
pub struct Plan {
    /// The recipe's file.
    pub recipe: String,
    pub model: PlannedModel,
    /// The requested cluster.
    #[serde(rename = "world")]
    pub cluster: Cluster,
    pub hardware: Hardware,
    /// The device of each rank.
    pub device: String,
    /// The recipe's mode; `full` in place of `none`, which only one rank can have.
    pub sharding: Sharding,
    pub workload: PlannedWork,
    /// Memory in the requested cluster, under the recipe's mode.
    pub here: Fit,
    /// Time and communication in the requested cluster.
    pub iteration: Iteration,
    /// Time of the whole run.
    pub whole: WholeRun,
    /// The settings of `--fit`, with which all of the plan is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fitted>,
    /// The requested cluster under `full` and under `grad_op`.
    pub modes: Vec<Fit>,
    /// Clusters of 1, 2, 4 and 8 ranks under the recipe's mode.
    #[serde(rename = "worlds")]
    pub clusters: Vec<Fit>,
    /// Ranks of the smallest cluster that fits; `None` if none up to 4096 ranks does.
    pub smallest: Option<u64>,
    /// Bytes of batch and episodes on the host of every rank.
    pub host_bytes: u64,
    /// Bytes of the copy that a thread writes to a checkpoint, on the host of every rank.
    #[serde(skip_serializing_if = "is_zero")]
    pub checkpoint_copy: u64,
    /// The optimizer's tensors on the host of every rank, with `update.offload`.
    #[serde(skip_serializing_if = "is_none")]
    pub offloaded: Offloaded,
    /// The same batch on more and more ranks, up to the requested number.
    pub scaling: Vec<Iteration>,
    /// The fewest of these ranks whose communication is no longer hidden.
    pub exposed_from: Option<u64>,
    pub assumptions: Vec<String>,
    pub warnings: Vec<String>,
}

/// The network of a plan.
#[derive(Debug, Serialize)]
pub struct PlannedModel {
    /// Folder or shape.
    pub name: String,
    pub parameters: u64,
    pub blocks: u64,
    /// Those among the parameters of a vision tower.
    #[serde(skip_serializing_if = "is_zero")]
    pub tower: u64,
    pub dtype: recipe::Dtype,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_none(offloaded: &Offloaded) -> bool {
    *offloaded == Offloaded::default()
}

/// Plans a recipe.
///
/// # Errors
/// If the checks before a run refuse the recipe, or if its model folder is missing and no shape is given. With a shape the
/// plan is for another machine: what is not on this one is a warning. With `--fit` also if no settings fit.
pub fn plan(args: &PlanArgs) -> Result<Plan> {
    let mut recipe = recipe::load(&args.recipe, &args.sets)?;
    let memory = args.memory.map(memory_bytes).transpose()?;
    let target = machine::target(args.gpu, recipe.device, kind(recipe.dtype), memory);
    let ranks = match args.gpus {
        Some(ranks) => ranks,
        None if recipe.sharding == Sharding::None => world_size()?.unwrap_or(1),
        None => world_size()?.unwrap_or(target.here.max(1)),
    };
    let (config, name) = network(&recipe, args.shape.as_deref())?;
    let elsewhere = args.shape.is_some().then_some(&config);
    let conditions =
        Conditions { ranks: ranks as usize, root: true, dir: None, made: None, elsewhere, stop: Arc::default() };
    let before = host::own_bytes();
    let findings = preflight(&recipe, &conditions);
    // The plugins are open, with the data that each rank loads. Rounded up, so that plans of one recipe are alike.
    let plugins = host::own_bytes().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
    let plugins = plugins.next_multiple_of(PLUGIN_BYTES);
    let (passes, frozen) = (AskedPasses::of(&recipe, &findings), frozen(&findings));
    let Findings { problems, warnings, eval_tasks, lengths, lessons, config: found, .. } = findings;
    if let Some(error) = all_of(problems) {
        return Err(error);
    }
    // The checks trained the tokenizer of a new model, which may have fewer tokens than asked for.
    let config = found.unwrap_or(config);
    let means = Means::of(args, lengths);
    let workload = planned_work(&recipe, &config, &means, passes)?;
    if let (Some(settings), Some(lessons)) = (&mut recipe.warm_start, &lessons) {
        settings.steps = Some(settings.steps(lessons.learned.len()));
    }
    let measurement = means.measurement(&recipe);
    let planner =
        Planner { hardware: target.hardware, config, frozen, per_node: args.gpus_per_node, workload, recipe, plugins };
    let fit = args.fit.then(|| planner.search(ranks)).transpose()?;
    let knobs = fit.as_ref().map_or(Knobs::of(&planner.recipe), |fit| fit.knobs);
    let mut plan = planner.plan(&knobs, ranks, eval_tasks.map(|(tasks, _)| tasks));
    plan.recipe = args.recipe.display().to_string();
    plan.assumptions.extend(measurement);
    Ok(Plan { fit, device: target.name, warnings, model: PlannedModel { name, ..plan.model }, ..plan })
}

/// Warns of a run that the free memory of this machine does not hold, by the arithmetic of a plan. Call it before the run
/// takes memory.
pub fn memory_warning(recipe: &Recipe, findings: &Findings, ranks: usize) -> Option<String> {
    let config = findings.config.clone()?;
    let hardware = machine::target(None, recipe.device, kind(recipe.dtype), None).hardware;
    let means = Means { measured: findings.lengths, ..Means::default() };
    let workload = planned_work(recipe, &config, &means, AskedPasses::of(recipe, findings)).ok()?;
    let (frozen, recipe) = (frozen(findings), recipe.clone());
    let knobs = Knobs::of(&recipe);
    let planner = Planner { hardware, config, frozen, per_node: PER_NODE, workload, recipe, plugins: 0 };
    let Fit { peak_phase, peak_bytes, capacity, fits, .. } = planner.fit(ranks as u64, &knobs);
    let on_host = planner.iteration_setup(ranks as u64, &knobs).offloaded();
    let host = host::available_bytes().filter(|_| hardware.gpu != Gpu::Cpu);
    let host = host.and_then(|available| host_warning(&on_host, (ranks as u64).min(PER_NODE), available));
    let device = (!fits).then(|| {
        format!(
            "the run may need {} of memory in {peak_phase}, and a rank has {}: `nestor plan RECIPE --fit` chooses settings \
             that fit",
            format::bytes(peak_bytes),
            format::bytes(capacity)
        )
    });
    device.or(host)
}

/// The frozen networks that a recipe names.
fn frozen(findings: &Findings) -> Vec<Frozen> {
    let named = [("reference", &findings.reference), ("teacher", &findings.teacher)];
    named.into_iter().filter_map(|(name, config)| Some(Frozen { name, config: config.clone()? })).collect()
}

/// The bytes of `--memory`.
fn memory_bytes(gb: f64) -> Result<u64> {
    match gb {
        gb if gb > 0.0 && gb < 1e6 => Ok((gb * 1e9) as u64),
        gb => Err(input_error!("--memory must be a number of GB greater than 0, not {gb}")),
    }
}

/// The number of ranks in torchrun's variable.
fn world_size() -> Result<Option<u64>> {
    let set = std::env::var("WORLD_SIZE").ok().filter(|text| !text.trim().is_empty());
    let Some(text) = set else { return Ok(None) };
    match text.trim().parse() {
        Ok(ranks @ 1..=MOST_RANKS) => Ok(Some(ranks)),
        _ => Err(input_error!("the variable WORLD_SIZE must be a number from 1 to {MOST_RANKS}, not `{text}`")),
    }
}

/// The recipe's network, or the given shape, and its name.
fn network(recipe: &Recipe, shape: Option<&str>) -> Result<(Config, String)> {
    let source = &recipe.model;
    if let Some(new) = &source.new {
        if shape.is_some() {
            return Err(input_error!("--shape replaces `model.path`, but the recipe has a `model.new`"));
        }
        let config = Config::of_new(new, new.vocab_size, recipe.rollout.max_tokens() as i64, last_ids(new.vocab_size))?;
        config.check()?;
        return Ok((config, "model.new".into()));
    }
    if let Some(shape) = shape {
        return Ok((Config::shape(shape)?.with_image_limits(source)?, shape.into()));
    }
    let name = source.path.as_deref().unwrap_or_default();
    let config =
        Source::of_recipe(name.as_ref()).and_then(|source| Config::load(source.folder())).map_err(|error| {
            let shapes = shape_names().join("|");
            input_error!(
                "recipe key `model.path`: {error:#}; or give the network's shape instead, with --shape {shapes}"
            )
        })?;
    Ok((config, name.into()))
}

impl Planner {
    /// Numbers of ranks from the smallest cluster on: those of one node, then whole nodes.
    fn clusters(&self) -> impl Iterator<Item = u64> {
        let node = self.per_node;
        (1..=node).chain((2..=MOST_RANKS / node).map(move |nodes| nodes * node))
    }

    /// The plan under some settings; the names are left empty. `tasks`: those of an evaluation, where they were counted.
    fn plan(&self, knobs: &Knobs, ranks: u64, tasks: Option<u64>) -> Plan {
        let mode = match knobs.sharding {
            Sharding::None => Sharding::Full, // the same on one rank
            mode => mode,
        };
        let under = |sharding| Knobs { sharding, ..*knobs };
        let fit = |ranks| self.fit(ranks, &under(mode));
        let here = self.fit(ranks, knobs);
        let units = UnitSizes::new(&self.config, 1);
        let iteration = self.iteration(&here, knobs);
        let scaling: Vec<Iteration> = std::iter::successors(Some(1), |ranks| Some(ranks * 2))
            .take_while(|&size| size < ranks)
            .chain([ranks])
            .map(|ranks| self.iteration(&fit(ranks), &under(mode)))
            .collect();
        Plan {
            recipe: String::new(),
            device: String::new(),
            model: PlannedModel {
                name: String::new(),
                parameters: units.all(),
                tower: units.tower().iter().sum(),
                blocks: self.config.num_hidden_layers as u64,
                dtype: self.recipe.dtype,
            },
            cluster: Cluster { ranks, per_node: self.per_node },
            hardware: self.hardware,
            sharding: mode,
            workload: self.workload,
            whole: self.whole(&here, knobs, iteration.seconds(), tasks),
            fit: None,
            modes: [Sharding::Full, Sharding::GradOp].map(|mode| self.fit(ranks, &under(mode))).into(),
            clusters: SHOWN.map(fit).into(),
            // All ranks on a CPU share one machine's memory.
            smallest: match self.hardware.gpu {
                Gpu::Cpu => SHOWN.into_iter().find(|&ranks| fit(ranks).fits),
                _ => self.clusters().find(|&ranks| fit(ranks).fits),
            },
            host_bytes: self.workload.host_bytes(),
            checkpoint_copy: self.iteration_setup(ranks, knobs).checkpoint_copy(),
            offloaded: self.iteration_setup(ranks, knobs).offloaded(),
            exposed_from: scaling.iter().find(|point| point.ranks > 1 && !point.hidden()).map(|point| point.ranks),
            scaling,
            here,
            iteration,
            assumptions: self.hardware.assumptions().into_iter().chain(self.workload.images.assumption()).collect(),
            warnings: Vec::new(),
        }
    }
}

impl Plan {
    /// The plan as JSON, with totals of its lists.
    pub fn to_json(&self) -> Result<Value> {
        let mut json = serde_json::to_value(self)?;
        json["iteration"]["seconds"] = self.iteration.seconds().into();
        json["iteration"]["hidden"] = self.iteration.hidden().into();
        for (json, point) in json["scaling"].as_array_mut().into_iter().flatten().zip(&self.scaling) {
            json["seconds"] = point.seconds().into();
            json["hidden"] = point.hidden().into();
        }
        Ok(json)
    }
}
