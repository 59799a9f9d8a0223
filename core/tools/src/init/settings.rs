//! The settings of a written recipe.

use anyhow::Result;
use serde_json::{Value, json};

use super::choices::NEW;
use super::measure::{RolloutLimits, roomy};
use crate::agent::check_expert;
use crate::error::InputError;
use crate::plugin::{Estimator, SharedEnv};
use crate::recipe::PluginChoice;

const GROUP_SIZE: u64 = 8;
const TASKS: u64 = 16;
const EVAL_TASKS: u64 = 100;
/// Tokens of a micro-batch by default.
const MICRO_BATCH: usize = 16_384;
/// A small network learns the form of a response from the expert, so its prompt needs no instructions.
const SHORT_TEMPLATE: &str = "\
{% if task %}{{ task }}
{% endif %}
{%- if task %}{% for past in history %}{{ past.action }}
{% endfor %}{% endif %}
{{- observation }}
{%- for action in admissible %}
{{ action }}
{%- endfor %}";

/// All that the settings depend on.
pub struct Facts<'a> {
    model: &'a str,
    env: &'a PluginChoice,
    estimator: &'a PluginChoice,
    /// Splits for training and for evaluation, with their numbers of tasks.
    train: (String, u64),
    eval: (String, u64),
    has_expert: bool,
    asks_values: bool,
    /// Sections of a recipe that the environment's schema gives for a pretrained model.
    published: Value,
}

impl<'a> Facts<'a> {
    /// Asks the opened plugins.
    pub fn of(
        model: &'a str,
        env: &'a PluginChoice,
        shared_env: &SharedEnv,
        estimator: &'a PluginChoice,
        opened: &Estimator,
        schema: &Value,
    ) -> Result<Self> {
        if model == NEW {
            check_expert(&shared_env.clone().into()).map_err(|error| error.context("--model new"))?;
        }
        let published = if model == NEW { Value::Null } else { schema[PUBLISHED].clone() };
        let eval = match published["eval"]["split"].as_str() {
            Some(split) if let Ok(tasks) = shared_env.tasks(split) => (split.into(), tasks),
            _ => split(shared_env, "eval", Some("train"))?,
        };
        Ok(Self {
            model,
            env,
            estimator,
            train: split(shared_env, "train", None)?,
            eval,
            has_expert: shared_env.has_expert(),
            asks_values: opened.needs().values,
            published,
        })
    }

    fn is_new(&self) -> bool {
        self.model == NEW
    }
}

/// The split of this name, else the first other one that the environment's error names.
fn split(shared_env: &SharedEnv, name: &str, taken: Option<&str>) -> Result<(String, u64)> {
    let error = match shared_env.tasks(name) {
        Ok(tasks) => return Ok((name.into(), tasks)),
        Err(error) if error.is::<InputError>() => error,
        Err(error) => return Err(error),
    };
    let message = format!("{error:#}");
    let known = message.rsplit_once("known: ").map_or("", |(_, known)| known).split(", ");
    for other in known.filter(|other| Some(*other) != taken) {
        if let Ok(tasks) = shared_env.tasks(other) {
            return Ok((other.into(), tasks));
        }
    }
    Err(error.context(format!("looking for a split like `{name}`")))
}

/// The key of a plugin's schema that holds the settings of published runs: `config`, a list of configurations of which the
/// first that opens is taken, and sections of a recipe.
pub const PUBLISHED: &str = "x-published";

/// The recipe's keys in their order, without those that keep their default. A published limit is kept where it suffices.
pub fn settings(facts: &Facts, measured: &RolloutLimits) -> Value {
    let known = |key: &str| facts.published["rollout"][key].as_u64();
    let limit = |key: &str, measured: usize, roomy: usize| match known(key) {
        Some(published) if published >= measured as u64 => published as usize,
        _ => roomy,
    };
    let limits = RolloutLimits {
        steps: measured.steps,
        prompt: limit("max_prompt_tokens", measured.prompt, roomy(measured.prompt)),
        response: limit("max_response_tokens", measured.response, measured.response),
    };
    let tasks = facts.train.1.min(known("tasks").unwrap_or(TASKS));
    let group_size = known("group_size").unwrap_or(GROUP_SIZE);
    let most = limits.prompt + limits.response;
    let mut recipe = json!({
        "seed": 1,
        "device": if facts.is_new() { "cpu" } else { "auto" },
        "dtype": if facts.is_new() { "float32" } else { "bfloat16" },
        "iterations": if facts.is_new() { 40 } else { 150 },
        "model": model(facts),
        "env": plugin(facts.env),
        "estimator": plugin(facts.estimator),
        "rollout": {
            "tasks": tasks,
            "group_size": group_size,
            "max_steps": limits.steps,
            "max_prompt_tokens": limits.prompt,
            "max_response_tokens": limits.response,
            "temperature": 1.0,
            "slots": known("slots").unwrap_or(tasks * group_size).min(tasks * group_size),
            "history": {"length": if facts.is_new() { 4 } else { 2 }},
            "invalid_action_penalty": 0.1,
            "split": facts.train.0,
        },
        "update": update(facts, (tasks * group_size, limits.steps), most),
    });
    if facts.is_new() {
        recipe["rollout"]["template"] = SHORT_TEMPLATE.into();
    }
    if facts.asks_values {
        recipe["critic"] = json!({"lr": if facts.is_new() { 1e-3 } else { 1e-5 }});
    }
    if facts.is_new() && facts.has_expert {
        recipe["warm_start"] = json!({"steps": 600, "batch": 64, "lr": 1e-3, "expert_noise": 0.5});
    }
    let every = if facts.is_new() { 10 } else { 5 };
    recipe["eval"] = json!({
        "every": every,
        "tasks": facts.eval.1.min(EVAL_TASKS),
        "temperature": if facts.is_new() { 1.0 } else { 0.4 },
        "split": facts.eval.0,
    });
    recipe["checkpoint"] = json!({"every": every, "every_minutes": 20.0, "keep": 2});
    publish(facts, &mut recipe);
    recipe
}

/// Lays the published settings on those of any environment, but for sizes that depend on the tasks.
fn publish(facts: &Facts, recipe: &mut Value) {
    const SIZES: [&str; 10] = [
        "tasks",
        "group_size",
        "max_steps",
        "max_prompt_tokens",
        "max_response_tokens",
        "slots",
        "split",
        "mini_batch",
        "micro_batch_tokens",
        "config",
    ];
    for (section, value) in facts.published.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(keys) if recipe[section].is_object() => {
                for (key, value) in keys.iter().filter(|(key, _)| !SIZES.contains(&key.as_str())) {
                    recipe[section][key] = value.clone();
                }
            }
            None if !SIZES.contains(&section.as_str()) => recipe[section] = value.clone(),
            _ => {}
        }
    }
    match &facts.published["eval"]["tasks"] {
        Value::Number(tasks) => recipe["eval"]["tasks"] = tasks.as_u64().unwrap_or(EVAL_TASKS).min(facts.eval.1).into(),
        Value::Null => {}
        all => recipe["eval"]["tasks"] = all.clone(),
    }
}

fn model(facts: &Facts) -> Value {
    if !facts.is_new() {
        return json!({"path": facts.model});
    }
    json!({"new": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "vocab_size": 512,
        "initializer_range": 0.125,
    }})
}

fn plugin(choice: &PluginChoice) -> Value {
    json!({"plugin": choice.plugin, "config": choice.config})
}

/// For a model that was trained before: the values of verl-agent's published runs. `episodes` and their longest steps bound a
/// mini-batch.
fn update(facts: &Facts, (episodes, steps): (u64, u32), most_tokens: usize) -> Value {
    let published = |key: &str| facts.published["update"][key].as_u64();
    let mini_batch = published("mini_batch").map_or(256.min(episodes), |known| known.min(episodes * u64::from(steps)));
    let mut update = json!({ "mini_batch": mini_batch });
    let micro_batch = published("micro_batch_tokens").map_or(MICRO_BATCH, |known| known as usize);
    if most_tokens.max(micro_batch) != MICRO_BATCH {
        update["micro_batch_tokens"] = most_tokens.max(micro_batch).into();
    }
    let rest = match facts.is_new() {
        true => json!({
            "shuffle": true, "lr": 2e-4, "schedule": "cosine", "min_lr_ratio": 0.1, "clip_low": 0.2, "clip_high": 0.2,
            "entropy": 0.01, "recompute": "none",
        }),
        false => json!({
            "short_mini_batch": "reference", "lr": 1e-6, "warmup": 0, "schedule": "constant", "clip_low": 0.2,
            "clip_high": 0.2, "entropy": 0.001, "kl": {"coef": 0.01, "kind": "k3"}, "old_logprobs": "recompute",
            "recompute": "all",
        }),
    };
    if let (Some(update), Value::Object(rest)) = (update.as_object_mut(), rest) {
        update.extend(rest);
    }
    update
}
