//! How the flat tensor of a unit is dealt to ranks.
//!
//! Padded to a multiple of the number of ranks W, it is cut into slices, and every slice into W equal parts, of which
//! rank r owns the r-th. A rank's shard is its parts, end to end. So a slice can be gathered and reduced as it lies in
//! memory, and large units need little room beside themselves.

use std::ops::Range;

/// Elements of a slice at most: 64 MiB of float32; in tests few, so that small networks are cut too.
const SLICE: i64 = if cfg!(test) { 1_000 } else { 1 << 24 };

/// How one unit is dealt to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Elements of the unit.
    pub numel: i64,
    /// Number of ranks W.
    pub world: i64,
    /// Elements of a slice, a multiple of W; the last may be shorter.
    slice: i64,
}

/// A slice of a unit, and where its part lies in a rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// First element in the padded unit.
    pub start: i64,
    /// Number of elements, a multiple of W.
    pub length: i64,
    /// First element of the part in the shard.
    pub part_start: i64,
    /// Number of elements of the part.
    pub part_length: i64,
}

/// Elements that lie end to end in a unit and in a rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First element in the unit.
    pub start: i64,
    /// Number of elements.
    pub length: i64,
    /// First element in the shard.
    pub part_start: i64,
}

impl Partition {
    /// Deals a unit to `world` ranks.
    pub fn new(numel: i64, world: usize) -> Self {
        Self::with_slices(numel, world, SLICE)
    }

    fn with_slices(numel: i64, world: usize, slice: i64) -> Self {
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
    pub fn part(&self) -> i64 {
        self.padded() / self.world
    }

    /// The slices in order.
    pub fn slices(&self) -> impl Iterator<Item = Slice> + use<> {
        let Self { world, slice, .. } = *self;
        let padded = self.padded();
        (0..padded).step_by(slice as usize).map(move |start| {
            let length = slice.min(padded - start);
            Slice { start, length, part_start: start / world, part_length: length / world }
        })
    }

    /// What a rank owns, padding left out.
    pub fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> + use<> {
        let (numel, rank) = (self.numel, rank as i64);
        self.slices().filter_map(move |slice| {
            let start = slice.start + rank * slice.part_length;
            let length = slice.part_length.min(numel - start);
            (length > 0).then_some(Piece { start, length, part_start: slice.part_start })
        })
    }

    /// What a rank owns of the elements `within` of the unit.
    pub fn pieces_of(&self, rank: usize, within: Range<i64>) -> impl Iterator<Item = Piece> + use<> {
        self.pieces(rank).filter_map(move |piece| {
            let start = piece.start.max(within.start);
            let end = (piece.start + piece.length).min(within.end);
            let part_start = piece.part_start + (start - piece.start);
            (end > start).then_some(Piece { start, length: end - start, part_start })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_belongs_to_one_rank_at_one_place() {
        for (numel, world, slice) in [(1, 1, 8), (1, 4, 8), (37, 1, 8), (37, 2, 8), (37, 4, 8), (64, 3, 8), (5, 3, 1)] {
            let partition = Partition::with_slices(numel, world, slice);
            assert!(partition.padded() >= numel && partition.padded() < numel + world as i64);
            let mut owner = vec![None; numel as usize];
            for rank in 0..world {
                let mut shard = vec![false; partition.part() as usize];
                for piece in partition.pieces(rank) {
                    for i in 0..piece.length {
                        assert!(owner[(piece.start + i) as usize].replace(rank).is_none());
                        assert!(!std::mem::replace(&mut shard[(piece.part_start + i) as usize], true));
                    }
                }
                let within: Vec<Piece> = partition.pieces_of(rank, 3..11).collect();
                let all =
                    partition.pieces(rank).flat_map(|p| (0..p.length).map(move |i| (p.start + i, p.part_start + i)));
                let some = within.iter().flat_map(|p| (0..p.length).map(move |i| (p.start + i, p.part_start + i)));
                assert!(some.eq(all.filter(|(start, _)| (3..11).contains(start))));
            }
            assert!(owner.iter().all(Option::is_some), "{numel} over {world}: {owner:?}");
            assert_eq!(partition.slices().map(|s| s.length).sum::<i64>(), partition.padded());
            assert!(partition.slices().all(|s| s.length == s.part_length * world as i64));
        }
    }
}
