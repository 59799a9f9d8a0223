//! The keys of a recipe: one struct per section, one doc comment per key. docs/recipe.md is generated from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::defaults::{is_zero, one, one_u32, yes};
use super::{
    Critic, Curriculum, EnvChoices, EstimatorChoice, EvalTasks, FrozenModel, Lora, NewVision, PluginChoice, Update,
    Vision, WarmStart,
};

/// A run, described by one YAML file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Seed of weights, tasks, environments and sampling.
    #[serde(default)]
    pub seed: u64,
    /// Makes runs bit-identical by fixed row counts and a fixed order of admission; slower.
    #[serde(default)]
    pub deterministic: bool,
    /// Sharding of parameters over ranks; no effect on one rank.
    #[serde(default)]
    pub sharding: Sharding,
    /// The device to compute on.
    #[serde(default)]
    pub device: DeviceChoice,
    /// The compute type; master weights and optimizer state are always float32.
    #[serde(default)]
    pub dtype: Dtype,
    /// Number of iterations of reinforcement learning.
    pub iterations: u64,
    /// The initial policy: `path` or `new`.
    pub model: ModelSource,
    /// The environment plugin, or a list of several.
    pub env: EnvChoices,
    /// The advantage estimator plugin.
    pub estimator: EstimatorChoice,
    /// A policy loss plugin in place of `update.loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<PluginChoice>,
    /// Playing of episodes.
    pub rollout: Rollout,
    /// Update of the policy.
    pub update: Update,
    /// The critic, for estimators that need values: the policy's network with a scalar head. It is trained beside the policy
    /// with the optimizer, aggregation and mini-batches of `update`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<Critic>,
    /// Another model in place of the policy's start, to measure KL against: a KL loss, KL in the reward, or a plugin that reads the
    /// reference's log-probs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<FrozenModel>,
    /// Supervised learning before reinforcement learning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<WarmStart>,
    /// Evaluation on a fixed task list.
    pub eval: Eval,
    /// Intervals at which the run is saved.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Timeouts of ranks that wait for each other.
    #[serde(default)]
    pub dist: Dist,
    /// Tracking in Weights & Biases; without this section there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wandb: Option<Wandb>,
    /// Event files for TensorBoard; without this section there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensorboard: Option<TensorBoard>,
}

/// Sharding of parameters over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", clap(rename_all = "snake_case"))]
pub enum Sharding {
    /// Shards weights, gradients and optimizer state; each unit is all-gathered for use.
    #[default]
    Full,
    /// Shards gradients and optimizer state; each rank holds all weights in the compute type.
    GradOp,
    /// Shards nothing; for one rank.
    None,
}

/// The device to compute on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// A GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; fails if there is none.
    Cuda,
}

/// The compute type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit floats.
    Float32,
    /// bfloat16.
    #[default]
    Bfloat16,
    /// float16: three more bits of precision than bfloat16, with a dynamic loss scale. On a CPU it is slow.
    Float16,
}

/// The initial policy: `path` or `new`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSource {
    /// A model folder in Hugging Face form, the id of a model in the Hugging Face cache, such as
    /// `Qwen/Qwen2.5-1.5B-Instruct`, or a run or a checkpoint, whose policy the run begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// A model with random weights and a tokenizer trained on the environment's texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<NewModel>,
    /// Reading of images, for a model with a vision tower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<Vision>,
    /// Trains only low-rank adapters of the blocks' linear projections, W0 + alpha / rank * B A; without this section all
    /// weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

/// A small model with random weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewModel {
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the feed-forward layers.
    pub intermediate_size: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Number of query heads.
    pub heads: i64,
    /// Number of key-value heads.
    pub kv_heads: i64,
    /// Size of the tokenizer's vocabulary, including special tokens.
    pub vocab_size: i64,
    /// Standard deviation of the random weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
    /// A vision tower, for environments that show images: the model is then a small Qwen2.5-VL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<NewVision>,
}

/// Playing of episodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// Tasks per iteration, one group each.
    pub tasks: u32,
    /// Episodes per task.
    pub group_size: u32,
    /// Drops groups whose episodes all have the same return, and plays further tasks in their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
    /// Draws tasks by the policy's recent success on them; by default every task is played once before any comes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<Curriculum>,
    /// Longest episode in steps; longer ones are cut.
    pub max_steps: u32,
    /// Longest prompt in tokens; in a transcript, the most tokens that a step adds.
    pub max_prompt_tokens: usize,
    /// Longest response in tokens.
    pub max_response_tokens: usize,
    /// Longest conversation in tokens, required by `history.mode: transcript`; an episode without room left ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sequence_tokens: Option<usize>,
    /// Sampling temperature, from 0.01 to 100.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Samples among the k likeliest tokens; 0 disables the limit.
    #[serde(default)]
    pub top_k: i64,
    /// Samples among the likeliest tokens up to this total probability; 1 disables the limit.
    #[serde(default = "one")]
    pub top_p: f64,
    /// Samples among tokens of these with at least this part of the likeliest token's probability; 0 disables the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_p: f64,
    /// Texts that end a response as an end-of-sequence token does, such as `</action>`. They stay in the response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Requests decoded at once.
    #[serde(default = "default_slots")]
    pub slots: usize,
    /// Capacity of the KV cache in tokens; requests wait for room. By default the largest need of `slots` requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_tokens: Option<usize>,
    /// Threads that step environments.
    #[serde(default = "default_env_threads")]
    pub env_threads: usize,
    /// Episodes that a rank plays side by side, each with an instance of the environment; by default all of an iteration. Set it where an
    /// instance is costly, as one with a process of its own is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_episodes: Option<usize>,
    /// Environment failures that an iteration tolerates at each rank, and so does every round of expert episodes. With one more
    /// the run ends, and saves what it has finished. A failed step ends its episode, which then counts in no statistics. A failed
    /// reset is repeated; after three of them the task is given up.
    #[serde(default)]
    pub env_errors: u64,
    /// The past steps in a prompt.
    #[serde(default)]
    pub history: History,
    /// Prompt template (minijinja) in place of the environment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::text_file::schema")]
    pub template: Option<String>,
    /// System message of every prompt. By default the environment's messages decide, or else the chat template, which may
    /// have one of its own; the empty text turns that off. An environment whose messages have a system message refuses the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::text_file::schema")]
    pub system: Option<String>,
    /// Makes the chat template ask the model to think first, or not; by default the template decides. The template must
    /// have the switch `enable_thinking`, as Qwen3's does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<bool>,
    /// Treatment of prompts over `max_prompt_tokens`.
    #[serde(default)]
    pub truncation: Truncation,
    /// Penalty for a step whose response the environment could not parse; subtracted from its reward.
    #[serde(default = "default_penalty")]
    pub invalid_action_penalty: f64,
    /// The environment's split of training tasks.
    #[serde(default = "train_split")]
    pub split: String,
}

/// Replaces groups whose episodes all have the same return before penalties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DynamicSampling {
    /// Most rounds of an iteration. The last round drops no group, so that an iteration always trains on `tasks` groups.
    pub rounds: u32,
}

/// The past steps in a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The way in which an episode becomes prompts.
    #[serde(default)]
    pub mode: HistoryMode,
    /// Past steps in a prompt, 2 if left out. Only for `mode: window`; a transcript holds all steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
}

/// The way in which an episode becomes prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum HistoryMode {
    /// Each step has a new prompt with the last steps (as in the paper).
    #[default]
    Window,
    /// An episode is one conversation: sampled responses stay in it unchanged, and each step adds a turn.
    Transcript,
}

/// Treatment of prompts that are too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// Ends the run with an error that names the step.
    #[default]
    Error,
    /// Plays no task whose first prompt is too long, and numbers the others without them; a later prompt ends the run.
    Drop,
    /// Keeps the last tokens.
    Left,
    /// Keeps the first tokens.
    Right,
    /// Keeps the first and the last tokens, half of the limit each.
    Middle,
}

/// Evaluation on a fixed task list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    /// Iterations between evaluations; 0 evaluates only before and after training.
    #[serde(default)]
    pub every: u64,
    /// Tasks to evaluate on: their number, or `all`. With `none` the run makes no evaluation at all, so that it has no best
    /// checkpoint, and its evaluation split need not exist.
    pub tasks: EvalTasks,
    /// Episodes per task, all from the same start. With several, evaluations report pass@k too.
    #[serde(default = "one_u32")]
    pub samples: u32,
    /// Sampling temperature, from 0.01 to 100; 0 is greedy.
    #[serde(default = "one")]
    pub temperature: f64,
    /// The environment's split of evaluation tasks.
    #[serde(default = "eval_split")]
    pub split: String,
    /// Seed that draws the tasks and starts their environments; by default the run's `seed`. Runs with several seeds that
    /// set it play the same panel of tasks, as `nestor compare` asks. Sampling keeps the run's own seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Writes the episodes of each evaluation to `evaluations/` in the run directory.
    #[serde(default = "yes")]
    pub save_episodes: bool,
}

/// Intervals at which the run is saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Iterations between checkpoints; 0 saves by `every_minutes` alone. The end of a run is always saved.
    #[serde(default)]
    pub every: u64,
    /// Minutes after which a run is saved at the next chance: between two iterations, two mini-batches of an update, or two
    /// steps of the warm start. 0 disables it.
    #[serde(default = "default_every_minutes")]
    pub every_minutes: f64,
    /// Number of newest checkpoints kept; the best one is kept beside them.
    #[serde(default = "default_keep")]
    pub keep: usize,
    /// Iterations between saved rollouts (the training episodes as JSONL); 0 saves none.
    #[serde(default = "one_u64")]
    pub rollouts_every: u64,
    /// Takes a copy of the tensors on the host, which a thread writes beside the next iteration. The checkpoint appears at that iteration's
    /// end. The copy is as large as the checkpoint: 12 bytes per trained parameter with AdamW, divided among the ranks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// The folder of an object store to which a thread copies each checkpoint and the run's files beside training: `s3://BUCKET/FOLDER`,
    /// `gs://…`, `az://…` or `file:///FOLDER`. Credentials come from the environment. `--resume auto` fetches the run from it where the run
    /// directory is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// `auto` continues the run that the run directory holds and begins one where it holds none, as `--resume auto` does, so that a
    /// scheduler may start the same command again.
    #[serde(default, skip_serializing_if = "ResumeMode::is_never")]
    pub resume: ResumeMode,
}

/// Says if a start continues the run in the run directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResumeMode {
    /// Refuse it, but for `--resume`.
    #[default]
    Never,
    /// Continue it.
    Auto,
}

impl ResumeMode {
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: 0,
            every_minutes: default_every_minutes(),
            keep: default_keep(),
            rollouts_every: 1,
            background: false,
            mirror: None,
            resume: ResumeMode::Never,
        }
    }
}

/// Timeouts of ranks that wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dist {
    /// Seconds after which a collective operation, or the initial rendezvous, fails.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u64,
    /// Seconds without a heartbeat after which a rank counts as dead and all others end.
    #[serde(default = "default_silence_s")]
    pub silence_s: u64,
}

impl Default for Dist {
    fn default() -> Self {
        Self { timeout_s: default_timeout_s(), silence_s: default_silence_s() }
    }
}

/// Tracking in Weights & Biases. A key that is not given comes from W&B's own variable, then from its default. The API key
/// comes from `WANDB_API_KEY` or from `wandb login`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wandb {
    /// Destination of the metrics; by default `WANDB_MODE`, else `offline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<WandbMode>,
    /// W&B project; by default `WANDB_PROJECT`, else `nestor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// W&B team or user; by default `WANDB_ENTITY`, else that of the API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// Name of the run; by default `WANDB_NAME`, else that of the run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of the run in W&B's addresses; by default `WANDB_RUN_ID`, else a random one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Group of the run; by default `WANDB_RUN_GROUP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Tags of the run; by default `WANDB_TAGS`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Free text about the run; by default `WANDB_NOTES`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// Iterations between two tables of episodes, one row per turn; 0 writes none.
    #[serde(default = "default_table_every")]
    pub table_every: u64,
    /// Most episodes in such a table, rounded down to whole groups.
    #[serde(default = "default_table_episodes")]
    pub table_episodes: usize,
}

/// Destination of the metrics of a tracked run. W&B's own words are accepted too: `online` is `live`, `dryrun` is `offline`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WandbMode {
    /// A run file, which `wandb sync` uploads later.
    #[default]
    #[serde(alias = "dryrun")]
    Offline,
    /// A run file, which the `wandb` program uploads during the run.
    #[serde(alias = "online")]
    Live,
    /// Nowhere.
    Disabled,
}

/// Event files for TensorBoard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorBoard {
    /// Folder in which the run gets a folder of its own name; by default `tensorboard` in the run directory holds the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
}

fn default_table_every() -> u64 {
    10
}
fn default_table_episodes() -> usize {
    8
}
fn one_u64() -> u64 {
    1
}
fn default_slots() -> usize {
    64
}
fn default_env_threads() -> usize {
    2
}
fn default_penalty() -> f64 {
    0.1
}
fn train_split() -> String {
    "train".into()
}
fn eval_split() -> String {
    "eval".into()
}
fn default_initializer_range() -> f64 {
    0.02
}
fn default_every_minutes() -> f64 {
    20.0
}
fn default_keep() -> usize {
    2
}
fn default_timeout_s() -> u64 {
    600
}
fn default_silence_s() -> u64 {
    30
}
