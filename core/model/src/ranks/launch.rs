//! `nestor launch`: starts the ranks of one machine, forwards their output, and ends all ranks when one fails.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nestor_args::launcher::{LAUNCHER, WORK_DONE};
use nestor_args::message::is_item;
use nestor_child::{Child, signal_at_end_of};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::secret::{SECRET, Secret};
use crate::event::Event;
use crate::terminal;

/// Time that the other ranks have to end by themselves after one failed.
const GRACE: Duration = Duration::from_secs(1);
/// Time between two polls of the ranks.
const POLL: Duration = Duration::from_millis(20);
/// Number of lines kept to recognise those that another rank repeats.
const MOST_LINES: usize = 10_000;
/// Time in which a second SIGTERM is the first one again: a service manager signals the launcher and its ranks alike, and
/// the launcher passes its own on.
pub const SAME_SIGNAL: Duration = Duration::from_secs(1);
const NOTHING_TO_SAVE: &str = "stopped by a signal; there was nothing to save yet";
/// Exit codes after which a restart would not help: success, invalid input, stopped by a signal.
const FINAL: [u8; 3] = [0, 2, 130];

/// The ranks to start.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    pub ranks: usize,
    /// Maximum number of restarts after a failure.
    pub restarts: u32,
    /// This program's arguments, the command first.
    pub arguments: Vec<OsString>,
    /// Additional options of the command in a restart.
    pub again: Vec<OsString>,
    /// The ranks print JSON.
    pub json: bool,
    /// Standard input of every rank.
    pub input: String,
}

/// Begins to collect the signals that [`launch`] forwards.
pub fn collect_signals() -> Result<Signals> {
    Signals::new([SIGINT, SIGTERM]).context("watching for signals")
}

/// Starts the ranks, restarts them after a failure up to the limit, and returns the exit code.
pub fn launch(options: &LaunchOptions, mut signals: Signals) -> Result<u8> {
    let mut restart = 0;
    loop {
        if signals.pending().next().is_some() {
            terminal::warn(NOTHING_TO_SAVE);
            return Ok(130);
        }
        let mut ranks = Processes::start(options, restart)?;
        let code = ranks.run(&mut signals)?;
        terminal::clear();
        if ranks.first_signal.is_some() || FINAL.contains(&code) || restart == options.restarts {
            return Ok(code);
        }
        restart += 1;
        terminal::warn(&format!("restarting all ranks (restart {restart} of {})", options.restarts));
    }
}

/// In a rank: has the kernel send it SIGTERM when its launcher dies. Does nothing in a process that no launcher started.
pub fn end_with_launcher() -> Result<()> {
    let Ok(launcher) = std::env::var(LAUNCHER) else { return Ok(()) };
    let parent = launcher.parse().with_context(|| format!("{LAUNCHER} is {launcher}, which is no process"))?;
    let lives = signal_at_end_of(Pid::from_raw(parent), Signal::SIGTERM).context("asking to end with the launcher")?;
    ensure!(lives, "the launcher (process {launcher}) has ended");
    Ok(())
}

/// The exit code of success: another one for a launcher than for anybody else.
pub fn success() -> ExitCode {
    let launched = std::env::var(LAUNCHER).is_ok_and(|launcher| launcher == getppid().to_string());
    if launched { ExitCode::from(WORK_DONE) } else { ExitCode::SUCCESS }
}

/// One rank's process.
struct Process {
    child: Child,
    status: Option<ExitStatus>,
    /// The last line of its standard error.
    last_error: Option<String>,
}

/// A line of a rank's output.
struct OutputLine {
    rank: usize,
    text: String,
    /// From standard error.
    error: bool,
}

/// A free port of 127.0.0.1. It is below those that Linux assigns, which another program could get before rank 0 listens. The search
/// begins at a place of this process alone, so that groups that start together find different ports.
fn free_port() -> Option<u16> {
    (0..16_384u32)
        .map(|step| 16_384 + (std::process::id().wrapping_mul(97).wrapping_add(step) % 16_384) as u16)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
}

/// The processes of one start.
struct Processes {
    ranks: Vec<Process>,
    lines: Receiver<OutputLine>,
    /// The rank that printed a line first.
    first_printed: HashMap<String, usize>,
    /// Time of the first signal to stop.
    first_signal: Option<Instant>,
    /// Prints errors as JSON too.
    json: bool,
}

impl Processes {
    fn start(options: &LaunchOptions, restart: u32) -> Result<Self> {
        let port = free_port().context("no port of 127.0.0.1 from 16384 to 32767 is free for the ranks")?;
        let secret = Secret::drawn();
        let (sender, lines) = channel();
        let mut ranks =
            Self { ranks: Vec::new(), lines, first_printed: HashMap::new(), first_signal: None, json: options.json };
        for rank in 0..options.ranks {
            match start(options, restart, rank, (port, &secret)).and_then(|child| Process::new(rank, child, &sender)) {
                Ok(rank) => ranks.ranks.push(rank),
                Err(error) => {
                    ranks.kill();
                    return Err(error.context(format!("starting rank {rank}")));
                }
            }
        }
        Ok(ranks)
    }

    /// Forwards output until all ranks have ended; returns the exit code.
    fn run(&mut self, signals: &mut Signals) -> Result<u8> {
        loop {
            self.forward_lines(POLL);
            for signal in signals.pending() {
                match self.first_signal {
                    None => {
                        self.first_signal = Some(Instant::now());
                        self.ask_to_stop();
                    }
                    Some(first) if signal == SIGTERM && first.elapsed() < SAME_SIGNAL => {}
                    Some(_) => {
                        self.kill();
                        self.forward_lines(GRACE);
                        terminal::warn("killed all ranks without saving: work since the newest checkpoint is lost");
                        return Ok(1);
                    }
                }
            }
            self.reap()?;
            // A rank answers signals before it meets the others. So where the signal killed one, none has begun.
            if self.first_signal.is_some() && self.ranks.iter().any(Process::killed_by_request) {
                self.kill();
                self.forward_lines(GRACE);
                terminal::warn(NOTHING_TO_SAVE);
                return Ok(130);
            }
            if let Some(first) = self.ranks.iter().position(|rank| rank.code().is_some_and(|c| c != 0 && c != 130)) {
                return self.end(first);
            }
            if self.ended() {
                self.forward_lines(GRACE);
                let stopped = self.ranks.iter().any(|rank| rank.code() == Some(130));
                return Ok(if stopped { 130 } else { 0 });
            }
        }
    }

    /// Ends all ranks after one failed, reports the failure and returns the exit code.
    fn end(&mut self, first: usize) -> Result<u8> {
        let begin = Instant::now();
        while begin.elapsed() < GRACE && !self.ended() {
            self.forward_lines(POLL);
            self.reap()?;
        }
        let codes: Vec<u8> = self.ranks.iter().filter_map(Process::code).collect();
        self.kill();
        self.forward_lines(GRACE);
        let rank = &self.ranks[first];
        let signal = rank.status.and_then(|status| status.signal());
        let code = rank.code().unwrap_or(1);
        let how = match signal.map(|n| (n, Signal::try_from(n))) {
            Some((n, Ok(name))) => format!("was killed by signal {n} ({name})"),
            Some((n, Err(_))) => format!("was killed by signal {n}"),
            None if rank.left_early() => {
                "ended with code 0 before its work was done; a plugin may have called exit".into()
            }
            None => format!("ended with code {code}"),
        };
        let message = match (&rank.last_error, signal) {
            (None, _) => format!("rank {first} {how} and printed no error"),
            (Some(line), Some(_)) => format!("rank {first} {how}; its last line: {line}"),
            (Some(line), None) => format!("rank {first} {how}: {}", line.trim_start_matches("error: ")),
        };
        terminal::warn(&format!("error: {message}"));
        if self.json {
            Event::Error { message: &message }.print_json();
        }
        Ok(if codes.contains(&2) { 2 } else { code })
    }

    fn ended(&self) -> bool {
        self.ranks.iter().all(|rank| rank.status.is_some())
    }

    fn ask_to_stop(&self) {
        for rank in self.ranks.iter().filter(|rank| rank.status.is_none()) {
            rank.child.signal(Signal::SIGTERM);
        }
    }

    /// Records the status of ranks that have ended. What they left in their groups ends too.
    fn reap(&mut self) -> Result<()> {
        for rank in &mut self.ranks {
            rank.status = rank.child.poll().context("polling a rank")?;
        }
        Ok(())
    }

    /// Kills all ranks that still run, stopped ones too, with their groups.
    fn kill(&mut self) {
        for rank in &mut self.ranks {
            // A failure has no remedy here.
            rank.status = rank.child.kill().ok();
        }
    }

    /// Forwards the ranks' output for `time`, or until all have closed their outputs.
    fn forward_lines(&mut self, time: Duration) {
        let begin = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(time.saturating_sub(begin.elapsed())) {
            let OutputLine { rank, text, error } = line;
            if self.first_printed.len() >= MOST_LINES {
                self.first_printed.clear();
            }
            // All ranks report the same error in a recipe.
            if *self.first_printed.entry(text.clone()).or_insert(rank) == rank {
                terminal::warn(&format!("[rank {rank}] {text}"));
            }
            if error && !text.trim().is_empty() {
                let last = &mut self.ranks[rank].last_error;
                match last.as_mut().filter(|_| is_item(&text)) {
                    Some(list) => *list += &text.replacen("  (", " (", 1),
                    None => *last = Some(text),
                }
            }
        }
        // All outputs are closed: `recv_timeout` did not wait.
        if !self.ended() {
            std::thread::sleep(time.saturating_sub(begin.elapsed()));
        }
    }
}

impl Process {
    fn new(rank: usize, mut child: Child, lines: &Sender<OutputLine>) -> Result<Self> {
        if let Some(pipe) = child.stdout.take() {
            forward(rank, pipe, false, lines.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            forward(rank, pipe, true, lines.clone());
        }
        Ok(Self { child, status: None, last_error: None })
    }

    /// True if it died of the signal with which the launcher asks ranks to stop.
    fn killed_by_request(&self) -> bool {
        self.status.is_some_and(|status| status.signal() == Some(SIGTERM))
    }

    /// Its exit code once it has ended, 1 after a signal. It is 1 too where the process ended before its work did.
    fn code(&self) -> Option<u8> {
        let code = |status: ExitStatus| match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(WORK_DONE) => 0,
            Some(0) | None => 1,
            Some(code) => code,
        };
        self.status.map(code)
    }

    /// True if it ended as if it had done its work, without having done it.
    fn left_early(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Starts one rank in its own process group, so that a terminal's Ctrl-C reaches only the launcher. The ranks meet at a
/// port of this machine and share a secret.
fn start(options: &LaunchOptions, restart: u32, rank: usize, (port, secret): (u16, &str)) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let (name, rest) = options.arguments.split_at(options.arguments.len().min(1));
    let mut command = Command::new(program);
    command.args(name).args(if restart > 0 { &options.again[..] } else { &[] }).args(rest);
    let world = options.ranks.to_string();
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", &world)
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", &world)
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env_remove("TORCHELASTIC_USE_AGENT_STORE")
        .env(LAUNCHER, std::process::id().to_string());
    if std::env::var_os(SECRET).is_none() {
        command.env(SECRET, secret);
    }
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env("OMP_NUM_THREADS", (cores / options.ranks).max(1).to_string());
    }
    let stdout = if rank == 0 { Stdio::inherit() } else { Stdio::piped() };
    command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
    let mut child = Child::start_group(&mut command).context("starting this program")?;
    if let Some(mut pipe) = child.stdin.take() {
        // In a thread, since a stopped rank may not read. One that has ended needs no input.
        let input = options.input.clone();
        std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    }
    Ok(child)
}

/// Forwards the lines of a pipe from a thread that ends with the pipe.
fn forward(rank: usize, pipe: impl Read + Send + 'static, error: bool, lines: Sender<OutputLine>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_string();
            bytes.clear();
            if lines.send(OutputLine { rank, text, error }).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_and_never_one_that_linux_assigns() {
        let first = free_port().expect("a port");
        let _taken = TcpListener::bind(("127.0.0.1", first)).expect("it is free");
        let next = free_port().expect("another port");
        assert_ne!(first, next);
        // Linux assigns ports from 32768 on.
        assert!(first.max(next) < 32_768, "{first} {next}");
    }
}
