//! Nestor trains LLM agents by reinforcement learning over many turns.
//!
//! Modules are listed in reading order: a module uses those after it, never those before. The leaves at the end may be
//! used by any. `core/version/tests/layout` checks this.
//!
//! **Vocabulary.** *task*: one start state of an environment. *group*: the episodes played from one task. *episode*:
//! one play from reset to done. *step*: one environment step = one prompt, one response, one reward. *row*: a step as
//! an estimator sees it. *sequence*: tokens that the update packs. *anchor*: the key of a step's state.
//! *rank*: one process, one GPU. *block*: one transformer layer. *unit*: parameters that are stored, all-gathered and
//! updated as one flat tensor (a block, or embedding and head). *shard*: a rank's part of a unit.
//!
//! **Shapes** in comments: B rows, T tokens of the packed axis, L layers, H heads, K key-value heads, D head size,
//! E hidden size, V vocabulary, R response tokens.

pub mod train;
pub mod run;
pub mod eval;
pub mod preflight;
pub mod warm_start;
pub mod checkpoint;
pub mod agent;
pub mod engine;
pub mod policy;

// Leaves.
pub mod track;

// Other crates, by the names that this one uses for them.
use nestor_args::terminal;
use nestor_host as plugin;
use nestor_model::{
    data, duration, error, event, failpoint, files, model, out_of_memory, process_memory, progress, ranks, shard,
    stop_notice, tokenizer,
};
use nestor_recipe as recipe;
use nestor_recipe::input_error;
use nestor_version as version;
