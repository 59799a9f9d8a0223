//! The state of an estimator.

use anyhow::{Context, Result, bail, ensure};

use super::rows::Plan;
use super::{Loaded, scored};
use crate::call::Panicked;
use crate::kit::{Finding, Subject, passed, skipped};

/// A loaded state gives the scores that the saved one gives, to the bit.
pub fn round_trip(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let first = loaded.open()?;
    if !first.has_state() {
        return skipped("there is no extension nestor.estimator.state/1");
    }
    let plan = |iteration| Plan { iteration, seed: iteration, ..Plan::default() };
    for iteration in 1..=3 {
        scored(&first, plan(iteration).rows(&first))?;
    }
    let state = first.save()?;
    ensure!(first.save()? == state, "a second save gives other bytes than the first");
    let resumed = loaded.open()?;
    resumed.load(&state).context("into a fresh estimator")?;
    ensure!(resumed.save()? == state, "a save after a load gives other bytes than those loaded");
    for iteration in 4..=5 {
        let (a, b) = (scored(&first, plan(iteration).rows(&first))?, scored(&resumed, plan(iteration).rows(&resumed))?);
        let is_same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits());
        ensure!(
            is_same(&a.advantages, &b.advantages) && is_same(&a.returns, &b.returns),
            "the scores of iteration {iteration} are other ones after a save and a load"
        );
    }
    ensure!(resumed.save()? == first.save()?, "after the same scores the states differ");
    refuse_other_bytes(&loaded)?;
    passed(format!("{} bytes after three iterations, equal scores in the next two", state.len()))
}

fn refuse_other_bytes(loaded: &Loaded) -> Result<()> {
    let estimator = loaded.open()?;
    let Err(error) = estimator.load(&[0xff; 33]) else {
        bail!("33 bytes that no save gave were loaded without an error")
    };
    ensure!(!error.chain().any(|cause| cause.is::<Panicked>()), "33 bytes that no save gave: {error:#}");
    Ok(())
}
