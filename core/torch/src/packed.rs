//! Sequences on one token axis, end to end, each of which attends to itself.
//!
//! A sequence may begin with tokens of earlier ones, its prefix. Only its own tokens have a place behind those, and only they
//! attend: to the prefix, and to its own tokens up to themselves.

use std::ops::Range;

use tch::{Device, Tensor};

use crate::generic::Sequences;
use crate::upload;

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
    /// The place of every token of every sequence on the axis, end to end (S) int64, and the sequences of these; none where no
    /// sequence has a prefix.
    pub keys: Option<(Tensor, Sequences)>,
}

impl PackedSequences {
    /// Sequences in this order. Those without own tokens attend to nothing and are left out.
    pub fn new(mut each: Vec<PackedSequence>, device: Device) -> Self {
        each.retain(|sequence| sequence.own > 0);
        let queries = sequences(each.iter().map(|sequence| sequence.own), device);
        let shares = each.iter().any(|sequence| !sequence.prefix.is_empty());
        let keys = shares.then(|| {
            let (mut places, mut start) = (Vec::new(), 0);
            for PackedSequence { prefix, own } in &each {
                places.extend(prefix.iter().cloned().flatten());
                places.extend(start..start + own);
                start += own;
            }
            (upload(&places, device), sequences(each.iter().map(PackedSequence::length), device))
        });
        Self { each, queries, keys }
    }

    /// Rows of keys that the generic form gathers, and of values.
    pub fn gathered(&self) -> i64 {
        self.keys.as_ref().map_or(0, |(places, _)| places.size()[0])
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
