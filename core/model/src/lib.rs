//! Networks, tokenizers and shards of language models over ranks, and what every layer above needs.
//!
//! Modules are listed in reading order: a module uses those after it, never those before. The leaves at the end may be
//! used by any.
//!
//! **Shapes** in comments: B rows, T tokens of the packed axis, L layers, H heads, K key-value heads, D head size,
//! E hidden size, V vocabulary, R response tokens.

pub mod model;
pub mod tokenizer;
pub mod shard;
pub mod ranks;

// Leaves.
pub mod event;
pub mod data;
pub mod progress;
pub mod duration;
pub mod stop_notice;
pub mod out_of_memory;
pub mod process_memory;
pub mod error;
pub mod failpoint;
pub mod files;
pub mod random;

// Other crates, by the names that this one uses for them.
use nestor_args::terminal;
use nestor_recipe as recipe;
use nestor_recipe::input_error;
