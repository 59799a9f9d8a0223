//! Starts the runs of a sweep, some at a time, and waits for them.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nestor_args::launcher::{LAUNCHER, WORK_DONE};
use nestor_args::message::last_error;
use nestor_args::terminal;
use nestor_child::{Child, words};
use nestor_plugin::files::{self, LARGE};
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::disk;
use super::file::Sweep;
use super::job::Job;
use super::progress::{Progress, State};
use super::table;
use super::warm_start::WarmStart;

/// Time between two looks at the processes.
const POLL: Duration = Duration::from_millis(100);
/// Time between two drawings of the line of progress.
const REDRAW: Duration = Duration::from_secs(1);

/// A process to start.
#[derive(Debug, Clone)]
struct Task {
    name: String,
    arguments: Vec<String>,
    /// The file of its output.
    log: PathBuf,
    /// The model that must be there first.
    needs: Option<PathBuf>,
    /// The run that it trains; none for a part of a warm start.
    job: Option<usize>,
    /// The process that follows it.
    next: Option<Box<Task>>,
}

struct Running {
    task: Task,
    child: Child,
}

/// The processes of a sweep.
pub struct Schedule<'a> {
    sweep: &'a Sweep,
    jobs: &'a [Job],
    waiting: VecDeque<Task>,
    running: Vec<Running>,
    failed: usize,
    /// A signal asked to stop.
    stopped: bool,
    /// Prints no lines.
    quiet: bool,
    drawn: Instant,
    /// A finished run's size was looked at.
    measured: bool,
}

impl<'a> Schedule<'a> {
    /// A schedule of the work that is left: warm starts that are not made, then runs that are not done.
    pub fn new(sweep: &'a Sweep, jobs: &'a [Job], warm_starts: Vec<WarmStart>, quiet: bool) -> Result<Self> {
        let left = |(number, job): (usize, &Job)| {
            let progress = Progress::of(job);
            (progress.state != State::Done).then(|| train(sweep, (number, job)))
        };
        let runs: Vec<Task> = jobs.iter().enumerate().filter_map(left).collect();
        let needed = |start: &&WarmStart| runs.iter().any(|run| run.needs.as_ref() == Some(&start.model));
        let missing = warm_starts.iter().filter(|start| !start.is_ready()).filter(needed);
        let waiting = missing.map(|start| warm(sweep, start)).chain(runs.iter().cloned()).collect();
        let (running, failed, stopped) = (Vec::new(), 0, false);
        Ok(Self { sweep, jobs, waiting, running, failed, stopped, quiet, drawn: Instant::now(), measured: false })
    }

    /// Runs until nothing is left or a signal asks to stop. Returns the exit code.
    pub fn run(mut self) -> Result<u8> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
        let mut error = None;
        loop {
            for _ in signals.pending() {
                self.stop();
            }
            if let Err(wrong) = self.reap().and_then(|()| self.start_ready())
                && error.is_none()
            {
                error = Some(wrong);
                if !self.stopped && !self.running.is_empty() {
                    self.stop(); // runs under way are saved first
                }
            }
            if self.running.is_empty() {
                break;
            }
            self.draw();
            sleep(POLL);
        }
        terminal::clear();
        if let Some(error) = error {
            return Err(error);
        }
        // Their warm start failed.
        if !self.stopped && !self.waiting.is_empty() {
            self.say(&format!("{} runs were not started: their warm start is missing", self.waiting.len()));
        }
        Ok(if self.stopped { 130 } else { u8::from(self.failed > 0) })
    }

    /// The first time asks all runs to save and stop, the second time kills them.
    fn stop(&mut self) {
        for running in &mut self.running {
            match self.stopped {
                false => running.child.signal(Signal::SIGTERM),
                true => drop(running.child.kill()), // a failure shows when it is reaped
            }
        }
        let doing = if self.stopped { "killing" } else { "stopping" };
        self.stopped = true;
        self.say(&format!("{doing} {} runs; the same command continues them", self.running.len()));
    }

    /// Starts what can be started.
    fn start_ready(&mut self) -> Result<()> {
        while !self.stopped && self.running.len() < self.sweep.file.parallel {
            let ready = |task: &Task| task.needs.as_ref().is_none_or(|model| model.is_dir());
            let Some(place) = self.waiting.iter().position(ready) else { break };
            let Some(task) = self.waiting.remove(place) else { break };
            self.start(task)?;
        }
        Ok(())
    }

    fn start(&mut self, task: Task) -> Result<()> {
        let log = output(&task.log)?;
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command
            .args(&task.arguments)
            .env("OMP_NUM_THREADS", self.sweep.threads().to_string())
            .env(LAUNCHER, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().with_context(|| task.log.display().to_string())?)
            .stderr(log);
        // A terminal's ^C reaches the sweep alone.
        let child = Child::start_group(&mut command).with_context(|| format!("starting {}", task.name))?;
        if task.job.is_some() || task.next.is_some() {
            self.say(&format!("started {}", task.name));
        }
        self.running.push(Running { task, child });
        Ok(())
    }

    /// Takes note of processes that have ended.
    fn reap(&mut self) -> Result<()> {
        let mut place = 0;
        while let Some(running) = self.running.get_mut(place) {
            let status = running.child.poll();
            if let Ok(None) = status {
                place += 1;
                continue;
            }
            let Running { task, .. } = self.running.remove(place);
            if let Some(status) = status.with_context(|| format!("waiting for {}", task.name))? {
                self.ended(task, status);
            }
        }
        Ok(())
    }

    fn ended(&mut self, task: Task, status: ExitStatus) {
        let job = task.job.map(|number| &self.jobs[number]);
        let progress = job.map(Progress::of);
        match (status.code(), task.next) {
            (Some(130), _) if self.stopped => {}
            (code, next) if code == Some(i32::from(WORK_DONE)) || (code == Some(0) && job.is_none()) => match next {
                Some(next) => self.waiting.push_front(*next),
                None => {
                    self.say(&done(&task.name, progress));
                    self.warn_of_disk(job);
                }
            },
            _ => {
                self.failed += 1;
                let how = words(status);
                let last = error_of(&task.log).map_or(String::new(), |line| format!(": {line}"));
                self.say(&format!("failed: {} {how}{last} ({})", task.name, task.log.display()));
            }
        }
    }

    /// The first finished run tells how much room those that have not begun will take.
    fn warn_of_disk(&mut self, finished: Option<&Job>) {
        let Some(job) = finished.filter(|_| !self.measured) else { return };
        self.measured = true;
        if let Some(warning) = disk::shortage(&job.dir, self.waiting.len()) {
            self.say(&warning);
        }
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            terminal::print(&terminal::printable(line));
        }
    }

    /// Redraws the line of progress on a terminal.
    fn draw(&mut self) {
        if self.quiet || !terminal::redraws() || self.drawn.elapsed() < REDRAW {
            return;
        }
        self.drawn = Instant::now();
        let rows = table::rows(self.jobs);
        let each = self.running.iter().map(|running| match running.task.job.map(|number| &rows[number]) {
            Some(row) => format!("{} {}/{}", row.name, row.iteration, row.iterations),
            None => running.task.name.clone(),
        });
        let line = std::iter::once(table::counts(&rows)).chain(each).collect::<Vec<_>>().join(" | ");
        let width = terminal::width().unwrap_or(usize::MAX);
        terminal::clear();
        terminal::put(&line.chars().take(width).collect::<String>());
    }
}

/// The process that starts or resumes a run.
fn train(sweep: &Sweep, (number, job): (usize, &Job)) -> Task {
    Task {
        name: job.name.clone(),
        arguments: arguments(&sweep.recipe, &job.sets, &job.dir),
        log: sweep.dir.join("logs").join(format!("{}.txt", job.name.replace('/', "-"))),
        // A resumed run has its own weights, but its recipe still names the model.
        needs: job.model.clone(),
        job: Some(number),
        next: None,
    }
}

/// The processes that make a warm start and export its model.
fn warm(sweep: &Sweep, start: &WarmStart) -> Task {
    let log = start.run.with_file_name("log.txt");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let export = Task {
        name: start.name().into(),
        arguments: vec!["export".into(), path(&start.run), path(&start.model)],
        log: log.clone(),
        needs: None,
        job: None,
        next: None,
    };
    Task {
        arguments: arguments(&sweep.recipe, &start.sets, &start.run),
        next: Some(Box::new(export.clone())),
        ..export
    }
}

/// The command line that resumes a run, or starts it where there is none. A killed sweep's process may make the directory after this
/// look at it.
fn arguments(recipe: &Path, sets: &[String], dir: &Path) -> Vec<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mut arguments = vec!["train".to_string(), path(recipe), "--run-dir".into(), path(dir), "--restarted".into()];
    arguments.extend(sets.iter().flat_map(|set| ["--set".to_string(), set.clone()]));
    arguments
}

/// The line of a process that did its work.
fn done(name: &str, progress: Option<Progress>) -> String {
    let Some(progress) = progress else { return format!("done {name}") };
    let eval = progress.eval.map_or(String::new(), |eval| format!(": eval {eval:.3}"));
    format!("done {name}{eval}, {:.1} min", progress.seconds / 60.0)
}

/// Opens the file of a process's output.
fn output(path: &Path) -> Result<File> {
    let open = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        OpenOptions::new().create(true).append(true).open(path)
    };
    open().with_context(|| format!("opening {}", path.display()))
}

/// The last error that a process printed.
fn error_of(log: &Path) -> Option<String> {
    let text = files::read_to_string(log, LARGE).ok()?;
    last_error(&text)
}
