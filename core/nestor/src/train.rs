//! The training loop.

use anyhow::Result;

use crate::error::Stopped;
use crate::event::Status;
use crate::out_of_memory::{caught, in_phase};
use crate::recipe::Recipe;
use crate::run::{Run, TrainArgs};
use crate::shard::Ranks;

/// Trains until all iterations are done or a signal asks to stop.
pub fn train(recipe: Recipe, name: &str, args: &TrainArgs, ranks: &Ranks) -> Result<Status> {
    let mut run = caught(|| Run::open(recipe, name, args, ranks)).map_err(|error| in_phase(error, "start"))?;
    let iterated = caught(|| iterate(&mut run)).map_err(|error| run.explained(in_phase(error, run.phase())));
    match iterated {
        Err(error) if error.is::<Stopped>() => {} // closing the run saves its progress
        iterated => iterated.inspect_err(|error| run.fail(error))?,
    }
    run.close()
}

/// Algorithm 1 of GiGPO (arXiv 2505.10978) with the estimator as a plugin.
fn iterate(run: &mut Run) -> Result<()> {
    run.begin()?; // warm start and first evaluation
    run.finish_interrupted()?; // an update that a signal cut short: update, track, evaluate and save
    while let Some(step) = run.next_iteration() {
        let episodes = run.collect(step)?; // tasks x group size, many turns each, all in flight at once
        let mut batch = run.pack(step, &episodes)?; // sequences, response spans, behaviour log-probs, anchors
        run.columns(&mut batch, &episodes)?; // columns of networks, such as reference log-probs: only where somebody asks
        run.score(&mut batch)?; // the estimator plugin
        let update = run.update(step, &episodes, &batch)?; // mini-batches: loss, backward by block, reduce-scatter, clip, optimizer step
        run.track(step, &episodes, &batch, &update)?;
        run.evaluate_and_save(step)?;
    }
    Ok(())
}
