//! The program `nestor-torch`, which `nestor` (core/cli) starts for the commands that need libtorch.

use std::process::ExitCode;

fn main() -> ExitCode {
    nestor_tools::program::main()
}
