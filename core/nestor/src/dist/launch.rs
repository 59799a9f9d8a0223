//! `nestor launch`: starts the ranks of one machine, passes on what they say, and ends all when one ends badly.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getppid};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::environment::LAUNCHER;
use crate::track::{Event, terminal};

/// How long the other ranks may take to end by themselves when one ended badly.
const GRACE: Duration = Duration::from_secs(1);
/// Between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(20);
/// Lines that are remembered so as not to be repeated by another rank.
const MOST_LINES: usize = 10_000;
/// Exit codes after which a restart would not help: done, wrong input, stopped by a signal.
const FINAL: [u8; 3] = [0, 2, 130];

/// What to start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Number of ranks.
    pub ranks: usize,
    /// How often they may be started again after a failure.
    pub restarts: u32,
    /// This program's arguments, the command first.
    pub arguments: Vec<OsString>,
    /// Further options of the command when it is started again.
    pub again: Vec<OsString>,
    /// The ranks say everything on standard output as JSON.
    pub json: bool,
}

/// Starts the ranks, and again after a failure where that is wanted; gives the exit code.
pub fn launch(options: &Launch) -> Result<u8> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let mut restart = 0;
    loop {
        let mut ranks = Processes::start(options, restart)?;
        let code = ranks.run(&mut signals)?;
        terminal::clear();
        if ranks.signals > 0 || FINAL.contains(&code) || restart == options.restarts {
            return Ok(code);
        }
        restart += 1;
        terminal::warn(&format!("starting all ranks again (restart {restart} of {})", options.restarts));
    }
}

/// In a rank: ends it by SIGTERM when its launcher dies. Does nothing in a process that no launcher started.
pub fn end_with_launcher() -> Result<()> {
    let Ok(launcher) = std::env::var(LAUNCHER) else { return Ok(()) };
    prctl::set_pdeathsig(Signal::SIGTERM).context("asking to end with the launcher")?;
    ensure!(getppid().to_string() == launcher, "the launcher (process {launcher}) has ended");
    Ok(())
}

/// One rank's process.
struct Process {
    child: Child,
    status: Option<ExitStatus>,
    /// The last line of its standard error.
    last_words: Option<String>,
}

/// What a rank said.
struct Line {
    rank: usize,
    text: String,
    /// On its standard error.
    error: bool,
}

/// The processes of one start.
struct Processes {
    ranks: Vec<Process>,
    lines: Receiver<Line>,
    /// Which rank said a line first.
    said: HashMap<String, usize>,
    /// How many signals asked to stop.
    signals: usize,
    /// Errors are told as JSON too.
    json: bool,
}

impl Processes {
    fn start(options: &Launch, restart: u32) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?;
        let port = listener.local_addr().context("looking for a free port")?.port();
        drop(listener);
        let (sender, lines) = channel();
        let mut ranks = Self { ranks: Vec::new(), lines, said: HashMap::new(), signals: 0, json: options.json };
        for rank in 0..options.ranks {
            match command(options, restart, rank, port).and_then(|child| Process::new(rank, child, &sender)) {
                Ok(rank) => ranks.ranks.push(rank),
                Err(error) => {
                    ranks.kill();
                    return Err(error.context(format!("starting rank {rank}")));
                }
            }
        }
        Ok(ranks)
    }

    /// Until all have ended; gives the exit code.
    fn run(&mut self, signals: &mut Signals) -> Result<u8> {
        loop {
            self.pass_lines(LOOK);
            for _ in signals.pending() {
                self.signals += 1;
                match self.signals {
                    1 => self.ask_to_stop(),
                    _ => {
                        self.kill();
                        return Ok(130);
                    }
                }
            }
            self.reap()?;
            if let Some(first) = self.ranks.iter().position(|rank| rank.code().is_some_and(|c| c != 0 && c != 130)) {
                return self.end(first);
            }
            if self.ended() {
                self.pass_lines(GRACE);
                let stopped = self.ranks.iter().any(|rank| rank.code() == Some(130));
                return Ok(if stopped { 130 } else { 0 });
            }
        }
    }

    /// Ends all after one ended badly, and says so; gives the exit code.
    fn end(&mut self, first: usize) -> Result<u8> {
        let begin = Instant::now();
        while begin.elapsed() < GRACE && !self.ended() {
            self.pass_lines(LOOK);
            self.reap()?;
        }
        let codes: Vec<u8> = self.ranks.iter().filter_map(Process::code).collect();
        self.kill();
        self.pass_lines(GRACE);
        let rank = &self.ranks[first];
        let signal = rank.status.and_then(|status| status.signal());
        let code = rank.code().unwrap_or(1);
        let how = match signal.map(|n| (n, Signal::try_from(n))) {
            Some((n, Ok(name))) => format!("was killed by signal {n} ({name})"),
            Some((n, Err(_))) => format!("was killed by signal {n}"),
            None => format!("ended with code {code}"),
        };
        let message = match (&rank.last_words, signal) {
            (None, _) => format!("rank {first} {how} without a word"),
            (Some(words), Some(_)) => format!("rank {first} {how}; its last words: {words}"),
            (Some(words), None) => format!("rank {first} {how}: {}", words.trim_start_matches("error: ")),
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
            // It may have ended just now; it is not reaped yet, so that nobody else can have its number.
            let _ = kill(rank.pid(), Signal::SIGTERM);
        }
    }

    /// Takes note of the ranks that have ended.
    fn reap(&mut self) -> Result<()> {
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            if waitid(Id::Pid(rank.pid()), peek).context("looking at a rank")? != WaitStatus::StillAlive {
                rank.kill()?;
            }
        }
        Ok(())
    }

    /// Ends all that still run, stopped ones too.
    fn kill(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            // There is nothing more that could be done.
            let _ = rank.kill();
        }
    }

    /// Passes on what the ranks say, until one look's time has passed, or all have closed their outputs.
    fn pass_lines(&mut self, time: Duration) {
        let begin = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(time.saturating_sub(begin.elapsed())) {
            let Line { rank, text, error } = line;
            if self.said.len() >= MOST_LINES {
                self.said.clear();
            }
            // All ranks find the same mistake in a recipe.
            if *self.said.entry(text.clone()).or_insert(rank) == rank {
                terminal::warn(&format!("[rank {rank}] {text}"));
            }
            if error && !text.trim().is_empty() {
                self.ranks[rank].last_words = Some(text);
            }
        }
        // Nobody can say anything any more: `recv_timeout` did not wait.
        if !self.ended() {
            std::thread::sleep(time.saturating_sub(begin.elapsed()));
        }
    }
}

impl Process {
    fn new(rank: usize, mut child: Child, lines: &Sender<Line>) -> Result<Self> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        if let Some(pipe) = stdout {
            forward(rank, pipe, false, lines.clone());
        }
        if let Some(pipe) = stderr {
            forward(rank, pipe, true, lines.clone());
        }
        Ok(Self { child, status: None, last_words: None })
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Ends it and whatever it started, and keeps how it ended.
    fn kill(&mut self) -> Result<()> {
        // Not reaped yet, so the group's number is still its own. Nobody may be left in it.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        self.status = Some(self.child.wait().context("waiting for a rank")?);
        Ok(())
    }

    /// Its exit code once it has ended, 1 after a signal.
    fn code(&self) -> Option<u8> {
        self.status.map(|status| status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

/// Starts one rank, in a process group of its own: a terminal's Ctrl-C reaches the launcher alone.
fn command(options: &Launch, restart: u32, rank: usize, port: u16) -> Result<Child> {
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
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env("OMP_NUM_THREADS", (cores / options.ranks).max(1).to_string());
    }
    let stdout = if rank == 0 { Stdio::inherit() } else { Stdio::piped() };
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).process_group(0);
    command.spawn().context("starting this program")
}

/// Sends the lines of a pipe on, from a thread that ends with it.
fn forward(rank: usize, pipe: impl Read + Send + 'static, error: bool, lines: Sender<Line>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_string();
            bytes.clear();
            if lines.send(Line { rank, text, error }).is_err() {
                return;
            }
        }
    });
}
