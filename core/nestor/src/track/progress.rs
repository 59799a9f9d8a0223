//! How far the phase under way is: one line at the bottom of a terminal.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};

use super::columns::short_duration;
use super::terminal;

/// Between two redraws.
const TICK: Duration = Duration::from_millis(100);
/// A phase shows once it has run for this long.
const PATIENCE: Duration = Duration::from_millis(200);
/// The line of a phase that has ended stays for this long, unless another comes: gaps between phases do not blink.
const LINGER: Duration = Duration::from_millis(400);
/// A wider line would be folded by terminals that are made smaller.
const WIDEST: usize = 76;
/// Room for the `^C` that a terminal shows.
const MARGIN: usize = 4;
/// Cells of the bar itself: it takes the first size that fits, so that it does not change with every digit.
const CELLS: [usize; 3] = [20, 12, 6];

/// Where phases say how far they are; clones are handles of one line. Hidden, it costs next to nothing.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
    now: Arc<Now>,
}

/// What the line is drawn from.
#[derive(Debug, Default)]
struct Now {
    phase: Mutex<Phase>,
    /// Tokens of the phase so far.
    tokens: AtomicU64,
    /// Which part of the work is meant.
    share: Option<String>,
}

#[derive(Debug, Default)]
struct Phase {
    name: &'static str,
    unit: &'static str,
    running: bool,
    /// When it began or ended.
    since: Option<Instant>,
    /// The line as it was drawn last.
    drawn: String,
}

/// A phase that is under way until this is dropped.
#[derive(Debug)]
#[must_use = "the phase ends when this is dropped"]
pub struct Running(Progress);

impl Drop for Running {
    fn drop(&mut self) {
        let mut phase = self.0.now.phase();
        (phase.running, phase.since) = (false, Some(Instant::now()));
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::hidden()
    }
}

impl Progress {
    /// Shows nothing.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), now: Arc::default() }
    }

    /// A line on standard output's terminal; of several ranks the first counts its own share alone.
    pub fn shown(world: usize) -> Self {
        let share = (world > 1).then(|| format!("rank 0 of {world}"));
        let now = Arc::new(Now { share, ..Now::default() });
        let drawn = now.clone();
        let line = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = out.write_str(&drawn.line(state)); // a string takes what is written
        };
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(Line::default()), 10);
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{line}") {
            bar.set_style(style.with_key("line", line));
        }
        bar.enable_steady_tick(TICK);
        Self { bar, now }
    }

    /// A phase begins, of which nothing is planned yet: its line tells the time. `unit` is what it counts.
    pub fn phase(&self, name: &'static str, unit: &'static str) -> Running {
        {
            let mut phase = self.now.phase();
            (phase.name, phase.unit, phase.running, phase.since) = (name, unit, true, Some(Instant::now()));
        }
        self.now.tokens.store(0, Ordering::Relaxed);
        self.bar.reset();
        self.bar.set_length(0);
        Running(self.clone())
    }

    /// So many more units are planned.
    pub fn set_total(&self, units: usize) {
        self.bar.inc_length(units as u64);
    }

    /// So many units are done, and so many tokens with them.
    pub fn advance(&self, units: usize, tokens: usize) {
        self.now.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        self.bar.inc(units as u64);
    }

    /// The line as it is now, for whoever prints above it.
    pub fn drawn(&self) -> String {
        self.now.phase().drawn.clone()
    }

    /// Clears the line for good.
    pub fn end(&self) {
        {
            let mut phase = self.now.phase();
            phase.running = false;
            phase.drawn.clear();
        }
        self.bar.finish_and_clear();
    }
}

impl Now {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be seen now.
    fn line(&self, state: &ProgressState) -> String {
        let mut phase = self.phase();
        let age = phase.since.map_or(Duration::ZERO, |since| since.elapsed());
        if phase.running && age >= PATIENCE {
            let tokens = self.tokens.load(Ordering::Relaxed) as f64;
            let view = View {
                name: phase.name,
                unit: phase.unit,
                done: state.pos(),
                planned: state.len().unwrap_or(0),
                seconds: age.as_secs_f64(),
                tokens_per_s: tokens / age.as_secs_f64(),
                to_go: state.eta().as_secs_f64(),
                share: self.share.as_deref(),
            };
            phase.drawn = view.line(width());
        } else if age >= LINGER {
            phase.drawn.clear();
        }
        phase.drawn.clone()
    }
}

/// A phase at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct View<'a> {
    pub name: &'a str,
    pub unit: &'a str,
    pub done: u64,
    /// 0 where it is not known.
    pub planned: u64,
    /// Since it began.
    pub seconds: f64,
    pub tokens_per_s: f64,
    /// Seconds; 0 where they cannot be told.
    pub to_go: f64,
    pub share: Option<&'a str>,
}

impl View<'_> {
    /// The line: what fits of it, the bar last.
    pub fn line(&self, width: usize) -> String {
        let mut parts = Vec::new();
        if self.planned > 0 {
            let digits = self.planned.to_string().len();
            parts.push(format!("{:>digits$}/{} {}", self.done, self.planned, self.unit));
        } else {
            parts.push(short_duration(self.seconds));
        }
        if self.tokens_per_s > 0.0 {
            parts.push(format!("{:.0} tokens/s", self.tokens_per_s));
        }
        if self.to_go > 0.0 {
            parts.push(format!("{} to go", short_duration(self.to_go)));
        }
        parts.extend(self.share.map(String::from));
        let mut text = String::new();
        for part in parts {
            let longer = if text.is_empty() { part } else { format!("{text} | {part}") };
            if self.name.len() + 1 + longer.len() > width {
                break;
            }
            text = longer;
        }
        let room = width.saturating_sub(self.name.len() + text.len() + " [] ".len());
        let cells = CELLS.into_iter().find(|cells| self.planned > 0 && *cells <= room);
        let bar = cells.map_or(String::new(), |cells| format!("[{}] ", self.cells(cells)));
        let line = format!("{} {bar}{text}", self.name);
        console::truncate_str(line.trim_end(), width, "").into_owned()
    }

    fn cells(&self, n: usize) -> String {
        let full = (n as u64 * self.done.min(self.planned) / self.planned) as usize;
        let head = if full > 0 && full < n { ">" } else { "" };
        format!("{:<n$}", "=".repeat(full - head.len()) + head)
    }
}

/// Columns of the line.
fn width() -> usize {
    terminal::columns(&Term::stdout()).saturating_sub(MARGIN).clamp(1, WIDEST)
}

/// The bottom line of a terminal, overwritten in one piece, so that it never blinks.
#[derive(Debug, Default)]
struct Line(Mutex<Frame>);

#[derive(Debug, Default)]
struct Frame {
    text: String,
    /// Whether something is to be seen.
    visible: bool,
}

impl Line {
    fn frame(&self) -> MutexGuard<'_, Frame> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TermLike for Line {
    fn width(&self) -> u16 {
        width() as u16
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(()) // there is one line
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.frame().text += text;
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(()) // it is overwritten
    }

    fn flush(&self) -> io::Result<()> {
        let mut frame = self.frame();
        let text = std::mem::take(&mut frame.text);
        let text = text.trim_end();
        if frame.visible || !text.is_empty() {
            terminal::put(&format!("\r{text}\x1b[K"));
        }
        frame.visible = !text.is_empty();
        Ok(())
    }
}
