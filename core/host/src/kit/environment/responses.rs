//! Responses that no one expects, and steps after the last one.

use anyhow::{Context, Result, anyhow, bail};

use super::episode::{Episode, Seen};
use super::{Loaded, Start};
use crate::Env;
use crate::call::Panicked;
use crate::kit::{Finding, Subject, passed, skipped};

/// Tasks of each split that a response is tried in.
const TASKS: u64 = 2;
/// Length of the long response.
const LONG: usize = 10_000_000;

fn panicked(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Panicked>())
}

/// Plays some responses, each in an episode of its own. An error passes where it may: then the next reset must work.
fn survive(subject: &Subject, tasks: u64, responses: &[Vec<u8>], may_fail: bool) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let (mut env, mut refused, mut tried) = (shared.spawn()?, 0, 0);
    for start in loaded.starts(&shared, tasks)? {
        for response in responses {
            let first = Seen::from(env.reset(&start.split, start.task, start.seed)?);
            tried += 1;
            match env.step_unchecked(response) {
                Ok(_) => {}
                Err(error) if panicked(&error) || !may_fail => return Err(error).with_context(|| start.to_string()),
                Err(_) => refused += 1,
            }
            check_reset(&mut env, &start, &first)?;
        }
    }
    passed(format!("{tried} tries, {refused} errors"))
}

/// The instance must be as good as new.
fn check_reset(env: &mut Env, start: &Start, first: &Seen) -> Result<()> {
    let again = Seen::from(env.reset(&start.split, start.task, start.seed).context("the reset afterwards")?);
    let episode = Episode { start: start.clone(), responses: Vec::new(), seen: vec![first.clone()] };
    episode.compare(0, &[again]).context("the reset afterwards")
}

/// The empty response.
pub fn empty(subject: &Subject) -> Result<Finding> {
    survive(subject, TASKS, &[Vec::new()], false)
}

/// Responses of 10 MB, bare and with the usual tags. No text of this length fits the sink, so an error passes.
pub fn long(subject: &Subject) -> Result<Finding> {
    let text = "a".repeat(LONG);
    let tagged = format!("<think>{text}</think><action>{text}</action>");
    survive(subject, 1, &[text.into_bytes(), tagged.into_bytes()], true)
}

/// Responses with NUL in them.
pub fn nul(subject: &Subject) -> Result<Finding> {
    let responses = ["\0", "<think>\0</think><action>a\0b</action>", "{\"action\": \"\0\"}"];
    survive(subject, TASKS, &responses.map(|text| text.as_bytes().to_vec()), false)
}

/// Bytes that are no text.
pub fn invalid_utf8(subject: &Subject) -> Result<Finding> {
    let responses = [vec![0xff, 0xfe, 0x80], b"<action>\xc3\x28</action>".to_vec(), vec![0xed, 0xa0, 0x80]];
    survive(subject, TASKS, &responses, true)
}

/// Steps after the last one are errors or do no harm.
pub fn step_after_done(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let (mut env, mut ended, mut refused) = (shared.spawn()?, 0, 0);
    for episode in loaded.record(&shared, 8)?.iter().filter(|episode| episode.is_over()) {
        episode.check(&mut env)?;
        ended += 1;
        let last = episode.responses.last().map(String::as_str);
        for response in last.into_iter().chain(["hello"]) {
            match env.step_unchecked(response.as_bytes()) {
                Ok(_) => {}
                Err(error) if panicked(&error) => bail!("{}, after the last step: {error:#}", episode.start),
                Err(_) => refused += 1,
            }
        }
        episode.check(&mut env).map_err(|error| anyhow!("{error:#}, after a step behind the end"))?;
    }
    match ended {
        0 => skipped("no episode came to an end"),
        _ => passed(format!("after the end of {ended} episodes, {refused} errors")),
    }
}
