//! The warm starts that runs of a sweep share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files::{self, LARGE};
use nestor_recipe::{Recipe, input_error, load_resolved};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::file::Sweep;
use super::job::Job;

/// The folder of shared warm starts inside that of the sweep. Hidden, so that `DIR/*` are the runs.
const WARM_STARTS: &str = ".warm_starts";

/// A warm start that several runs share.
#[derive(Debug, Clone)]
pub struct WarmStart {
    /// The run directory in which it is made.
    pub run: PathBuf,
    /// The folder of its policy.
    pub model: PathBuf,
    /// `--set` arguments of its run.
    pub sets: Vec<String>,
}

impl WarmStart {
    pub fn name(&self) -> &'static str {
        "the shared warm start"
    }

    pub fn is_ready(&self) -> bool {
        self.model.is_dir()
    }
}

/// The warm starts that jobs share. Changes these jobs to start from the model of theirs.
pub fn warm_starts(sweep: &Sweep, jobs: &mut [Job]) -> Result<Vec<WarmStart>> {
    let mut shared: BTreeMap<String, Vec<&mut Job>> = BTreeMap::new();
    let seed = sweep.file.warm_start_seed;
    for job in jobs {
        if job.recipe.warm_start.is_some()
            && job.recipe.model.lora.is_some()
            && seed.is_some_and(|seed| seed != job.recipe.seed)
        {
            return Err(input_error!(
                "warm_start_seed: {} has adapters, and each run with adapters makes its own warm start by its own seed; leave \
                 warm_start_seed out, or set model.lora to null",
                job.name
            ));
        }
        // Adapters belong to the weights below them, which an exported model has no more.
        if job.recipe.warm_start.is_some() && job.recipe.model.lora.is_none() {
            shared.entry(identity(&job.recipe, seed)?).or_default().push(job);
        }
    }
    let mut all = Vec::new();
    for (identity, sharing) in shared {
        if sharing.len() < 2 && seed.is_none() {
            continue;
        }
        let dir = folder(&sweep.dir.join(WARM_STARTS), &identity);
        let start = warm_start(&dir, &sharing[0].sets, seed);
        for job in sharing {
            job.sets.push(format!("model={}", json!({ "path": start.model })));
            job.sets.push("warm_start=null".into());
            job.model = Some(start.model.clone());
        }
        all.push(start);
    }
    Ok(all)
}

/// The folder of the warm start of an identity. A newer Nestor has more keys and so another hash of the same recipe: its sweeps keep the
/// folders that an older one began, since a run that is resumed keeps the name of its model.
fn folder(all: &Path, identity: &str) -> PathBuf {
    let own = all.join(identity);
    let Some((_, seed)) = identity.split_once('/').filter(|_| !own.is_dir()) else { return own };
    let same = |folder: &PathBuf| {
        let text = files::read_to_string(&folder.join("run/recipe.yaml"), LARGE).ok()?;
        let recipe = load_resolved("a warm start", &text).ok()?;
        Some(self::identity(&recipe, Some(recipe.seed)).ok()? == identity)
    };
    let older = std::fs::read_dir(all).into_iter().flatten().flatten().map(|entry| entry.path().join(seed));
    older.filter(|folder| same(folder) == Some(true)).min().unwrap_or(own)
}

/// The run of a warm start: that of a job which shares it, without reinforcement learning.
fn warm_start(dir: &Path, sets: &[String], seed: Option<u64>) -> WarmStart {
    let own = ["iterations=0", "eval.every=0", "checkpoint.mirror=null", "wandb=null", "tensorboard=null"]
        .map(str::to_string);
    let seed = seed.map(|seed| format!("seed={seed}"));
    WarmStart {
        run: dir.join("run"),
        model: dir.join("model"),
        sets: sets.iter().cloned().chain(own).chain(seed).collect(),
    }
}

/// A hash of everything that a warm start depends on but the seed, and the seed: `nestor compare` tells them apart.
fn identity(recipe: &Recipe, seed: Option<u64>) -> Result<String> {
    let all = serde_json::to_value(recipe).context("writing the recipe as JSON")?;
    let mut rollout = all["rollout"].clone();
    // These belong to reinforcement learning alone, or to the machine.
    for key in [
        "tasks",
        "group_size",
        "slots",
        "invalid_action_penalty",
        "dynamic_sampling",
        "curriculum",
        "temperature",
        "env_threads",
    ] {
        rollout.as_object_mut().map(|keys| keys.remove(key));
    }
    let update: Vec<&Value> =
        ["betas", "weight_decay", "grad_clip", "micro_batch_tokens"].map(|key| &all["update"][key]).into();
    let seed = seed.unwrap_or(recipe.seed);
    let whole = json!([all["model"], all["env"], all["dtype"], all["device"], rollout, all["warm_start"], update]);
    let hash: String = Sha256::digest(whole.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}/seed-{seed}", &hash[..12]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = "
iterations: 4
seed: 9
model: {new: {hidden_size: 8, intermediate_size: 8, layers: 1, heads: 2, kv_heads: 1, vocab_size: 300}}
env: {plugin: maze}
estimator: {plugin: stars}
rollout: {tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 8, max_response_tokens: 8}
update: {mini_batch: 1, lr: 1}
warm_start: {steps: 10, batch: 4, lr: 1}
eval: {tasks: 2}
";

    /// The number of warm starts that the runs of a sweep share, and the jobs.
    fn shared(keys: &str) -> Result<(usize, Vec<Job>)> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("base.yaml"), RECIPE)?;
        std::fs::write(dir.path().join("sweep.yaml"), format!("{{recipe: base.yaml, dir: runs/s, {keys}}}"))?;
        let sweep = Sweep::read(&dir.path().join("sweep.yaml"))?;
        let mut jobs = sweep.jobs()?;
        Ok((warm_starts(&sweep, &mut jobs)?.len(), jobs))
    }

    #[test]
    fn the_run_of_a_warm_start_is_valid_beside_a_warm_up() -> Result<()> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("base.yaml"), RECIPE.replace("lr: 1}\nwarm", "lr: 1, warmup: 3}\nwarm"))?;
        std::fs::write(dir.path().join("sweep.yaml"), "{recipe: base.yaml, seeds: [1], warm_start_seed: 7}")?;
        let sweep = Sweep::read(&dir.path().join("sweep.yaml"))?;
        let start = warm_starts(&sweep, &mut sweep.jobs()?)?.remove(0);
        let recipe = nestor_recipe::load(&sweep.recipe, &start.sets)?;
        assert_eq!((recipe.iterations, recipe.update.warmup), (0, 3));
        Ok(())
    }

    #[test]
    fn a_warm_start_of_a_version_with_fewer_keys_is_kept() -> Result<()> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("base.yaml"), RECIPE)?;
        let file = dir.path().join("sweep.yaml");
        std::fs::write(&file, format!("{{recipe: base.yaml, dir: {:?}, seeds: [9, 10]}}", dir.path().join("s")))?;
        let mut sweep = Sweep::read(&file)?;
        sweep.file.warm_start_seed = Some(9);
        let start = |sweep: &Sweep| Ok::<_, anyhow::Error>(warm_starts(sweep, &mut sweep.jobs()?)?.remove(0).run);
        let older = sweep.dir.join(WARM_STARTS).join("0123456789ab/seed-9/run");
        std::fs::create_dir_all(&older)?;
        let recipe = sweep.jobs()?.remove(0).recipe.to_yaml()?;
        let fewer: String = recipe.split_inclusive('\n').filter(|line| !line.contains("top_p")).collect();
        assert_ne!(fewer, recipe);
        std::fs::write(older.join("recipe.yaml"), &fewer)?;
        assert_eq!(start(&sweep)?, older);
        std::fs::write(older.join("recipe.yaml"), fewer.replace("steps: 10", "steps: 11"))?;
        assert_ne!(start(&sweep)?, older);
        Ok(())
    }

    #[test]
    fn runs_share_a_warm_start_where_nothing_that_it_depends_on_differs() -> Result<()> {
        let estimators = "variants: {a: {estimator.plugin: moons}, b: {update.lr: 0.5, rollout.tasks: 2}}";
        let (count, jobs) = shared(&format!("{estimators}, seeds: [1, 2]"))?;
        assert_eq!(count, 2, "one for each seed");
        assert!(jobs.iter().all(|job| job.sets.iter().any(|set| set == "warm_start=null")));
        assert_eq!(shared(&format!("{estimators}, seeds: [1, 2], warm_start_seed: 7"))?.0, 1);
        let (count, jobs) = shared("variants: {a: {warm_start.lr: 0.5}, b: {env.config: {size: 3}}}")?;
        assert_eq!(count, 0, "each makes its own");
        assert!(jobs.iter().all(|job| job.model.is_none()));
        let adapters = "variants: {a: {model.lora: {rank: 2, alpha: 4}}, b: {model.lora: {rank: 2, alpha: 4}}}";
        assert_eq!(shared(adapters)?.0, 0);
        assert_eq!(shared(&format!("{adapters}, seeds: [7], warm_start_seed: 7"))?.0, 0);
        let refused = shared(&format!("{adapters}, seeds: [7, 8], warm_start_seed: 7")).expect_err("not shared");
        assert!(refused.to_string().contains("warm_start_seed: a/seed-8 has adapters"), "{refused}");
        Ok(())
    }
}
