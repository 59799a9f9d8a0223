//! `nestor init`: writes a commented recipe for an environment, an estimator and a model.
//!
//! Nothing is known of an environment but what its plugin says. So the expert, or an empty response, plays some episodes,
//! whose lengths give the recipe's limits. The checks of `nestor train --check` pass before a file is written.

mod choices;
mod measure;
mod settings;
mod text;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use nestor_args::InitArgs;
use nestor_args::output::shell_word;
use serde_json::{Value, json};

use self::choices::{Choices, NEW};
use self::settings::{Facts, PUBLISHED, settings};
use crate::error::InputError;
use crate::input_error;
use crate::plugin::{Kind, Plugins, SharedEnv};
use crate::preflight::{Conditions, preflight};
use crate::recipe::{PluginChoice, Recipe, all_of, load_resolved};

/// Writes the recipe; returns the lines that say so and name the next commands.
pub fn init(args: &InitArgs) -> Result<String> {
    let plugins = Plugins::discover()?;
    let args = &scored(args);
    let choices = Choices::of(args, &plugins)?;
    let out = args.out.clone().unwrap_or_else(|| choices.file());
    if out.symlink_metadata().is_ok() {
        return Err(input_error!("{} is there already; take another --out", out.display()));
    }
    let config = args.config.as_deref().map(parse_config).transpose()?;
    let (env, shared_env, note) = open(&plugins, &choices, config)?;
    let env = plugins.with_defaults(Kind::Environment, &env)?;
    let found = plugins.find(Kind::Estimator, &choices.estimator)?;
    let estimator = PluginChoice::new(&choices.estimator, example(&found.schema).unwrap_or_else(|| json!({})));
    let estimator = plugins.with_defaults(Kind::Estimator, &estimator)?;
    let opened = plugins.estimator(&estimator)?;

    let schema = plugins.find(Kind::Environment, &choices.env)?.schema;
    let facts = Facts::of(&choices.model, &env, &shared_env, &estimator, &opened, &schema)?;
    let draft = resolve(&settings(&facts, &measure::GENEROUS))?;
    let limits = measure::limits(&draft, &shared_env)?;
    let schemas = [plugins.find(Kind::Environment, &choices.env)?, found];
    let text = text::recipe(&choices, &settings(&facts, &limits), &schemas);
    let warnings = check(&load_resolved(&out.display().to_string(), &text)?)?;
    write_new(&out, &text)?;

    let file = shell_word(&out.display().to_string());
    let warnings: String = note.iter().chain(&warnings).map(|warning| format!("warning: {warning}\n")).collect();
    Ok(format!(
        "{warnings}wrote {file}, which passes its checks\nnext: nestor plan {file} --gpu cpu, then nestor train {file}"
    ))
}

/// The arguments with the environment of reward functions, where there are any.
fn scored(args: &InitArgs) -> InitArgs {
    let mut args = args.clone();
    let Some(data) = args.data.as_ref().filter(|_| !args.reward.is_empty()) else { return args };
    let config = match &args.reward[..] {
        [one] => json!({"reward": one, "data": data}),
        several => {
            let rewards: Vec<_> = several.iter().map(|function| json!({"fn": function})).collect();
            json!({"rewards": rewards, "data": data})
        }
    };
    (args.env, args.config) = (Some("python".into()), Some(config.to_string()));
    args
}

/// The recipe of some settings. An error here is Nestor's own, unless it names a value that the user gave.
fn resolve(settings: &Value) -> Result<Recipe> {
    load_resolved("the drafted recipe", &serde_yaml::to_string(settings)?)
}

fn parse_config(text: &str) -> Result<Value> {
    match serde_yaml::from_str(text) {
        Ok(Value::Object(config)) => Ok(Value::Object(config)),
        Ok(_) => Err(input_error!("--config must be a map, such as '{{max_steps: 20}}'")),
        Err(error) => Err(input_error!("--config: {error}")),
    }
}

/// Opens the environment with the user's configuration. Without one: for a pretrained model with a published one, else with the
/// environment's defaults, or with the first example of its schema where it does not open with them. Returns a remark too, if
/// the choice needs one.
fn open(
    plugins: &Plugins,
    choices: &Choices,
    config: Option<Value>,
) -> Result<(PluginChoice, SharedEnv, Option<String>)> {
    let plugin = &choices.env;
    let open = |config: Value| {
        let choice = PluginChoice::new(plugin, config);
        plugins.environment(&choice).map(|shared_env| (choice, shared_env, None))
    };
    let is_refused = |error: &anyhow::Error| error.chain().any(|cause| cause.is::<InputError>());
    if let Some(config) = config {
        return open(config);
    }
    let schema = plugins.find(Kind::Environment, plugin).map_or(Value::Null, |found| found.schema);
    let published = schema[PUBLISHED]["config"].as_array().filter(|_| choices.model != NEW);
    let mut first: Option<anyhow::Error> = None;
    let noted = |(choice, shared_env, _): (_, _, Option<String>), first: Option<anyhow::Error>| {
        let note = |error| {
            format!("the data of the published runs is not here, so that the recipe plays other tasks: {error:#}")
        };
        (choice, shared_env, first.map(note))
    };
    for config in published.into_iter().flatten() {
        match open(config.clone()) {
            Err(error) if is_refused(&error) => first = first.or(Some(error)),
            opened => return opened.map(|opened| noted(opened, first)),
        }
    }
    let bare = open(json!({}));
    let opened = match example(&schema) {
        Some(example) if bare.as_ref().is_err_and(is_refused) => open(example),
        _ => bare.with_context(|| format!("opening {plugin} with its default config; --config YAML gives another")),
    };
    opened.map(|opened| noted(opened, first))
}

/// The first example of a plugin's schema.
fn example(schema: &Value) -> Option<Value> {
    schema["examples"].get(0).cloned()
}

/// Checks the recipe as `train --check` does; returns the warnings.
fn check(recipe: &Recipe) -> Result<Vec<String>> {
    let conditions = Conditions { ranks: 1, root: true, dir: None, made: None, elsewhere: None, stop: Arc::default() };
    let findings = preflight(recipe, &conditions);
    let warnings = findings.warnings.clone();
    match all_of(findings.problems) {
        None => Ok(warnings),
        Some(problem) => Err(problem.context("the recipe for this choice would not pass `nestor train --check`")),
    }
}

/// Writes a file that must not exist yet, and makes its folder.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let file = folder.and_then(|()| OpenOptions::new().write(true).create_new(true).open(path));
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::PermissionDenied => {
            input_error!("--out {}: {error}", path.display())
        }
        _ => anyhow::Error::new(error).context(format!("writing {}", path.display())),
    })
}
