//! The program `nestor`.

use std::process::ExitCode;

fn main() -> ExitCode {
    nestor::cli::main()
}
