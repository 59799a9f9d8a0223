//! Full-text search that ranks documents as Lucene does.

#![forbid(unsafe_code)]
