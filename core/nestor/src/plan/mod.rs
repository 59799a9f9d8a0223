//! `nestor plan`: checks a recipe and says what it takes before a run: memory per rank, communication, time per phase, and
//! the smallest world that fits. It makes no tensor: a network's `config.json` (or its shape) is all it reads.
//!
//! A plan is arithmetic on the sizes that the trainer allocates (`memory`) and on stated rates (`hardware`, `time`).

mod hardware;
mod memory;
mod print;
#[cfg(test)]
mod tests;
mod time;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

pub use self::hardware::{Gpu, Hardware, Cluster};
pub use self::memory::{Item, IterationSetup, Memory, UpdateSetup, iteration_memory, update_memory};
use self::time::TimeSetup;
pub use self::time::{Collective, Iteration, Phase, Workload};
use crate::engine::PAGE;
use crate::input_error;
use crate::model::{Config, config::SHAPES, kind};
use crate::recipe::{self, DeviceChoice, OldLogprobs, Recipe, Sharding};

/// Worlds that every plan shows.
const SHOWN: [u64; 4] = [1, 2, 4, 8];
/// The largest world that is looked at.
const LARGEST: u64 = 4096;

/// What `nestor plan` is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct PlanArgs {
    /// The recipe
    pub recipe: PathBuf,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Ranks; by default those of the variable WORLD_SIZE, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST))]
    pub gpus: Option<u64>,
    /// Ranks on one node
    #[arg(long, value_name = "M", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=LARGEST))]
    pub gpus_per_node: u64,
    /// What a rank computes on; by default cpu for a recipe with `device: cpu`, else h100-80gb
    #[arg(long, value_enum)]
    pub gpu: Option<Gpu>,
    /// Shape of the network in place of the recipe's model folder, as `nestor model new` names it
    #[arg(long, value_name = "SHAPE")]
    pub shape: Option<String>,
    /// Mean steps of an episode; by default two thirds of rollout.max_steps
    #[arg(long, value_name = "N")]
    pub steps: Option<f64>,
    /// Mean tokens of a prompt (of its new part in a transcript); by default a quarter of rollout.max_prompt_tokens
    #[arg(long, value_name = "N")]
    pub prompt: Option<f64>,
    /// Mean tokens of a response; by default a sixth of rollout.max_response_tokens
    #[arg(long, value_name = "N")]
    pub response: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What a recipe takes.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// The recipe's file.
    pub recipe: String,
    /// The network.
    pub model: Network,
    /// The world asked for.
    pub world: Cluster,
    /// What a rank computes on.
    pub hardware: Hardware,
    /// The mode that the recipe names, or `full` for the worlds that `none` cannot have.
    pub sharding: Sharding,
    /// The work that the times are of.
    pub workload: Workload,
    /// Memory and time in the world asked for, under the recipe's mode.
    pub here: Fit,
    /// Its time and communication.
    pub iteration: Iteration,
    /// The world asked for under `full` and under `grad_op`.
    pub modes: Vec<Fit>,
    /// Worlds of 1, 2, 4 and 8 under the recipe's mode.
    pub worlds: Vec<Fit>,
    /// The smallest world that fits; none where none up to 4096 does.
    pub smallest: Option<u64>,
    /// Bytes of batch and episodes on the host of every rank.
    pub host_bytes: u64,
    /// The same batch in larger worlds, up to the one asked for.
    pub scaling: Vec<Iteration>,
    /// The smallest of these whose communication is no longer hidden.
    pub exposed_from: Option<u64>,
    /// What the numbers stand on.
    pub assumptions: Vec<String>,
    /// What is allowed but rarely meant.
    pub warnings: Vec<String>,
}

/// The network of a plan.
#[derive(Debug, Serialize)]
pub struct Network {
    /// Its folder or shape.
    pub name: String,
    /// Parameters.
    pub parameters: u64,
    /// Blocks.
    pub blocks: u64,
    /// The compute type, as libtorch calls it.
    pub dtype: recipe::Dtype,
}

/// Memory of a rank in one world.
#[derive(Debug, Serialize)]
pub struct Fit {
    /// Ranks.
    pub ranks: u64,
    /// How parameters are spread.
    pub sharding: Sharding,
    /// The items.
    pub memory: Memory,
    /// The moment that takes most.
    pub peak_phase: &'static str,
    /// And its bytes.
    pub peak_bytes: u64,
    /// What a rank may take.
    pub capacity: u64,
    /// Whether it does not take more.
    pub fits: bool,
}

/// Everything that a plan is computed from.
#[derive(Debug)]
struct Planner {
    recipe: Recipe,
    config: Config,
    hardware: Hardware,
    per_node: u64,
    workload: Workload,
}

/// Plans a recipe.
///
/// # Errors
/// When the recipe is wrong, its model folder is missing and no shape is named, or it asks for more than one rank without
/// sharding.
pub fn plan(args: &PlanArgs) -> Result<Plan> {
    let recipe = recipe::load(&args.recipe, &args.sets)?;
    let ranks = match args.gpus {
        Some(ranks) => ranks,
        None => world_size()?,
    };
    if recipe.sharding == Sharding::None && ranks > 1 {
        return Err(input_error!(
            "recipe key `sharding`: `none` is for one rank, and {ranks} are asked for; set it to full or grad_op"
        ));
    }
    let (config, name) = network(&recipe, args.shape.as_deref())?;
    let gpu = args.gpu.unwrap_or(if recipe.device == DeviceChoice::Cpu { Gpu::Cpu } else { Gpu::H100 });
    let workload = workload(&recipe, args)?;
    let planner =
        Planner { hardware: gpu.hardware(kind(recipe.dtype)), config, per_node: args.gpus_per_node, workload, recipe };
    Ok(planner.plan(args.recipe.display().to_string(), name, ranks))
}

/// The number of ranks that torchrun's variable says.
fn world_size() -> Result<u64> {
    let Ok(text) = std::env::var("WORLD_SIZE") else { return Ok(1) };
    match text.parse() {
        Ok(ranks @ 1..=LARGEST) => Ok(ranks),
        _ => Err(input_error!("the variable WORLD_SIZE must be a number from 1 to {LARGEST}, not `{text}`")),
    }
}

/// The recipe's network, or the shape in its place, and what to call it.
fn network(recipe: &Recipe, shape: Option<&str>) -> Result<(Config, String)> {
    let source = &recipe.model;
    if let Some(new) = &source.new {
        if shape.is_some() {
            return Err(input_error!("--shape stands in for `model.path`, but the recipe makes its own `model.new`"));
        }
        let config = Config::of_new(new, new.vocab_size, recipe.rollout.max_tokens() as i64);
        config.check()?;
        return Ok((config, "model.new".into()));
    }
    if let Some(shape) = shape {
        return Ok((Config::shape(shape)?, shape.into()));
    }
    let folder = source.path.as_deref().unwrap_or_default();
    if !Path::new(folder).join("config.json").exists() {
        return Err(input_error!(
            "recipe key `model.path`: there is no {folder}/config.json here; name the network's shape instead, with \
             --shape {}",
            SHAPES.join("|")
        ));
    }
    Ok((Config::load(Path::new(folder))?, folder.into()))
}

/// An iteration's work. The default means are near those of the published ALFWorld run: 34 of 50 steps, prompts of 521 of
/// 2048 tokens, responses of 81 of 512.
fn workload(recipe: &Recipe, args: &PlanArgs) -> Result<Workload> {
    let (r, u) = (&recipe.rollout, &recipe.update);
    let mean = |flag: &str, given: Option<f64>, share: f64, most: f64| match given {
        None => Ok((share * most).max(1.0)),
        Some(mean) if (1.0..=most).contains(&mean) => Ok(mean),
        Some(mean) => Err(input_error!("{flag} must be from 1 to {most}, the recipe's limit, not {mean}")),
    };
    let mut workload = Workload {
        tasks: u64::from(r.tasks),
        group_size: u64::from(r.group_size),
        steps: mean("--steps", args.steps, 2.0 / 3.0, f64::from(r.max_steps))?,
        prompt: mean("--prompt", args.prompt, 0.25, r.max_prompt_tokens as f64)?,
        response: mean("--response", args.response, 1.0 / 6.0, r.max_response_tokens as f64)?,
        transcript: r.is_transcript(),
        mini_batch: u.mini_batch as u64,
        epochs: u64::from(u.epochs),
        micro_batch_tokens: u.micro_batch_tokens as u64,
        slots: r.slots as u64,
        logprob_passes: u64::from(u.old_logprobs == OldLogprobs::Recompute) + u64::from(has_reference(recipe)),
        critic: recipe.critic.is_some(),
    };
    if workload.transcript {
        let room = r.max_tokens() as f64 / (workload.prompt + workload.response);
        workload.steps = workload.steps.min(room.max(1.0));
    }
    Ok(workload)
}

fn has_reference(recipe: &Recipe) -> bool {
    recipe.update.kl.is_some() || recipe.update.kl_in_reward.is_some()
}

impl Planner {
    fn plan(&self, recipe: String, name: String, ranks: u64) -> Plan {
        let mode = match self.recipe.sharding {
            Sharding::None => Sharding::Full, // the same on one rank
            mode => mode,
        };
        let here = self.fit(ranks, self.recipe.sharding);
        let iteration = self.iteration(&here);
        let scaling: Vec<Iteration> = std::iter::successors(Some(1), |ranks| Some(ranks * 2))
            .take_while(|&size| size < ranks)
            .chain([ranks])
            .map(|ranks| self.iteration(&self.fit(ranks, mode)))
            .collect();
        let mut candidates = (1..=self.per_node).chain((2..=LARGEST / self.per_node).map(|n| n * self.per_node));
        let cpu = self.hardware.gpu == Gpu::Cpu;
        Plan {
            recipe,
            model: Network {
                name,
                parameters: memory::Units::new(&self.config, 1).all(),
                blocks: self.config.num_hidden_layers as u64,
                dtype: self.recipe.dtype,
            },
            world: Cluster { ranks, per_node: self.per_node },
            hardware: self.hardware,
            sharding: mode,
            workload: self.workload,
            modes: [Sharding::Full, Sharding::GradOp].map(|mode| self.fit(ranks, mode)).into(),
            worlds: SHOWN.map(|ranks| self.fit(ranks, mode)).into(),
            // More ranks on one machine do not make its memory larger.
            smallest: match cpu {
                true => SHOWN.into_iter().find(|&ranks| self.fit(ranks, mode).fits),
                false => candidates.find(|&ranks| self.fit(ranks, mode).fits),
            },
            host_bytes: self.workload.host_bytes(),
            exposed_from: scaling.iter().find(|world| world.ranks > 1 && !world.hidden()).map(|world| world.ranks),
            scaling,
            here,
            iteration,
            assumptions: self.hardware.gpu.assumptions(),
            warnings: self.warnings(ranks),
        }
    }

    fn update_setup(&self, ranks: u64, sharding: Sharding) -> UpdateSetup<'_> {
        let rollout = &self.recipe.rollout;
        let tokens = self.recipe.update.micro_batch_tokens as u64;
        // The most that can be responses: every one at its limit, behind the shortest share of prompts that is planned.
        let response = rollout.max_response_tokens as f64;
        let share = response / (response + self.workload.prompt);
        UpdateSetup {
            config: &self.config,
            kind: kind(self.recipe.dtype),
            cpu: self.hardware.gpu == Gpu::Cpu,
            ranks,
            sharding,
            lora: self.recipe.model.lora.as_ref(),
            micro_batch_tokens: tokens,
            response_tokens: (tokens as f64 * share) as u64,
            recompute: self.recipe.update.recompute,
            memory: self.capacity(ranks),
            process: self.hardware.process,
        }
    }

    /// Bytes that a rank may take: ranks on one CPU share its memory.
    fn capacity(&self, ranks: u64) -> u64 {
        match self.hardware.gpu {
            Gpu::Cpu => self.hardware.memory / ranks.min(self.per_node),
            _ => self.hardware.memory,
        }
    }

    fn fit(&self, ranks: u64, sharding: Sharding) -> Fit {
        let rollout = &self.recipe.rollout;
        let longest = rollout.max_tokens().next_multiple_of(PAGE) as u64;
        let episodes = self.workload.tasks.div_ceil(ranks) * self.workload.group_size;
        let memory = iteration_memory(&IterationSetup {
            update: self.update_setup(ranks, sharding),
            reference: has_reference(&self.recipe),
            critic: self.recipe.critic.is_some(),
            slots: self.workload.slots.min(episodes),
            longest,
            cache_tokens: rollout.cache_tokens.map_or(self.workload.slots * longest, |tokens| tokens as u64),
            batch: self.workload.host_bytes(),
            fragments: self.hardware.fragments,
        });
        let (peak_phase, peak_bytes) = memory.peak();
        let capacity = self.capacity(ranks);
        Fit { ranks, sharding, memory, peak_phase, peak_bytes, capacity, fits: peak_bytes <= capacity }
    }

    fn iteration(&self, fit: &Fit) -> Iteration {
        TimeSetup {
            update: self.update_setup(fit.ranks, fit.sharding),
            recomputed: fit.memory.recomputed,
            workload: self.workload,
            hardware: self.hardware,
            world: Cluster { ranks: fit.ranks, per_node: self.per_node },
        }
        .iteration()
    }

    fn warnings(&self, ranks: u64) -> Vec<String> {
        let mut warnings = self.recipe.warnings();
        let Workload { tasks, mini_batch, .. } = self.workload;
        if ranks > tasks {
            warnings.push(format!(
                "rollout.tasks is {tasks}, and groups stay whole: {} of {ranks} ranks play nothing",
                ranks - tasks
            ));
        }
        if ranks > mini_batch {
            warnings.push(format!(
                "update.mini_batch is {mini_batch} steps: at least {} of {ranks} ranks have none in the update",
                ranks - mini_batch
            ));
        }
        warnings
    }
}

impl Plan {
    /// As JSON, with the totals of what it lists.
    pub fn to_json(&self) -> Result<Value> {
        let mut json = serde_json::to_value(self)?;
        json["iteration"]["seconds"] = self.iteration.seconds().into();
        json["iteration"]["hidden"] = self.iteration.hidden().into();
        for (json, world) in json["scaling"].as_array_mut().into_iter().flatten().zip(&self.scaling) {
            json["seconds"] = world.seconds().into();
            json["hidden"] = world.hidden().into();
        }
        Ok(json)
    }
}
