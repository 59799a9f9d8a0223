//! Sequences on one token axis, end to end, each of which attends to itself.
//!
//! A sequence may begin with tokens of earlier ones, its prefix. Only its own tokens have a place behind those, and only they
//! attend: to the prefix, and to its own tokens up to themselves.

use std::ops::Range;

use tch::{Device, Tensor};

use crate::upload;

/// Sequences that lie end to end on one axis.
#[derive(Debug)]
pub struct Sequences {
    /// First row of each sequence, and the end of the last: (n + 1) int32.
    pub starts: Tensor,
    /// Rows of each sequence that are used, where not all are: (n) int32.
    pub used: Option<Tensor>,
    /// Most used rows of a sequence.
    pub longest: i64,
}

/// One sequence of a packed axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedSequence {
    /// Ranges of the axis, none empty, with the earlier tokens that it begins with.
    pub prefix: Vec<Range<i64>>,
    /// Number of its own tokens. They follow those of the sequence before it.
    pub own: i64,
}

impl PackedSequence {
    /// A sequence of this many tokens, all its own.
    pub fn whole(length: i64) -> Self {
        Self { prefix: Vec::new(), own: length }
    }

    /// Number of its tokens, prefix included.
    pub fn length(&self) -> i64 {
        self.prefix.iter().map(|piece| piece.end - piece.start).sum::<i64>() + self.own
    }
}

/// The sequences of one axis.
#[derive(Debug)]
pub struct PackedSequences {
    pub each: Vec<PackedSequence>,
    /// Their own tokens.
    pub queries: Sequences,
    /// Their keys in the generic form; none where no sequence has a prefix, and the keys are those of the own tokens.
    pub keys: Option<Keys>,
}

/// A row for every token of every sequence, end to end.
#[derive(Debug)]
pub struct Keys {
    /// The place of each row's token on the axis: (S) int64.
    pub tokens: Tensor,
    /// The rows of each token of the axis in their order: (S) int32.
    pub of_tokens: Tensor,
    /// The first of these for each token, and the end: (T + 1) int32.
    pub starts: Tensor,
    /// The sequences of the rows.
    pub sequences: Sequences,
}

impl Keys {
    fn new(each: &[PackedSequence], device: Device) -> Self {
        let (mut tokens, mut axis) = (Vec::new(), 0);
        for PackedSequence { prefix, own } in each {
            tokens.extend(prefix.iter().cloned().flatten());
            tokens.extend(axis..axis + own);
            axis += own;
        }
        let mut starts = vec![0; axis as usize + 1];
        tokens.iter().for_each(|&token| starts[token as usize + 1] += 1);
        starts.iter_mut().fold(0, |end, start: &mut i32| {
            *start += end;
            *start
        });
        let (mut of_tokens, mut next) = (vec![0; tokens.len()], starts.clone());
        for (row, &token) in (0i32..).zip(&tokens) {
            let place = &mut next[token as usize];
            of_tokens[*place as usize] = row;
            *place += 1;
        }
        Self {
            tokens: upload(&tokens, device),
            of_tokens: upload(&of_tokens, device),
            starts: upload(&starts, device),
            sequences: sequences(each.iter().map(PackedSequence::length), device),
        }
    }
}

impl PackedSequences {
    /// Sequences in this order. Those without own tokens attend to nothing and are left out.
    pub fn new(mut each: Vec<PackedSequence>, device: Device) -> Self {
        each.retain(|sequence| sequence.own > 0);
        let queries = sequences(each.iter().map(|sequence| sequence.own), device);
        let shares = each.iter().any(|sequence| !sequence.prefix.is_empty());
        let keys = shares.then(|| Keys::new(&each, device));
        Self { each, queries, keys }
    }

    /// Rows of keys that the generic form gathers, and of values.
    pub fn gathered(&self) -> i64 {
        self.keys.as_ref().map_or(0, |keys| keys.tokens.size()[0])
    }
}

/// Sequences of these lengths, end to end.
fn sequences(lengths: impl Iterator<Item = i64> + Clone, device: Device) -> Sequences {
    let mut starts = vec![0i32];
    starts.extend(lengths.clone().scan(0, |end, n| {
        *end += n as i32;
        Some(*end)
    }));
    Sequences { starts: upload(&starts, device), used: None, longest: lengths.max().unwrap_or(0) }
}
