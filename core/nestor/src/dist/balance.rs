//! Work dealt to ranks by its size.

use std::cmp::Reverse;

/// Deals items to ranks so that all get about as much: the largest first, each to the rank that has least. A rank's items
/// stay in their order.
pub fn balance<T: Clone>(items: &[T], world: usize, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
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
        assert_eq!(balance(&items, 1, |&i| sizes[i]).concat(), items);
        for world in 2..=12 {
            let dealt = balance(&items, world, |&i| sizes[i]);
            let mut all: Vec<usize> = dealt.concat();
            all.sort_unstable();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
            let place = |i: &usize| items.iter().position(|item| item == i);
            assert!(dealt.iter().all(|own| own.is_sorted_by_key(place)));
            let loads: Vec<usize> = dealt.iter().map(|own| own.iter().map(|&i| sizes[i]).sum()).collect();
            let spread = loads.iter().max().expect("ranks") - loads.iter().min().expect("ranks");
            assert!(spread <= 30, "{loads:?}");
        }
        let even = balance(&(0..8).collect::<Vec<_>>(), 4, |_| 5);
        assert!(even.iter().all(|own| own.len() == 2));
    }
}
