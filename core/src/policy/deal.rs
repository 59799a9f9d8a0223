//! Which rank computes which sequences of a mini-batch.

use std::cmp::Reverse;

use super::update::micro_batches;
use crate::data::Batch;
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
        deal(&whole, world, |part| part.iter().map(tokens).sum())
    } else {
        deal(indices, world, tokens).iter().map(|own| micro_batches(batch, own, budget)).collect()
    };
    let rounds = parts.iter().map(Vec::len).max().unwrap_or(0);
    let mut own: Vec<_> = parts.swap_remove(ranks.comm.rank()).into_iter().map(Some).collect();
    own.resize(rounds, None);
    own
}

/// Deals items to ranks so that all get about as much: the largest first, each to the rank that has least. A rank's items
/// stay in their order.
fn deal<T: Clone>(items: &[T], world: usize, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut places: Vec<usize> = (0..items.len()).collect();
    places.sort_by_key(|&place| Reverse(size(&items[place])));
    let mut dealt = vec![(0, Vec::new()); world];
    for place in places {
        let least = dealt.iter_mut().min_by_key(|(load, _)| *load);
        let (load, own) = least.unwrap_or_else(|| unreachable!("there is at least one rank"));
        *load += size(&items[place]);
        own.push(place);
    }
    let in_order = |(_, mut places): (usize, Vec<usize>)| {
        places.sort_unstable();
        places.into_iter().map(|place| items[place].clone()).collect()
    };
    dealt.into_iter().map(in_order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_dealt_once_and_loads_differ_by_one_item_at_most() {
        let sizes = [7, 1, 30, 4, 4, 12, 9, 2, 25, 3];
        let items: Vec<usize> = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7].into();
        assert_eq!(deal(&items, 1, |&i| sizes[i]).concat(), items);
        for world in 2..=12 {
            let dealt = deal(&items, world, |&i| sizes[i]);
            let mut all: Vec<usize> = dealt.concat();
            all.sort_unstable();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
            let place = |i: &usize| items.iter().position(|item| item == i);
            assert!(dealt.iter().all(|own| own.is_sorted_by_key(place)));
            let loads: Vec<usize> = dealt.iter().map(|own| own.iter().map(|&i| sizes[i]).sum()).collect();
            let spread = loads.iter().max().expect("ranks") - loads.iter().min().expect("ranks");
            assert!(spread <= 30, "{loads:?}");
        }
        let even = deal(&(0..8).collect::<Vec<_>>(), 4, |_| 5);
        assert!(even.iter().all(|own| own.len() == 2));
    }
}
