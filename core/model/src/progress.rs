//! Progress of the running phase: one line at the bottom of a terminal.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};

use nestor_args::terminal;

use crate::duration::short_duration;

/// Time between two redraws.
const TICK: Duration = Duration::from_millis(100);
/// Delay before the line of a phase appears.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time for which the line of a finished phase remains, so that short gaps between phases do not blink.
const LINGER: Duration = Duration::from_millis(400);
/// Widest line in columns. A terminal that is made narrower would wrap a wider one.
const WIDEST: usize = 76;
/// Columns kept free for the `^C` that a terminal echoes.
const MARGIN: usize = 4;
/// Widths of the bar in cells. It takes the first that fits, so that its width does not change with every digit.
const CELLS: [usize; 3] = [20, 12, 6];

/// The progress line. Clones are handles of the same line; a hidden one costs next to nothing.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
    now: Arc<Now>,
}

/// The data of the line.
#[derive(Debug, Default)]
struct Now {
    phase: Mutex<PhaseState>,
    /// Tokens of the phase so far.
    tokens: AtomicU64,
    /// The ranks that the line counts, such as `rank 0 of 2`.
    share: Option<String>,
}

#[derive(Debug, Default)]
struct PhaseState {
    name: &'static str,
    unit: &'static str,
    running: bool,
    /// Start of the phase, or its end.
    since: Option<Instant>,
    /// The line as last drawn.
    drawn: String,
}

/// Ends a phase when dropped.
#[derive(Debug)]
#[must_use = "the phase ends when this is dropped"]
pub struct PhaseGuard(Progress);

impl Drop for PhaseGuard {
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
    /// A line that is never drawn.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), now: Arc::default() }
    }

    /// A line on standard output's terminal. With several ranks it counts rank 0's share of the work.
    pub fn shown(world: usize) -> Self {
        let share = (world > 1).then(|| format!("rank 0 of {world}"));
        let now = Arc::new(Now { share, ..Now::default() });
        let drawn = now.clone();
        let line = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = out.write_str(&drawn.line(state)); // a string takes what is written
        };
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(BottomLine::default()), 10);
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{line}") {
            bar.set_style(style.with_key("line", line));
        }
        bar.enable_steady_tick(TICK);
        Self { bar, now }
    }

    /// Starts a phase that counts in `unit`. Until [`Progress::set_total`] its line shows the elapsed time.
    pub fn phase(&self, name: &'static str, unit: &'static str) -> PhaseGuard {
        {
            let mut phase = self.now.phase();
            (phase.name, phase.unit, phase.running, phase.since) = (name, unit, true, Some(Instant::now()));
        }
        self.now.tokens.store(0, Ordering::Relaxed);
        self.bar.reset();
        self.bar.set_length(0);
        PhaseGuard(self.clone())
    }

    /// Adds units to the total of the phase.
    pub fn set_total(&self, units: usize) {
        self.bar.inc_length(units as u64);
    }

    /// Counts finished units and their tokens.
    pub fn advance(&self, units: usize, tokens: usize) {
        self.now.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        self.bar.inc(units as u64);
    }

    /// The line as last drawn, for code that prints above it.
    pub fn drawn(&self) -> String {
        self.now.phase().drawn.clone()
    }

    /// Clears the line and stops drawing it.
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
    fn phase(&self) -> MutexGuard<'_, PhaseState> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line to draw now.
    fn line(&self, state: &ProgressState) -> String {
        let mut phase = self.phase();
        let age = phase.since.map_or(Duration::ZERO, |since| since.elapsed());
        if phase.running && age >= PATIENCE {
            let tokens = self.tokens.load(Ordering::Relaxed) as f64;
            let view = PhaseView {
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

/// A snapshot of a phase.
#[derive(Debug, Clone, Default)]
struct PhaseView<'a> {
    pub name: &'a str,
    pub unit: &'a str,
    pub done: u64,
    /// 0 if unknown.
    pub planned: u64,
    /// Elapsed seconds.
    pub seconds: f64,
    pub tokens_per_s: f64,
    /// Seconds; 0 if unknown.
    pub to_go: f64,
    pub share: Option<&'a str>,
}

impl PhaseView<'_> {
    /// Formats the line. Where there is little room it drops the last figures; the bar takes the room that is left.
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

/// Width of the line in columns.
fn width() -> usize {
    terminal::columns(&terminal::stdout()).saturating_sub(MARGIN).clamp(1, WIDEST)
}

/// The bottom line of a terminal, overwritten in one piece, so that it never blinks.
#[derive(Debug, Default)]
struct BottomLine(Mutex<LineState>);

#[derive(Debug, Default)]
struct LineState {
    text: String,
    /// True while the terminal shows the line.
    visible: bool,
}

impl BottomLine {
    fn frame(&self) -> MutexGuard<'_, LineState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TermLike for BottomLine {
    fn width(&self) -> u16 {
        width() as u16
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(()) // there is only one line
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
        Ok(()) // `flush` overwrites it
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

#[cfg(test)]
mod tests {
    use console::measure_text_width;

    use super::PhaseView;

    #[test]
    fn no_bar_is_wider_than_its_room() {
        let view = PhaseView {
            name: "old log-probs",
            unit: "sequences",
            done: 12,
            planned: 4322,
            seconds: 90.0,
            tokens_per_s: 123_456.0,
            to_go: 7500.0,
            share: Some("rank 0 of 64"),
        };
        for width in 1..=250 {
            for done in [0, 1, 2000, 4322, 5000] {
                for planned in [0, 4322] {
                    let line = PhaseView { done, planned, ..view.clone() }.line(width);
                    assert!(measure_text_width(&line) <= width, "{width}: {line}");
                }
            }
        }
        let half = PhaseView { name: "rollout", unit: "episodes", done: 128, planned: 256, share: None, ..view };
        let whole = "rollout [=====>      ] 128/256 episodes | 123456 tokens/s | 2h05m to go";
        assert_eq!(half.line(76), whole);
        assert_eq!(half.line(40), "rollout [=====>      ] 128/256 episodes");
        assert_eq!(half.line(26), "rollout 128/256 episodes");
        assert_eq!(PhaseView { planned: 0, tokens_per_s: 0.0, to_go: 0.0, ..half }.line(76), "rollout 1m30s");
    }
}
