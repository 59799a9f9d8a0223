//! Checks of the model that a recipe names or makes: files, tokenizer, chat template, positions.

use anyhow::{Context, Result, ensure};

use super::{Conditions, Findings};
use crate::agent::{Environments, TaskCounts, TaskCursor, check_expert, plan, texts};
use crate::checkpoint::Source;
use crate::input_error;
use crate::model::{Config, hub, new, weight_files, weights};
use crate::recipe::Recipe;
use crate::tokenizer::Tokenizer;
use crate::track::SlowNotice;

/// Number of expert episodes whose texts train a new model's tokenizer.
const TOKENIZER_EPISODES: usize = 512;

/// Checks the recipe's model, and keeps its configuration and tokenizer.
pub fn check(recipe: &Recipe, conditions: &Conditions, findings: &mut Findings) {
    match (conditions.elsewhere, conditions.made, &recipe.model.path) {
        (Some(config), ..) => findings.config = Some(config.clone()),
        (None, Some(made), _) => findings.source = Some(Source::Folder(made.into())),
        (None, None, Some(name)) => {
            findings.source = findings.take(Source::of_recipe(name.as_ref()).context("recipe key `model.path`"));
        }
        (None, None, None) => to_be_made(recipe, conditions, findings),
    }
    if let Some(source) = findings.source.clone() {
        check_source(recipe, &source, findings);
    }
    if let Some(environments) = findings.environments.clone()
        && recipe.imitates_expert()
        && recipe.model.new.is_none()
    {
        findings.take(check_expert(&environments));
    }
    if let Some(config) = findings.config.clone() {
        findings.take(check_positions(recipe, &config));
    }
}

/// Checks the files of a frozen model that scores the policy's tokens, without reading its weights. `role` is its part in messages.
pub fn check_frozen(recipe: &Recipe, (name, role): (&str, &str), of_policy: Option<&Tokenizer>) -> Result<Config> {
    let folder = hub::folder(name.as_ref())?;
    let (config, tokenizer) = (Config::load(&folder)?, Tokenizer::load(&folder)?);
    weights::open(&folder)?;
    new::check_vocabulary(&config, &tokenizer).with_context(|| folder.display().to_string())?;
    if of_policy.is_some_and(|policy| !policy.has_ids_of(&tokenizer)) {
        return Err(input_error!(
            "{}: the {role}'s tokenizer gives other ids than the policy's, so it cannot score the policy's tokens; choose a \
             {role} of the same family",
            folder.display()
        ));
    }
    let (tokens, limit) = (recipe.rollout.max_tokens(), config.max_position_embeddings);
    if i64::try_from(tokens).is_ok_and(|tokens| tokens <= limit) {
        return Ok(config);
    }
    Err(input_error!(
        "{}: the {role}'s max_position_embeddings is {limit}, and a sequence has up to {tokens} tokens; lower the limits of \
         `rollout`, or choose another {role}",
        folder.display()
    ))
}

/// Checks the files of a model, without reading its weights. Those of a checkpoint were checked when it was found.
fn check_source(recipe: &Recipe, source: &Source, findings: &mut Findings) {
    let folder = source.folder();
    let config = findings.take(Config::load(folder).and_then(|config| config.with_image_limits(&recipe.model)));
    if config.is_some() && matches!(source, Source::Folder(_)) {
        findings.take(weights::open(folder).map(drop));
    }
    findings.warnings.extend(config.as_ref().and_then(|it| weight_files::warning(folder, it.tie_word_embeddings)));
    let tokenizer = findings.take(Tokenizer::load(folder));
    if let (Some(config), Some(tokenizer)) = (&config, &tokenizer) {
        let checked = new::check_vocabulary(config, tokenizer);
        findings.take(checked.with_context(|| format!("recipe key `model.path`: {}", folder.display())));
    }
    findings.config = config;
    let Some(tokenizer) = tokenizer else { return };
    findings.warnings.extend(tokenizer.template_warnings(folder));
    if recipe.warm_start.is_some() && tokenizer.eos().is_empty() {
        findings.problems.push(input_error!(
            "recipe key `warm_start`: the tokenizer of {} names no end-of-sequence token, which a demonstration ends with; \
             name it in generation_config.json",
            folder.display()
        ));
    }
    let tokenizer = tokenizer.with_thinking(recipe.rollout.thinking).context("recipe key `rollout.thinking`");
    findings.tokenizer = findings.take(tokenizer);
}

/// Checks a network that the run will make, with the tokenizer that it will have.
fn to_be_made(recipe: &Recipe, conditions: &Conditions, findings: &mut Findings) {
    let (Some(new), Some(environments), Some(tasks)) =
        (&recipe.model.new, findings.environments.clone(), findings.tasks.clone())
    else {
        return;
    };
    let tokenizer = match conditions.root {
        true => findings.take(new_tokenizer(recipe, &environments, &tasks)),
        false => None,
    };
    let tokens = recipe.rollout.max_tokens();
    let config = match &tokenizer {
        Some(tokenizer) => new::config(new, tokenizer, tokens),
        // At a rank that makes no tokenizer: the sizes alone.
        None => Config::of_new(new, new.vocab_size, tokens as i64, new::last_ids(new.vocab_size)),
    };
    let config = config.and_then(|config| config.with_image_limits(&recipe.model));
    let checked = config.and_then(|config| config.check().map(|()| config).context("recipe key `model.new`"));
    findings.config = findings.take(checked);
    findings.tokenizer = tokenizer;
}

/// Trains the tokenizer of `model.new` on the texts of the experts' episodes, as many of each environment.
pub fn new_tokenizer(recipe: &Recipe, environments: &Environments, tasks: &TaskCounts) -> Result<Tokenizer> {
    let size = recipe.model.new.as_ref().context("the recipe makes no new model")?.vocab_size;
    let count = tasks.each().len() as u64;
    let drawn = |(number, mut cursor): (u64, TaskCursor)| {
        cursor.next(TOKENIZER_EPISODES).into_iter().map(move |task| task * count + number)
    };
    let drawn: Vec<u64> = (0..).zip(tasks.cursors(recipe.seed)).flat_map(drawn).collect();
    let noise = recipe.warm_start.as_ref().map_or(0.0, |warm_start| warm_start.expert_noise);
    let _slow = SlowNotice::new("playing the expert's episodes, whose texts train the tokenizer of `model.new`");
    let texts = texts(environments, &recipe.rollout, &plan(&drawn, 1, recipe.seed, 0), noise, recipe.seed)
        .context("recipe key `model.new`: the expert plays for the tokenizer")?;
    ensure!(
        !texts.is_empty(),
        "recipe key `model.new`: the environment failed in all of the expert's episodes, so the tokenizer has no text to train on"
    );
    let seeing = recipe.model.new.as_ref().is_some_and(|new| new.vision.is_some());
    Tokenizer::train(texts.into_iter(), size as usize, seeing)
}

/// Refuses sequences that are longer than the network was made for.
fn check_positions(recipe: &Recipe, config: &Config) -> Result<()> {
    let (tokens, limit) = (recipe.rollout.max_tokens(), config.max_position_embeddings);
    if i64::try_from(tokens).is_ok_and(|tokens| tokens <= limit) {
        return Ok(());
    }
    let keys = match recipe.rollout.is_transcript() {
        true => "recipe key `rollout.max_sequence_tokens` is",
        false => "recipe keys `rollout.max_prompt_tokens` and `rollout.max_response_tokens` are together",
    };
    Err(input_error!(
        "{keys} {tokens}, but the model's max_position_embeddings is {limit}; lower it, or choose another model"
    ))
}
