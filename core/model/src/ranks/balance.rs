//! Assigns work to ranks by its size.

use std::cmp::Reverse;

/// Assigns items to `world` ranks so that their loads are about equal: the largest first, each to the rank with the
/// smallest load. A rank's items keep their order.
pub fn balance<T: Clone>(items: &[T], world: usize, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut indices: Vec<usize> = (0..items.len()).collect();
    indices.sort_by_key(|&index| Reverse(size(&items[index])));
    let mut assigned = vec![(0, Vec::new()); world];
    for index in indices {
        let least = assigned.iter_mut().min_by_key(|(load, _)| *load);
        let (load, own) = least.unwrap_or_else(|| unreachable!("there is at least one rank"));
        *load += size(&items[index]);
        own.push(index);
    }
    let in_order = |(_, mut indices): (usize, Vec<usize>)| {
        indices.sort_unstable();
        indices.into_iter().map(|index| items[index].clone()).collect()
    };
    assigned.into_iter().map(in_order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_assigned_once_and_loads_differ_by_one_item_at_most() {
        let sizes = [7, 1, 30, 4, 4, 12, 9, 2, 25, 3];
        let items: Vec<usize> = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7].into();
        assert_eq!(balance(&items, 1, |&i| sizes[i]).concat(), items);
        for world in 2..=12 {
            let assigned = balance(&items, world, |&i| sizes[i]);
            let mut all: Vec<usize> = assigned.concat();
            all.sort_unstable();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
            let position = |i: &usize| items.iter().position(|item| item == i);
            assert!(assigned.iter().all(|own| own.is_sorted_by_key(position)));
            let loads: Vec<usize> = assigned.iter().map(|own| own.iter().map(|&i| sizes[i]).sum()).collect();
            let range = loads.iter().max().expect("ranks") - loads.iter().min().expect("ranks");
            assert!(range <= 30, "{loads:?}");
        }
        let even = balance(&(0..8).collect::<Vec<_>>(), 4, |_| 5);
        assert!(even.iter().all(|own| own.len() == 2));
    }
}
