//! The model card of an exported checkpoint: `README.md` with the front matter that the Hugging Face Hub reads
//! (<https://huggingface.co/docs/hub/model-cards>). It states what the run directory records, and nothing else.

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_compare as compare;
use nestor_plugin::files::{self, LARGE, SMALL};
use serde_json::{Map, Value, json};

use super::Part;
use crate::files::{read_object, write_whole};
use crate::model::hub::{self, Snapshot};
use crate::recipe::{self, Recipe};

const CARD: &str = "README.md";
/// Names under which a model folder holds its license.
const LICENSES: [&str; 3] = ["LICENSE", "LICENSE.md", "LICENSE.txt"];

/// Writes the card of a checkpoint's export into its folder, with the license of the base.
pub fn write(checkpoint: &Path, part: Part, title: &str, folder: &Path) -> Result<()> {
    let Some(facts) = Facts::read(checkpoint, part)? else { return Ok(()) };
    if let Some(base) = &facts.base {
        for name in LICENSES.iter().filter(|name| base.folder.join(name).exists()) {
            copy(&base.folder.join(name), &folder.join(name))?;
        }
    }
    write_whole(&folder.join(CARD), facts.card(title)?)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The model that the run began with.
struct Base {
    folder: PathBuf,
    /// None for a folder outside the Hugging Face cache.
    snapshot: Option<Snapshot>,
    /// The license of its own card, in the keys of a front matter.
    license: Map<String, Value>,
}

impl Base {
    /// None where the run made its model, or where the folder is gone.
    fn of(recipe: &Recipe) -> Result<Option<Self>> {
        let folder = recipe.model.path.as_ref().and_then(|path| hub::folder(path.as_ref()).ok());
        let Some(folder) = folder.filter(|folder| folder.is_dir()) else { return Ok(None) };
        let mut license = front_matter(&folder.join(CARD));
        license.retain(|key, _| ["license", "license_name", "license_link"].contains(&key.as_str()));
        Ok(Some(Self { snapshot: Snapshot::of(&folder), license, folder }))
    }
}

/// The front matter of a card; empty where there is none that can be read, since it decides nothing here.
fn front_matter(card: &Path) -> Map<String, Value> {
    let text = files::read_to_string(card, SMALL).unwrap_or_default().replace("\r\n", "\n");
    let yaml = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---"));
    yaml.and_then(|(yaml, _)| serde_yaml::from_str(yaml).ok()).unwrap_or_default()
}

/// One evaluation of the run.
struct Evaluated {
    iteration: u64,
    success: f64,
    /// The 95 % interval.
    interval: Option<[f64; 2]>,
}

impl Evaluated {
    fn of(row: &Value) -> Option<Self> {
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        let interval = number("eval/success_low").zip(number("eval/success_high")).map(<[f64; 2]>::from);
        let iteration = row.get("iteration")?.as_u64()?;
        Some(Self { iteration, success: number("eval/success")?, interval })
    }

    /// Its row in the table of results.
    fn row(&self, name: &str) -> String {
        let interval = self.interval.map_or("not recorded".into(), |[low, high]| format!("{low:.3} to {high:.3}"));
        format!("| {name} | {} | {:.3} | {interval} |\n", self.iteration, self.success)
    }
}

/// Everything that the card states.
struct Facts {
    part: Part,
    /// The name of the checkpoint.
    checkpoint: String,
    recipe: Recipe,
    base: Option<Base>,
    /// Ids of environment and estimator.
    plugins: Vec<String>,
    /// Evaluations up to the checkpoint that compare with its own.
    evaluations: Vec<Evaluated>,
    /// The bias of the best of them; none where the run holds no outcomes of its tasks.
    bias: Option<f64>,
    /// True for a checkpoint before the first iteration of reinforcement learning.
    before_rl: bool,
    /// `run.json`; empty where the run has none.
    run: Map<String, Value>,
}

impl Facts {
    /// None for a checkpoint outside a run directory.
    fn read(checkpoint: &Path, part: Part) -> Result<Option<Self>> {
        // `latest` and `best` are links.
        let path = checkpoint.canonicalize().with_context(|| format!("reading {}", checkpoint.display()))?;
        let Some(run_dir) = path.parent().and_then(Path::parent) else { return Ok(None) };
        let file = run_dir.join("recipe.yaml");
        if !file.exists() {
            return Ok(None);
        }
        let recipe = recipe::load(&file, &[])?;
        let state = read_object(&path.join("state.json"))?.unwrap_or_default();
        let number = |name: &str| state.get(name).and_then(Value::as_u64).unwrap_or(0);
        let id = |plugin: &Value| plugin["id"].as_str().map(str::to_string);
        let iterations = number("comparable_from")..=number("iteration");
        Ok(Some(Self {
            part,
            checkpoint: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            base: Base::of(&recipe)?,
            recipe,
            plugins: state.get("plugins").and_then(Value::as_array).into_iter().flatten().filter_map(id).collect(),
            bias: bias_of_best(run_dir, &iterations),
            before_rl: *iterations.end() == 0,
            evaluations: evaluations(run_dir, iterations)?,
            run: read_object(&run_dir.join("run.json"))?.unwrap_or_default(),
        }))
    }

    fn card(&self, title: &str) -> Result<String> {
        let front = serde_yaml::to_string(&self.front_matter()).context("could not write the card's front matter")?;
        let mut text = format!("---\n{front}---\n\n# {title}\n\n{}\n", self.summary());
        if !self.evaluations.is_empty() {
            text += &self.results();
        }
        text += &self.training();
        let recipe = self.recipe.to_yaml()?;
        let fence = fence(&recipe);
        let recipe = format!("{fence}yaml\n{recipe}{fence}");
        write!(text, "\n<details>\n<summary>The recipe of the run</summary>\n\n{recipe}\n\n</details>\n")?;
        Ok(text)
    }

    fn front_matter(&self) -> Map<String, Value> {
        let (library, task) = match self.part {
            Part::Policy => ("transformers", "text-generation"),
            Part::Critic => ("transformers", "token-classification"),
            Part::Adapter => ("peft", "text-generation"),
        };
        let mut front = Map::new();
        front.insert("library_name".into(), library.into());
        front.insert("pipeline_tag".into(), task.into());
        if let Some(base) = &self.base {
            front.extend(base.snapshot.iter().map(|snapshot| ("base_model".into(), json!(snapshot.id))));
            front.extend(base.license.clone());
        }
        let learned = match &self.recipe.warm_start {
            _ if !self.before_rl => Some("reinforcement-learning"),
            Some(_) if self.recipe.imitates_expert() => Some("imitation-learning"),
            Some(_) => Some("sft"),
            None => None,
        };
        let mut tags: Vec<String> = learned.into_iter().chain(["nestor"]).map(str::to_string).collect();
        tags.extend(self.recipe.model.lora.as_ref().map(|_| "lora".into()));
        // The estimator has done nothing before reinforcement learning.
        tags.extend(self.plugins.iter().take(if self.before_rl { 1 } else { 2 }).cloned());
        front.insert("tags".into(), tags.into());
        front
    }

    fn summary(&self) -> String {
        let part = match self.part {
            Part::Policy => "The policy",
            Part::Critic => "The critic",
            Part::Adapter => "The LoRA adapter",
        };
        let (environment, estimator) = (self.plugin(0), self.plugin(1));
        if self.before_rl {
            let learned = match &self.recipe.warm_start {
                Some(_) if self.recipe.imitates_expert() => {
                    "supervised fine-tuning on episodes of the environment's expert, without reinforcement learning"
                }
                Some(_) => "supervised fine-tuning (SFT) on chats, without reinforcement learning",
                None => "no training yet",
            };
            return format!("{part} of a run with Nestor after {learned}: environment `{environment}`.");
        }
        format!(
            "{part} of a run of reinforcement learning with Nestor: environment `{environment}`, estimator `{estimator}`."
        )
    }

    fn plugin(&self, index: usize) -> &str {
        self.plugins.get(index).map_or("unknown", String::as_str)
    }

    /// The first, the best and the last evaluation.
    fn results(&self) -> String {
        let eval = &self.recipe.eval;
        if self.evaluations.is_empty() && !eval.evaluates() {
            return "\n## Results\n\nThe run was not evaluated (`eval.tasks: none`).\n".into();
        }
        let trained = || self.evaluations.iter().filter(|one| one.iteration > 0);
        let first = self.evaluations.iter().find(|one| one.iteration == 0);
        // The first of equal ones, as for the link `best`.
        let best = trained().reduce(|best, one| if one.success > best.success { one } else { best });
        let rows = [("before reinforcement learning", first), ("best", best), ("last", trained().next_back())];
        let rows = rows.into_iter().filter_map(|(name, one)| Some(one?.row(name)));
        let bias = match self.bias {
            Some(bias) => format!("about {:+.1} points, estimated on random halves of the tasks", 100.0 * bias),
            None => "not known, since the run holds no outcomes of single tasks".into(),
        };
        format!(
            "\n## Results\n\nSuccess on the evaluation tasks of the run (split `{}`, tasks: {}, temperature {}):\n\n\
             | evaluation | iteration | success | 95 % interval |\n|---|---|---|---|\n{}\n\
             The best evaluation is chosen by its own noise, too. Its bias is {bias}.\n",
            eval.split,
            eval.tasks,
            eval.temperature,
            rows.collect::<String>()
        )
    }

    fn training(&self) -> String {
        let recipe = &self.recipe;
        let mut rows = vec![("checkpoint", format!("`{}`", self.checkpoint))];
        let base = match (&self.base, &recipe.model.path) {
            (Some(Base { snapshot: Some(Snapshot { id, revision }), .. }), _) => format!("`{id}` at `{revision}`"),
            (_, Some(path)) => format!("`{path}`"),
            (_, None) => "a network of random weights".into(),
        };
        rows.push(("base model", base));
        if let Some(lora) = &recipe.model.lora {
            rows.push(("LoRA", format!("rank {}, alpha {}", lora.rank, lora.alpha)));
        }
        rows.push(("seed", recipe.seed.to_string()));
        rows.push(("iterations of the recipe", recipe.iterations.to_string()));
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        for (name, key) in [
            ("parameters", "parameters"),
            ("compute type", "dtype"),
            ("device", "device"),
            ("ranks", "ranks"),
            ("wall time in seconds", "seconds"),
            ("Nestor", "nestor"),
            ("commit", "commit"),
            ("libtorch", "torch"),
        ] {
            rows.extend(self.run.get(key).filter(|value| !value.is_null()).map(|value| (name, shown(value))));
        }
        let rows = rows.into_iter().map(|(name, value)| format!("| {name} | {value} |\n"));
        format!("\n## Training\n\n| | |\n|---|---|\n{}", rows.collect::<String>())
    }
}

/// The evaluations of a run after these iterations.
fn evaluations(run_dir: &Path, iterations: RangeInclusive<u64>) -> Result<Vec<Evaluated>> {
    let path = run_dir.join("metrics.jsonl");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = files::read_to_string(&path, LARGE).with_context(|| format!("reading {}", path.display()))?;
    let rows = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let all = rows.filter_map(|row: Value| Evaluated::of(&row));
    Ok(all.filter(|one| iterations.contains(&one.iteration)).collect())
}

/// The bias of the best evaluation after these iterations.
fn bias_of_best(run_dir: &Path, iterations: &RangeInclusive<u64>) -> Option<f64> {
    let mut run = compare::Run::read(run_dir).ok()?;
    run.outcomes.retain(|iteration, _| iterations.contains(iteration));
    Some(compare::best(&run, compare::Options::default().halvings)?.bias)
}

/// A fence of more backticks than the text has in a row: a recipe may hold a template in Markdown.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(3.max(longest + 1))
}
