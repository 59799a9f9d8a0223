//! Lines on a terminal, above a progress bar or without one.
//!
//! A bar is one line without a line end, redrawn in place. Printing a whole line clears the bar first; the next redraw
//! puts it under the printed line. So the launcher can print between the redraws of rank 0's bar, and the code that
//! prints an error does not need to know whether a bar is visible.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use console::{Term, colors_enabled, is_dumb, style};
use nestor_recipe::lines;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::{close, dup2_stdout};
use textwrap::Options;

const CLEAR: &str = "\r\x1b[2K";

/// The standard output that the process was started with.
static OUT: OnceLock<File> = OnceLock::new();

/// Keeps standard output for Nestor: from here on all other code in the process, such as a plugin, prints to standard
/// error.
pub fn keep_stdout() -> Result<()> {
    colors_enabled(); // looks at standard output once
    let own = io::stdout().as_fd().try_clone_to_owned().context("copying standard output")?;
    if OUT.set(own.into()).is_ok() {
        dup2_stdout(io::stderr()).context("pointing standard output to standard error")?;
    }
    Ok(())
}

/// Points the descriptor of standard output to standard error again if a plugin has closed it: the next file that Nestor
/// opens would get its number, and whatever a plugin prints.
pub fn guard_stdout() {
    if OUT.get().is_none() || fcntl(io::stdout(), FcntlArg::F_GETFD).is_ok() {
        return;
    }
    // The lowest free number, so that a file which another thread opens meanwhile stays as it is.
    let lowest = io::stdout().as_raw_fd();
    if let Ok(copy) = fcntl(io::stderr(), FcntlArg::F_DUPFD(lowest))
        && copy != lowest
    {
        let _ = close(copy);
    }
}

/// Standard output.
pub fn out() -> impl Write + AsRawFd {
    match OUT.get() {
        Some(own) => Out::Own(own),
        None => Out::Std(io::stdout()),
    }
}

/// Standard output, kept or not.
enum Out {
    Own(&'static File),
    Std(io::Stdout),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Own(own) => own.write(bytes),
            Self::Std(std) => std.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Own(own) => own.flush(),
            Self::Std(std) => std.flush(),
        }
    }
}

impl AsRawFd for Out {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        match self {
            Self::Own(own) => own.as_raw_fd(),
            Self::Std(std) => std.as_raw_fd(),
        }
    }
}

/// The terminal that standard output may be.
pub fn stdout() -> Term {
    static KEPT: OnceLock<Option<Term>> = OnceLock::new();
    let Some(own) = OUT.get() else { return Term::stdout() };
    let kept = KEPT.get_or_init(|| {
        let (read, write) = (own.try_clone().ok()?, own.try_clone().ok()?);
        Some(Term::read_write_pair(read, write))
    });
    kept.clone().unwrap_or_else(Term::stdout)
}

/// True if standard output is a terminal that can redraw a line.
pub fn redraws() -> bool {
    stdout().is_term() && !is_dumb()
}

/// Widest line in columns. The last column stays free, because terminals differ in how they wrap there.
pub fn columns(term: &Term) -> usize {
    usize::from(term.size().1).saturating_sub(1).max(1)
}

/// Widest line of standard output in columns; none where it is no terminal.
pub fn width() -> Option<usize> {
    let term = stdout();
    term.is_term().then(|| columns(&term))
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

/// Clears a bar that may be visible, in front of a line on standard error that is written without this module.
pub fn clearing() -> &'static str {
    if Term::stderr().is_term() && redraws() { CLEAR } else { "" }
}

/// Writes text unchanged to standard output, in one piece.
pub fn put(text: &str) {
    let mut out = out();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints an error or a warning on standard error: one line, or one for each of several problems. Ignores a closed standard
/// error.
pub fn warn(message: &str) {
    let term = Term::stderr();
    let each = |line: &dyn Fn(&str) -> String| lines(message).map(line).collect::<Vec<_>>().join("\n");
    let text = match term.is_term() {
        false => format!("{}\n", each(&|line| printable(line))),
        true => {
            let clear = if redraws() { CLEAR } else { "" };
            let red = style("error:").red().for_stderr().to_string();
            let yellow = style("warning:").yellow().for_stderr().to_string();
            let folded = each(&|line| fold(line, columns(&term)));
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
