//! Error messages and exit codes: 2 for wrong input, 1 for a failure.

use std::any::Any;
use std::io::{self, ErrorKind};
use std::panic::PanicHookInfo;

use nestor_recipe::{InputError, lines};

/// Longest line of a message in characters, since messages may quote input.
const LONGEST: usize = 2_000;

/// The one line that a user sees, or one for each of several problems: the chain of causes, with a remedy for a full disk.
pub fn message(error: &anyhow::Error) -> String {
    let kinds = || error.chain().filter_map(|cause| cause.downcast_ref()).map(io::Error::kind);
    let full = |kind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
    let text = brief(&format!("{error:#}"));
    let tidy =
        |line: &str| -> String { line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect() };
    let text = lines(&text).map(tidy).collect::<Vec<_>>().join("\n");
    let cause = match kinds().find(|&kind| full(kind)) {
        None => return text,
        Some(ErrorKind::FileTooLarge) => "the disk is full, or `ulimit -f` limits the size of a file",
        Some(_) => "the disk is full",
    };
    format!("{text}; {cause}: free some space and try again (--resume continues a run)")
}

/// True for a line of a list of problems.
pub fn is_item(line: &str) -> bool {
    line.starts_with("  (")
}

/// The last error in a process's output, on one line.
pub fn last_error(output: &str) -> Option<String> {
    let lines: Vec<&str> = output.lines().collect();
    let at = lines.iter().rposition(|line| line.starts_with("error: "))?;
    let items = lines[at + 1..].iter().take_while(|line| is_item(line)).map(|line| line.trim_start());
    let whole: Vec<&str> = lines[at].strip_prefix("error: ").into_iter().chain(items).collect();
    Some(whole.join(" "))
}

/// A message without the C++ backtrace that libtorch appends.
pub fn brief(message: &str) -> String {
    let marks = ["\nException raised from", "\\nException raised from", "\nframe #", "\\nframe #"];
    let end = marks.iter().filter_map(|mark| message.find(mark)).min().unwrap_or(message.len());
    message[..end].trim_end().to_string()
}

/// The exit code of an error: 2 for the user's mistake, else 1.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<InputError>()) { 2 } else { 1 }
}

/// True if nobody reads the output any more.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &io::Error| cause.kind() == ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref()).any(closed)
}

/// The message of a panic.
pub fn internal_error(info: &PanicHookInfo) -> String {
    let at = info.location().map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
    let text = brief(panic_text(info.payload()).unwrap_or("a panic without a message"));
    format!("internal error{at}: {text}; please report this with the command and the recipe")
}

/// The text of a panic, unless it is none.
pub fn panic_text(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}
