//! The state of an estimator that remembers, at the start of a run.

use anyhow::{Context, Result};

use super::resume::Resumption;
use crate::checkpoint::Checkpoints;
use crate::data::PluginFile;
use crate::input_error;
use crate::plugin::Estimator;
use crate::ranks::{Comm, agree};

/// Gives the estimator at rank 0 the state of the checkpoint that the run resumes from, and returns it; in a new run the
/// estimator's first state. None at other ranks and for an estimator without a state. `before` are the plugins of the
/// checkpoint, the estimator last.
pub fn begin(
    comm: &dyn Comm,
    estimator: &Estimator,
    resumption: Option<&Resumption>,
    before: &[PluginFile],
) -> Result<Option<Vec<u8>>> {
    let own = match comm.rank() {
        0 => restore_or_begin(estimator, resumption, before),
        _ => Ok(None),
    };
    let (state, outcome) = match own {
        Ok(state) => (state, Ok(())),
        Err(error) => (None, Err(error)),
    };
    agree(comm, outcome)?;
    Ok(state)
}

fn restore_or_begin(
    estimator: &Estimator,
    resumption: Option<&Resumption>,
    before: &[PluginFile],
) -> Result<Option<Vec<u8>>> {
    let first = || estimator.has_state().then(|| estimator.save()).transpose();
    let Some(Resumption { checkpoint, allow_other_estimator, .. }) = resumption else { return first() };
    let (held, id) = (Checkpoints::estimator_state(checkpoint)?, estimator.id());
    let saved_by = before.last().map_or("", |file| &file.id);
    let shown = checkpoint.display();
    match held {
        _ if saved_by != id && *allow_other_estimator => first(),
        Some(_) if saved_by != id => Err(input_error!(
            "{shown} holds the state of estimator `{saved_by}`, not of `{id}`: put that estimator back, start another run, or \
             begin without its state by --allow-change estimator.plugin"
        )),
        Some(state) if estimator.has_state() => {
            estimator.load(&state).with_context(|| format!("the estimator's state in {shown}"))?;
            Ok(Some(state))
        }
        Some(_) => Err(input_error!(
            "{shown} holds a state of estimator `{id}`, and this build of `{id}` has none: put the build back that the run \
             began with, or start another run"
        )),
        None if estimator.has_state() => Err(input_error!(
            "{shown} holds no state of estimator `{id}`, which remembers what it has scored: another estimator or an older \
             build wrote it; put that one back, or start another run"
        )),
        None => Ok(None),
    }
}
