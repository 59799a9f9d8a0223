//! The commands that need no libtorch.

use std::io::Write;
use std::panic::{catch_unwind, set_hook};
use std::process::ExitCode;

use anyhow::Result;
use nestor_args::message::{exit_code, internal_error, is_closed_pipe, message};
use nestor_args::output::{print, print_line, rows};
use nestor_args::terminal;
use nestor_args::{Advantage, OwnCommand, PluginCommand};
use nestor_host::Plugins;
use nestor_host::advantage::advantage;

use crate::compare::compare;
use crate::doctor::doctor;
use crate::plugin;
use crate::sweep::sweep;

/// Runs a command and returns the program's exit code: 0 success, 1 failure, 2 the user's mistake.
pub fn main(command: OwnCommand) -> ExitCode {
    set_hook(Box::new(|info| warn(&internal_error(info))));
    // Plugins must not write to standard output, and the process says which plugin ended it.
    let guarded = terminal::keep_stdout();
    nestor_host::watch_process(terminal::clearing(), None);
    let code = match catch_unwind(|| guarded.and_then(|()| run(command))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) if is_closed_pipe(&error) => 0, // its reader, such as `head`, has seen enough
        Ok(Err(error)) => {
            warn(&message(&error));
            exit_code(&error)
        }
        Err(_) => 1,
    };
    nestor_host::ending(code);
    ExitCode::from(code)
}

fn warn(text: &str) {
    terminal::warn(&format!("error: {text}"));
}

fn run(command: OwnCommand) -> Result<u8> {
    match command {
        OwnCommand::ImportPrompts(args) => {
            let report = nestor_prompts::import(&args)?;
            print(args.json, &serde_json::to_value(&report)?, || report.to_string().trim_end().to_string())?;
            report.refusal().map_or(Ok(()), Err)?;
        }
        OwnCommand::Advantage(Advantage { estimator, config, rows: file, json }) => {
            let scores = advantage(&Plugins::discover()?, &estimator, &config, &file)?;
            print(json, &scores, || rows(&scores["advantages"]))?;
        }
        OwnCommand::Sweep(args) => return sweep(&args),
        OwnCommand::Compare(args) => return compare(&args),
        OwnCommand::Doctor { json } => return doctor(json),
        OwnCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut nestor_args::visible_command(), "nestor", &mut script);
            terminal::out().write_all(&script)?;
        }
        OwnCommand::Plugin(PluginCommand::New(args)) => {
            let project = nestor_scaffold::create(&args)?;
            print_line(&format!("wrote {}; its README.md has the next commands", project.display()))?;
        }
        OwnCommand::Plugin(PluginCommand::List { json }) => plugin::list(json)?,
        OwnCommand::Plugin(PluginCommand::Check(args)) => return plugin::check(args),
        OwnCommand::Plugin(PluginCommand::Show { plugin, json }) => plugin::show(&plugin, json)?,
    }
    Ok(0)
}
