//! A server that is a child process: its pipes as a transport of MCP, and its last words for errors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use nestor_child::{Child, words};
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, FramedRead};

use crate::config::Config;

/// Longest line that is read, in bytes.
const LONGEST_LINE: usize = 4 << 20;
/// Lines of output that an error shows, and the longest part of one, in characters.
const SHOWN: (usize, usize) = (12, 300);
/// Time between the end of a server's output and its own end, and between that and the end of its standard error.
const LAST: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(200)];

/// The last lines of a server's output that are no messages.
#[derive(Debug, Clone, Default)]
pub struct Said(Arc<Mutex<VecDeque<String>>>);

impl Said {
    fn note(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == SHOWN.0 {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(SHOWN.1).collect());
    }

    /// The lines, for the end of an error.
    pub fn shown(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("; its last output:\n  {}", lines.join("\n  "))
    }
}

/// A running server.
pub struct Process {
    child: Child,
    pub said: Said,
    /// Notes the lines of standard error until that ends.
    listener: Option<JoinHandle<()>>,
    runtime: Handle,
}

impl Process {
    /// Starts a server. Its pipes belong to the runtime.
    ///
    /// # Errors
    /// If no shell can be started.
    pub fn start(command: &str, config: &Config, runtime: &Handle) -> Result<(Self, Pipes)> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(&config.folder);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.env("PYTHONUNBUFFERED", "1").envs(&config.variables);
        let starting = || format!("starting the server `{command}`");
        let mut child = Child::start_group(&mut shell).with_context(starting)?;
        let said = Said::default();
        let _inside = runtime.enter();
        let input = child.stdin.take().map(OwnedFd::from).context("the server has no standard input")?;
        let output = child.stdout.take().map(OwnedFd::from).context("the server has no standard output")?;
        let errors = child.stderr.take().map(OwnedFd::from).context("the server has no standard error")?;
        let pipes = Pipes {
            lines: lines(output).with_context(starting)?,
            input: Arc::new(tokio::sync::Mutex::new(Some(pipe::Sender::from_owned_fd(input).with_context(starting)?))),
            said: said.clone(),
        };
        let (mut errors, noted) = (lines(errors).with_context(starting)?, said.clone());
        let listener = runtime.spawn(async move {
            while let Some(Ok(line)) = errors.next().await {
                noted.note(&line);
            }
        });
        Ok((Self { child, said, listener: Some(listener), runtime: runtime.clone() }, pipes))
    }

    /// Its end in words, after its output ended.
    pub fn end(&mut self) -> String {
        let end = self.child.wait(LAST[0]).map_or_else(|| "closed its standard output".into(), words);
        if let Some(listener) = self.listener.take() {
            // Another process may have the pipe still.
            let _ = self.runtime.block_on(async { timeout(LAST[1], listener).await });
        }
        end
    }

    pub fn runs(&mut self) -> bool {
        matches!(self.child.poll(), Ok(None))
    }

    /// Waits until it has ended by itself, as it does where its standard input ends.
    pub fn leave(&mut self, at_most: Duration) {
        self.child.wait(at_most);
    }
}

/// The pipes to a server, which carry one message of JSON a line.
pub struct Pipes {
    lines: FramedRead<pipe::Receiver, Lines>,
    input: Arc<tokio::sync::Mutex<Option<pipe::Sender>>>,
    said: Said,
}

impl Transport<RoleClient> for Pipes {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let input = Arc::clone(&self.input);
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut input = input.lock().await;
            match input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(&line).await {
                // The server has left. Its output, which ends too, is read first: it says why.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                written => written,
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let line = self.lines.next().await?.ok()?;
            if line.len() >= LONGEST_LINE {
                self.said.note(&format!("(a line of {LONGEST_LINE} bytes or more, after which nothing is read)"));
                return None;
            }
            match serde_json::from_str(&line) {
                Ok(message) => return Some(message),
                // Some servers print a greeting. One that prints nothing else will miss its time limit.
                Err(_) => self.said.note(&line),
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        *self.input.lock().await = None;
        Ok(())
    }
}

fn lines(output: OwnedFd) -> io::Result<FramedRead<pipe::Receiver, Lines>> {
    Ok(FramedRead::new(pipe::Receiver::from_owned_fd(output)?, Lines))
}

/// Cuts bytes into lines that are not empty. A line over the limit comes in pieces.
struct Lines;

impl Decoder for Lines {
    type Item = String;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<String>> {
        loop {
            let end = bytes.iter().take(LONGEST_LINE).position(|&byte| byte == b'\n').map(|end| end + 1);
            let Some(length) = end.or((bytes.len() >= LONGEST_LINE).then_some(LONGEST_LINE)) else { return Ok(None) };
            let line = bytes.split_to(length);
            let line = String::from_utf8_lossy(&line);
            // A piece keeps its length.
            let line = line.strip_suffix('\n').map_or(&*line, |line| line.trim_end());
            if !line.trim().is_empty() {
                return Ok(Some(line.to_string()));
            }
        }
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> io::Result<Option<String>> {
        Ok(self.decode(bytes)?.or_else(|| {
            let rest = bytes.split();
            Some(String::from_utf8_lossy(&rest).trim_end().to_string()).filter(|line| !line.is_empty())
        }))
    }
}
