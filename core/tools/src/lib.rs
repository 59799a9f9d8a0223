//! The program `nestor-torch`, and the commands that are not training itself.
//!
//! Modules are listed in reading order: a module uses those after it, never those before. No module is a leaf.

pub mod program;
pub mod verify;
pub mod export;
pub mod serve;
pub mod generate;
pub mod tokenize;
pub mod episodes;
pub mod chats;
pub mod embed;
pub mod view;
pub mod bench;
pub mod plan;
pub mod init;

// Leaves.

// Other crates, by the names that this one uses for them.
use nestor::{agent, checkpoint, engine, eval, policy, preflight, run, track, train};
use nestor_args::terminal;
use nestor_host as plugin;
use nestor_model::{
    data, error, event, files, model, out_of_memory, process_memory, progress, ranks, shard, tokenizer,
};
use nestor_recipe as recipe;
use nestor_recipe::input_error;
