//! The run's file for Weights & Biases, written by the crate `wandb-rs`.
//!
//! Tracking must not end a run: on the first failed write it warns, and the run continues without W&B.

mod settings;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use wandb_rs::{Aggregate, AlertLevel, Error, Metric, Mode, Resume, Run, Settings, Table};

use self::settings::{settings, variables};
use super::{Histogram, Kept, METRICS, Metrics};
use crate::data::PluginFile;
use crate::input_error;
use crate::recipe::{self, Recipe};
use crate::terminal;
use crate::version::{COMMIT, VERSION};

/// Start of the name of a run's folder, which is `offline-run-<time>-<id>`.
const RUN: &str = "offline-run-";

/// A run's file for W&B. Does nothing where the recipe has no section `wandb`, and at ranks other than 0.
pub struct WandbRun {
    run: Option<Run>,
    /// The table and the histograms of the next row.
    more: Vec<(String, wandb_rs::Value)>,
}

/// Facts of a run that its recipe does not hold.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts<'a> {
    pub plugins: &'a [PluginFile],
    /// Number of the policy's parameters.
    pub parameters: i64,
    /// Number of its adapters' parameters.
    pub adapters: Option<i64>,
    /// The device of rank 0, such as `cuda:0`.
    pub device: &'a str,
    pub ranks: usize,
}

impl WandbRun {
    /// Tracks nothing.
    pub fn silent() -> Self {
        Self { run: None, more: Vec::new() }
    }

    /// Checks W&B's names, and that a live run has its API key and the `wandb` program. Writes nothing.
    pub fn check(section: Option<&recipe::Wandb>) -> Result<()> {
        let Some(section) = section else { return Ok(()) };
        let source = if section.mode.is_some() { "recipe key `wandb.mode`" } else { "variable WANDB_MODE" };
        settings(section, Path::new("."), variables)?.check().map_err(|error| input_error!("{source}: {error}"))
    }

    /// A line for a run that is not tracked although the environment asks for W&B.
    pub fn hint(recipe: &Recipe) -> Option<String> {
        let project = variables("WANDB_PROJECT").filter(|_| recipe.wandb.is_none())?;
        Some(format!(
            "not tracked in W&B: WANDB_PROJECT is {project:?}, but the recipe has no section `wandb`; turn it on with \
             --set 'wandb={{}}'"
        ))
    }

    /// Opens the run's file. A resumed run continues its own file, without the rows that are not kept.
    pub fn open(recipe: &Recipe, facts: RunFacts, dir: &Path, kept: Kept) -> Result<Self> {
        let Some(section) = &recipe.wandb else { return Ok(Self::silent()) };
        let settings = settings(section, dir, variables)?;
        let own = dir.join("wandb");
        let found = match resumed(&own, kept, &settings).map(Run::init) {
            None | Some(Err(Error::NothingToResume { .. })) => None,
            Some(run) => Some(run?),
        };
        let mut run = match found {
            Some(run) => run,
            None => begin(settings, &own)?,
        };
        run.config(&serde_json::to_value(recipe)?)?;
        run.config(&own_config(facts))?;
        axes().into_iter().try_for_each(|metric| run.define_metric(metric))?;
        run.file(&dir.join("recipe.yaml"), "recipe.yaml")?;
        Ok(Self { run: Some(run), ..Self::silent() })
    }

    /// Adds a console line.
    pub fn log(&mut self, line: &str) {
        self.attempt(|run| run.output(line));
    }

    /// Adds the row of an iteration.
    pub fn record(&mut self, iteration: u64, metrics: &Metrics) {
        let row = metrics.iter().map(|(name, value)| (name.to_string(), value.into()));
        let row = [("iteration".to_string(), iteration.into())].into_iter().chain(row).chain(self.more.drain(..));
        let row: Vec<_> = row.collect();
        self.attempt(|run| run.log(run.next_step(), row));
    }

    /// Adds an optimizer step of the run, as `step/…` over `step`.
    pub fn step(&mut self, iteration: u64, step: u64, metrics: &Metrics) {
        let row = metrics.iter().map(|(name, value)| (format!("step/{name}"), wandb_rs::Value::from(value)));
        let row = [("iteration".to_string(), iteration.into()), ("step".into(), step.into())].into_iter().chain(row);
        self.attempt(|run| run.log(run.next_step(), row));
    }

    /// Adds a step of the warm start.
    pub fn warm_start(&mut self, step: u64, values: &[(&'static str, f64)]) {
        let values = values.iter().map(|(name, value)| (format!("warm_start/{name}"), wandb_rs::Value::from(*value)));
        let row = [("warm_start/step".to_string(), step.into())].into_iter().chain(values);
        self.attempt(|run| run.log(run.next_step(), row));
    }

    /// Adds histograms to the next row.
    pub fn histograms(&mut self, histograms: &[(&str, Histogram)]) {
        if self.run.is_some() {
            self.more.extend(histograms.iter().map(|(name, Histogram { edges, counts, .. })| {
                let counts = wandb_rs::Histogram { edges: edges.clone(), counts: counts.clone() };
                (format!("histogram/{name}"), counts.into())
            }));
        }
    }

    /// Adds a table of episodes to the next row. It has the fields of the rollout files and one row per step.
    pub fn table(&mut self, episodes: impl Iterator<Item = Value>) {
        if self.run.is_some() {
            self.more.push(("rollouts".into(), table(episodes).into()));
        }
    }

    /// Sends a warning as an alert.
    pub fn alert(&mut self, title: &str, text: &str) {
        self.attempt(|run| run.alert(AlertLevel::Warn, title, text));
    }

    /// Sends an alert that the run failed.
    pub fn failed(&mut self, message: &str) {
        self.attempt(|run| run.alert(AlertLevel::Error, "run failed", message));
    }

    /// Ends the run's file and returns a line with its path. A live run waits a while for its upload.
    pub fn finish(&mut self, exit_code: i32) -> Option<String> {
        let run = self.run.take()?;
        Some(match run.finish(exit_code) {
            Ok(finish) => finish.to_string(),
            Err(error) => format!("warning: wandb: {error}"),
        })
    }

    fn attempt(&mut self, write: impl FnOnce(&mut Run) -> Result<(), Error>) {
        let Some(run) = &mut self.run else { return };
        if let Err(error) = write(run) {
            terminal::warn(&format!("warning: wandb: {error}; the run continues without W&B"));
            self.run = None;
        }
    }
}

/// The settings that resume the run's own file; none where there is nothing to resume.
fn resumed(own: &Path, kept: Kept, settings: &Settings) -> Option<Settings> {
    let id = last_id(own).filter(|_| kept != Kept::Nothing)?;
    let kept = [("iteration", kept.iteration()), ("warm_start/step", kept.warm_start())];
    let resume = Resume { id, kept: kept.map(|(key, last)| (key.to_string(), last)).to_vec() };
    Some(Settings { dir: own.to_path_buf(), resume: Some(resume), ..settings.clone() })
}

/// Begins a new file. One outside of the run directory gets a link there, so that a resumed run finds it.
fn begin(settings: Settings, own: &Path) -> Result<Run> {
    let outside = settings.mode != Mode::Disabled && settings.dir != own;
    let run = Run::init(settings)?;
    if let Some(dir) = run.dir().filter(|_| outside) {
        fs::create_dir_all(own).with_context(|| format!("making {}", own.display()))?;
        let link = own.join(dir.file_name().unwrap_or_default());
        std::os::unix::fs::symlink(dir, &link).with_context(|| format!("making {}", link.display()))?;
    }
    Ok(run)
}

/// The configuration that the recipe does not hold.
fn own_config(facts: RunFacts) -> Value {
    let RunFacts { plugins, parameters, adapters, device, ranks } = facts;
    json!({
        "nestor_version": VERSION, "nestor_commit": COMMIT, "plugins": plugins,
        "run": {"parameters": parameters, "adapters": adapters, "device": device, "ranks": ranks},
    })
}

/// The horizontal axes of all metrics. Rows of iterations, optimizer steps and the warm start share one file, so W&B's own
/// step counts all of them.
fn axes() -> Vec<Metric> {
    // An exact name counts before the family that it belongs to.
    let best = Metric::new("eval/success").step("iteration").summary([Aggregate::Last, Aggregate::Max]);
    let families = METRICS.iter().map(|metric| match metric.name.split_once('/') {
        Some((family, _)) => format!("{family}/*"),
        None => metric.name.to_string(),
    });
    let families: BTreeSet<_> = families.chain(["histogram/*".into(), "rollouts".into()]).collect();
    let families = families.into_iter().filter(|family| family != "warm_start/*");
    let rows = families.map(|family| Metric::new(family).step("iteration"));
    let others = [Metric::new("warm_start/*").step("warm_start/step"), Metric::new("step/*").step("step")];
    [best].into_iter().chain(others).chain(rows).collect()
}

/// The id of the newest run file.
fn last_id(dir: &Path) -> Option<String> {
    let names = fs::read_dir(dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = names.filter(|name| name.starts_with(RUN)).max()?;
    // After the time, which has no dash; an id may have some.
    newest.strip_prefix(RUN)?.split_once('-').map(|(_, id)| id.to_string())
}

fn table(episodes: impl Iterator<Item = Value>) -> Table {
    const EPISODE: [&str; 7] = ["group", "episode", "task", "task_type", "seed", "won", "return"];
    const STEP: [&str; 8] = ["prompt", "response", "action", "reward", "valid", "anchor", "advantage", "parts"];
    let mut table = Table::default();
    table.columns.extend(EPISODE.iter().chain(&["step"]).chain(&STEP).map(|name| name.to_string()));
    for episode in episodes {
        for (number, step) in episode["steps"].as_array().into_iter().flatten().enumerate() {
            let mut row: Vec<Value> = EPISODE.iter().map(|&name| episode[name].clone()).collect();
            row.push(number.into());
            row.extend(STEP.iter().map(|&name| step[name].clone()));
            table.rows.push(row);
        }
    }
    table
}
