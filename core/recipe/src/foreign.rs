//! Names that TRL and verl give to the settings of a run and to their values, with Nestor's. Only names that people bring often; a
//! name that a recipe has too, such as `lr`, needs no line.

/// The rest of a sentence that starts with a name of [`NAMES`].
pub(super) fn meaning(name: &str) -> Option<&'static str> {
    let name = squeezed(name);
    NAMES.iter().find(|(names, _)| names.iter().any(|known| squeezed(known) == name)).map(|(_, meaning)| *meaning)
}

/// A name without the signs and capitals in which spellings differ.
pub(super) fn squeezed(name: &str) -> String {
    name.chars().filter(|c| !['_', '-', ' '].contains(c)).flat_map(char::to_lowercase).collect()
}

/// Foreign names, and the place of their setting in a recipe.
const NAMES: &[(&[&str], &str)] = &[
    // Sections of verl and of other programs.
    (
        &["data", "dataset", "train_files", "val_files", "dataset_name"],
        "tasks come from the environment (`env.plugin` and `env.config`), and batch sizes and lengths are in `rollout`",
    ),
    (
        &["actor", "actor_rollout_ref", "policy"],
        "the model is in `model`, sampling in `rollout`, loss and optimizer in `update`",
    ),
    (
        &["algorithm", "adv_estimator", "advantage_estimator"],
        "the estimator is `estimator.plugin`, with its keys in `estimator.config`",
    ),
    (
        &["trainer", "training", "training_args", "args"],
        "the length of a run is `iterations`; other settings are in `update`, `eval`, `checkpoint` and `wandb`",
    ),
    (&["ref", "reference", "ref_model"], "the reference is the initial model; `update.kl` adds a KL loss against it"),
    (
        &["reward_model", "reward_funcs", "reward_fn", "reward_function", "custom_reward_function", "reward"],
        "rewards come from the environment (`env.plugin`); a reward function is an environment of the plugin `python`",
    ),
    (
        &["optim", "optimizer", "optimiser"],
        "the optimizer is the section `update.optimizer`, with `name` and its keys; `lr` and `grad_clip` are in `update`",
    ),
    (&["defaults", "base", "include", "inherit"], "`extends: FILE` names the recipe that this one builds on"),
    (&["hydra", "_target_"], "a recipe is plain YAML without Hydra; remove it"),
    // Lengths and batches.
    (&["num_generations", "rollout_n", "n", "group_n"], "the number of episodes of a task is `rollout.group_size`"),
    (&["train_batch_size", "prompts_per_step"], "the number of tasks of an iteration is `rollout.tasks`"),
    (
        &["ppo_mini_batch_size", "mini_batch_size", "minibatch_size", "num_mini_batches"],
        "the environment steps of an optimizer step are `update.mini_batch`, not counted in prompts",
    ),
    (
        &[
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "ppo_micro_batch_size",
            "ppo_micro_batch_size_per_gpu",
            "ppo_max_token_len_per_gpu",
            "micro_batch_size",
        ],
        "`update.mini_batch` is the number of environment steps of an optimizer step, and `update.micro_batch_tokens` cuts it to \
         fit into memory",
    ),
    (
        &["max_completion_length", "max_response_length", "max_new_tokens", "response_length"],
        "the longest response is `rollout.max_response_tokens`",
    ),
    (&["max_prompt_length", "prompt_length"], "the longest prompt is `rollout.max_prompt_tokens`"),
    (
        &["max_length", "max_seq_length", "max_seq_len", "max_model_len", "max_tokens"],
        "lengths are `rollout.max_prompt_tokens` and `rollout.max_response_tokens`",
    ),
    (&["history_length"], "the number of past steps in a prompt is `rollout.history.length`"),
    (
        &[
            "total_epochs",
            "num_train_epochs",
            "total_training_steps",
            "num_epochs",
            "total_steps",
            "num_steps",
            "train_steps",
        ],
        "the length of a run is `iterations`, each on `rollout.tasks` tasks",
    ),
    (&["max_steps"], "the longest episode is `rollout.max_steps`, and the length of a run is `iterations`"),
    (&["ppo_epochs"], "the number of passes over an iteration's steps is `update.epochs`"),
    (
        &["num_iterations", "n_iterations"],
        "the length of a run is `iterations`, and TRL's number of passes over its steps is `update.epochs`",
    ),
    // Optimizer.
    (&["learning_rate"], "the learning rate is `update.lr`"),
    (&["max_grad_norm", "clip_grad", "gradient_clipping"], "the largest norm of the gradient is `update.grad_clip`"),
    (&["adam_beta1", "adam_beta2"], "AdamW's betas are the list `update.optimizer.betas`"),
    (&["adam_epsilon"], "AdamW's epsilon is `update.optimizer.eps`"),
    (&["lr_scheduler", "lr_scheduler_type", "scheduler"], "the schedule of the learning rate is `update.schedule`"),
    (
        &["warmup_ratio", "warmup_steps", "lr_warmup_steps", "lr_warmup_steps_ratio"],
        "the iterations of the learning rate's warm-up are `update.warmup`, a whole number",
    ),
    // Loss.
    (&["loss_type", "loss_agg_mode"], "the reduction of token losses is `update.aggregation`"),
    (&["importance_sampling_level"], "ratios of whole responses are `update.loss: gspo`"),
    (&["beta", "kl_loss_coef", "use_kl_loss", "kl_beta"], "the weight of the KL loss is `update.kl.coef`"),
    (&["kl_loss_type"], "the estimator of the KL is `update.kl.kind`"),
    (
        &["kl_coef"],
        "the weight of the KL in the reward is `update.kl_in_reward.coef`; that of the KL loss is `update.kl.coef`",
    ),
    (&["kl_penalty"], "the estimator of the KL in the reward is `update.kl_in_reward.kind`"),
    (&["kl_ctrl", "use_kl_in_reward"], "the KL in the reward is the section `update.kl_in_reward`"),
    (
        &["epsilon", "clip_ratio", "cliprange", "clip_range", "clip_eps", "clip"],
        "the range of the clip is `update.clip_low` and `update.clip_high`",
    ),
    (&["epsilon_low", "clip_ratio_low"], "the range of the clip below 1 is `update.clip_low`"),
    (&["epsilon_high", "clip_ratio_high"], "the range of the clip above 1 is `update.clip_high`"),
    (&["clip_ratio_c", "delta"], "the dual clip is `update.dual_clip`"),
    (&["cliprange_value", "vf_clip"], "the clip of values is `critic.clip`"),
    (&["entropy_coeff", "entropy_coef", "ent_coef"], "the weight of the entropy bonus is `update.entropy`"),
    // Estimator: a key of its plugin.
    (
        &["omega", "step_advantage_w"],
        "the weight of step advantages belongs to the estimator: `estimator.config.step_weight`, where it has one",
    ),
    (
        &["gamma", "discount", "discount_factor"],
        "the discount belongs to the estimator: `estimator.config.gamma`, where it has one",
    ),
    (
        &["lam", "gae_lambda", "lambda"],
        "the lambda of GAE belongs to the estimator: see the keys of `estimator.config`",
    ),
    (
        &["scale_rewards", "norm_adv_by_std_in_grpo"],
        "the norm of advantages belongs to the estimator: see the keys of `estimator.config`",
    ),
    // Model, memory, machine.
    (&["model_name_or_path", "model_name", "model_id", "pretrained"], "the model is `model.path`"),
    (&["lora_rank", "lora_r", "r"], "the rank of adapters is `model.lora.rank`"),
    (&["lora_alpha"], "the scale of adapters is `model.lora.alpha`"),
    (&["peft_config", "use_peft", "peft"], "adapters are the section `model.lora`, such as `{rank: 64, alpha: 64}`"),
    (
        &["gradient_checkpointing", "enable_gradient_checkpointing", "activation_checkpointing"],
        "blocks that the backward pass recomputes are `update.recompute`, with `all` for gradient checkpointing",
    ),
    (&["bf16", "fp16", "torch_dtype", "precision", "mixed_precision"], "the compute type is `dtype`"),
    (
        &["use_vllm", "vllm", "gpu_memory_utilization", "vllm_gpu_memory_utilization"],
        "Nestor has its own engine, whose cache is `rollout.cache_tokens`",
    ),
    (
        &["nnodes", "n_gpus_per_node", "world_size", "num_gpus", "num_processes"],
        "the number of ranks is no key: `nestor launch --nproc N train RECIPE`",
    ),
    // Saving and tracking.
    (
        &["output_dir", "default_local_dir", "run_dir"],
        "the run directory is no key: `nestor train RECIPE --run-dir DIR`",
    ),
    (&["save_steps", "save_freq", "save_strategy"], "the iterations between checkpoints are `checkpoint.every`"),
    (&["save_total_limit", "max_actor_ckpt_to_keep"], "the number of kept checkpoints is `checkpoint.keep`"),
    (&["eval_steps", "test_freq", "eval_strategy"], "the iterations between evaluations are `eval.every`"),
    (
        &["report_to", "logger", "run_name", "project_name", "experiment_name"],
        "tracking is the section `wandb`, with `project` and `name`",
    ),
    (
        &["api_key", "wandb_api_key"],
        "a recipe holds no keys: W&B's is the variable WANDB_API_KEY, or that of `wandb login`",
    ),
    (
        &["resume_from_checkpoint", "resume_mode"],
        "a run is resumed by an option: `nestor train --resume --run-dir DIR`",
    ),
];

/// Names that other programs give to values of a recipe.
pub(super) const VALUES: [(&str, &str); 18] = [
    ("gpu", "cuda"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("half", "float16"),
    ("fp32", "float32"),
    ("fsdp", "full"),
    ("zero3", "full"),
    ("zero2", "grad_op"),
    ("grpo", "clip"),
    ("ppo", "clip"),
    ("dapo", "clip"),
    ("vanilla", "clip"),
    ("low_var_kl", "k3"),
    ("kl", "k1"),
    ("mse", "k2"),
    ("dr_grpo", "seq-mean-token-sum-norm"),
    ("cosine_with_min_lr", "cosine"),
    ("adamw_torch", "adamw"),
];
