//! Which rank computes which sequences of a mini-batch.

use super::update::micro_batches;
use crate::data::Batch;
use crate::dist::balance;
use crate::shard::Ranks;

/// This rank's micro-batches of some sequences. Every rank has as many entries; where it has nothing left, there is none
/// in them.
///
/// Sequences are dealt to ranks first, and each rank cuts its own into micro-batches. In deterministic runs they are cut
/// first and dealt whole, because the last bits of a product depend on its number of rows.
pub fn dealt_micro_batches(ranks: &Ranks, batch: &Batch, indices: &[usize], budget: usize) -> Vec<Option<Vec<usize>>> {
    let (world, tokens) = (ranks.world(), |&i: &usize| batch.sequences[i].tokens.len());
    let mut parts: Vec<Vec<Vec<usize>>> = if ranks.deterministic {
        let whole = micro_batches(batch, indices, budget);
        balance(&whole, world, |part| part.iter().map(tokens).sum())
    } else {
        balance(indices, world, tokens).iter().map(|own| micro_batches(batch, own, budget)).collect()
    };
    let rounds = parts.iter().map(Vec::len).max().unwrap_or(0);
    let mut own: Vec<_> = parts.swap_remove(ranks.comm.rank()).into_iter().map(Some).collect();
    own.resize(rounds, None);
    own
}
