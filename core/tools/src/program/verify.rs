//! `nestor verify`: its options and its exit code.

use std::process::ExitCode;

use anyhow::{Context, Result};
use nestor_args::VerifyArgs;
use nestor_args::output::print;

use crate::error::Stopped;
use crate::terminal;
use crate::verify::{self, VerifyOptions, compare_runs};

/// Verifies a recipe, or compares two runs: exit code 1 if they differ.
pub fn verify(args: VerifyArgs) -> Result<ExitCode> {
    let json = args.json;
    let report = match (&args.runs[..], args.recipe) {
        ([first, other], _) => compare_runs(first, other),
        (_, recipe) => verify::verify(&VerifyOptions {
            recipe: recipe.context("clap asks for a recipe or --runs")?,
            sets: args.sets,
            iterations: args.iterations,
            ranks: args.ranks,
            oversubscribe: args.oversubscribe,
            kill_at: args.kill_at,
            out: args.out,
            skip: args.skip,
        }),
    };
    if report.as_ref().is_err_and(|error| error.is::<Stopped>()) {
        terminal::warn("stopped by a signal; the runs so far stay");
        return Ok(ExitCode::from(130));
    }
    let report = report?;
    print(json, &report.to_json(), || report.to_string())?;
    Ok(if report.agrees() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
