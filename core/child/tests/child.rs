//! The promises of a child, kept by a shell and what it starts.

#![allow(clippy::unwrap_used)] // a test may fail so

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use nestor_child::{Child, words};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(60);

/// A shell with pipes.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The number on the next line of a child's output.
fn number(from: &mut impl BufRead) -> Pid {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    Pid::from_raw(line.trim().parse().unwrap())
}

/// A child of whoever reaps orphans may stay a zombie for a while, so the end of its pipe is waited for.
fn has_ended(mut pipe: impl Read) -> bool {
    pipe.read_to_end(&mut Vec::new()).is_ok()
}

#[test]
fn a_dropped_child_is_killed_with_its_group_and_waited_for() {
    let mut child = Child::start_group(&mut shell("sleep 60 & echo $!; kill -STOP $$")).unwrap();
    let (pid, mut output) = (child.pid(), BufReader::new(child.stdout.take().unwrap()));
    number(&mut output);
    drop(child);
    assert_eq!(kill(pid, None), Err(Errno::ESRCH), "not even a zombie is left");
    assert!(has_ended(output), "what it started holds its output open no more");
}

#[test]
fn what_a_child_leaves_in_its_group_ends_with_it() {
    let mut child = Child::start_group(&mut shell("sleep 60 & exit 3")).unwrap();
    let output = child.stdout.take().unwrap();
    assert_eq!(child.wait(LONG).map(words), Some("ended with code 3".into()));
    assert!(has_ended(output));
    assert_eq!(child.poll().unwrap().unwrap().code(), Some(3), "the status stays known");
}

#[test]
fn a_signal_reaches_the_process_and_its_end_has_words() {
    let mut child = Child::start(&mut shell("echo $$; exec sleep 60")).unwrap();
    let pid = number(&mut BufReader::new(child.stdout.take().unwrap()));
    assert_eq!((pid, child.wait(Duration::ZERO)), (child.pid(), None));
    child.signal(Signal::SIGTERM);
    assert_eq!(child.wait(LONG).map(words), Some("was killed by signal 15".into()));
    // nix knows no name of a realtime signal.
    let mut child = Child::start_group(&mut shell("kill -40 $$")).unwrap();
    assert_eq!(child.wait(LONG).map(words), Some("was killed by signal 40".into()));
}
