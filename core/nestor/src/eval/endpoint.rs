//! The evaluation of a model that another program serves (`--endpoint`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nestor_chat::{Client, ClientOptions, Failure, ServedModel};

use super::evaluated::EvaluatedModel;
use super::targets::EndpointArgs;
use crate::agent::{Environments, RemoteOptions, RemotePlayer, endpoint_lines, eval_plan, remote_ends};
use crate::files::write_lines;
use crate::input_error;
use crate::progress::Progress;
use crate::recipe::{Eval, Recipe, Truncation};
use crate::terminal;

/// Longest time that one answer may take.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The wait before a busy server is asked again.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Servers that leave a stop text in an answer where a request asks for that.
const KEEP_STOP: [&str; 2] = ["nestor", "vllm"];

/// The parts of an evaluation that all models share.
#[derive(Clone)]
pub struct Parts<'a> {
    pub recipe: &'a Recipe,
    pub settings: &'a Eval,
    pub environments: Environments,
    pub progress: Progress,
}

/// Has the model of an endpoint play the panel, and writes its episodes below `out`.
pub fn evaluate(parts: &Parts, endpoint: &EndpointArgs, out: Option<&Path>) -> Result<EvaluatedModel> {
    let Parts { recipe, settings, environments, progress } = parts;
    if recipe.rollout.truncation == Truncation::Drop {
        return Err(input_error!(
            "recipe key `rollout.truncation` is drop, which leaves tasks out by the tokens of their prompts, and a model elsewhere \
             has a tokenizer of its own; add --set rollout.truncation=error"
        ));
    }
    let EndpointArgs { url, model, key } = endpoint;
    let (url, key, at_once) = (url.clone(), key.clone(), recipe.rollout.slots);
    let client = Client::new(&ClientOptions { url, key, at_once, patience: PATIENCE, first_wait: FIRST_WAIT });
    let client = client.map_err(|error| input_error!("--endpoint: {error:#}"))?;
    let ServedModel { name, owner } = find(&client, model.as_deref())?;
    let place = PathBuf::from(format!("{name} at {}", client.url()));
    let mut player = RemotePlayer::new(RemoteOptions {
        client,
        model: name,
        keeps_stop: KEEP_STOP.contains(&owner.as_str()),
        environments: environments.clone(),
        rollout: recipe.rollout.clone(),
        temperature: settings.temperature,
        seed: recipe.seed,
        progress: progress.clone(),
    })?;
    let counts = environments.count_eval_tasks(settings)?;
    let plan = eval_plan(&counts, settings.tasks, settings.samples, settings.panel_seed(recipe.seed));
    let bar = progress.phase("evaluate", "episodes");
    let played = player.play(&settings.split, &plan).with_context(|| format!("evaluating {}", place.display()));
    drop(bar);
    player.warnings().iter().for_each(|line| terminal::warn(&format!("warning: {line}")));
    let (episodes, asked): (Vec<_>, Vec<_>) = played?.into_iter().map(|one| (one.episode, one.asked)).unzip();
    let mut row = EvaluatedModel::new(&place, &episodes, &remote_ends());
    if let Some(out) = out {
        let file = Path::new("evaluations").join("endpoint.jsonl");
        write_lines(&out.join(&file), endpoint_lines(&episodes, &asked).into_iter())?;
        row.episodes = Some(file);
    }
    Ok(row)
}

/// The model of this name, or the only one of the server.
fn find(client: &Client, name: Option<&str>) -> Result<ServedModel> {
    let models = match client.models() {
        Ok(models) => models,
        // A server without a list: the name must do.
        Err(Failure::Refused { status: 404 | 405, .. }) if name.is_some() => Vec::new(),
        Err(failure @ Failure::Refused { status: 401 | 403, .. }) => {
            return Err(input_error!("{failure}; give the key by --api-key or OPENAI_API_KEY"));
        }
        Err(failure @ Failure::Refused { .. }) => {
            return Err(input_error!("{failure}; --endpoint is the base URL, such as http://127.0.0.1:8000/v1"));
        }
        Err(failure) => return Err(anyhow!("{failure}; start the server, or change --endpoint")),
    };
    let names = || models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, &models[..]) {
        (Some(name), []) => Ok(ServedModel { name: name.into(), owner: String::new() }),
        (Some(name), _) => models
            .iter()
            .find(|model| model.name == name)
            .cloned()
            .ok_or_else(|| input_error!("--endpoint-model {name}: {} serves {}", client.url(), names())),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(input_error!(
            "{} serves {} models ({}); choose one by --endpoint-model",
            client.url(),
            models.len(),
            names()
        )),
    }
}
