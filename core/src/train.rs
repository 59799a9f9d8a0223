//! The training loop, and the few parts it names.

use std::path::PathBuf;

use anyhow::Result;

use crate::recipe::Recipe;
use crate::run::Run;

/// Where a run lives and whether it goes on.
#[derive(Debug, Clone, Default)]
pub struct TrainArgs {
    /// The run directory; by default the first free `runs/<recipe>[-n]`.
    pub run_dir: Option<PathBuf>,
    /// Go on from the newest whole checkpoint.
    pub resume: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All iterations are done.
    Done,
    /// A signal asked to stop; a checkpoint was saved.
    Stopped,
}

/// A run: Algorithm 1 of GiGPO (arXiv 2505.10978), the estimator being a plugin.
pub fn train(recipe: Recipe, name: &str, args: &TrainArgs) -> Result<Ending> {
    let mut run = Run::open(recipe, name, args)?;
    while let Some(step) = run.next_iteration() {
        let episodes = run.collect(step)?; // tasks x group size, many turns each, all in flight at once
        let mut batch = run.pack(&episodes)?; // sequences, response spans, behaviour log-probs, anchors
        run.reference(&mut batch)?; // reference log-probs: only where the recipe asks
        run.score(&mut batch)?; // the estimator plugin
        let update = run.update(step, &batch)?; // mini-batches: loss, backward by block, clip, AdamW
        run.track(step, &episodes, &batch, &update)?;
        run.evaluate_and_save(step)?;
    }
    run.close()
}
