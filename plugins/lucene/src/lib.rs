//! Full-text search that ranks documents as Lucene does.
//!
//! A [`Builder`] takes texts and makes an index in memory. For a large one, threads fill [`Segment`]s and [`write_index`] merges
//! them. An [`Index`] answers queries, in memory or from a mapped file, and a [`folder`] keeps it on disk with what belongs to it.
//! Documents, ranking and scores are those of Anserini 0.14.3 (Lucene 8.11) with its defaults: English analysis, BM25 with k1 = 0.9 and
//! b = 0.4, lengths in one byte, ties in the order of ids.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod analysis;
mod bm25;
mod builder;
mod bytes;
mod documents;
pub mod folder;
mod format;
mod hits;
mod index;
mod merge;
mod search;
mod segment;
mod stem;
mod unicode;

pub use builder::Builder;
pub use bytes::Bytes;
pub use documents::{Documents, SortedDocuments};
pub use hits::Hit;
pub use index::Index;
pub use merge::write_index;
pub use segment::Segment;

#[cfg(test)]
mod tests;
