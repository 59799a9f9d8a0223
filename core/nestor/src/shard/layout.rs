//! Places of named parameters in their unit's flat tensor.

use tch::Tensor;

use super::{Partition, Piece};

/// Name of the unit of a network's parameters outside its blocks: embeddings, final norm, head.
pub const OUTER: &str = "outer";

/// One parameter inside a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The Hugging Face name, as in the safetensors files.
    pub name: String,
    pub shape: Vec<i64>,
    /// Its first element in the flat tensor.
    pub offset: i64,
}

impl Param {
    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// The parameters of one unit, end to end in its flat tensor; or a part of them, at their places in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub name: String,
    /// In order of their offsets.
    pub params: Vec<Param>,
    /// Elements of the unit.
    numel: i64,
}

/// Elements of a parameter that a rank owns.
#[derive(Debug, Clone, Copy)]
pub struct Owned<'a> {
    pub param: &'a Param,
    /// Their places in the unit and in the rank's shard of it.
    pub piece: Piece,
    /// The first element in the rank's tensor of the layout: `piece.shard_start`, or less where the layout is a part.
    pub start: i64,
}

impl Layout {
    /// The layout of parameters given as (name, shape).
    pub fn new(name: impl Into<String>, params: Vec<(String, Vec<i64>)>) -> Self {
        let mut offset = 0;
        let params = params
            .into_iter()
            .map(|(name, shape)| {
                let param = Param { name, shape, offset };
                offset += param.numel();
                param
            })
            .collect();
        Self { name: name.into(), params, numel: offset }
    }

    /// The part with these parameters. Of a part a rank holds what it owns of each parameter, end to end and without padding.
    pub fn part(&self, keep: impl Fn(&Param) -> bool) -> Self {
        let params = self.params.iter().filter(|param| keep(param)).cloned().collect();
        Self { name: self.name.clone(), params, numel: self.numel }
    }

    /// Number of elements of the unit's flat tensor.
    pub fn numel(&self) -> i64 {
        self.numel
    }

    /// Number of elements of the parameters: fewer than the unit's in a part.
    pub fn params_numel(&self) -> i64 {
        self.params.iter().map(Param::numel).sum()
    }

    /// Number of elements of a rank's tensor of this layout: its shard, padding included, or what it owns of a part.
    pub fn held_numel(&self, rank: usize, world: usize) -> i64 {
        if self.params_numel() == self.numel {
            return Partition::new(self.numel, world).shard_numel();
        }
        self.owned(rank, world).iter().map(|owned| owned.piece.length).sum()
    }

    /// The elements of each parameter that a rank owns, in the order of its tensor of this layout.
    pub fn owned(&self, rank: usize, world: usize) -> Vec<Owned<'_>> {
        let partition = Partition::new(self.numel, world);
        let pieces = |param: &'_ Param| partition.pieces_of(rank, param.offset..param.offset + param.numel());
        let mut start = 0;
        let all = self.params.iter().flat_map(|param| pieces(param).map(move |piece| (param, piece)));
        all.map(|(param, piece)| {
            let owned = Owned { param, piece, start };
            start += piece.length;
            owned
        })
        .collect()
    }

    /// A view of one parameter in a flat tensor of this layout.
    pub fn view(&self, flat: &Tensor, param: &Param) -> Tensor {
        flat.narrow(0, param.offset, param.numel()).view(param.shape.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_keeps_places_in_the_unit_and_packs_what_a_rank_holds() {
        // Slices have 1,000 elements in tests, so that parameters are cut.
        let shapes = [vec![7], vec![50, 40], vec![3], vec![9, 60], vec![11]];
        let named = shapes.iter().enumerate().map(|(i, shape)| (i.to_string(), shape.clone()));
        let unit = Layout::new("unit", named.collect());
        let matrices = unit.part(|param| param.shape.len() == 2);
        assert_eq!((unit.numel(), matrices.numel(), matrices.params_numel()), (2561, 2561, 2540));
        for world in [1, 2, 3] {
            let mut seen = 0;
            for rank in 0..world {
                let whole = unit.owned(rank, world);
                assert!(whole.iter().all(|owned| owned.start == owned.piece.shard_start), "of a whole unit");
                let part = matrices.owned(rank, world);
                let same = whole.iter().filter(|owned| owned.param.shape.len() == 2).map(|owned| owned.piece);
                assert!(same.eq(part.iter().map(|owned| owned.piece)));
                let ends: Vec<i64> = part.iter().map(|owned| owned.start + owned.piece.length).collect();
                assert!(part.iter().skip(1).map(|owned| &owned.start).eq(&ends[..ends.len() - 1]));
                assert_eq!(ends.last(), Some(&matrices.held_numel(rank, world)));
                assert_eq!(unit.held_numel(rank, world), Partition::new(2561, world).shard_numel());
                seen += matrices.held_numel(rank, world);
            }
            assert_eq!(seen, 2540);
        }
    }
}
