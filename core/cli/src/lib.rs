//! The command line of Nestor: its definition, and the commands that need no libtorch.
//!
//! The program `nestor` (`main.rs`) is small and links no libtorch. The program `nestor-torch` of the package `nestor` parses
//! the same definition and does the work of [`args::TorchCommand`].

pub mod args;
mod compare;
mod doctor;
pub mod ended_children;
pub mod file_limit;
mod hints;
pub mod launcher;
mod libtorch;
pub mod message;
pub mod output;
pub mod oversubscribe;
pub mod own;
mod plugin;
mod sweep;
pub mod torch;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use self::args::{Cli, Command, TorchCommand};
pub use self::plugin::read_config;

/// The definition of the command line, from which `docs/cli.md` is generated.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The definition without hidden commands and options, for a shell's completions.
pub fn visible_command() -> clap::Command {
    visible(&command())
}

fn visible(command: &clap::Command) -> clap::Command {
    // clap keeps names for the whole program.
    let name: &'static str = command.get_name().to_string().leak();
    let mut copy = clap::Command::new(name);
    copy = command.get_about().map_or(copy.clone(), |about| copy.about(about.clone()));
    copy = copy.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned());
    copy.subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible))
}

/// Parses this process's arguments; prints help or an error and ends the process where there is no command to run.
pub fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    parse_from(&args).unwrap_or_else(|error| error.exit())
}

/// Parses a command line, and that of the command which `launch` starts.
fn parse_from(args: &[OsString]) -> Result<Cli, clap::Error> {
    let parsed = Cli::try_parse_from(args).and_then(|cli| {
        if let Command::Torch(TorchCommand::Launch(launch)) = &cli.command {
            launch.parse()?;
        }
        Ok(cli)
    });
    // `nestor train update.lr=1e-5` parses: the key takes the recipe's place.
    let is_wrong = match &parsed {
        Ok(_) => true,
        Err(error) => matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument),
    };
    match hints::meant(args).filter(|_| is_wrong) {
        Some(meant) => {
            Err(Cli::command()
                .error(ErrorKind::UnknownArgument, format!("a recipe's keys are no options: use {meant}")))
        }
        None => parsed,
    }
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    #[test]
    fn completions_offer_nothing_hidden() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut super::visible_command(), "nestor", &mut script);
            let script = String::from_utf8(script).expect("a script is text");
            for hidden in ["restarted", "recipe-on-stdin", "torch-report"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
            assert!(script.contains("run-dir") && script.contains("completions"), "{shell}");
        }
    }
}
