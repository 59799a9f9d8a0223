//! Every token gets a finite number, whatever the rows.

use anyhow::{Context, Result};

use super::rows::{Plan, pack};
use super::{Loaded, scored};
use crate::Rows;
use crate::estimator::WroteTooFar;
use crate::kit::{Finding, Subject, passed};

fn plans() -> [Plan; 3] {
    let plan = Plan::default();
    [
        plan.clone(),
        Plan { seed: 2, episodes: 8, iteration: 2, ..plan.clone() },
        Plan { seed: 3, groups: 1, most_steps: 20, iteration: 3, ..plan },
    ]
}

/// No number behind the end of an array.
pub fn writes_inside(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let mut failed = 0;
    for plan in plans() {
        // Other errors belong to `finite_and_written`.
        if let Err(error) = scored(&estimator, plan.rows(&estimator)) {
            if error.chain().any(|cause| cause.is::<WroteTooFar>()) {
                return Err(error);
            }
            failed += 1;
        }
    }
    match failed {
        3 => Ok(Finding::Skipped("score failed before it could be seen; see finite_and_written".into())),
        0 => passed("three batches"),
        _ => passed(format!("{} of three batches; score failed in the others", 3 - failed)),
    }
}

/// Ordinary batches.
pub fn finite_and_written(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let (mut rows, mut tokens) = (0, 0);
    for plan in plans() {
        let batch = scored(&estimator, plan.rows(&estimator))?;
        rows += batch.len();
        tokens += batch.advantages.len();
    }
    passed(format!("three batches, {rows} rows, {tokens} tokens; {}", spread(&Loaded::new(subject)?)?))
}

fn spread(loaded: &Loaded) -> Result<String> {
    let estimator = loaded.open()?;
    let rows = scored(&estimator, Plan::default().rows(&estimator))?;
    let (least, most) = rows
        .advantages
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), &a| (least.min(a), most.max(a)));
    Ok(format!("advantages from {least:.3} to {most:.3}"))
}

/// The mean advantage of the tokens.
fn mean(rows: &Rows) -> f64 {
    rows.advantages.iter().map(|&a| f64::from(a)).sum::<f64>() / rows.advantages.len().max(1) as f64
}

/// Every episode has the same return.
pub fn equal_rewards(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let mut means = Vec::new();
    for most_steps in [1, 6] {
        let plan = Plan { equal: true, most_steps, ..Plan::default() };
        let rows = scored(&estimator, plan.rows(&estimator)).context("all episodes have the return 1")?;
        means.push(format!("{:.3}", mean(&rows)));
    }
    passed(format!("mean advantage {} with one step each, {} with several", means[0], means[1]))
}

/// Groups of one episode, of several steps and of one; in the end a single row.
pub fn single_episode_groups(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    for (groups, most_steps) in [(4, 6), (4, 1), (1, 1)] {
        let plan = Plan { groups, episodes: 1, most_steps, ..Plan::default() };
        let what = || format!("{groups} groups of one episode with at most {most_steps} steps");
        scored(&estimator, plan.rows(&estimator)).with_context(what)?;
    }
    passed("several steps, one step, a single row")
}

/// Rows without tokens: one of several, and all.
pub fn empty_rows(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let plan = Plan::default();
    let mut steps = plan.steps();
    for row in steps.iter_mut().skip(1).step_by(4) {
        row.tokens.clear();
    }
    let some = scored(&estimator, pack(&steps, &plan, &estimator)).context("every fourth row has no token")?;
    steps.iter_mut().for_each(|row| row.tokens.clear());
    scored(&estimator, pack(&steps, &plan, &estimator)).context("no row has a token")?;
    passed(format!("some of {} rows, and all", some.len()))
}
