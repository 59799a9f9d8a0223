//! A component that is open: in this process, or in one of its own.

use anyhow::{Context, Result};
use nestor_args::terminal;
use serde_json::Value;

use crate::PluginFile;
use crate::call::{Answer, Handle, Open, Out, Texts, open};
use crate::calls::{Call, Function, Name};
use crate::isolate::Process;
use crate::supervise::{Limits, Supervisor};

/// An open component with its function tables `T`.
pub struct Opened<T> {
    pub id: &'static str,
    pub file: PluginFile,
    place: Place<T>,
}

enum Place<T> {
    Here { tables: T, handle: Handle, supervisor: Supervisor },
    Elsewhere(Process),
}

impl<T: Copy + Send + 'static> Opened<T> {
    /// Opens a component that is loaded into this process.
    pub fn here(
        (id, file): (&'static str, PluginFile),
        (tables, function): (T, Open),
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        let (text, supervisor) = (config.to_string(), Supervisor::new(limits.clone()));
        let under = Call { plugin: Name::of_opened(id), function: Function::Open, position: None };
        let handle = supervisor
            .run(under, move || open(function, &text).result())
            .and_then(|(_, out)| out.handle())
            .with_context(|| format!("plugin {id}"))?;
        Ok(Self { id, file, place: Place::Here { tables, handle, supervisor } })
    }

    /// A component in a process of its own, which has opened it.
    pub fn elsewhere((id, file): (&'static str, PluginFile), process: Process) -> Self {
        Self { id, file, place: Place::Elsewhere(process) }
    }

    /// Makes a call: by `here` in this process, by `elsewhere` in the other one.
    pub fn call<R: Send + 'static>(
        &self,
        (function, request): (Function, R),
        here: impl FnOnce(&R, T, Handle) -> Answer + Send + 'static,
        elsewhere: impl FnOnce(&Process, Call, R) -> Result<(Texts, Out)>,
    ) -> Result<(Texts, Out)> {
        let call = Call { plugin: Name::of(self.id), function, position: None };
        match &self.place {
            Place::Here { tables, handle, supervisor } => {
                let (tables, handle) = (*tables, *handle);
                supervisor.run(call, move || here(&request, tables, handle).result())
            }
            Place::Elsewhere(process) => elsewhere(process, call, request),
        }
    }

    /// Closes the component by `close`, unless it hangs or is gone. A fault becomes a warning: nobody waits for the result.
    pub fn close(&self, close: impl FnOnce() -> Result<(Texts, Out)>) {
        let over = match &self.place {
            Place::Here { supervisor, .. } => supervisor.gave_up(),
            Place::Elsewhere(process) => process.is_over(),
        };
        if over {
            return;
        }
        if let Err(error) = close() {
            terminal::warn(&format!("warning: plugin {}: closing: {error:#}", self.id));
        }
    }
}
