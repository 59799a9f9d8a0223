//! Permissions to change keys when a run is resumed: every key is in one of three lists, which docs/recipe.md shows.

/// Permission to change a key when a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResume {
    /// Takes effect at once.
    Free,
    /// Not while a checkpoint inside an update is resumed: its iteration has one objective and one list of mini-batches.
    BetweenIterations,
    /// Belongs to the run's start; changes only with `--allow-change`.
    Fixed,
}

/// Keys that may always change: length, speed, memory, output, and the optimiser's rates.
pub(super) const FREE: &[&str] = &[
    "checkpoint.every",
    "checkpoint.every_minutes",
    "checkpoint.keep",
    "checkpoint.rollouts_every",
    "critic.grad_clip",
    "critic.lr",
    "deterministic",
    "device",
    "dist.silence_s",
    "dist.timeout_s",
    "env.timeout_s",
    "eval.every",
    "eval.split",
    "eval.tasks",
    "eval.temperature",
    "iterations",
    "rollout.cache_tokens",
    "rollout.env_errors",
    "rollout.env_threads",
    "rollout.slots",
    "sharding",
    "update.betas",
    "update.grad_clip",
    "update.lr",
    "update.micro_batch_tokens",
    "update.min_lr_ratio",
    "update.recompute",
    "update.schedule",
    "update.warmup",
    "update.weight_decay",
    "wandb",
    "wandb.entity",
    "wandb.group",
    "wandb.mode",
    "wandb.name",
    "wandb.notes",
    "wandb.project",
    "wandb.table_episodes",
    "wandb.table_every",
    "wandb.tags",
];

/// Keys that may change between iterations: sampling, rewards, the cut into mini-batches, and the loss.
pub(super) const BETWEEN_ITERATIONS: &[&str] = &[
    "critic.clip",
    "critic.warmup",
    "rollout.dynamic_sampling",
    "rollout.dynamic_sampling.rounds",
    "rollout.invalid_action_penalty",
    "rollout.temperature",
    "rollout.top_k",
    "rollout.top_p",
    "rollout.truncation",
    "update.aggregation",
    "update.clip_high",
    "update.clip_low",
    "update.dual_clip",
    "update.entropy",
    "update.epochs",
    "update.importance_cap",
    "update.kl",
    "update.kl.coef",
    "update.kl.kind",
    "update.kl_in_reward",
    "update.kl_in_reward.adaptive",
    "update.kl_in_reward.adaptive.horizon",
    "update.kl_in_reward.adaptive.target",
    "update.kl_in_reward.coef",
    "update.kl_in_reward.kind",
    "update.loss",
    "update.mini_batch",
    "update.old_logprobs",
    "update.short_mini_batch",
    "update.shuffle",
];

/// Keys that belong to the run's start: networks, tasks, prompts, shapes of episodes, estimator.
pub(super) const FIXED: &[&str] = &[
    "critic",
    "dtype",
    "env.config",
    "env.plugin",
    "estimator.config",
    "estimator.plugin",
    "estimator.teacher",
    "estimator.teacher.path",
    "model.lora",
    "model.lora.alpha",
    "model.lora.rank",
    "model.new",
    "model.new.heads",
    "model.new.hidden_size",
    "model.new.initializer_range",
    "model.new.intermediate_size",
    "model.new.kv_heads",
    "model.new.layers",
    "model.new.vocab_size",
    "model.path",
    "rollout.group_size",
    "rollout.history.length",
    "rollout.history.mode",
    "rollout.max_prompt_tokens",
    "rollout.max_response_tokens",
    "rollout.max_sequence_tokens",
    "rollout.max_steps",
    "rollout.split",
    "rollout.tasks",
    "rollout.template",
    "rollout.thinking",
    "seed",
    "update.loss_scale",
    "warm_start",
    "warm_start.batch",
    "warm_start.expert_noise",
    "warm_start.lr",
    "warm_start.steps",
];

/// The permission of a key; none for a section that every recipe has, whose keys have their own.
pub(super) fn on_resume(key: &str) -> Option<OnResume> {
    let listed = |keys: &[&str]| keys.contains(&key);
    match () {
        () if listed(FREE) => Some(OnResume::Free),
        () if listed(BETWEEN_ITERATIONS) => Some(OnResume::BetweenIterations),
        () if listed(FIXED) => Some(OnResume::Fixed),
        () => None,
    }
}
