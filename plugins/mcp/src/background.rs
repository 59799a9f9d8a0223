//! The thread on which all sessions send and receive.

use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread of its own. Dropped, it ends the tasks of all sessions.
pub struct Background {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// # Errors
    /// If the system gives no thread.
    pub fn start() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("starting the MCP client")?;
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let run = move || {
            // An error means that the sender is gone, which ends it as well.
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name("mcp".into()).spawn(run).context("starting the MCP client")?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
