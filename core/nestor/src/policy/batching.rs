//! From the sequences of an iteration to micro-batches: mini-batches of a fixed number of steps, shared out to the ranks,
//! and cut into micro-batches of at most a number of tokens. Tokens that the sequences of a micro-batch have in common count
//! once ([`prefix_tree`]), so those that begin alike stay together.

use std::ops::Range;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::prefix_tree;
use super::reweight::resample;
use crate::data::{Batch, Sequence};
use crate::model::Config;
use crate::model::config::Output;
use crate::model::flops::block_matrices;
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
    batching: MicroBatching,
    batch: &Batch,
    update: &Update,
    seed: u64,
    done: usize,
) -> Vec<Vec<usize>> {
    let left: Vec<_> = all_mini_batches(batch, update, seed).into_iter().skip(done).collect();
    let own = |indices| batching.own(batch, indices);
    batching
        .ranks
        .progress
        .set_total(left.iter().flat_map(|indices| own(indices)).flatten().map(|micro| micro.len()).sum());
    left
}

/// These sequences of a batch, cut into the mini-batches of one epoch. They are cut from the global order, so that they do not
/// depend on the number of ranks.
pub fn mini_batches(batch: &Batch, sequences: &[usize], update: &Update, seed: u64) -> Vec<Vec<usize>> {
    let mut order = sequences.to_vec();
    if update.shuffle {
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    cut(&order, update.mini_batch, |_, i| batch.sequences[i].rows.len())
}

/// The sharing of a network's passes among ranks.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatching<'a> {
    pub ranks: &'a Ranks,
    pub config: &'a Config,
    /// Most computed tokens of a micro-batch.
    pub budget: usize,
}

impl MicroBatching<'_> {
    /// This rank's micro-batches of some sequences. All ranks get the same number of entries; `None` fills up where this rank
    /// has fewer micro-batches than another.
    ///
    /// Sequences are assigned to ranks first, and each rank cuts its own into micro-batches. In deterministic runs they are
    /// cut first and assigned as micro-batches, because the last bits of a product depend on its number of rows.
    pub fn own(self, batch: &Batch, indices: &[usize]) -> Vec<Option<Vec<usize>>> {
        own_micro_batches(self.ranks, self.by_rank(batch, indices))
    }

    /// The micro-batches of each rank, with about as much work.
    fn by_rank(self, batch: &Batch, indices: &[usize]) -> Vec<Vec<Vec<usize>>> {
        let (world, work) = (self.ranks.world(), Work::of(self.config));
        if self.ranks.deterministic {
            let all = micro_batches(batch, indices, self.budget);
            return balance(&all, world, |micro| work.of_each(batch, micro).sum());
        }
        let shares = shares(batch, &in_tree_order(batch, indices), world, work);
        shares.iter().map(|own| micro_batches(batch, own, self.budget)).collect()
    }
}

/// The work of a block's forward pass, and of the head by the number of blocks, in multiplications.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// For each computed token.
    token: usize,
    /// For each pair of a computed token and one that it attends to.
    pair: usize,
    /// For each state that the head reads.
    state: usize,
}

impl Work {
    fn of(config: &Config) -> Self {
        let pair = 2 * config.num_attention_heads * config.head_dim();
        let outputs = if config.output == Output::Value { 1 } else { config.vocab_size };
        let state = outputs * config.hidden_size / config.num_hidden_layers.max(1);
        Self { token: block_matrices(config) as usize, pair: pair as usize, state: state as usize }
    }

    /// The work of each sequence of a pass over these.
    fn of_each<'a>(self, batch: &'a Batch, sequences: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        sequences.iter().zip(own_tokens(batch, sequences)).map(move |(&i, own)| {
            let Sequence { tokens, rows, .. } = &batch.sequences[i];
            let common = tokens.len() - own;
            let states: usize = rows.iter().map(|&row| batch.rows.response(row).len()).sum();
            own * self.token + (own * common + own * (own + 1) / 2) * self.pair + states * self.state
        })
    }
}

/// Those of this rank, as many as the rank with the most has.
fn own_micro_batches(ranks: &Ranks, mut by_rank: Vec<Vec<Vec<usize>>>) -> Vec<Option<Vec<usize>>> {
    let rounds = by_rank.iter().map(Vec::len).max().unwrap_or(0);
    let mut own: Vec<_> = by_rank.swap_remove(ranks.comm.rank()).into_iter().map(Some).collect();
    own.resize(rounds, None);
    own
}

/// Sequences of each micro-batch: as many as the token budget allows, at least one.
pub fn micro_batches(batch: &Batch, indices: &[usize], budget: usize) -> Vec<Vec<usize>> {
    cut(&in_tree_order(batch, indices), budget, |before, i| tokens_after(batch, before, i))
}

/// The passes over a whole batch without gradients: of policy, reference, teacher and critic. They share its micro-batches.
#[derive(Debug)]
pub struct ScoringPasses {
    /// This rank's, as [`MicroBatching::own`] gives them.
    pub micro_batches: Vec<Option<Vec<usize>>>,
    /// The share of the batch's tokens that all ranks compute in such a pass.
    pub computed_share: f64,
}

impl ScoringPasses {
    pub fn new(batching: MicroBatching, batch: &Batch) -> Self {
        let all: Vec<usize> = (0..batch.sequences.len()).collect();
        let by_rank = batching.by_rank(batch, &all);
        let computed: usize = by_rank.iter().flatten().flat_map(|micro| own_tokens(batch, micro)).sum();
        let tokens: usize = batch.sequences.iter().map(|sequence| sequence.tokens.len()).sum();
        Self {
            micro_batches: own_micro_batches(batching.ranks, by_rank),
            computed_share: computed as f64 / tokens.max(1) as f64,
        }
    }
}

fn in_tree_order(batch: &Batch, indices: &[usize]) -> Vec<usize> {
    let mut order = indices.to_vec();
    prefix_tree::sort(&mut order, &batch.sequences);
    order
}

/// Tokens of a sequence that a pass computes behind those of the one before it.
fn tokens_after(batch: &Batch, before: Option<usize>, i: usize) -> usize {
    prefix_tree::own_tokens(before.map(|before| &batch.sequences[before]), &batch.sequences[i])
}

/// The tokens that a pass over these sequences computes for each.
pub fn own_tokens<'a>(batch: &'a Batch, sequences: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let before = [None].into_iter().chain(sequences.iter().copied().map(Some));
    sequences.iter().zip(before).map(|(&i, before)| tokens_after(batch, before, i))
}

/// Successive sequences for each rank, with about as much work.
fn shares(batch: &Batch, sequences: &[usize], world: usize, work: Work) -> Vec<Vec<usize>> {
    let each: Vec<usize> = work.of_each(batch, sequences).collect();
    let total: usize = each.iter().sum();
    let mut shares = vec![Vec::new(); world];
    let mut done = 0;
    for (&sequence, work) in sequences.iter().zip(each) {
        // By the middle of its work.
        let rank = (2 * done + work) * world / (2 * total).max(1);
        shares[rank.min(world - 1)].push(sequence);
        done += work;
    }
    shares
}

/// Reports a finished micro-batch to this rank's progress.
pub fn advance(ranks: &Ranks, sequences: &[&Sequence]) {
    ranks.progress.advance(sequences.len(), sequences.iter().map(|sequence| sequence.tokens.len()).sum());
}

/// Cuts a list where the next item would exceed the budget. `size` gets the item before it in its part, if there is one.
fn cut(items: &[usize], budget: usize, size: impl Fn(Option<usize>, usize) -> usize) -> Vec<Vec<usize>> {
    let mut lists: Vec<Vec<usize>> = Vec::new();
    let mut used = 0;
    for &item in items {
        let before = lists.last().and_then(|list| list.last()).copied();
        let more = size(before, item);
        match lists.last_mut() {
            Some(list) if used + more <= budget => {
                list.push(item);
                used += more;
            }
            _ => {
                lists.push(vec![item]);
                used = size(None, item);
            }
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the sequences have 4, 1, 1, 0, 1, 4 and 4 tokens of their own.
    #[test]
    fn ranks_get_successive_sequences_with_about_as_much_work() {
        let sequence = |tokens: &[u32]| Sequence { tokens: tokens.to_vec(), ..Sequence::default() };
        let all = [&[1, 2, 3, 4][..], &[1, 2, 3, 5], &[1, 2, 3, 6], &[1, 2, 3, 6], &[1, 2, 3, 7], &[2; 4], &[3; 4]];
        let batch = Batch { sequences: all.map(sequence).into(), ..Batch::default() };
        let order = in_tree_order(&batch, &[6, 3, 1, 0, 5, 2, 4]);
        assert_eq!(order, [0, 1, 3, 2, 4, 5, 6], "equal ones keep their places");
        assert_eq!(own_tokens(&batch, &order).collect::<Vec<_>>(), [4, 1, 1, 0, 1, 4, 4]);
        let none = Work { token: 0, pair: 0, state: 0 };
        let [tokens, pairs] = [Work { token: 1, ..none }, Work { pair: 1, ..none }];
        assert_eq!(shares(&batch, &order, 1, tokens), std::slice::from_ref(&order));
        assert_eq!(shares(&batch, &order, 2, tokens), [vec![0, 1, 3, 2, 4], vec![5, 6]]);
        assert_eq!(shares(&batch, &order[..1], 3, tokens).iter().map(Vec::len).sum::<usize>(), 1);
        // A short end of a long sequence has many pairs: 10, 4, 4, 0, 4, 10 and 10.
        assert_eq!(pairs.of_each(&batch, &order).collect::<Vec<_>>(), [10, 4, 4, 0, 4, 10, 10]);
        // Answers of two tokens and of one.
        let mut answers = batch.clone();
        answers.rows.token_offsets = vec![0, 2, 3];
        answers.sequences[0].rows = vec![0, 1];
        answers.sequences[5].rows = vec![1];
        let states = Work { state: 5, ..none };
        assert_eq!(states.of_each(&answers, &order).collect::<Vec<_>>(), [15, 0, 0, 0, 0, 5, 0]);
        // A part begins with a whole sequence, whatever was before it.
        assert_eq!(micro_batches(&batch, &order, 6), [vec![0, 1, 3, 2], vec![4], vec![5], vec![6]]);
        assert_eq!(micro_batches(&batch, &order, 3).len(), 7, "each alone, since each is over the budget");
        let (ranks, config) = (Ranks::solo(tch::Device::Cpu), Config::shape("tiny").expect("a shape"));
        let batching = MicroBatching { ranks: &ranks, config: &config, budget: 100 };
        assert_eq!(ScoringPasses::new(batching, &batch).computed_share, 15.0 / 28.0);
    }
}
