//! The training loop, and the few parts it names.

use anyhow::Result;

use crate::recipe::Recipe;
use crate::run::{Ending, Run, TrainArgs};
use crate::shard::Ranks;

/// A run: Algorithm 1 of GiGPO (arXiv 2505.10978), the estimator being a plugin.
pub fn train(recipe: Recipe, name: &str, args: &TrainArgs, ranks: &Ranks) -> Result<Ending> {
    let mut run = Run::open(recipe, name, args, ranks)?;
    while let Some(step) = run.next_iteration()? {
        // tasks x group size, many turns each, all in flight at once; none when a signal asked to stop
        let Some(episodes) = run.collect(step)? else { break };
        let mut batch = run.pack(&episodes)?; // sequences, response spans, behaviour log-probs, anchors
        run.reference(&mut batch)?; // reference log-probs: only where the recipe asks
        run.score(&mut batch)?; // the estimator plugin
        let Some(update) = run.update(step, &episodes, &batch)? else { break }; // mini-batches: loss, backward by block, reduce-scatter, clip, AdamW
        run.track(step, &episodes, &batch, &update)?;
        run.evaluate_and_save(step)?;
    }
    run.close()
}
