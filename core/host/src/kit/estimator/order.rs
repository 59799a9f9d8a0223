//! The same rows give the same numbers: again, in another order, and as copies.

use anyhow::{Result, ensure};

use super::rows::{Plan, Row, pack};
use super::{Loaded, scored};
use crate::Rows;
use crate::kit::{Finding, Subject, passed};

/// Relative difference that another order of summation may make.
const TOLERANCE: f32 = 1e-4;

fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= TOLERANCE * (1.0 + a.abs().max(b.abs()))
}

/// Fails if a row of one batch has other numbers than a row of another.
fn compare(a: (&Rows, usize), b: (&Rows, usize), what: &str) -> Result<()> {
    for (name, first, second) in
        [("advantage", &a.0.advantages, &b.0.advantages), ("return", &a.0.returns, &b.0.returns)]
    {
        let (first, second) = (&first[a.0.response(a.1 as u32)], &second[b.0.response(b.1 as u32)]);
        if let Some((token, (x, y))) = first.iter().zip(second).enumerate().find(|(_, (x, y))| !is_near(**x, **y)) {
            let (episode, step) = (a.0.episode[a.1], a.0.step[a.1]);
            anyhow::bail!("{name} of token {token} of step {step} of episode {episode} is {x}, and {y} {what}");
        }
    }
    Ok(())
}

/// Fresh estimators agree to the bit. One without a state has none in secret.
pub fn repeatable(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let (first, second) = (loaded.open()?, loaded.open()?);
    let plan = Plan::default();
    let later = Plan { seed: 2, iteration: 2, ..plan.clone() };
    for plan in [&plan, &later] {
        let (a, b) = (scored(&first, plan.rows(&first))?, scored(&second, plan.rows(&second))?);
        let is_same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits());
        ensure!(
            is_same(&a.advantages, &b.advantages) && is_same(&a.returns, &b.returns),
            "two estimators that were given the same rows gave different numbers for iteration {}",
            plan.iteration
        );
    }
    if first.has_state() {
        return passed("two estimators, two iterations; it has a state");
    }
    let (used, fresh) = (scored(&first, plan.rows(&first))?, loaded.open()?);
    let fresh = scored(&fresh, plan.rows(&fresh))?;
    ensure!(
        used.advantages == fresh.advantages && used.returns == fresh.returns,
        "a score depends on the scores before it, and there is no extension nestor.estimator.state/1"
    );
    passed("three estimators, two iterations; no state")
}

/// Permuted rows give permuted numbers.
pub fn row_order(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let (plan, estimator) = (Plan::default(), loaded.open()?);
    let steps = plan.steps();
    let in_order = scored(&estimator, pack(&steps, &plan, &estimator))?;
    let count = steps.len();
    let reversed: Vec<usize> = (0..count).rev().collect();
    let by_step: Vec<usize> = (0..7).flat_map(|rest| (0..count).filter(move |at| at % 7 == rest)).collect();
    for order in [reversed, by_step] {
        let permuted: Vec<Row> = order.iter().map(|&at| steps[at].clone()).collect();
        let estimator = loaded.open()?;
        let scores = scored(&estimator, pack(&permuted, &plan, &estimator))?;
        for (to, from) in order.into_iter().enumerate() {
            compare((&in_order, from), (&scores, to), "with the rows in another order")?;
        }
    }
    passed(format!("two other orders of {count} rows"))
}

/// Copies get what their sources get.
pub fn copies(subject: &Subject) -> Result<Finding> {
    let estimator = Loaded::new(subject)?.open()?;
    let plan = Plan::default();
    let mut steps = plan.steps();
    let sources: Vec<usize> = (0..steps.len()).step_by(5).collect();
    let copies: Vec<Row> = sources.iter().map(|&at| steps[at].copy_of(at)).collect();
    let first = steps.len();
    steps.extend(copies);
    let scores = scored(&estimator, pack(&steps, &plan, &estimator))?;
    for (number, &source) in sources.iter().enumerate() {
        compare((&scores, source), (&scores, first + number), "in its copy")?;
    }
    passed(format!("{} copies of {first} rows", sources.len()))
}
