//! Output of a run on standard output: plain lines, a table and a bar on a terminal, or JSON.

use console::style;

use super::columns::{ConsoleTable, IterationRow};
use crate::event::Event;
use crate::progress::Progress;
use crate::terminal;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Nothing: another rank prints.
    Silent,
    /// Unwrapped lines, for a pipe or a file.
    Plain,
    /// Wrapped lines, a table, and a bar where the terminal can redraw it.
    Terminal,
    /// One object per line.
    Json,
}

/// Standard output during a run. Dropping it clears the bar.
#[derive(Debug)]
pub struct Console {
    format: Format,
    progress: Progress,
    table: ConsoleTable,
}

impl Drop for Console {
    fn drop(&mut self) {
        self.progress.end();
        // During a panic the bar does not redraw.
        if self.format == Format::Terminal && std::thread::panicking() {
            terminal::clear();
        }
    }
}

impl Console {
    /// A console that prints nothing.
    pub fn silent() -> Self {
        Self { format: Format::Silent, progress: Progress::hidden(), table: ConsoleTable::default() }
    }

    /// The console of one of `world` ranks. Only rank 0 prints.
    pub fn open(rank: usize, world: usize, json: bool) -> Self {
        let format = match (rank, json) {
            (0, true) => Format::Json,
            (0, false) if terminal::stdout().is_term() => Format::Terminal,
            (0, false) => Format::Plain,
            _ => Format::Silent,
        };
        let bar = format == Format::Terminal && terminal::redraws();
        let progress = if bar { Progress::shown(world) } else { Progress::hidden() };
        Self { format, progress, table: ConsoleTable::default() }
    }

    /// Shows the column of the KL from the first row on, so that the table has one head.
    pub fn expect_kl(&mut self) {
        self.table.expect_kl();
    }

    /// The handle through which phases report progress.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Prints an event other than an iteration.
    pub fn emit(&mut self, event: &Event) {
        match self.format {
            Format::Silent => {}
            Format::Json => event.print_json(),
            Format::Plain => terminal::print(&terminal::printable(&event.line())),
            Format::Terminal => {
                let folded = terminal::fold(&event.line(), terminal::columns(&terminal::stdout()));
                let warning = matches!(event, Event::Warning { .. });
                self.print(&if warning { style(folded).yellow().to_string() } else { folded });
            }
        }
    }

    pub fn iteration(&mut self, row: &IterationRow) {
        match self.format {
            Format::Silent => {}
            Format::Json => {
                let values = row.metrics.iter().map(|(name, value)| (name.to_string(), value.into()));
                let values = [("iteration".to_string(), row.iteration.into())].into_iter().chain(values);
                Event::Iteration(values.collect()).print_json();
            }
            Format::Plain => terminal::print(&row.line()),
            Format::Terminal => {
                let stdout = terminal::stdout();
                let size = (usize::from(stdout.size().0), terminal::columns(&stdout));
                let lines = self.table.lines(row, size).join("\n");
                self.print(&lines);
            }
        }
    }

    /// Warns on standard error. For warnings before the run has a log.
    pub fn warn(&self, message: &str) {
        terminal::warn(&format!("warning: {message}"));
        if self.format == Format::Json {
            Event::Warning { message }.print_json();
        }
    }

    fn print(&self, lines: &str) {
        terminal::print_above(lines, &self.progress.drawn());
    }
}
