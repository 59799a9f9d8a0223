//! From the sequences of an iteration to micro-batches: mini-batches of a fixed number of steps, shared out to the ranks,
//! and cut into micro-batches of at most a number of tokens.

use std::ops::Range;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::reweight::resample;
use crate::data::{Batch, Sequence};
use crate::ranks::balance;
use crate::recipe::Update;
use crate::shard::Ranks;

/// Sequences of each mini-batch of an iteration, epoch after epoch. With `update.reweight` the epochs share one resample.
pub fn all_mini_batches(batch: &Batch, update: &Update, seed: u64) -> Vec<Vec<usize>> {
    let scored = batch.sequences.len() - batch.failed;
    let sequences = match &update.reweight {
        Some(reweight) => resample(batch, reweight, seed),
        None => (0..scored).collect(),
    };
    let sequences = spread(sequences, scored..batch.sequences.len());
    let epoch = |epoch| mini_batches(batch, &sequences, update, seed.wrapping_add(u64::from(epoch)));
    (0..update.epochs).flat_map(epoch).collect()
}

/// Puts the failed episodes among the others at equal distances, so that no mini-batch has only them.
fn spread(scored: Vec<usize>, failed: Range<usize>) -> Vec<usize> {
    let (count, length) = (failed.len(), scored.len());
    let mut all = scored;
    for (number, sequence) in failed.enumerate().rev() {
        all.insert((number + 1) * length / (count + 1), sequence);
    }
    all
}

/// The mini-batches that remain after the first `done`. Also sets this rank's progress total.
pub fn remaining_mini_batches(
    ranks: &Ranks,
    batch: &Batch,
    update: &Update,
    seed: u64,
    done: usize,
) -> Vec<Vec<usize>> {
    let left: Vec<_> = all_mini_batches(batch, update, seed).into_iter().skip(done).collect();
    let own = |indices| balanced_micro_batches(ranks, batch, indices, update.micro_batch_tokens);
    ranks.progress.set_total(left.iter().flat_map(|indices| own(indices)).flatten().map(|micro| micro.len()).sum());
    left
}

/// These sequences of a batch, cut into the mini-batches of one epoch. They are cut from the global order, so that they do not
/// depend on the number of ranks.
pub fn mini_batches(batch: &Batch, sequences: &[usize], update: &Update, seed: u64) -> Vec<Vec<usize>> {
    let mut order = sequences.to_vec();
    if update.shuffle {
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    cut(&order, update.mini_batch, |i| batch.sequences[i].rows.len())
}

/// This rank's micro-batches of some sequences. All ranks get the same number of entries; `None` fills up where this rank
/// has fewer micro-batches than another.
///
/// Sequences are assigned to ranks first, and each rank cuts its own into micro-batches. In deterministic runs they are
/// cut first and assigned as micro-batches, because the last bits of a product depend on its number of rows.
pub fn balanced_micro_batches(
    ranks: &Ranks,
    batch: &Batch,
    indices: &[usize],
    budget: usize,
) -> Vec<Option<Vec<usize>>> {
    let (world, tokens) = (ranks.world(), |&i: &usize| batch.sequences[i].tokens.len());
    let mut by_rank: Vec<Vec<Vec<usize>>> = if ranks.deterministic {
        let all = micro_batches(batch, indices, budget);
        balance(&all, world, |micro| micro.iter().map(tokens).sum())
    } else {
        balance(indices, world, tokens).iter().map(|own| micro_batches(batch, own, budget)).collect()
    };
    let rounds = by_rank.iter().map(Vec::len).max().unwrap_or(0);
    let mut own: Vec<_> = by_rank.swap_remove(ranks.comm.rank()).into_iter().map(Some).collect();
    own.resize(rounds, None);
    own
}

/// Sequences of each micro-batch: as many as the token budget allows, at least one.
pub fn micro_batches(batch: &Batch, indices: &[usize], budget: usize) -> Vec<Vec<usize>> {
    cut(indices, budget, |i| batch.sequences[i].tokens.len())
}

/// Reports a finished micro-batch to this rank's progress.
pub fn advance(ranks: &Ranks, sequences: &[&Sequence]) {
    ranks.progress.advance(sequences.len(), sequences.iter().map(|sequence| sequence.tokens.len()).sum());
}

/// Cuts a list where the next item would exceed the budget.
fn cut(items: &[usize], budget: usize, size: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut lists: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for &item in items {
        if used.saturating_add(size(item)) > budget {
            lists.push(Vec::new());
            used = 0;
        }
        used += size(item);
        if let Some(list) = lists.last_mut() {
            list.push(item);
        }
    }
    lists
}
