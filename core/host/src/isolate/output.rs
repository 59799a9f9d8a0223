//! Output of a plugin's processes: the trainer shows it as warnings, a few lines at a time.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use nestor_args::terminal;

/// Longest line that is shown, in bytes. A longer one is shown in pieces.
const LONGEST: u64 = 400;
/// Most lines that are shown within [`WINDOW`].
const MOST_LINES: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// Shows lines until nobody is left who could write one.
pub fn show(plugin: &str, from: impl Read) {
    let mut reader = BufReader::new(from);
    let mut shown = Shown { plugin, since: Instant::now(), count: 0 };
    loop {
        let mut line = Vec::new();
        match (&mut reader).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => shown.line(&line),
        }
    }
    shown.end_window();
}

/// Counts the lines of a while.
struct Shown<'a> {
    plugin: &'a str,
    since: Instant,
    count: u64,
}

impl Shown<'_> {
    fn line(&mut self, line: &[u8]) {
        if self.since.elapsed() >= WINDOW {
            self.end_window();
        }
        self.count += 1;
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if self.count <= MOST_LINES && !text.is_empty() {
            terminal::warn(&format!("warning: plugin {} printed: {text}", self.plugin));
        }
    }

    fn end_window(&mut self) {
        let hidden = self.count.saturating_sub(MOST_LINES);
        if hidden > 0 {
            terminal::warn(&format!(
                "warning: plugin {} printed {hidden} more lines, which are not shown",
                self.plugin
            ));
        }
        (self.since, self.count) = (Instant::now(), 0);
    }
}
