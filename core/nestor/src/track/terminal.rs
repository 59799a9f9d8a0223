//! Lines on a terminal, above a progress bar or without one.
//!
//! A bar is one line without a line end, redrawn in place. Printing a whole line clears the bar first; the next redraw
//! puts it under the printed line. So the launcher can print between the redraws of rank 0's bar, and the code that
//! prints an error does not need to know whether a bar is visible.

use std::io::{self, Write};

use console::{Term, is_dumb, style};
use textwrap::Options;

const CLEAR: &str = "\r\x1b[2K";

/// True if standard output is a terminal that can redraw a line.
pub fn redraws() -> bool {
    Term::stdout().is_term() && !is_dumb()
}

/// Widest line in columns. The last column stays free, because terminals differ in how they wrap there.
pub fn columns(term: &Term) -> usize {
    usize::from(term.size().1).saturating_sub(1).max(1)
}

/// Prints lines. A closed standard output does not end the run.
pub fn print(lines: &str) {
    print_above(lines, "");
}

/// Prints lines above a bar and redraws the bar in the same write, so that it does not blink.
pub fn print_above(lines: &str, bar: &str) {
    let clear = if redraws() { CLEAR } else { "" };
    put(&format!("{clear}{lines}\n{bar}"));
}

/// Clears a bar that may be visible, before the process ends.
pub fn clear() {
    if redraws() {
        put(CLEAR);
    }
}

/// Writes text unchanged to standard output, in one piece.
pub fn put(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints an error or a warning on standard error. Ignores a closed standard error.
pub fn warn(line: &str) {
    let term = Term::stderr();
    let text = match term.is_term() {
        false => format!("{}\n", printable(line)),
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

/// A text without control characters, which in names and in text of other processes could steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Wraps a line at this width.
pub fn fold(line: &str, width: usize) -> String {
    let plain = printable(line);
    let indent = if width > 10 { "  " } else { "" };
    textwrap::wrap(&plain, Options::new(width).subsequent_indent(indent)).join("\n")
}
