//! Mistakes of people who come from TRL and verl, with the whole messages: each must make sense to somebody who never saw a
//! recipe of Nestor.

use super::*;

/// Text to replace in [`WHOLE`], its replacement, and the message behind the name of the file.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str)] = &[
    ("  lr: 1e-3\n  optimizer",
     "  learning_rate: 1e-3\n  optimizer",
     "18:3: unknown key `update.learning_rate`; the learning rate is `update.lr`"),
    ("  lr: 1e-3\n  optimizer",
     "  lr: 1e-3\n  max_grad_norm: 1.0\n  optimizer",
     "19:3: unknown key `update.max_grad_norm`; the largest norm of the gradient is `update.grad_clip`"),
    ("group_size: 8",
     "num_generations: 8",
     "12:3: unknown key `rollout.num_generations`; the number of episodes of a task is `rollout.group_size`"),
    ("max_response_tokens: 16",
     "max_completion_length: 16",
     "15:3: unknown key `rollout.max_completion_length`; the longest response is `rollout.max_response_tokens`"),
    ("gamma: 0.95}",
     "gamma: 0.95}\n  omega: 1.0",
     "10:3: unknown key `estimator.omega`; the weight of step advantages belongs to the estimator: `estimator.config.step_weight`, where it has one"),
    ("recompute: 1",
     "gradient_checkpointing: true",
     "21:3: unknown key `update.gradient_checkpointing`; blocks that the backward pass recomputes are `update.recompute`, with `all` for gradient checkpointing"),
    ("recompute: 1",
     "loss_type: dr_grpo",
     "21:3: unknown key `update.loss_type`; the reduction of token losses is `update.aggregation`"),
    ("recompute: 1",
     "per_device_train_batch_size: 4",
     "21:3: unknown key `update.per_device_train_batch_size`; `update.mini_batch` is the number of environment steps of an optimizer step, and `update.micro_batch_tokens` cuts it to fit into memory"),
    ("mini_batch: 32",
     "ppo_mini_batch_size: 32",
     "17:3: unknown key `update.ppo_mini_batch_size`; the environment steps of an optimizer step are `update.mini_batch`, not counted in prompts"),
    ("kl: {coef: 0.01}",
     "beta: 0.04",
     "20:3: unknown key `update.beta`; the weight of the KL loss is `update.kl.coef`"),
    ("kl: {coef: 0.01}",
     "clip_ratio: 0.2",
     "20:3: unknown key `update.clip_ratio`; the range of the clip is `update.clip_low` and `update.clip_high`"),
    ("iterations: 20",
     "total_epochs: 20",
     "1:1: unknown key `total_epochs`; the length of a run is `iterations`, each on `rollout.tasks` tasks"),
    ("iterations: 20",
     "iterations: 20\nbf16: true",
     "2:1: unknown key `bf16`; the compute type is `dtype`"),
    ("iterations: 20",
     "iterations: 20\nmax_steps: 30",
     "2:1: unknown key `max_steps`; the longest episode is `rollout.max_steps`, and the length of a run is `iterations`"),
    ("iterations: 20",
     "iterations: 20\ndata: {train_batch_size: 16}",
     "2:1: unknown key `data`; tasks come from the environment (`env.plugin` and `env.config`), and batch sizes and lengths are in `rollout`"),
    ("update:\n",
     "actor:\n",
     "16:1: unknown key `actor`; the model is in `model`, sampling in `rollout`, loss and optimizer in `update`"),
    ("iterations: 20",
     "iterations: 20\nalgorithm: {adv_estimator: gigpo}",
     "2:1: unknown key `algorithm`; the estimator is `estimator.plugin`, with its keys in `estimator.config`"),
    ("tasks: 50",
     "tasks: 50\n  lr: 1e-6",
     "28:3: unknown key `eval.lr`; did you mean `update.lr`, `critic.lr` or `warm_start.lr`?"),
    ("iterations: 20",
     "iterations: 20\ntemperature: 0.7",
     "2:1: unknown key `temperature`; did you mean `rollout.temperature` or `eval.temperature`?"),
    ("iterations: 20",
     "iterations: 20\nactor_rollout_ref.actor.optim.lr: 1e-6",
     "2:1: unknown key `actor_rollout_ref.actor.optim.lr`; in a file a key is inside its section, and the learning rate is `update.lr`"),
    ("iterations: 20",
     "iterations: 20\nupdate.lr: 1e-6",
     "2:1: unknown key `update.lr`; in a file a key is inside its section: write `update:` with `lr:` below it"),
    ("iterations: 20",
     "iterations: 20\n+update.kl: 0.1",
     "2:1: unknown key `+update.kl`; in a file a key is inside its section: write `update:` with `kl:` below it"),
    ("iterations: 20",
     "iterations: 20\ndefaults: [ppo_trainer]",
     "2:1: unknown key `defaults`; `extends: FILE` names the recipe that this one builds on"),
    ("mini_batch: 32",
     "mini_batch: ${data.train_batch_size}",
     "17:15: `${data.train_batch_size}` names no variable of the environment; write the value itself. A recipe takes `${VAR}` and `${VAR:-default}`, and `$${` for the text `${`; a YAML anchor (`&name`, `*name`) repeats a value"),
    ("  lr: 1e-3\n  optimizer",
     "  lr: \"1e-6\"\n  optimizer",
     "18:3: `update.lr` must be a number, but is the text \"1e-6\"; write the number without quotes"),
    ("  lr: 1e-3\n  optimizer",
     "  lr: [1e-6, 3e-6]\n  optimizer",
     "18:3: `update.lr` must be a number, but is a list of 2; one run has one value; the `grid` of a sweep file (`nestor sweep`) takes several"),
    ("mini_batch: 32",
     "mini_batch: 1e2",
     "17:3: `update.mini_batch` must be a whole number from 0, but is 100.0; write 100, without a point or an exponent"),
    ("mini_batch: 32",
     "mini_batch: 32\n  micro_batch_tokens: 16k",
     "18:3: `update.micro_batch_tokens` must be a whole number from 0, but is the text \"16k\"; write one plain number, without a unit or a formula"),
    ("mini_batch: 32",
     "mini_batch: 32\n  micro_batch_tokens: 16_384",
     "18:3: `update.micro_batch_tokens` must be a whole number from 0, but is the text \"16_384\"; write 16384"),
    ("optimizer: {betas: [0.9, 0.95]}",
     "optimizer: {weight_decay: 1%}",
     "19:15: `update.optimizer.weight_decay` must be a number, but is the text \"1%\"; write a share of 1 in place of a percentage: 0.01"),
    ("{betas: [0.9, 0.95]}",
     "\n    betas: 0.9, 0.95",
     "20:5: `update.optimizer.betas` must be a list of 2, but is the text \"0.9, 0.95\"; write a list, such as `[0.9,0.999]`"),
    ("  optimizer: {betas: [0.9, 0.95]}",
     "  betas: [0.9, 0.95]",
     "19:3: unknown key `update.betas`; did you mean `update.optimizer.betas`?"),
    ("  optimizer: {betas: [0.9, 0.95]}",
     "  weight_decay: 0.1",
     "19:3: unknown key `update.weight_decay`; did you mean `update.optimizer.weight_decay`?"),
    ("env:\n  plugin: maze\n  config:",
     "env: []\nx-a:\n  config:",
     "4:1: `env` must list 1 to 64 environments, but lists 0"),
    ("env:\n  plugin: maze\n  config:",
     "env: [{plugin: maze}, {plugin: maze, weight: 2}]\nx-a:\n  config:",
     "4:24: `env.1.plugin` `maze` names two environments of the list; give each a `name` of its own"),
    ("env:\n  plugin: maze\n  config:",
     "env: [{plugin: maze, weight: 0}]\nx-a:\n  config:",
     "4:22: `env.0.weight` must be greater than 0, but is 0; remove an environment to leave it out"),
    ("env:\n  plugin: maze\n  config:",
     "env: [{plugin: ./maze.so}]\nx-a:\n  config:",
     "4:8: `env.0.plugin` is a file, so the environment needs a `name`"),
    ("env:\n  plugin: maze\n  config:",
     "env: [{plugin: maze, Weight: 2}]\nx-a:\n  config:",
     "4:22: unknown key `env.0.Weight`; did you mean `env.0.weight`?"),
    ("env:\n  plugin: maze\n",
     "env:\n  plugin: maze\n  weight: 2\n",
     "6:3: `env.weight` belongs to a list of environments; leave it out"),
    ("env:\n  plugin: maze\n",
     "env:\n  plugin: maze\n  split: hard\n",
     "6:3: `env.split` belongs to a list of environments; write `rollout.split`"),
    ("group_size: 8",
     "group_size: 8\n  curriculum: {floor: 0}",
     "13:16: `rollout.curriculum.floor` must be greater than 0 and at most 1, but is 0"),
    ("group_size: 8",
     "group_size: 8\n  curriculum: {window: 0}",
     "13:16: `rollout.curriculum.window` must be from 1 to 1024, but is 0"),
    ("group_size: 8",
     "group_size: 8\n  curriculum: success",
     "13:3: `rollout.curriculum` must be a section, but is the text \"success\"; its keys are `by`, `window`, `floor`"),
    ("optimizer: {betas: [0.9, 0.95]}",
     "optimizer: adam",
     "19:3: `update.optimizer` must be a section, but is the text \"adam\"; its keys are `name`, `betas`, `eps`, `weight_decay`, `momentum`, `scale`, `adamw_lr_ratio`"),
    ("optimizer: {betas",
     "optimizer: {name: adam, betas",
     "19:15: `update.optimizer.name` must be `adamw` or `muon`, but is the text \"adam\"; did you mean `adamw`?"),
    ("optimizer: {betas",
     "optimizer: {momentum: 0.9, betas",
     "19:15: `update.optimizer.momentum` belongs to `name: muon`; leave it out, or name that optimizer"),
    ("kl: {coef: 0.01}",
     "kl: 0.01",
     "20:3: `update.kl` must be a section, but is 0.01; write `kl: {coef: 0.01}`"),
    ("recompute: 1",
     "recompute: true",
     "21:3: `update.recompute` must be `auto`, `all`, `none` or a whole number from 0, but is true; did you mean `all`?"),
    ("recompute: 1",
     "shuffle: yes",
     "21:3: `update.shuffle` must be `true` or `false`, but is the text \"yes\"; write `true`"),
    ("plugin: stars",
     "plugin: [stars]",
     "8:3: `estimator.plugin` must be text, but is a list of 1; write the value without brackets"),
    ("iterations: 20",
     "iterations: 20\ndtype: bf16",
     "2:1: `dtype` must be `float32`, `bfloat16` or `float16`, but is the text \"bf16\"; did you mean `bfloat16`?"),
    ("iterations: 20",
     "iterations: 20\ndtype: torch.bfloat16",
     "2:1: `dtype` must be `float32`, `bfloat16` or `float16`, but is the text \"torch.bfloat16\"; did you mean `bfloat16`?"),
    ("iterations: 20",
     "iterations: 20\nwandb: true",
     "2:1: `wandb` must be a section, but is true; write `{}` for all its defaults"),
    ("iterations: 20",
     "iterations: 20\nwandb: {name: 7}",
     "2:9: `wandb.name` must be text, but is 7; write it in quotes"),
    ("iterations: 20",
     "iterations: 20\nwandb: {api_key: abc}",
     "2:9: unknown key `wandb.api_key`; a recipe holds no keys: W&B's is the variable WANDB_API_KEY, or that of `wandb login`"),
    ("iterations: 20",
     "iterations: null",
     "1:1: `iterations` must be a whole number from 0, but is empty; this key needs a value"),
    ("tasks: 4",
     "tasks: -1",
     "11:3: `rollout.tasks` must be a whole number from 0, but is -1"),
    ("tasks: 4",
     "temperature: None\n  tasks: 4",
     "11:3: `rollout.temperature` must be a number, but is the text \"None\"; leave the key out for its default, `1.0`"),
    ("model:\n  new: {hidden_size: 64, intermediate_size: 128, layers: 2, heads: 4, kv_heads: 2, vocab_size: 512}",
     "model: Qwen/Qwen2.5-1.5B-Instruct",
     "2:1: `model` must be a section, but is the text \"Qwen/Qwen2.5-1.5B-Instruct\"; write `model: {path: Qwen/Qwen2.5-1.5B-Instruct}`"),
    ("model:\n",
     "model:\n  lora: 64\n",
     "3:3: `model.lora` must be a section, but is 64; write `lora: {rank: 64, alpha: …}`"),
    ("model:\n",
     "model:\n  lora: {r: 64, alpha: 128}\n",
     "3:10: unknown key `model.lora.r`; the rank of adapters is `model.lora.rank`"),
    ("model:\n",
     "model:\n  lora: {rank: 64, lora_alpha: 128}\n",
     "3:20: unknown key `model.lora.lora_alpha`; the scale of adapters is `model.lora.alpha`"),
    ("env:\n  plugin: maze\n",
     "env: maze\nx-a:\n",
     "4:1: `env` must be a section or a list, but is the text \"maze\"; write `env: {plugin: maze}`"),
    ("  group_size: 8",
     "\tgroup_size: 8",
     "11:10: this is not valid YAML: while scanning a plain scalar, found a tab; indent by blanks, not by tabs"),
    ("  group_size: 8",
     "  group_size: 8\n  group_size: 16",
     "13:3: key `group_size` appears a second time (first: r.yaml:12:3)"),
    ("  group_size: 8",
     "  group_size:8",
     "13:3: this is not valid YAML: simple key expect ':'; a line is `key: value`, with a blank behind the colon: look at this line and the one above it"),
    ("  group_size: 8",
     "   group_size: 8",
     "12:14: this is not valid YAML: mapping values are not allowed in this context; keys of one section start in the same column, and a text with a colon needs quotes"),
    ("  config: {gamma: 0.95}",
     "  config: {gamma: 0.95",
     "10:8: this is not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'; a `{` or a `[` has no end, or a comma is missing"),
    ("  config: {gamma: 0.95}",
     "  config: {gamma: @x}",
     "9:19: this is not valid YAML: unexpected character: `@'; put the text in quotes"),
    ("plugin: stars",
     "plugin: 'stars",
     "8:11: this is not valid YAML: invalid indentation in quoted scalar; a quote has no end"),
    ("iterations: 20",
     "iterations: 20\nseed: *s",
     "2:7: this is not valid YAML: while parsing node, found unknown anchor; `*name` repeats a value that `&name` marks above it: put any other text in quotes"),
];

#[test]
fn a_mistake_has_a_message_that_helps() {
    let folder = Folder::default();
    let mut wrong = Vec::new();
    for (old, new, wanted) in MISTAKES {
        assert!(WHOLE.contains(old), "{old:?} is not in the recipe");
        let message = folder.error(&WHOLE.replacen(old, new, 1), &[]);
        if message != format!("r.yaml:{wanted}") {
            wrong.push(format!("{new:?}\n  {message}\n  wanted: {wanted}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// People lay a recipe out as the other program has it: all of its names are answered, in the order of their lines.
#[test]
fn every_name_of_another_program_is_answered() {
    let folder = Folder::default();
    let names: Vec<_> = crate::foreign::all().collect();
    for part in names.chunks(50) {
        let recipe = part.iter().map(|(name, _)| format!("{name}: 1\n")).collect::<String>() + WHOLE;
        let message = folder.error(&recipe, &[]);
        let mut answers = lines(&message).skip(1);
        for (number, (name, meaning)) in part.iter().enumerate() {
            let answer = answers.next().unwrap_or_default();
            let start = format!("  ({}) r.yaml:{}:1: unknown key `{name}`; ", number + 1, number + 1);
            assert!(answer.starts_with(&start) && answer.ends_with(meaning), "{answer}\n  wanted: {start}…{meaning}");
        }
        assert_eq!(answers.next(), None);
    }
}

/// A wrong hint is worse than none.
#[test]
fn a_name_without_a_likeness_gets_the_known_keys() {
    let folder = Folder::default();
    for name in ["lookahead", "tie_breaker", "log_every", "batch", "speed", "loss_fn"] {
        let message = folder.error(&WHOLE.replacen("recompute: 1", &format!("{name}: 1"), 1), &[]);
        assert!(message.contains("; known here: `mini_batch`, ") || name == "batch", "{message}");
    }
    for (name, meant) in [
        ("Max_Prompt_Tokens", "`rollout.max_prompt_tokens`?"),
        ("maxSteps", "`rollout.max_steps`"),
        ("top-k", "`rollout.top_k`?"),
    ] {
        let message = folder.error(&WHOLE.replacen("  tasks: 4", &format!("  tasks: 4\n  {name}: 1"), 1), &[]);
        assert!(message.contains(meant), "{message}");
    }
}
