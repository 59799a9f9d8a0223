//! The start of `nestor-torch`, the program that links libtorch.

use std::convert::Infallible;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use nestor_args::message::{exit_code, message};
use nestor_args::{launcher, terminal};
use nestor_recipe::input_error;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::libtorch;

/// The program's file, beside this one.
pub const PROGRAM: &str = "nestor-torch";

/// Replaces this process by `nestor-torch` with the same arguments; returns only on failure.
pub fn become_it() -> ExitCode {
    let Err(error) = start();
    terminal::warn(&format!("error: {}", message(&error)));
    ExitCode::from(exit_code(&error))
}

/// Stack in bytes that libtorch's libraries and their threads need, and the usual limit.
const LEAST_STACK: u64 = 1 << 20;
const USUAL_STACK: u64 = 8 << 20;

/// Raises a limit of the stack in which libtorch's libraries would crash.
fn widen_stack() -> Result<()> {
    let (now, most) = getrlimit(Resource::RLIMIT_STACK).context("reading the limit of the stack")?;
    if now >= LEAST_STACK {
        return Ok(());
    }
    let wider = setrlimit(Resource::RLIMIT_STACK, most.min(USUAL_STACK), most);
    if most < LEAST_STACK || wider.is_err() {
        return Err(input_error!("the stack is limited to {} KiB: raise the limit, `ulimit -s 8192`", now >> 10));
    }
    Ok(())
}

fn start() -> Result<Infallible> {
    env::current_dir().map_err(|error| input_error!("the working directory: {error}; change into another folder"))?;
    widen_stack()?;
    let own = env::current_exe().context("finding this program")?;
    let program = own.with_file_name(PROGRAM);
    if !program.is_file() {
        return Err(input_error!(
            "there is no program {PROGRAM} beside {}; it does the work of this command: keep both in one folder, or build \
             both with `cargo build --release --workspace`",
            own.display()
        ));
    }
    if libtorch::folder(&program).is_none() {
        // It may still be in a folder of the system.
        let missing = libtorch::missing(&program);
        if !missing.is_empty() {
            return Err(input_error!(
                "{PROGRAM} lacks {}; {}; `nestor doctor` checks the rest",
                missing.join(", "),
                libtorch::remedy()
            ));
        }
    }
    let mut args = env::args_os();
    let mut command = Command::new(&program);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let error = command.args(args).envs(launcher::sleeping_threads()).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}
