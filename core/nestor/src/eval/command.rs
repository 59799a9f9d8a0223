//! `nestor eval`: models play the same tasks with the same seeds and noise, one model after the other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tch::Device;

use super::endpoint::{self, Parts};
use super::evaluated::EvaluatedModel;
use super::play;
use super::report::EvalReport;
use super::targets::{EvalArgs, Targets};
use crate::agent::{Environments, Player, PlayerOptions, Rehearsal, evaluation_lines, without_long, write_images};
use crate::checkpoint::{Moment, Source};
use crate::data::Episode;
use crate::files::{Sum, sum, write_json, write_lines};
use crate::input_error;
use crate::model::{self, Config, kind, new, weight_files};
use crate::plugin::{Limits, Plugins};
use crate::progress::Progress;
use crate::ranks::Solo;
use crate::recipe::{Eval, EvalTasks, Recipe, Truncation};
use crate::terminal;
use crate::tokenizer::Tokenizer;

/// Files that a tokenizer, its chat template and its end tokens are read from.
const TOKENIZER_FILES: [&str; 7] = [
    "preprocessor_config.json",
    "chat_template.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
];

/// Evaluates models as a run of the recipe would.
pub fn eval(args: &EvalArgs) -> Result<EvalReport> {
    let Targets { recipe, models } = Targets::of(args)?;
    let settings = Eval {
        tasks: args.episodes.map_or(recipe.eval.tasks, EvalTasks::Panel),
        samples: args.samples.unwrap_or(recipe.eval.samples),
        ..recipe.eval.clone()
    };
    if !settings.evaluates() {
        return Err(input_error!(
            "recipe key `eval.tasks` is none: give a number of tasks by --episodes, or --set eval.tasks=all"
        ));
    }
    if let Some(warning) = settings.warning() {
        terminal::warn(&format!("warning: {warning}"));
    }
    let limits = Limits { timeout: Duration::from_secs(recipe.env.timeout_s()), ..Limits::default() };
    let plugins = Plugins::discover()?.with_limits(limits);
    let environments = Environments::open(&recipe, &plugins)?;
    let environments = match (recipe.rollout.truncation, models.first()) {
        (Truncation::Drop, Some(first)) => left_out(&recipe, &environments, first.folder())?,
        _ => environments,
    };
    let counts = environments.count_eval_tasks(&settings).map_err(|error| match args.episodes {
        Some(episodes) => input_error!("--episodes {episodes}: {error:#}"),
        None => error,
    })?;
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).map_err(|error| input_error!("--out {}: {error}", out.display()))?;
    }
    let progress = if args.quiet || !terminal::redraws() { Progress::hidden() } else { Progress::shown(1) };
    let parts = Parts { recipe: &recipe, settings: &settings, environments, progress };
    let rows = match &args.endpoint {
        Some(endpoint) => vec![endpoint::evaluate(&parts, endpoint, args.out.as_deref())?],
        None => of_models(parts.clone(), &models, args.out.as_deref())?,
    };
    parts.progress.end();
    let (tasks, seed) = (counts.evaluated(settings.tasks), settings.panel_seed(recipe.seed));
    let report = EvalReport { settings, tasks, seed, models: rows };
    if let Some(out) = &args.out {
        write_json(&out.join("evaluation.json"), &report.to_json())?;
    }
    Ok(report)
}

/// Has models play, one after the other.
fn of_models(parts: Parts, models: &[Source], out: Option<&Path>) -> Result<Vec<EvaluatedModel>> {
    let device = model::prepare(parts.recipe, 0)?;
    let mut evaluator = Evaluator { parts, device, player: None };
    let mut rows = Vec::new();
    for (number, source) in models.iter().enumerate() {
        let episodes = evaluator.play(source).with_context(|| source.folder().display().to_string())?;
        let ends = evaluator.player.as_ref().map(|(_, player)| player.ends().clone()).unwrap_or_default();
        let mut row = EvaluatedModel::new(source.folder(), &episodes, &ends);
        if let (Some(out), Some((_, player))) = (out, &evaluator.player) {
            let file = Path::new("evaluations").join(format!("{}.jsonl", file_name(number, models)));
            write_images(out, &episodes)?;
            write_lines(&out.join(&file), evaluation_lines(&episodes, player.tokenizer()))?;
            row.episodes = Some(file);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The environments without the tasks whose first prompts are too long for the recipe, by the tokenizer of a model's folder.
fn left_out(recipe: &Recipe, environments: &Environments, folder: &Path) -> Result<Environments> {
    let (tokenizer, config) = (Tokenizer::load(folder)?, Config::load(folder)?.with_image_limits(&recipe.model)?);
    let (tokenizer, config, rollout) = (&tokenizer, &config, &recipe.rollout);
    let mut all = Vec::new();
    for member in environments.members() {
        let shared_env = &member.shared_env;
        let rehearsal = Rehearsal { shared_env, rollout, tokenizer, config, imitates: false, teacher: None };
        let (left, warnings) = without_long(&rehearsal, &[member.split(&recipe.eval.split)])?;
        warnings.iter().for_each(|warning| terminal::warn(&format!("warning: {warning}")));
        all.push(left);
    }
    Ok(environments.with(all))
}

/// The name of a model's file of episodes: its checkpoint's, or the model's number where that name would not be unique.
fn file_name(number: usize, models: &[Source]) -> String {
    let name = |model: &Source| Moment::of_folder(model.folder()).map(|moment| moment.to_string());
    let own = name(&models[number]);
    let unique = models.iter().filter(|model| name(model) == own).count() == 1;
    own.filter(|_| unique).unwrap_or_else(|| format!("model-{}", number + 1))
}

/// The models that play here.
struct Evaluator<'a> {
    parts: Parts<'a>,
    device: Device,
    /// The player of the last model, with the sums of its tokenizer's files.
    player: Option<(Vec<Option<Sum>>, Player)>,
}

impl Evaluator<'_> {
    /// Has a model play the tasks.
    fn play(&mut self, source: &Source) -> Result<Vec<Episode>> {
        let Parts { recipe, settings, environments, progress } = &self.parts;
        let folder = source.folder();
        let model = source.load(kind(recipe.dtype), self.device)?;
        let model = model.with_vision(&recipe.model, recipe.deterministic)?;
        let sums = tokenizer_sums(folder)?;
        let known = self.player.take().filter(|(known, _)| *known == sums);
        let (_, player) = self.player.insert(match known {
            Some(known) => known,
            None => (sums, new_player(recipe, environments, progress, (folder, &model.config))?),
        });
        new::check_vocabulary(&model.config, player.tokenizer())
            .map_err(|error| input_error!("{}: {error:#}", folder.display()))?;
        let _bar = progress.phase("evaluate", "episodes");
        let played = play(&Solo { device: self.device }, player, &model, settings, recipe.seed);
        player.take_faults().lines().iter().for_each(|line| terminal::warn(&format!("warning: {line}")));
        played
    }
}

/// A player with the tokenizer of a folder, for models of this configuration.
fn new_player(
    recipe: &Recipe,
    environments: &Environments,
    progress: &Progress,
    (folder, config): (&Path, &Config),
) -> Result<Player> {
    let tokenizer = Tokenizer::load(folder)?;
    let of_weights = weight_files::warning(folder, config.tie_word_embeddings);
    for warning in tokenizer.template_warnings(folder).into_iter().chain(of_weights) {
        terminal::warn(&format!("warning: {warning}"));
    }
    Player::new(PlayerOptions {
        tokenizer,
        config: config.clone(),
        environments: environments.clone(),
        rollout: recipe.rollout.clone(),
        seed: recipe.seed,
        deterministic: recipe.deterministic,
        stop: Arc::default(),
        progress: progress.clone(),
    })
}

/// The sums of the files that a tokenizer is read from; none for a file that a folder lacks.
fn tokenizer_sums(folder: &Path) -> Result<Vec<Option<Sum>>> {
    let existing = |path: PathBuf| path.exists().then(|| sum(&path)).transpose();
    TOKENIZER_FILES.iter().map(|name| existing(folder.join(name))).collect()
}
