//! Lines on a terminal, above a progress bar or without one.
//!
//! A bar is one line without an end, redrawn in place. Whoever prints a whole line clears that line first; the next
//! redraw puts the bar under what was printed. So the launcher may print between the bars of its rank 0, and an error
//! need not know whether a bar is up.

use std::io::{self, Write};

use console::{Term, is_dumb, style};
use textwrap::Options;

const CLEAR: &str = "\r\x1b[2K";

/// Whether standard output is a terminal that can redraw a line.
pub fn redraws() -> bool {
    Term::stdout().is_term() && !is_dumb()
}

/// Columns of a terminal that a line may take; the last one stays free, because terminals differ in what they do there.
pub fn columns(term: &Term) -> usize {
    usize::from(term.size().1).saturating_sub(1).max(1)
}

/// Prints lines that fit standard output's terminal. A console that was closed must not end the run.
pub fn print(lines: &str) {
    print_above(lines, "");
}

/// Prints lines above a bar, which so is never away.
pub fn print_above(lines: &str, bar: &str) {
    let clear = if redraws() { CLEAR } else { "" };
    put(&format!("{clear}{lines}\n{bar}"));
}

/// Clears what a bar may have left, before the process ends without a word.
pub fn clear() {
    if redraws() {
        put(CLEAR);
    }
}

/// Writes to standard output as it is, in one piece.
pub fn put(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints an error or a warning on standard error; whoever closed it does not want to hear.
pub fn warn(line: &str) {
    let term = Term::stderr();
    let text = match term.is_term() {
        false => format!("{line}\n"),
        true => {
            let clear = if redraws() { CLEAR } else { "" };
            let red = style("error:").red().for_stderr().to_string();
            let yellow = style("warning:").yellow().for_stderr().to_string();
            let folded = fold(line, columns(&term));
            format!("{clear}{}\n", folded.replacen("error:", &red, 1).replacen("warning:", &yellow, 1))
        }
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

/// A line in as many lines as it needs at this width.
pub fn fold(line: &str, width: usize) -> String {
    let plain: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let indent = if width > 10 { "  " } else { "" };
    textwrap::wrap(&plain, Options::new(width).subsequent_indent(indent)).join("\n")
}
