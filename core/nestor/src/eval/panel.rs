//! The panel of a run's evaluations: a named list of tasks with a hash. Runs compare only where their panels are equal.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::data::Episode;
use crate::files::{hex, write_json};
use crate::recipe::Recipe;

/// The panel's file in the run directory.
const FILE: &str = "panel.json";

/// The tasks of an evaluation, in the order played.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Panel {
    /// ENVIRONMENT/SPLIT/NUMBER of tasks.
    name: String,
    /// Hash of the environment's id, the split, and each task with its start.
    sha256: String,
    environment: String,
    split: String,
    /// Seed that drew the tasks.
    seed: u64,
    /// Episodes per task.
    samples: u32,
    temperature: f64,
    tasks: Vec<PanelTask>,
}

/// A task of the panel.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PanelTask {
    /// Its environment, where the recipe lists environments.
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<String>,
    /// Its number in the split.
    task: u64,
    /// Seed of the environment's reset.
    seed: u64,
    /// The environment's name for the kind of task.
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Panel {
    /// The panel that these episodes of an evaluation played, groups of samples side by side. The hash covers the first
    /// observation of each task: another build of an environment that starts otherwise is another panel.
    pub fn of(recipe: &Recipe, episodes: &[Episode]) -> Self {
        let plugins: Vec<&str> = recipe.env.all().iter().map(|env| &*env.plugin).collect();
        let (environment, eval) = (plugins.join("+"), &recipe.eval);
        let mut hasher = Sha256::new();
        let mut add = |part: &[u8]| {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        add(environment.as_bytes());
        add(eval.split.as_bytes());
        for split in recipe.env.all().iter().filter_map(|env| env.eval_split.as_ref()) {
            add(split.as_bytes());
        }
        let mut tasks = Vec::new();
        for samples in groups(episodes) {
            let Episode { task, seed, .. } = samples[0];
            let kind = samples.iter().find_map(|episode| episode.task_type.clone());
            let start = samples.iter().find_map(|episode| episode.steps.first()).map(|step| &*step.observation);
            let name = samples[0].environment.as_ref().map(|environment| environment.name.as_bytes());
            name.into_iter().for_each(&mut add);
            add(&task.to_le_bytes());
            add(&seed.to_le_bytes());
            add(kind.as_deref().unwrap_or_default().as_bytes());
            add(start.unwrap_or_default().as_bytes());
            let own = samples[0].environment.clone();
            let (environment, task) = own.map_or((None, task), |own| (Some(own.name), own.task));
            tasks.push(PanelTask { environment, task, seed, kind });
        }
        Self {
            name: format!("{environment}/{}/{}", eval.split, tasks.len()),
            sha256: hex(hasher),
            environment,
            split: eval.split.clone(),
            seed: eval.panel_seed(recipe.seed),
            samples: eval.samples,
            temperature: eval.temperature,
            tasks,
        }
    }

    /// Writes `panel.json`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_json(&dir.join(FILE), &serde_json::to_value(self)?)
    }

    /// The line of `outcomes.jsonl`: the number of samples won of each task.
    pub fn outcomes(&self, iteration: u64, episodes: &[Episode]) -> Value {
        let won = groups(episodes).map(|samples| samples.iter().filter(|episode| episode.won).count());
        json!({ "iteration": iteration, "panel": self.sha256, "won": won.collect::<Vec<_>>() })
    }
}

fn groups(episodes: &[Episode]) -> impl Iterator<Item = &[Episode]> {
    episodes.chunk_by(|a, b| a.group == b.group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Step;
    use crate::recipe::load_resolved;

    const RECIPE: &str = "
iterations: 4
seed: 1
model: {path: model}
env: {plugin: maze}
estimator: {plugin: stars}
rollout: {tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 8, max_response_tokens: 8}
update: {mini_batch: 1, lr: 1}
eval: {tasks: 2, samples: 2, split: eval}
";

    fn episodes(start: &str) -> Vec<Episode> {
        let step = Step { observation: start.into(), ..Step::default() };
        let episode = |group, won| Episode {
            group,
            task: 7 + u64::from(group),
            won,
            steps: vec![step.clone()],
            ..Episode::default()
        };
        vec![episode(0, true), episode(0, true), episode(1, false), episode(1, true)]
    }

    #[test]
    fn the_hash_is_that_of_the_tasks_and_their_starts() -> Result<()> {
        let recipe = load_resolved("recipe", RECIPE)?;
        let panel = Panel::of(&recipe, &episodes("a door"));
        assert_eq!((&*panel.name, panel.tasks.len()), ("maze/eval/2", 2));
        assert_eq!(panel.outcomes(3, &episodes("a door"))["won"], json!([2, 1]));
        let other = load_resolved("recipe", &RECIPE.replace("seed: 1", "seed: 2").replace("samples: 2", "samples: 1"))?;
        assert_eq!(
            Panel::of(&other, &episodes("a door")).sha256,
            panel.sha256,
            "the run's seed draws no other tasks here"
        );
        assert_ne!(Panel::of(&recipe, &episodes("a wall")).sha256, panel.sha256);
        assert_ne!(Panel::of(&recipe, &episodes("a door")[..2]).sha256, panel.sha256);
        Ok(())
    }
}
