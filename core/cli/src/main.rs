//! The program `nestor`. It reads the command line, runs the commands that need no libtorch, and becomes `nestor-torch`
//! for all others. So help, errors and small commands need not wait until libtorch's libraries are loaded.

use std::process::ExitCode;

use nestor_args::Command;

fn main() -> ExitCode {
    nestor_cli::ended_children::keep();
    nestor_args::file_limit::report_as_full_disk();
    match nestor_args::parse().command {
        Command::Own(command) => nestor_cli::own::main(command),
        Command::Torch(_) => nestor_cli::torch::become_it(),
    }
}
