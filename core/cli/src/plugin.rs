//! `nestor plugin list`, `show` and `check`.

use std::time::Duration;

use anyhow::{Context, Result};
use nestor_host::kit::{Budget, Kit};
use nestor_host::{Found, Plugins};
use nestor_recipe::read_config;
use serde_json::json;

use nestor_args::PluginCheck;
use nestor_args::output::print;

/// Prints the plugins found, the files refused, and those that others hide.
pub fn list(json: bool) -> Result<()> {
    let plugins = Plugins::discover()?;
    let (found, refused, hidden) = (plugins.list()?, plugins.refused()?, plugins.hidden()?);
    let all = json!({ "found": found, "refused": refused, "hidden": hidden });
    print(json, &all, || {
        let width = found.iter().map(|p| p.id.len()).max().unwrap_or(0);
        let line =
            |p: &Found| format!("{:width$}  {:11}  {}  {}", p.id, p.kind.to_string(), p.border, p.path.display());
        let found = found.iter().map(line);
        let refused = refused.iter().map(|p| format!("refused {}: {}", p.path.display(), p.why));
        let hidden = hidden.iter().map(|one| format!("hidden {} by {}", one.path.display(), one.by.display()));
        found.chain(refused).chain(hidden).collect::<Vec<_>>().join("\n")
    })
}

/// Describes a plugin.
pub fn show(plugin: &str, json: bool) -> Result<()> {
    let shown = Plugins::discover()?.show(plugin)?;
    let text = || shown.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n").trim_end().to_string();
    print(json, &serde_json::to_value(&shown)?, text)
}

/// Checks a plugin file and prints the report; returns the exit code.
pub fn check(args: PluginCheck) -> Result<u8> {
    let config = args.config.as_deref().map_or(Ok(json!({})), read_config)?;
    let (time, call) = (Duration::from_secs(args.time), Duration::from_secs(args.timeout));
    let budget = Budget { episodes: args.episodes, tasks: args.tasks, time, call, ..Budget::default() };
    let kit = Kit { config, component: args.component, splits: args.splits, skip: args.skip, budget };
    let report = kit.check(&args.file)?;
    let mut json = serde_json::to_value(&report).context("writing the report")?;
    json["passed"] = report.passed().into();
    print(args.json, &json, || report.to_string())?;
    Ok(if report.passed() { 0 } else { 1 })
}
