//! Episodes as state machines: prompt, queue, decode, environment step, next prompt. [`Player`] plays a plan of episodes
//! with a policy, or has the environment's expert play it; [`pack`] turns episodes into a batch.

mod distributed;
mod expert;
mod failures;
mod player;
mod remote;
mod step_prompt;
mod episode_state;
mod pool;
mod queue;
mod prompt;
mod pack;
mod columns;
mod rehearsal;
mod report;
mod slots;
mod environments;
mod draws;
mod curriculum;
mod tasks;
mod teacher_prompt;
pub mod play;

pub use self::columns::{RunColumns, episode_columns};
pub use self::draws::{TaskDraws, saved as saved_draws};
pub use self::environments::{Environments, Member};
pub use self::episode_state::EpisodeState;
pub use self::expert::{check_expert, exchanges, texts};
pub use self::failures::Faults;
pub use self::pack::{pack, pack_failed, trained_batch};
pub use self::player::{PlaySettings, PlayTime, Player, PlayerOptions};
pub use self::prompt::{HistoryStep, PromptTemplate, PromptVariables};
pub use self::rehearsal::{MeasuredLengths, Rehearsal, Rehearsed, RehearsedPrompt, RehearsedStep, without_long};
pub use self::remote::{RemoteEpisode, RemoteOptions, RemotePlayer, remote_ends};
pub use self::report::{Count, Scored, Success, endpoint_lines, evaluation_lines, write_images};
pub use self::slots::fill_slots;
pub use self::tasks::{EpisodePlan, TaskCounts, TaskCursor, count_tasks, eval_plan, plan, plan_from};
pub use self::teacher_prompt::TeacherPrompts;
