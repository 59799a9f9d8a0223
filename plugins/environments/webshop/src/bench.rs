//! Measures the environment on one thread: steps of a random policy, searches, memory.

use std::fmt;
use std::time::Instant;

use anyhow::{Context, Result};
use nestor_plugin::{Environment, Instance, Start};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::catalogue::Catalogue;
use crate::goals::Goals;
use crate::session::HITS;
use crate::{Config, WebShop};

/// Environments that exist at once when memory is measured.
const ENVIRONMENTS: u64 = 128;

/// The amount of work.
pub struct Plan {
    /// Steps to play.
    pub steps: u64,
    /// Searches to make.
    pub searches: u64,
    /// Seed of the random policy.
    pub seed: u64,
}

/// The figures.
#[derive(Debug, Serialize)]
pub struct Figures {
    products: u32,
    goals: u64,
    /// Seconds to open the catalogue.
    open_s: f64,
    steps: u64,
    steps_per_s: f64,
    /// Share of the steps that search.
    search_share: f64,
    /// Mean score of purchases at random.
    mean_score: f64,
    searches_per_s: f64,
    search_median_ms: f64,
    environments: u64,
    environments_mib: f64,
    process_mib: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} products, {} goals, opened in {:.3} s", self.products, self.goals, self.open_s)?;
        let share = 100.0 * self.search_share;
        writeln!(out, "{:.0} steps/s ({share:.0} % of them search)", self.steps_per_s)?;
        writeln!(out, "{:.0} searches/s, {:.3} ms at the median", self.searches_per_s, self.search_median_ms)?;
        let environments = self.environments;
        write!(
            out,
            "{environments} environments take {:.1} MiB, the process {:.1} MiB",
            self.environments_mib, self.process_mib
        )
    }
}

/// Measures a catalogue, which `open` opens.
pub fn run(open: impl FnOnce() -> Result<Catalogue>, plan: &Plan) -> Result<Figures> {
    let clock = Instant::now();
    let catalogue = open()?;
    let open_s = clock.elapsed().as_secs_f64();
    let config = Config { raw_commands: true, max_steps: Some(15), ..Config::default() };
    let world = WebShop::with(catalogue, Goals::Own { human: false }, &config)?;
    let tasks = world.tasks("train")?;
    let start = |task: u64| Start { split: "train", task: task % tasks, seed: 0 };
    let mut dice = ChaCha8Rng::seed_from_u64(plan.seed);

    let queries = (0..plan.searches).map(|task| query(&world, task % tasks)).collect::<Result<Vec<_>>>()?;
    let mut times = Vec::new();
    for query in &queries {
        let clock = Instant::now();
        world.catalogue.search(query, HITS)?;
        times.push(clock.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);

    // Only steps are timed: a reset comes whenever an episode ends.
    let mut env = world.spawn()?;
    let (mut seconds, mut played, mut searched, mut task) = (0.0, 0, 0, 0);
    let mut scores = Vec::new();
    while played < plan.steps {
        let mut seen = env.reset(&world, start(task))?;
        let words = query(&world, task % tasks)?;
        task += 1;
        let clock = Instant::now();
        while !(seen.terminated || seen.truncated || played == plan.steps) {
            let choice = dice.next_u64() % seen.admissible.len() as u64;
            let action = &seen.admissible[choice as usize];
            let search = action.starts_with("search[");
            searched += u64::from(search);
            let action = if search || action == "click[search]" { format!("search[{words}]") } else { action.clone() };
            seen = env.step(&world, &action)?;
            played += 1;
        }
        seconds += clock.elapsed().as_secs_f64();
        scores.push(seen.metrics["task_score"]);
    }

    let before = memory("VmRSS")?;
    let mut envs = Vec::new();
    for task in 0..ENVIRONMENTS {
        let mut env = world.spawn()?;
        env.reset(&world, start(task))?;
        env.step(&world, &format!("search[{}]", query(&world, task % tasks)?))?;
        envs.push(env);
    }
    Ok(Figures {
        products: world.catalogue.store.products(),
        goals: world.goals.len(&world.catalogue),
        open_s,
        steps: played,
        steps_per_s: played as f64 / seconds,
        search_share: searched as f64 / played as f64,
        mean_score: scores.iter().sum::<f64>() / scores.len() as f64,
        searches_per_s: times.len() as f64 / times.iter().sum::<f64>(),
        search_median_ms: 1e3 * times.get(times.len() / 2).copied().unwrap_or(f64::NAN),
        environments: envs.len() as u64,
        environments_mib: memory("VmRSS")? - before,
        process_mib: memory("VmHWM")?,
    })
}

/// The words by which one would look for the goal of a task: attributes, query and options.
fn query(world: &WebShop, task: u64) -> Result<String> {
    let (_, goal) = world.choose("train", task)?;
    let values = match &goal.goal_options {
        crate::goal::Options::Named(pairs) => pairs.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(),
        crate::goal::Options::Values(values) => values.iter().map(String::as_str).collect(),
    };
    Ok(format!("{} {} {}", goal.attributes.join(" "), goal.query, values.join(" ")))
}

/// A line of this process's status, in MiB.
fn memory(line: &str) -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let found = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':')?.trim().strip_suffix(" kB"));
    let kib: f64 = found.with_context(|| format!("/proc/self/status has no {line}"))?.trim().parse()?;
    Ok(kib / 1024.0)
}
