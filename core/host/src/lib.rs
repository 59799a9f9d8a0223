//! The host's side of the plugin border: it finds plugin files, checks their description and guards every call. It needs
//! no libtorch, so that plugins can be checked and run without the trainer.
//!
//! [`Plugins`] finds components by id or file, [`SharedEnv`] and [`Env`] play an environment, [`Estimator`] scores rows,
//! [`Loss`] computes losses of tokens, [`advantage`] scores recorded ones, [`kit`] checks a file. `plugins/sdk/nestor_plugin.h` defines the border.
//!
//! A plugin that is not bundled runs in processes of its own (`isolate`). A call inside this process is recorded (`calls`),
//! waited for with a limit (`supervise`), and named if the process dies or leaves in it (`crash`, `leave`).
//!
//! Modules are listed in reading order: a module uses those after it, never those before. The leaves at the end may be
//! used by any.

pub mod advantage;
pub mod kit;
mod show;
mod plugins;
mod prompt_template;
mod shared_env;
mod estimator;
mod loss;
mod opened;
mod isolate;
mod probe;
mod child;
mod observation;
mod environment_call;
mod estimator_call;
mod loss_call;
mod call;
mod image;
mod search;
mod library;
mod leave;
mod supervise;
mod crash;
mod calls;

// Leaves.
mod rows;
mod fault;
mod bounded;
mod file_kind;
mod trust;
pub mod lock;

pub use nestor_plugin::{Asked, Column, Needs, Observation, Values};

pub use calls::{Call, Slot, own as own_slot, supervise_this_thread};
pub use environment_call::TakenResponse;
pub use estimator::{Estimator, Parts};
pub use isolate::frame::read_anything;
pub use isolate::serve;
pub use leave::{ending, now as leave_at_once, watch_process};
pub use library::{Found, Kind, PluginFile};
pub use loss::{Loss, TokenLosses};
pub use loss_call::ResponseTokens;
pub use plugins::{Hidden, PATH_VARIABLE, Plugins, Refused};
pub use prompt_template::{HistoryStep, PromptTemplate, PromptVariables};
pub use rows::Rows;
pub use shared_env::{Env, SharedEnv, Snapshot};
pub use show::{Asks, Shown};
pub use supervise::{GRACE, Limits, POLL, Stopped, leave_behind};
