//! The shared part of an environment in processes: one has opened it, and instances are copies of that one.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use nestor_plugin::ffi;

use super::process::{Process, Start};
use crate::call::{Out, Texts};
use crate::calls::{Call, Function};
use crate::environment_call::{EnvironmentCall, lacks};
use crate::library::Abilities;

/// An open environment.
pub struct World {
    start: Start,
    /// The process that has opened it; another one takes its place if it ends.
    process: Mutex<Arc<Process>>,
}

impl World {
    /// Starts a process and opens the environment.
    pub fn open(start: Start) -> Result<(Self, Abilities)> {
        let (process, mut abilities) = Process::start(&start)?;
        let lacks = lacks(&mut process.open(&start)?)?;
        let has = |extension: &str| lacks.iter().all(|id| id != extension);
        abilities.expert &= has(ffi::EXPERT);
        abilities.snapshots &= has(ffi::SNAPSHOT);
        abilities.respond &= has(ffi::RESPOND);
        Ok((Self { start, process: Mutex::new(Arc::new(process)) }, abilities))
    }

    /// Makes a call of the shared part.
    pub fn call(&self, call: Call, request: EnvironmentCall) -> Result<(Texts, Out)> {
        self.process()?.environment(call, request)
    }

    /// A process with an instance of its own.
    pub fn spawn(&self, call: Call) -> Result<Process> {
        let process = match self.process()?.fork(self.start.name)? {
            Some(copy) => copy,
            None => {
                let (process, _) = Process::start(&self.start)?;
                process.open(&self.start)?;
                process
            }
        };
        process.environment(call, EnvironmentCall::Spawn)?.1.handle()?;
        Ok(process)
    }

    /// Closes the environment; the error of a plugin that fails in it.
    pub fn close(&self) -> Result<()> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if process.is_over() {
            return Ok(());
        }
        let call = Call { plugin: self.start.name, function: Function::CloseWorld, position: None };
        process.environment(call, EnvironmentCall::CloseWorld).map(|_| ())
    }

    fn process(&self) -> Result<Arc<Process>> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if process.is_over() {
            let (fresh, _) = Process::start(&self.start)?;
            fresh.open(&self.start)?;
            *process = Arc::new(fresh);
        }
        Ok(process.clone())
    }
}
