//! The comparison of two run directories: checksums of everything first, then the place of the first difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::difference::{Difference, first_difference};
use super::lines::{self, Lines};
use super::tensors;
use crate::checkpoint::{Checkpoints, ESTIMATOR, STATE};
use crate::files::{hex, read_object, sum};
use crate::input_error;
use crate::run::RECIPE;

/// The parts of a run that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Policy, critic, adapters and the optimizer's state in every checkpoint.
    Weights,
    /// Counters, task cursor and the estimator's state in every checkpoint.
    State,
    /// Rows of metrics, optimizer steps, warm start and histograms, without measured numbers.
    Metrics,
    /// Episodes of training and of evaluations, token by token.
    Episodes,
}

pub const PARTS: [Part; 4] = [Part::Weights, Part::State, Part::Metrics, Part::Episodes];

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::State => "state",
            Self::Metrics => "metrics",
            Self::Episodes => "episodes",
        }
    }
}

/// Files of metrics, the row of each iteration first.
const METRICS: [&str; 5] = ["metrics.jsonl", "steps.jsonl", "warm_start.jsonl", "histograms.jsonl", "outcomes.jsonl"];
/// Folders with a file of episodes for each iteration.
const EPISODES: [&str; 2] = ["rollouts", "evaluations"];

/// A run directory with the checksums of its contents.
#[derive(Debug)]
pub struct Contents {
    dir: PathBuf,
    /// The complete checkpoints, the oldest first.
    checkpoints: Vec<(String, PathBuf)>,
    /// SHA-256 by part and item, such as `iteration-000002/policy`.
    sums: BTreeMap<(Part, String), String>,
}

impl Contents {
    /// Reads a run directory.
    ///
    /// # Errors
    /// If it holds no run, or a file of it cannot be read.
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.join(RECIPE).exists() {
            return Err(input_error!("{} holds no run: name a run directory, with {RECIPE} in it", dir.display()));
        }
        let checkpoints = Checkpoints::new(dir).all()?;
        let mut sums = BTreeMap::new();
        for (name, path) in &checkpoints {
            for (set, digest) in tensors::digests(path)? {
                sums.insert((Part::Weights, format!("{name}/{set}")), digest);
            }
            let state = serde_json::to_vec(&state(path)?)?;
            sums.insert((Part::State, format!("{name}/{STATE}")), hex(Sha256::new_with_prefix(state)));
            let estimator = path.join(ESTIMATOR);
            if estimator.exists() {
                sums.insert((Part::State, format!("{name}/{ESTIMATOR}")), sum(&estimator)?.sha256);
            }
        }
        for name in METRICS.into_iter().filter(|name| dir.join(name).exists()) {
            sums.insert((Part::Metrics, name.into()), lines::digest(&dir.join(name), Lines::Metrics)?);
        }
        for folder in EPISODES.into_iter().filter(|folder| dir.join(folder).is_dir()) {
            for entry in std::fs::read_dir(dir.join(folder)).with_context(|| format!("listing {folder}"))? {
                let name = format!("{folder}/{}", entry?.file_name().to_string_lossy());
                if name.ends_with(".jsonl") {
                    let digest = lines::digest(&dir.join(&name), Lines::Episodes)?;
                    sums.insert((Part::Episodes, name), digest);
                }
            }
        }
        Ok(Self { dir: dir.into(), checkpoints, sums })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The newest checkpoint's name.
    pub fn newest(&self) -> Option<&str> {
        self.checkpoints.last().map(|(name, _)| name.as_str())
    }

    /// One checksum of a part: of weights and state in the newest checkpoint, of all metrics and episodes. None where
    /// there is nothing.
    pub fn sum(&self, part: Part) -> Option<String> {
        let newest = self.newest().unwrap_or_default();
        let counts = |item: &str| match part {
            Part::Weights | Part::State => item.split('/').next() == Some(newest),
            Part::Metrics | Part::Episodes => true,
        };
        let mut text = String::new();
        for (item, sum) in self.of(part).filter(|(item, _)| counts(item)) {
            // A checkpoint's name is no part of its contents.
            let _ = writeln!(text, "{} {sum}", item.rsplit('/').next().unwrap_or(item));
        }
        (!text.is_empty()).then(|| hex(Sha256::new_with_prefix(text)))
    }

    /// The items of a part with their checksums.
    fn of(&self, part: Part) -> impl Iterator<Item = (&str, &str)> {
        let own = self.sums.iter().filter(move |((of, _), _)| *of == part);
        own.map(|((_, item), sum)| (item.as_str(), sum.as_str()))
    }

    fn checkpoint(&self, name: &str) -> Option<&Path> {
        self.checkpoints.iter().find(|(known, _)| known == name).map(|(_, path)| path.as_path())
    }

    /// The newest checkpoint that both runs have.
    fn newest_of_both<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a Path, &'a Path)> {
        let both = |(name, path): &'a (String, PathBuf)| Some((name.as_str(), path.as_path(), other.checkpoint(name)?));
        self.checkpoints.iter().rev().find_map(both)
    }
}

/// The counters of a checkpoint, without the places of plugin files.
fn state(checkpoint: &Path) -> Result<Value> {
    let mut state = Value::Object(read_object(&checkpoint.join(STATE))?.unwrap_or_default());
    for plugin in state["plugins"].as_array_mut().into_iter().flatten() {
        plugin.as_object_mut().map(|plugin| plugin.shift_remove("path"));
    }
    Ok(state)
}

/// The result for one part.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// All bits are equal.
    Equal,
    /// Equal up to rounding, as this text says.
    Within(String),
    Different(Box<Difference>),
}

/// The first difference of a part, or that there is none. Weights and state are compared in the checkpoints that both runs
/// kept, the oldest first.
pub fn compare(first: &Contents, other: &Contents, part: Part) -> Result<Finding> {
    let found = match part {
        Part::Weights | Part::State if first.newest() != other.newest() => {
            let name = |run: &Contents| run.newest().unwrap_or("none").to_string();
            Some(Difference::new(name(first), name(other)).within("item", "newest checkpoint"))
        }
        _ => None,
    };
    let items: BTreeSet<&str> = first.of(part).chain(other.of(part)).map(|(item, _)| item).collect();
    let sum = |run: &Contents, item: &str| run.sums.get(&(part, item.to_string())).cloned();
    let mut items: Vec<&str> = items.into_iter().collect();
    items.sort_by_key(|item| order(first, item));
    for item in items {
        match (sum(first, item), sum(other, item)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(_), Some(_)) => {
                let found = locate(first, other, part, item)?;
                let found = found.unwrap_or_else(|| Difference::new("one checksum", "another").within("item", item));
                return Ok(Finding::Different(Box::new(found)));
            }
            (a, _) => {
                let checkpoint = item.split('/').next().unwrap_or_default();
                let kept = [first, other].iter().all(|run| run.checkpoint(checkpoint).is_some());
                if kept || matches!(part, Part::Metrics | Part::Episodes) {
                    return Ok(Finding::Different(Box::new(Difference::missing(item, a.is_some()))));
                }
            }
        }
    }
    Ok(found.map_or(Finding::Equal, |found| Finding::Different(Box::new(found))))
}

/// The order of a run: checkpoints by their age, then files of metrics as listed, and episodes by iteration.
fn order(run: &Contents, item: &str) -> (usize, String) {
    let (head, tail) = item.split_once('/').unwrap_or((item, item));
    let names = run.checkpoints.iter().map(|(name, _)| name.as_str()).chain(METRICS);
    let place = names.enumerate().find(|(_, name)| *name == head).map_or(usize::MAX, |(place, _)| place);
    // Weights come before the optimizer's state, and training before the evaluation after it.
    let first = ["policy", "adapter_model", "critic"].iter().position(|name| *name == tail).unwrap_or(3);
    (place, format!("{first}{tail}{}", u8::from(head == EPISODES[1])))
}

/// The first difference inside an item that both runs have.
fn locate(first: &Contents, other: &Contents, part: Part, item: &str) -> Result<Option<Difference>> {
    let (head, tail) = item.split_once('/').unwrap_or((item, item));
    let (a, b) = (first.dir.join(item), other.dir.join(item));
    let checkpoints = first.checkpoint(head).zip(other.checkpoint(head));
    match (part, checkpoints) {
        (Part::Weights, Some((a, b))) => {
            let found = tensors::compare(a, b, tail)?;
            Ok(found.map(|found| found.within("set", tail).within("checkpoint", head)))
        }
        (Part::State, Some((a, b))) if tail == STATE => {
            let found = first_difference(&state(a)?, &state(b)?);
            Ok(found.map(|found| found.within("item", tail).within("checkpoint", head)))
        }
        (Part::Metrics, _) => Ok(lines::compare(&a, &b, Lines::Metrics)?.map(|found| found.within("item", item))),
        (Part::Episodes, _) => {
            let found = lines::compare(&a, &b, Lines::Episodes)?;
            let iteration = tail.trim_start_matches("iteration-").trim_end_matches(".jsonl").parse::<u64>();
            Ok(found.map(|found| match iteration {
                Ok(iteration) => found.within("iteration", iteration).within("item", head),
                Err(_) => found.within("item", item),
            }))
        }
        _ => Ok(None),
    }
}

/// Largest difference of losses at the first optimizer step, absolute, and of gradient norms, relative, over ranks: targets of
/// docs/distributed.md with room for gradients of other sizes.
const LOSS: f64 = 1e-6;
const NORM: f64 = 1e-5;

/// Compares a run with one over several ranks that began with the same weights. Both play the same episodes in the first
/// iteration, and the loss and the gradient of the first optimizer step differ by the order of sums alone. Afterwards
/// rounding grows as the recipe's learning rate has it, so later numbers have no bound: `Within` reports them.
pub fn compare_ranks(first: &Contents, other: &Contents, part: Part) -> Result<Finding> {
    let exact = compare(first, other, part)?;
    let Finding::Different(found) = exact else { return Ok(exact) };
    match part {
        Part::Weights => match first.newest_of_both(other) {
            Some((name, a, b)) => {
                Ok(Finding::Within(format!("policies {:.1e} apart at {name} (relative L2)", tensors::distance(a, b)?)))
            }
            None => Ok(Finding::Different(found)),
        },
        Part::State => Ok(Finding::Within(format!("later: {found}"))),
        Part::Metrics => first_step(first, other, *found),
        Part::Episodes => {
            let (a, b) = (first.dir.join(FIRST_EPISODES), other.dir.join(FIRST_EPISODES));
            let apart = if a.exists() && b.exists() { lines::compare(&a, &b, Lines::Episodes)? } else { None };
            Ok(match apart {
                Some(early) => Finding::Different(Box::new(early.within("iteration", 1).within("item", "rollouts"))),
                None => Finding::Within(format!("equal in iteration 1; later: {found}")),
            })
        }
    }
}

const FIRST_EPISODES: &str = "rollouts/iteration-000001.jsonl";

/// Compares the loss and the gradient norm of the first optimizer step.
fn first_step(first: &Contents, other: &Contents, found: Difference) -> Result<Finding> {
    let row = |run: &Contents| lines::first_row(&run.dir.join("steps.jsonl"));
    let (Some(a), Some(b)) = (row(first)?, row(other)?) else { return Ok(Finding::Different(Box::new(found))) };
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    let apart = |name: &str| (number(&a, name) - number(&b, name)).abs();
    let (loss, norm) = (apart("loss/total"), apart("grad/norm") / number(&a, "grad/norm").abs().max(f64::MIN_POSITIVE));
    for (name, apart, most) in [("loss/total", loss, LOSS), ("grad/norm", norm, NORM)] {
        if apart > most || apart.is_nan() {
            let note = format!("{apart:.1e} apart, at most {most:.0e} is rounding");
            let found = Difference::new(a[name].clone(), b[name].clone()).with_note(note);
            let found = found.within("item", name).within("item", "the first optimizer step");
            return Ok(Finding::Different(Box::new(found)));
        }
    }
    Ok(Finding::Within(format!("first optimizer step: loss {loss:.1e} apart, gradient norm {norm:.1e} (relative)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of two iterations with one episode each: tokens and the loss of the first optimizer step.
    fn run(tokens: [&str; 2], loss: f64) -> Result<(tempfile::TempDir, Contents)> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join(RECIPE), "")?;
        std::fs::create_dir(dir.path().join("rollouts"))?;
        for (token, iteration) in tokens.iter().zip(1..) {
            let line = format!(r#"{{"group":0,"episode":4,"steps":[{{"tokens":["a","{token}"]}}]}}"#);
            std::fs::write(dir.path().join(format!("rollouts/iteration-{iteration:06}.jsonl")), line + "\n")?;
        }
        let steps = format!("{{\"iteration\":1,\"loss/total\":{loss},\"grad/norm\":0.5}}\n");
        std::fs::write(dir.path().join("steps.jsonl"), steps)?;
        let contents = Contents::read(dir.path())?;
        Ok((dir, contents))
    }

    #[test]
    fn ranks_may_round_and_may_part_after_the_first_update() -> Result<()> {
        let (_first, first) = run(["b", "c"], 0.25)?;
        let finding = |tokens, loss: f64, part| -> Result<Finding> {
            let (_dir, other) = run(tokens, loss)?;
            compare_ranks(&first, &other, part)
        };
        assert_eq!(finding(["b", "c"], 0.25, Part::Episodes)?, Finding::Equal);
        assert!(matches!(finding(["b", "x"], 0.25, Part::Episodes)?, Finding::Within(_)));
        let Finding::Different(found) = finding(["x", "c"], 0.25, Part::Episodes)? else { panic!("a difference") };
        let place = "rollouts, iteration 1, group 0, episode 4, step 0, token 1: ";
        assert_eq!(found.to_string(), format!("{place}\"b\" in the first run, \"x\" in the other"));
        assert!(matches!(finding(["b", "c"], 0.250_000_1, Part::Metrics)?, Finding::Within(_)));
        assert!(matches!(finding(["b", "c"], 0.250_01, Part::Metrics)?, Finding::Different(_)));
        Ok(())
    }
}
