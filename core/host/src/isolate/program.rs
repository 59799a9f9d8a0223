//! Finds the program `nestor-host` and starts it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};

use super::output;
use crate::input_error;

/// The program; by default it is looked for beside the running one.
const VARIABLE: &str = "NESTOR_HOST";
const NAME: &str = "nestor-host";

/// A started program.
pub struct Program {
    pub child: Child,
    /// The thread that started the program ends when this is dropped, and with the thread the program.
    _keep: Sender<()>,
}

/// Starts the program with this socket. A thread of its own does so and then shows what the program prints: the kernel kills
/// the program when the thread that started it ends, and this one lives as long as it is needed.
pub fn start(plugin: &'static str, socket: OwnedFd) -> Result<Program> {
    let path = find()?;
    let (keep, dropped) = channel::<()>();
    let (sender, started) = channel();
    let work = move || {
        let mut output = None;
        let spawned = std::io::pipe().and_then(|(reader, writer)| {
            output = Some(reader);
            let mut command = Command::new(&path);
            command.stdin(Stdio::from(socket)).stdout(writer.try_clone()?).stderr(writer);
            command.spawn()
        });
        // The receiver waits for it.
        let _ = sender.send(spawned.with_context(|| format!("cannot start {}", path.display())));
        if let Some(output) = output {
            output::show(plugin, output);
        }
        let _ = dropped.recv();
    };
    std::thread::Builder::new()
        .name("plugin output".into())
        .spawn(work)
        .context("cannot start a thread for a plugin's process")?;
    let child = started.recv().context("the thread for a plugin's process has ended")??;
    Ok(Program { child, _keep: keep })
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
