//! The checks of a loss.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::Value;

use super::usage::repeat;
use super::{Check, Finding, Subject, config, passed};
use crate::library::{self, Functions, Kind, PluginFile};
use crate::{Loss, ResponseTokens, TokenLosses};

const FINITE: &[&str] = &["finite_and_written"];

/// Difference of a log-prob or an entropy from which a derivative is estimated. A power of two, so that float32 holds it.
const STEP: f32 = 1.0 / 1024.0;
/// Difference of a derivative and its estimate, relative to the larger of both, but for rounding.
const DERIVATIVE: f64 = 2e-3;
/// Difference that the order of sums may make.
const ROUNDING: f64 = 1e-9;

/// The checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check {
        name: "startup",
        needs: &[],
        remedy: "open must give a loss of its own every time, and keep no state in the library",
        body: startup,
    },
    Check {
        name: "config_errors",
        needs: &["startup"],
        remedy: "refuse it in open with a message that names the key (C: NESTOR_INPUT; Rust: deny_unknown_fields)",
        body: config_errors,
    },
    Check {
        name: "finite_and_written",
        needs: &["startup"],
        remedy: "give every token a finite loss and finite derivatives, also where a ratio is large, and write no more than one per token",
        body: finite_and_written,
    },
    Check {
        name: "repeatable",
        needs: FINITE,
        remedy: "losses and derivatives depend on the arguments alone: keep nothing between calls",
        body: repeatable,
    },
    Check {
        name: "derivatives",
        needs: &["repeatable"],
        remedy: "by_logprob[j] is the derivative by the log-prob of token j of the sum of all losses of its response, by_entropy[j] that by its entropy",
        body: derivatives,
    },
    Check {
        name: "response_order",
        needs: &["repeatable"],
        remedy: "responses have no order: a loss depends on the tokens of its own response",
        body: response_order,
    },
    Check {
        name: "halves",
        needs: &["response_order"],
        remedy: "a micro-batch is any part of a mini-batch: take its totals from mini_batch_responses and mini_batch_tokens, and let no \
                 loss depend on another response",
        body: halves,
    },
    Check {
        name: "metrics",
        needs: &["repeatable"],
        remedy: "put the same names in every call, with finite sums over the tokens",
        body: metrics,
    },
    Check { name: "many_losses", needs: FINITE, remedy: "free what compute took before it returns", body: many_losses },
    Check { name: "open_close", needs: &["many_losses"], remedy: "free in close all that open took", body: open_close },
];

/// The loss, loaded into this process.
struct Loaded<'a> {
    subject: &'a Subject<'a>,
    id: &'static str,
    file: PluginFile,
    table: &'static nestor_plugin::ffi::Loss,
}

impl<'a> Loaded<'a> {
    fn new(subject: &'a Subject<'a>) -> Result<Self> {
        let all = library::load(&subject.found.path)?;
        let is_it = |c: &library::Component| c.kind() == Kind::Loss && c.id == subject.found.id;
        let component = all.into_iter().find(is_it).context("the file changed while it was checked")?;
        let Functions::Loss(table) = component.functions else { unreachable!("looked up by its kind") };
        let file = PluginFile::read(component.id, &subject.found.path, None)?.with_border(component.border);
        Ok(Self { subject, id: component.id, file, table })
    }

    fn open(&self) -> Result<Loss> {
        self.open_with(&self.subject.config)
    }

    fn open_with(&self, config: &Value) -> Result<Loss> {
        Loss::open((self.id, self.file.clone()), self.table, config, &self.subject.limits())
    }
}

/// One response: its columns, token by token.
#[derive(Debug, Clone)]
struct Response(Vec<Token>);

#[derive(Debug, Clone)]
struct Token {
    logprob: f32,
    /// The log-prob as a constant.
    detached: f32,
    old: f32,
    behaviour: f32,
    reference: f32,
    entropy: f32,
    advantage: f32,
}

/// Responses as an update has them. `spread` is the largest distance of a log-prob from the old one.
fn responses(seed: u64, count: usize, spread: f32) -> Vec<Response> {
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let mut part = move || (dice.next_u32() >> 8) as f32 / (1 << 24) as f32;
    let response = |number: usize| {
        let length = 1 + (part() * 12.0) as usize;
        // Advantages of both signs, 0, and now and then another one for each token.
        let of_all = [0.0, 1.0, -1.0, 0.5][number % 4] * (1.0 + part());
        let token = |_| {
            let old = -0.05 - spread.max(3.0) * part();
            let logprob = (old + spread * (2.0 * part() - 1.0)).min(-0.01);
            let advantage = if number % 5 == 4 { 2.0 * part() - 1.0 } else { of_all };
            let (behaviour, reference) = (old + 0.02 * (part() - 0.5), old + part() - 0.5);
            // Multiples of the step, so that float32 adds it exactly.
            let round = |x: f32| (x / STEP).round() * STEP;
            let logprob = round(logprob);
            Token {
                logprob,
                detached: logprob,
                old: round(old),
                behaviour,
                reference,
                entropy: round(2.0 * part()),
                advantage,
            }
        };
        Response((0..length).map(token).collect())
    };
    (0..count).map(response).collect()
}

/// Joins responses to a micro-batch of the mini-batch that all of them are.
fn pack(part: &[Response], all: &[Response], loss: &Loss) -> ResponseTokens {
    let column = |of: fn(&Token) -> f32| -> Vec<f32> { part.iter().flat_map(|one| &one.0).map(of).collect() };
    let ends = part.iter().scan(0, |end, one| {
        *end += one.0.len() as u64;
        Some(*end)
    });
    ResponseTokens {
        token_offsets: [0].into_iter().chain(ends).collect(),
        logprobs: column(|token| token.logprob),
        detached_logprobs: Some(column(|token| token.detached)),
        old_logprobs: column(|token| token.old),
        behaviour: column(|token| token.behaviour),
        ref_logprobs: loss.needs().reference.then(|| column(|token| token.reference)),
        entropy: column(|token| token.entropy),
        advantages: column(|token| token.advantage),
        mini_batch_responses: all.len() as u64,
        mini_batch_tokens: all.iter().map(|one| one.0.len() as u64).sum(),
        most_response_tokens: 16,
        iteration: 2,
        iterations: 5,
    }
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= ROUNDING * (1.0 + a.abs().max(b.abs()))
}

/// Fails if a token of one batch has other numbers than a token of another.
fn compare(a: (&TokenLosses, usize), b: (&TokenLosses, usize), token: &str, what: &str) -> Result<()> {
    let columns = |all: &TokenLosses, at: usize| {
        [("loss", all.losses.get(at)), ("by_logprob", all.by_logprob.get(at)), ("by_entropy", all.by_entropy.get(at))]
            .map(|(name, number)| (name, number.copied().unwrap_or(0.0)))
    };
    for ((name, x), (_, y)) in columns(a.0, a.1).into_iter().zip(columns(b.0, b.1)) {
        ensure!(is_near(x, y), "{name} of {token} is {x}, and {y} {what}");
    }
    Ok(())
}

/// Two at once, and one after both were closed.
fn startup(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let (first, second) = (loaded.open()?, Loaded::new(subject)?.open().context("a second time in one process")?);
    ensure!(first.needs() == second.needs(), "it needs other columns when opened again");
    drop((first, second));
    loaded.open().context("again after it was closed")?;
    passed("opened three times")
}

fn config_errors(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    config::check(&subject.config, &subject.found.schema, |config| loaded.open_with(config).map(drop))
}

/// Ordinary micro-batches, one of a policy that moved far, one of a single token, and one without a response.
fn finite_and_written(subject: &Subject) -> Result<Finding> {
    let loss = Loaded::new(subject)?.open()?;
    let mut tokens = 0;
    for (seed, count, spread) in [(1, 24, 0.3), (2, 24, 0.0), (3, 24, 20.0), (4, 1, 0.3)] {
        let all = responses(seed, count, spread);
        tokens += loss.compute(pack(&all, &all, &loss))?.losses.len();
    }
    loss.compute(pack(&[], &responses(1, 4, 0.3), &loss)).context("a micro-batch without a response")?;
    passed(format!("five micro-batches, {tokens} tokens"))
}

fn repeatable(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let (first, second) = (loaded.open()?, loaded.open()?);
    let (all, other) = (responses(1, 24, 0.3), responses(2, 24, 0.3));
    let before = first.compute(pack(&all, &all, &first))?;
    first.compute(pack(&other, &other, &first))?;
    let same =
        before == first.compute(pack(&all, &all, &first))? && before == second.compute(pack(&all, &all, &second))?;
    ensure!(same, "the same tokens got other numbers in a later call, or from a second loss");
    passed("three calls, two losses")
}

/// Derivatives against differences of losses. A clip has a corner, where the two one-sided differences disagree: there the
/// derivative is between them.
fn derivatives(subject: &Subject) -> Result<Finding> {
    let loss = Loaded::new(subject)?.open()?;
    let mut checked = 0;
    for (seed, spread) in [(5, 0.3), (6, 0.05), (7, 1.5)] {
        let all = responses(seed, 12, spread);
        let given = loss.compute(pack(&all, &all, &loss))?;
        ensure!(
            given.losses.iter().any(|x| *x != 0.0),
            "all losses of a micro-batch with advantages of both signs are 0"
        );
        type Change = fn(&mut Token, f32);
        let by: [(&str, &[f64], Change); 2] = [
            ("log-prob", &given.by_logprob, |token, step| token.logprob += step),
            ("entropy", &given.by_entropy, |token, step| token.entropy += step),
        ];
        for (name, derivatives, change) in by {
            let mut at = 0;
            for (number, response) in all.iter().enumerate() {
                let first = at;
                for token in 0..response.0.len() {
                    let sum = |steps: f32| -> Result<f64> {
                        let mut moved = all.clone();
                        change(&mut moved[number].0[token], steps * STEP);
                        let losses = loss.compute(pack(&moved, &all, &loss))?.losses;
                        Ok(losses[first..first + response.0.len()].iter().sum())
                    };
                    let given = derivatives.get(at).copied().unwrap_or(0.0);
                    let wide = f64::from(STEP);
                    let (less, here, more) = (sum(-1.0)?, sum(0.0)?, sum(1.0)?);
                    let (left, right) = ((here - less) / wide, (more - here) / wide);
                    // The differences are off by the step times the second derivative, which they show themselves.
                    let slack = DERIVATIVE * (1.0 + left.abs().max(right.abs()));
                    let (low, high) = (left.min(right) - slack, left.max(right) + slack);
                    ensure!(
                        (low..=high).contains(&given),
                        "the derivative by the {name} of token {token} of a response of {} tokens is {given}, and differences of \
                         the losses give {left} and {right}",
                        response.0.len()
                    );
                    (at, checked) = (at + 1, checked + 1);
                }
            }
        }
    }
    passed(format!("{checked} derivatives against differences"))
}

fn response_order(subject: &Subject) -> Result<Finding> {
    let loss = Loaded::new(subject)?.open()?;
    let all = responses(8, 24, 0.3);
    let reversed: Vec<Response> = all.iter().rev().cloned().collect();
    let (a, b) = (loss.compute(pack(&all, &all, &loss))?, loss.compute(pack(&reversed, &all, &loss))?);
    let (starts, starts_reversed) = (pack(&all, &all, &loss).token_offsets, pack(&reversed, &all, &loss).token_offsets);
    for (number, response) in all.iter().enumerate() {
        let (from, to) = (starts[number] as usize, starts_reversed[all.len() - 1 - number] as usize);
        for token in 0..response.0.len() {
            let named = format!("token {token} of response {number}");
            compare((&a, from + token), (&b, to + token), &named, "with the responses in another order")?;
        }
    }
    passed(format!("another order of {} responses", all.len()))
}

fn halves(subject: &Subject) -> Result<Finding> {
    let loss = Loaded::new(subject)?.open()?;
    let all = responses(9, 24, 0.3);
    let whole = loss.compute(pack(&all, &all, &loss))?;
    for cut in [12, 1, 23] {
        let mut at = 0;
        for part in [&all[..cut], &all[cut..]] {
            let losses = loss.compute(pack(part, &all, &loss))?;
            for token in 0..losses.losses.len() {
                compare((&whole, at), (&losses, token), &format!("token {at}"), "in a part of the mini-batch")?;
                at += 1;
            }
        }
    }
    passed("three cuts of a mini-batch into two micro-batches")
}

fn metrics(subject: &Subject) -> Result<Finding> {
    let loss = Loaded::new(subject)?.open()?;
    let all = responses(10, 24, 0.3);
    let whole = loss.compute(pack(&all, &all, &loss))?.metrics;
    let parts = [&all[..7], &all[7..]].map(|part| loss.compute(pack(part, &all, &loss)).map(|losses| losses.metrics));
    let [first, second] = parts;
    let (first, second) = (first?, second?);
    for (name, sum) in &whole {
        let (Some(a), Some(b)) = (first.get(name), second.get(name)) else {
            anyhow::bail!("the metric `{name}` is missing in a part of the mini-batch");
        };
        let near = (sum - a - b).abs() <= 1e-6 * (1.0 + sum.abs());
        ensure!(
            near,
            "the metric `{name}` is {sum}, and {a} and {b} in two parts of the mini-batch: it must be a sum over tokens"
        );
    }
    let more = first.keys().chain(second.keys()).find(|name| !whole.contains_key(*name));
    ensure!(
        more.is_none(),
        "a part of the mini-batch has the metric `{}`, and the whole has not",
        more.cloned().unwrap_or_default()
    );
    let names: Vec<&str> = whole.keys().map(String::as_str).collect();
    passed(if names.is_empty() { "none".to_string() } else { names.join(", ") })
}

/// Many calls of one loss.
fn many_losses(subject: &Subject) -> Result<Finding> {
    let (loss, all) = (Loaded::new(subject)?.open()?, subject.kit.budget.scores);
    let every = responses(11, 64, 0.3);
    let tokens = pack(&every, &every, &loss);
    let (count, mut took) = (tokens.logprobs.len() as u64, Duration::ZERO);
    let done = repeat(subject, all, "calls", |_| {
        let tokens = tokens.clone();
        let begin = Instant::now();
        loss.compute(tokens)?;
        took += begin.elapsed();
        Ok(())
    })?;
    let rate = (done * count) as f64 / took.as_secs_f64().max(1e-9);
    Ok(Finding::Measured(format!("{done} of {all} calls of {count} tokens"), rate, "tokens/s on one thread".into()))
}

/// Opened and closed many times.
fn open_close(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let all = subject.kit.budget.opens;
    let opened = repeat(subject, all, "times opened and closed", |_| loaded.open().map(drop))?;
    passed(format!("{opened} of {all} times"))
}
