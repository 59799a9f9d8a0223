//! Finds the program `nestor-host` and starts it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nestor_child::Child;
use nestor_recipe::input_error;

use super::output;

/// The program; by default it is looked for beside the running one.
const VARIABLE: &str = "NESTOR_HOST";
const NAME: &str = "nestor-host";

/// A started program.
pub struct Program {
    /// The keeper ([`super::keeper`]).
    pub child: Child,
    /// Closed, it has the keeper end the plugin's process.
    pub lifeline: UnixStream,
}

/// Starts the program with this socket, and a thread that shows what it prints.
pub fn start(plugin: &'static str, socket: OwnedFd) -> Result<Program> {
    let path = find()?;
    let (lifeline, keepers) = UnixStream::pair().context("cannot make a socket for a plugin's process")?;
    let (output, writer) = std::io::pipe().context("cannot make a pipe for a plugin's output")?;
    let mut command = Command::new(&path);
    command.stdin(Stdio::from(socket)).stdout(OwnedFd::from(keepers)).stderr(writer);
    // It makes a session of its own, which a process that leads a group cannot.
    let child = Child::start(&mut command).with_context(|| format!("cannot start {}", path.display()))?;
    std::thread::Builder::new()
        .name("plugin output".into())
        .spawn(move || output::show(plugin, output))
        .context("cannot start a thread for a plugin's process")?;
    Ok(Program { child, lifeline })
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        if !path.is_file() {
            return Err(input_error!("{VARIABLE} names {}, and there is no such program", path.display()));
        }
        return Ok(path);
    }
    let own = std::env::current_exe().context("finding the program's directory")?;
    let mut places = own.ancestors().skip(1).take(2).map(|dir| dir.join(NAME));
    places.find(|path| path.is_file()).with_context(|| {
        format!(
            "there is no program {NAME} beside {} or one directory above; it runs a plugin in a process of its own: build it \
             (cargo build --release), name it by {VARIABLE}, or set `isolate: none`",
            own.display()
        )
    })
}
