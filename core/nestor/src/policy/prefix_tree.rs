//! Sequences that begin alike: a prefix tree, whose tokens are computed once.
//!
//! In the order of their tokens, each sequence begins with some tokens of the one before it, and ends with its own. A pass
//! computes the own tokens of each, which attend to the whole sequence. So the steps of a group, which begin with one
//! prompt, cost their prompt once. Losses and gradient are those of separate sequences: a token that several have in common
//! gets the sum of their gradients.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::LazyLock;

use crate::data::{ImageKey, Sequence};

/// `NESTOR_PREFIX_TREE=off` computes every sequence whole, for comparison. Read once: it is asked for every pair of sequences.
static IS_ON: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("NESTOR_PREFIX_TREE").is_none_or(|value| value != "off"));

/// Puts sequences, given by their numbers, into the order of the tree.
pub fn sort(numbers: &mut [usize], sequences: &[Sequence]) {
    if *IS_ON {
        numbers.sort_by(|&a, &b| compare(&sequences[a], &sequences[b]));
    }
}

/// The order of sequences in the tree: that of their tokens, an image's content among them. Equal ones keep their places.
fn compare(a: &Sequence, b: &Sequence) -> Ordering {
    let place = common(a, b);
    let symbol = |of: &Sequence| of.tokens.get(place).map(|&token| (token, image_at(of, place)));
    symbol(a).cmp(&symbol(b))
}

/// Number of tokens of a sequence that a pass computes behind those of the one before it.
pub fn own_tokens(before: Option<&Sequence>, sequence: &Sequence) -> usize {
    sequence.tokens.len() - before.filter(|_| *IS_ON).map_or(0, |before| common(before, sequence))
}

/// Number of first tokens that two sequences have in common, with the images among them.
fn common(a: &Sequence, b: &Sequence) -> usize {
    let tokens = a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count();
    let key = |of: &Sequence, number: usize| of.images.get(number).map(|shown| (shown.start, shown.image.key()));
    let images = a.images.len().max(b.images.len());
    let first = (0..images).find(|&number| key(a, number) != key(b, number));
    let differing = first.into_iter().flat_map(|number| [key(a, number), key(b, number)]).flatten();
    differing.map(|(start, _)| start as usize).fold(tokens, usize::min)
}

/// The image whose first token is at this place.
fn image_at(sequence: &Sequence, place: usize) -> Option<ImageKey> {
    sequence.images.iter().find(|shown| shown.start as usize == place).map(|shown| shown.image.key())
}

/// The place of a sequence's tokens on the axis of own tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The earlier tokens that it begins with, in ranges none of which is empty.
    pub prefix: Vec<Range<usize>>,
    /// Number of these.
    pub common: usize,
    /// Its own tokens.
    pub own: Range<usize>,
}

impl Path {
    /// The place of a token of the sequence.
    pub fn place(&self, token: usize) -> usize {
        let mut left = token;
        for piece in &self.prefix {
            if left < piece.len() {
                return piece.start + left;
            }
            left -= piece.len();
        }
        self.own.start + left
    }

    /// The places of its first tokens.
    fn first(&self, count: usize) -> Vec<Range<usize>> {
        let (mut pieces, mut left) = (Vec::new(), count);
        for piece in self.prefix.iter().chain([&self.own]) {
            let taken = piece.len().min(left);
            left -= taken;
            if taken > 0 {
                join(&mut pieces, piece.start..piece.start + taken);
            }
        }
        pieces
    }
}

/// Adds a range, to the last one where it continues that.
fn join(pieces: &mut Vec<Range<usize>>, next: Range<usize>) {
    match pieces.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => pieces.push(next),
    }
}

/// The paths of sequences in this order. In the order of [`sort`] they have the fewest own tokens.
pub fn paths(sequences: &[&Sequence]) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::with_capacity(sequences.len());
    let mut start = 0;
    for (number, sequence) in sequences.iter().enumerate() {
        let before = number.checked_sub(1).map(|before| sequences[before]);
        let own = start..start + own_tokens(before, sequence);
        let common = sequence.tokens.len() - own.len();
        let prefix = paths.last().map_or_else(Vec::new, |path| path.first(common));
        start = own.end;
        paths.push(Path { prefix, common, own });
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(tokens: &[u32]) -> Sequence {
        Sequence { tokens: tokens.to_vec(), ..Sequence::default() }
    }

    /// The tokens that paths name on the axis are those of the sequences.
    #[test]
    fn a_path_leads_through_the_tokens_of_its_sequence() {
        let mut all: Vec<Sequence> = [
            &[1, 2, 3, 4, 5][..],
            &[1, 2, 3, 9],
            &[1, 2, 3, 4, 6, 7],
            &[1, 2, 3, 9],
            &[8],
            &[1, 2],
            &[1, 2, 3, 4, 6, 7, 7],
        ]
        .map(sequence)
        .into();
        all.sort_by(compare);
        let all: Vec<&Sequence> = all.iter().collect();
        let paths = paths(&all);
        let axis: Vec<u32> = all.iter().zip(&paths).flat_map(|(s, path)| &s.tokens[path.common..]).copied().collect();
        assert_eq!(axis, [1, 2, 3, 4, 5, 6, 7, 7, 9, 8]);
        for (sequence, path) in all.iter().zip(&paths) {
            let through: Vec<u32> = (0..sequence.tokens.len()).map(|token| axis[path.place(token)]).collect();
            assert_eq!(through, sequence.tokens);
            assert_eq!(path.prefix.iter().map(Range::len).sum::<usize>(), path.common);
        }
        assert_eq!(paths[0], Path { prefix: vec![], common: 0, own: 0..2 });
        assert_eq!(paths.last().map(|path| path.common), Some(0));
        let piece = |end| Range { start: 0, end };
        // A prefix through two sequences in one piece, and one that leaves out a branch.
        assert_eq!((&paths[2].prefix[..], &paths[4].prefix[..]), ([piece(4)].as_slice(), [piece(3)].as_slice()));
        assert_eq!(paths[5], Path { prefix: vec![0..3, 8..9], common: 4, own: 9..9 }, "an equal one has no own tokens");
    }
}
