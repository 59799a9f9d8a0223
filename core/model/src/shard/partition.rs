//! The sharding of a unit's flat tensor over ranks.
//!
//! The unit is padded to a multiple of the number of ranks W and cut into slices. Rank r owns the r-th of W equal pieces of
//! every slice; its shard is these pieces, end to end. So a slice is all-gathered and reduce-scattered without a copy, and
//! large units need little memory beside themselves.

use std::ops::Range;

/// The sharding of one unit over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Elements of the unit.
    pub numel: i64,
    /// Number of ranks W.
    pub world: i64,
    /// Elements of a slice, a multiple of W; the last may be shorter.
    slice: i64,
}

/// A slice of a unit, and the place of its piece in a rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// First element in the padded unit.
    pub start: i64,
    /// Number of elements, a multiple of W.
    pub length: i64,
    /// First element of the piece in the shard.
    pub shard_start: i64,
    /// Number of elements of the piece.
    pub shard_length: i64,
}

/// Elements that are contiguous in a unit and in a rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First element in the unit.
    pub start: i64,
    /// Number of elements.
    pub length: i64,
    /// First element in the shard.
    pub shard_start: i64,
}

impl Partition {
    /// Shards a unit of `numel` elements over `world` ranks, with at most `slice` elements in a slice.
    pub fn new(numel: i64, world: usize, slice: i64) -> Self {
        let world = world as i64;
        // One rank needs no slices, and its shard is the unit as it is.
        let slice = if world == 1 { numel.max(1) } else { (slice / world).max(1) * world };
        Self { numel, world, slice }
    }

    /// Elements of the padded unit.
    pub fn padded(&self) -> i64 {
        (self.numel + self.world - 1) / self.world * self.world
    }

    /// Elements of a rank's shard, padding included.
    pub fn shard_numel(&self) -> i64 {
        self.padded() / self.world
    }

    /// The slices in order.
    pub fn slices(&self) -> impl Iterator<Item = Slice> + use<> {
        let Self { world, slice, .. } = *self;
        let padded = self.padded();
        (0..padded).step_by(slice as usize).map(move |start| {
            let length = slice.min(padded - start);
            Slice { start, length, shard_start: start / world, shard_length: length / world }
        })
    }

    /// The pieces that a rank owns, padding left out.
    pub fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> + use<> {
        let (numel, rank) = (self.numel, rank as i64);
        self.slices().filter_map(move |slice| {
            let start = slice.start + rank * slice.shard_length;
            let length = slice.shard_length.min(numel - start);
            (length > 0).then_some(Piece { start, length, shard_start: slice.shard_start })
        })
    }

    /// The pieces that a rank owns of the elements `within` of the unit.
    pub fn pieces_of(&self, rank: usize, within: Range<i64>) -> impl Iterator<Item = Piece> + use<> {
        self.pieces(rank).filter_map(move |piece| {
            let start = piece.start.max(within.start);
            let end = (piece.start + piece.length).min(within.end);
            let shard_start = piece.shard_start + (start - piece.start);
            (end > start).then_some(Piece { start, length: end - start, shard_start })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_belongs_to_one_rank_at_one_place() {
        for (numel, world, slice) in [(1, 1, 8), (1, 4, 8), (37, 1, 8), (37, 2, 8), (37, 4, 8), (64, 3, 8), (5, 3, 1)] {
            let partition = Partition::new(numel, world, slice);
            assert!(partition.padded() >= numel && partition.padded() < numel + world as i64);
            let mut owner = vec![None; numel as usize];
            for rank in 0..world {
                let mut shard = vec![false; partition.shard_numel() as usize];
                for piece in partition.pieces(rank) {
                    for i in 0..piece.length {
                        assert!(owner[(piece.start + i) as usize].replace(rank).is_none());
                        assert!(!std::mem::replace(&mut shard[(piece.shard_start + i) as usize], true));
                    }
                }
                let within: Vec<Piece> = partition.pieces_of(rank, 3..11).collect();
                let all =
                    partition.pieces(rank).flat_map(|p| (0..p.length).map(move |i| (p.start + i, p.shard_start + i)));
                let some = within.iter().flat_map(|p| (0..p.length).map(move |i| (p.start + i, p.shard_start + i)));
                assert!(some.eq(all.filter(|(start, _)| (3..11).contains(start))));
            }
            assert!(owner.iter().all(Option::is_some), "{numel} over {world}: {owner:?}");
            assert_eq!(partition.slices().map(|s| s.length).sum::<i64>(), partition.padded());
            assert!(partition.slices().all(|s| s.length == s.shard_length * world as i64));
        }
    }
}
