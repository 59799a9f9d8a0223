//! `nestor plugin check`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use nestor_host::kit::{Budget, Kit};
use serde_json::json;

use super::print;
use crate::agent::play::read_config;

#[derive(Args)]
pub struct PluginCheck {
    /// The plugin: a file, `file.so#id` for one of its components, or an id
    pub file: PathBuf,
    /// The configuration of its components, YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the component with this id only
    #[arg(long, value_name = "ID")]
    pub component: Option<String>,
    /// The splits of an environment, which must share no task
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "train,eval")]
    pub splits: Vec<String>,
    /// Leave out a check, and those that need it
    #[arg(long, value_name = "CHECK")]
    pub skip: Vec<String>,
    /// Episodes to play in a row
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub episodes: u64,
    /// Tasks of each split to sample
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..))]
    pub tasks: u64,
    /// Seconds after which a check does no more of the same
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub time: u64,
    /// Seconds that one call may take
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Checks a plugin file and prints the report.
pub fn check(args: PluginCheck) -> Result<ExitCode> {
    let config = args.config.as_deref().map_or(Ok(json!({})), read_config)?;
    let (time, call) = (Duration::from_secs(args.time), Duration::from_secs(args.timeout));
    let budget = Budget { episodes: args.episodes, tasks: args.tasks, time, call, ..Budget::default() };
    let kit = Kit { config, component: args.component, splits: args.splits, skip: args.skip, budget };
    let report = kit.check(&args.file)?;
    let mut json = serde_json::to_value(&report).context("writing the report")?;
    json["passed"] = report.passed().into();
    print(args.json, &json, || report.to_string())?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
