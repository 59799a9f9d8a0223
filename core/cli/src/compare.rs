//! `nestor compare`: prints the comparison of runs by the crate `nestor-compare`, and saves the records it was made of.

use std::fs;

use anyhow::{Context, Result};
use nestor_args::terminal;
use nestor_compare::{CompareError, Options, Report, compare as compare_runs, runs};
use nestor_recipe::input_error;
use serde_json::json;

use nestor_args::CompareArgs;
use nestor_args::output::print_line;

/// Width of the tables where standard output is no terminal.
const WIDTH: usize = 120;

/// Compares runs and returns the exit code: 0, or 2 for runs that are not comparable, with a line for each difference.
pub fn compare(args: &CompareArgs) -> Result<u8> {
    let runs = runs(&args.runs).map_err(|error| input_error!("{error}"))?;
    if let Some(path) = &args.save {
        let records = runs.iter().map(|run| Ok(format!("{}\n", run.record()?)));
        let text = records.collect::<Result<String>>()?;
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
        written.with_context(|| format!("writing {}", path.display()))?;
    }
    let options = Options {
        window: args.window.map(|window| window as usize),
        threshold: args.threshold,
        against: args.against.clone(),
        by_folder: args.by_folder,
        anyway: args.anyway,
        ..Options::default()
    };
    let comparison = match compare_runs(&runs, &options) {
        Ok(comparison) => comparison,
        Err(CompareError::Incomparable(obstacles)) => {
            if args.json {
                print_line(&json!({"comparable": false, "obstacles": obstacles}).to_string())?;
            }
            for obstacle in &obstacles {
                terminal::warn(&format!("error: not comparable: {obstacle}"));
            }
            return Ok(2);
        }
        Err(error) => return Err(input_error!("{error}")),
    };
    let report = Report::of(&comparison);
    let text = match (args.json, args.markdown) {
        (true, _) => {
            let mut value = serde_json::to_value(&comparison)?;
            value["comparable"] = json!(comparison.obstacles.is_empty());
            value.to_string()
        }
        (_, true) => report.markdown(),
        _ => report.text(terminal::width().unwrap_or(WIDTH)),
    };
    print_line(&text)?;
    Ok(0)
}
