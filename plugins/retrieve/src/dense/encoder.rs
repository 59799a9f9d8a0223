//! The process `nestor embed MODEL --serve`, which turns queries into vectors.
//!
//! Threads of their own read and write its pipes, so that the deadline also finds a process that hangs.

use std::fmt::{self, Display, Formatter};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use ndarray::Array2;
use nestor_child::Child;
use serde::Deserialize;
use serde_json::json;

/// Bytes of the process's messages that an error quotes.
const QUOTED: usize = 1_000;
/// Longest line that is read.
const LONGEST: u64 = 64 << 20;
/// Time for the last messages of a process that ends.
const GRACE: Duration = Duration::from_secs(2);

/// The start of the process.
#[derive(Debug, Clone)]
pub struct EncoderCommand {
    /// The program `nestor`.
    pub program: PathBuf,
    /// The encoder's folder or Hub id.
    pub model: PathBuf,
    /// Text before each query.
    pub query_prefix: String,
    /// Tokens of a query that count.
    pub max_length: usize,
    /// `cpu`, `cuda` or `auto`.
    pub device: &'static str,
    /// Longest wait for the start, and for an answer.
    pub timeout: Duration,
}

impl Display for EncoderCommand {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "the encoder (`{} embed {} --serve`)", self.program.display(), self.model.display())
    }
}

/// The encoder's description of itself.
#[derive(Debug, Deserialize)]
pub struct Ready {
    pub dim: usize,
    pub model_sum: String,
    pub max_length: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Vectors(Vec<Vec<f32>>),
    Error(String),
}

/// Something that the process wrote.
enum Output {
    Line(String),
    /// A line of its standard error.
    Message(String),
    /// The end of its standard output.
    End,
}

/// A running encoder. The process ends with its owner.
#[derive(Debug)]
pub struct Encoder {
    command: EncoderCommand,
    child: Child,
    requests: Sender<String>,
    output: Receiver<Output>,
    /// The end of its messages.
    messages: String,
}

impl Encoder {
    /// Starts the process and waits until it is ready.
    ///
    /// # Errors
    /// If the program cannot start, ends, or says nothing in time.
    pub fn start(command: &EncoderCommand) -> Result<(Self, Ready)> {
        let EncoderCommand { program, model, query_prefix, max_length, device, .. } = command;
        let mut process = Command::new(program);
        process
            .args(["embed", "--serve", "--device", device])
            .arg(format!("--query-prefix={query_prefix}"))
            .arg(format!("--max-length={max_length}"))
            .arg("--")
            .arg(model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C at a terminal stops the run, which still needs answers for its last steps.
        let mut child = Child::start_group(&mut process).with_context(|| {
            format!("{command} does not start; set the retriever key `dense.program` to nestor's file")
        })?;
        let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (requests, lines) = channel::<String>();
        thread::spawn(move || {
            // A process that ended is found by its output.
            for line in lines {
                if stdin.as_mut().is_none_or(|stdin| stdin.write_all(line.as_bytes()).is_err()) {
                    break;
                }
            }
        });
        let (sender, output) = channel();
        let messages = sender.clone();
        thread::spawn(move || {
            if let Some(stderr) = stderr {
                read_lines(stderr, |line| messages.send(Output::Message(line)).is_ok());
            }
        });
        thread::spawn(move || {
            if let Some(stdout) = stdout {
                read_lines(stdout, |line| sender.send(Output::Line(line)).is_ok());
            }
            sender.send(Output::End)
        });
        let mut encoder = Self { command: command.clone(), child, requests, output, messages: String::new() };
        let line = encoder.next_line()?;
        let ready = serde_json::from_str(&line).with_context(|| {
            format!(
                "{command} begins with another line than nestor: {}; check the retriever key `dense.program`",
                end_of(&line)
            )
        })?;
        Ok((encoder, ready))
    }

    /// Vectors of length 1 (queries, `dim`).
    ///
    /// # Errors
    /// If the process ended, is too slow, or cannot encode a query.
    pub fn encode(&mut self, queries: &[&str], dim: usize) -> Result<Array2<f32>> {
        // Fails only after the process ended, which the next line reports.
        let _ = self.requests.send(json!({ "queries": queries }).to_string() + "\n");
        let line = self.next_line()?;
        let answer = serde_json::from_str(&line)
            .with_context(|| format!("{} gives an answer that cannot be read: {}", self.command, end_of(&line)))?;
        let vectors = match answer {
            Answer::Vectors(vectors) => vectors,
            Answer::Error(error) => bail!("{}: {error}", self.command),
        };
        let sound = vectors.len() == queries.len() && vectors.iter().all(|vector| vector.len() == dim);
        ensure!(sound, "{} gives other vectors than {} of {dim} numbers", self.command, queries.len());
        let numbers: Vec<f32> = vectors.concat();
        ensure!(numbers.iter().all(|number| number.is_finite()), "{} gives NaN or infinite numbers", self.command);
        Ok(Array2::from_shape_vec((queries.len(), dim), numbers)?)
    }

    /// The next line of its output.
    fn next_line(&mut self) -> Result<String> {
        let deadline = Instant::now() + self.command.timeout;
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Output::Line(line)) => return Ok(line),
                Ok(Output::Message(message)) => self.keep(&message),
                Ok(Output::End) | Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = self.command.timeout.as_secs_f64();
                    return Err(anyhow!(
                        "{} gave no answer in {seconds} s; raise the retriever key `dense.timeout_s`, or free the machine{}",
                        self.command,
                        self.quoted()
                    ));
                }
            }
        }
    }

    fn keep(&mut self, message: &str) {
        self.messages.push_str(message.trim());
        self.messages.push(' ');
        self.messages = end_of(&self.messages).to_string();
    }

    /// The error about a process that ended.
    fn ended(&mut self) -> Error {
        let until = Instant::now() + GRACE;
        let status = self.child.wait(GRACE);
        // Its last messages may come after the end of its output.
        while let Ok(output) = self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if let Output::Message(message) = output {
                self.keep(&message);
            }
        }
        let status = match status {
            Some(status) => format!("ended ({status})"),
            None => "closed its output".into(),
        };
        anyhow!("{} {status}{}", self.command, self.quoted())
    }

    fn quoted(&self) -> String {
        match self.messages.trim() {
            "" => String::new(),
            messages => format!("; it said: {messages}"),
        }
    }
}

/// The end of a long text.
fn end_of(text: &str) -> &str {
    let mut begin = text.len().saturating_sub(QUOTED);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    &text[begin..]
}

/// Passes on lines until the end, or until nobody takes them.
fn read_lines(from: impl Read, take: impl Fn(String) -> bool) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut from).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(count) if count > 0 && take(String::from_utf8_lossy(&line).trim_end().to_string()) => {}
            _ => return,
        }
    }
}
