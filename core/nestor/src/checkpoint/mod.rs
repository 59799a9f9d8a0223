//! Checkpoints: everything that a run needs to resume, in one directory that appears complete or not at all.
//!
//! `checkpoints/iteration-000020/` holds `policy.safetensors` (float32 master weights under their Hugging Face names),
//! a file for each named state of the optimizer (such as `exp_avg.safetensors`), the same of a critic (`critic…`), `state.json` (counters,
//! task cursor, KL coefficient), the state of an estimator that remembers (`estimator-state.bin`), and the model's configuration
//! and tokenizer. `manifest.json` is written last: size and
//! SHA-256 of each file, and a SHA-256 of that list. The directory is written under a temporary name, flushed to disk
//! and renamed. The links `latest` and `best` name two of them. With `checkpoint.background` a thread writes a copy of the tensors
//! beside the next iteration, at whose end the directory gets its manifest and its name.
//!
//! W ranks write W files for each file of tensors, `policy-0000r-of-0000W.safetensors`. Every rank writes its shards:
//! whole tensors, and pieces of others (`NAME[first..end]`). It reads its shards from any number of files. All ranks
//! must share a file system. When one rank fails, all of them fail with its error, and the previous checkpoint remains.
//!
//! With LoRA, `adapter_model.safetensors` holds the adapters, in peft's format, and `base_model.json` names the start model with
//! a checksum of its weights. `eval` computes with both as the run did; `export` merges them. The optimizer's state is that of
//! the adapters. Older checkpoints hold the frozen weights too, as `policy.safetensors`.
//!
//! Counters key the random streams, so the counters are the streams' state.

mod adapted;
mod atomic_dir;
mod base;
mod export;
mod links;
mod manifest;
mod mirrored;
mod moment;
mod named;
mod parts;
mod saving;
mod source;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nestor_plugin::files::{self, LARGE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Tensor;

pub use adapted::load_adapters;
pub use atomic_dir::TensorSet;
pub use base::Base;
pub use export::{export, export_adapter, load_model};
pub use mirrored::FORMAT;
pub use moment::Moment;
pub use parts::{changed_since, tensor_sets};
pub use saving::{Save, Saving};
pub use source::Source;

use crate::files::{read_object, sum, write_json};
use crate::input_error;
use crate::model::VisionConfig;
use crate::model::weights::write_processor;
use crate::model::{Config, Model};
use crate::policy::Network;
use crate::policy::network::{set_shards, shards};
use crate::ranks::{Comm, agree, from_root};
use crate::shard::{Adapters, Layout, Ranks};
use crate::terminal;
use crate::tokenizer;
use atomic_dir::{Staged, remove};
use export::open;
use links::{BEST, LATEST, point};
use manifest::{MANIFEST, Manifest, damage};
use moment::REFERENCE;

/// The file of an interrupted update.
const INTERRUPTED: &str = "halfway.postcard";
/// The file of the estimator's state.
pub const ESTIMATOR: &str = "estimator-state.bin";
/// The file of a warm start under way.
const WARM_START: &str = "warm-start.postcard";
/// The run's counters.
pub const STATE: &str = "state.json";
/// The folder of a run's checkpoints.
const CHECKPOINTS: &str = "checkpoints";
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";

/// Names of a network's sets of tensors.
#[derive(Debug, Clone, Copy)]
struct NetworkSets {
    master_weights: &'static str,
    /// The set of a named state of the optimizer begins with it.
    prefix: &'static str,
}
const POLICY: NetworkSets = NetworkSets { master_weights: "policy", prefix: "" };
const CRITIC: NetworkSets = NetworkSets { master_weights: "critic", prefix: "critic_" };

impl NetworkSets {
    fn state(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// A policy's adapters, in peft's format and under peft's names.
const ADAPTER: &str = "adapter_model";
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The contents of a checkpoint beside the run's state.
#[derive(Debug)]
pub struct Contents<'a> {
    /// This rank's shards.
    pub sets: Vec<TensorSet<'a>>,
    /// peft's `adapter_config.json`, for a policy with adapters.
    pub adapter_config: Option<Value>,
    /// The start model of a policy with adapters.
    pub base: Option<Base>,
    /// The policy's head is its embedding.
    pub ties: bool,
    /// The policy's vision tower, with the recipe's limits of images.
    pub vision: Option<&'a VisionConfig>,
    /// The folder of the configuration and the tokenizer, which are copied so that the checkpoint can be exported
    /// alone.
    pub model_files: &'a Path,
    /// Work between two iterations' ends, which the resumed run finishes.
    pub unfinished: Option<Unfinished>,
    /// The estimator's state, at rank 0, where the estimator has one.
    pub estimator: Option<&'a [u8]>,
}

/// Unfinished work, as bytes.
#[derive(Debug, Serialize, Deserialize)]
pub enum Unfinished {
    /// The warm start, or the first evaluation after it.
    WarmStart(Vec<u8>),
    /// The next iteration, from the start of its update on.
    Update(Vec<u8>),
}

impl Unfinished {
    fn file(&self) -> (&'static str, &[u8]) {
        match self {
            Self::WarmStart(bytes) => (WARM_START, bytes),
            Self::Update(bytes) => (INTERRUPTED, bytes),
        }
    }
}

/// The checkpoints that remain when another is saved.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Number of the newest ones.
    pub keep: usize,
    /// The one with the highest success in an evaluation.
    pub best: Option<Moment>,
    /// The last one before training diverged.
    pub good: Option<Moment>,
}

impl<'a> Contents<'a> {
    pub fn new(
        policy: &'a Network,
        critic: Option<&'a Network>,
        model_files: &'a Path,
        unfinished: Option<Unfinished>,
    ) -> Result<Self> {
        let mut sets = vec![match &policy.model.adapters {
            None => {
                TensorSet { name: POLICY.master_weights.into(), layouts: &policy.model.layouts, shards: policy.base() }
            }
            Some(adapters) => TensorSet {
                name: ADAPTER.into(),
                layouts: &adapters.layouts,
                shards: shallow(&policy.optimizer.master_weights),
            },
        }];
        sets.extend(optimizer_state(POLICY, policy));
        if let Some(critic) = critic {
            let base = CRITIC.master_weights.into();
            sets.push(TensorSet { name: base, layouts: &critic.model.layouts, shards: critic.base() });
            sets.extend(optimizer_state(CRITIC, critic));
        }
        let adapter_config = policy.model.adapters.as_ref().map(|adapters| peft_config(adapters, model_files));
        let config = &policy.model.config;
        let (ties, vision) = (config.tie_word_embeddings, config.vision.as_ref());
        let adapter_config = adapter_config.transpose()?;
        Ok(Self { sets, adapter_config, base: None, ties, vision, model_files, unfinished, estimator: None })
    }

    /// Writes the files that rank 0 alone writes.
    fn add(&self, comm: &dyn Comm, dir: &Path, state: &impl Serialize) -> Result<()> {
        if comm.rank() > 0 {
            return Ok(());
        }
        if let Some(config) = &self.adapter_config {
            write_json(&dir.join(ADAPTER_CONFIG), config)?;
        }
        self.base.as_ref().map_or(Ok(()), |base| base.write(dir))?;
        tokenizer::copy_files(self.model_files, dir)?;
        let (config, original) = (dir.join(CONFIG), self.model_files.join(CONFIG));
        fs::copy(&original, &config).with_context(|| format!("writing {}", config.display()))?;
        // The weights may break the tie of the start model's file.
        if !self.ties
            && let Some(mut json) = read_object(&original)?
            && json.get("tie_word_embeddings") == Some(&true.into())
        {
            json.insert("tie_word_embeddings".into(), false.into());
            write_json(&config, &json.into())?;
        }
        self.vision.map_or(Ok(()), |vision| write_processor(vision, dir))?;
        let states = self.estimator.map(|bytes| (ESTIMATOR, bytes));
        for (name, bytes) in self.unfinished.as_ref().map(Unfinished::file).into_iter().chain(states) {
            let path = dir.join(name);
            fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        }
        let path = dir.join(STATE);
        fs::write(&path, serde_json::to_vec_pretty(state)?).with_context(|| format!("writing {}", path.display()))
    }
}

/// peft's configuration of adapters to the model in a folder.
fn peft_config(adapters: &Adapters, model_files: &Path) -> Result<Value> {
    let (model, revision) = base::named(model_files)?;
    Ok(adapters.peft_config(&model, revision.as_deref()))
}

/// The state of a network's optimizer.
fn optimizer_state(names: NetworkSets, network: &Network) -> impl Iterator<Item = TensorSet<'_>> {
    network.optimizer.state.iter().map(move |state| TensorSet {
        name: names.state(state.name),
        layouts: &state.layouts,
        shards: shallow(&state.shards),
    })
}

fn shallow(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(Tensor::shallow_clone).collect()
}

/// The set of a frozen network that it does not share with the policy: its weights, or its adapters.
fn own_set<'a>(frozen: &'a Model, ranks: &Ranks) -> TensorSet<'a> {
    match &frozen.adapters {
        Some(adapters) => {
            TensorSet { name: ADAPTER.into(), layouts: &adapters.layouts, shards: adapters.shards(ranks) }
        }
        None => {
            TensorSet { name: POLICY.master_weights.into(), layouts: &frozen.layouts, shards: shards(frozen, ranks) }
        }
    }
}

/// A directory of checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    dir: PathBuf,
}

impl Checkpoints {
    /// The checkpoints of a run directory.
    pub fn new(run_dir: &Path) -> Self {
        Self { dir: run_dir.join(CHECKPOINTS) }
    }

    /// The directory of the checkpoint of this moment.
    pub fn path(&self, moment: Moment) -> PathBuf {
        self.dir.join(moment.to_string())
    }

    /// Links the newest of the checkpoints that were fetched from a mirror, which has no links. A save links the best one.
    pub fn link_newest(&self) -> Result<()> {
        let newest = self.newest_moment()?.map(|newest| newest.to_string());
        point(&self.dir, LATEST, newest.as_deref())
    }

    /// Links the newest checkpoint and the best one. Some file systems have no links, so a failure is only a warning.
    fn link(&self, newest: Moment, retention: &Retention) {
        let best = retention.best.filter(|&best| self.path(best).exists()).map(|best| best.to_string());
        for (name, target) in [(LATEST, Some(newest.to_string())), (BEST, best)] {
            if let Err(error) = point(&self.dir, name, target.as_deref()) {
                terminal::warn(&format!("warning: {error:#}; the checkpoint itself is whole"));
            }
        }
    }

    /// Removes all checkpoints but the best, the last good one and the newest `keep` up to the one just written. Later ones are damaged: the
    /// run resumed from an earlier one.
    fn remove_old(&self, newest: Moment, retention: &Retention) -> Result<()> {
        let (good, late): (Vec<_>, Vec<_>) = self.list()?.into_iter().partition(|(moment, _)| *moment <= newest);
        let named = [retention.best, retention.good];
        let old = good.iter().rev().skip(retention.keep.max(1)).filter(|(moment, _)| !named.contains(&Some(*moment)));
        for (_, old) in old.chain(&late) {
            remove(old).with_context(|| format!("removing the old checkpoint {}", old.display()))?;
        }
        Ok(())
    }

    /// Saves the frozen reference, once per run: its weights, or only its adapters where it has the policy's base.
    pub fn save_reference(&self, reference: &Model, ranks: &Ranks) -> Result<()> {
        let comm = &*ranks.comm;
        let staged = Staged::begin(comm, &self.reference_dir())?;
        staged.end(comm, staged.write((comm.rank(), comm.world()), &[own_set(reference, ranks)]))
    }

    /// Loads what [`Self::save_reference`] saved.
    pub fn load_reference(&self, reference: &mut Model, ranks: &Ranks) -> Result<()> {
        let (comm, dir) = (&*ranks.comm, self.reference_dir());
        if let Some(why) = damage(comm, &dir)? {
            return Err(input_error!("{why}"));
        }
        let TensorSet { name, layouts, shards } = own_set(reference, ranks);
        let read = || open(&Manifest::read(&dir)?, &dir, &name, layouts)?.fill(layouts, comm, &shards);
        agree(comm, read())?;
        match &mut reference.adapters {
            Some(adapters) => adapters.gather(&shards, ranks),
            None => set_shards(reference, ranks, &shards),
        }
    }

    /// The newest undamaged checkpoint, the same one at every rank; none where there is no checkpoint. Skips damaged
    /// ones and names them to `warn` (at rank 0).
    ///
    /// # Errors
    /// When there are checkpoints and all are damaged.
    pub fn newest(&self, comm: &dyn Comm, mut warn: impl FnMut(&str)) -> Result<Option<PathBuf>> {
        let all: Vec<PathBuf> = from_root(comm, || Ok(self.list()?.into_iter().map(|(_, path)| path).collect()))?;
        for path in all.iter().rev() {
            let Some(why) = damage(comm, path)? else { return Ok(Some(path.clone())) };
            if comm.rank() == 0 {
                warn(&format!("skipping checkpoint {}: {why}", path.display()));
            }
        }
        ensure!(all.is_empty(), "every checkpoint in {} is damaged: start another run", self.dir.display());
        Ok(None)
    }

    /// The moment of the newest checkpoint, damaged or not; none where there is none.
    pub fn newest_moment(&self) -> Result<Option<Moment>> {
        Ok(self.list()?.last().map(|(moment, _)| *moment))
    }

    /// All undamaged checkpoints, the oldest first. Names damaged ones to `warn`.
    pub fn whole(&self, comm: &dyn Comm, mut warn: impl FnMut(&str)) -> Result<Vec<PathBuf>> {
        let mut whole = Vec::new();
        for (_, path) in self.list()? {
            match damage(comm, &path)? {
                None => whole.push(path),
                Some(why) => warn(&format!("skipping checkpoint {}: {why}", path.display())),
            }
        }
        Ok(whole)
    }

    pub fn has_reference(&self) -> bool {
        self.reference_dir().exists()
    }

    /// Refuses a checkpoint whose network or tokenizer differs from that in the folder `model_files`.
    pub fn check_model(path: &Path, model_files: &Path) -> Result<()> {
        // A checkpoint has the recipe's limits of images, which a resumed run may change.
        let network = |dir: &Path| Config::load(dir).map(Config::without_image_limits);
        let file = if network(path)? != network(model_files)? {
            CONFIG
        } else if sum(&path.join(TOKENIZER))? != sum(&model_files.join(TOKENIZER))? {
            TOKENIZER
        } else {
            return Ok(());
        };
        Err(input_error!(
            "{} belongs to another model: its {file} differs from that of {}; put the model back that the run began \
             with, or start another run",
            path.display(),
            model_files.display()
        ))
    }

    /// Loads this rank's shards of the networks' master weights and of their optimizers' state, and the run's state, from an
    /// undamaged checkpoint.
    pub fn load<S: DeserializeOwned>(
        comm: &dyn Comm,
        path: &Path,
        policy: &mut Network,
        mut critic: Option<&mut Network>,
    ) -> Result<S> {
        let read = |policy: &mut Network, critic: Option<&mut Network>| {
            let manifest = Manifest::read(path)?;
            read_network(comm, (path, &manifest), POLICY, policy)?;
            if let Some(critic) = critic {
                if manifest.set(path, CRITIC.master_weights).is_empty() {
                    return Err(input_error!(
                        "{} holds no critic: resume without one, or start another run",
                        path.display()
                    ));
                }
                read_network(comm, (path, &manifest), CRITIC, critic)?;
            }
            let text = files::read_to_string(&path.join(STATE), LARGE)
                .with_context(|| format!("reading {}", path.display()))?;
            serde_json::from_str(&text).with_context(|| format!("reading {}", path.join(STATE).display()))
        };
        let state = read(policy, critic.as_deref_mut());
        let (state, own) = match state {
            Ok(state) => (Some(state), Ok(())),
            Err(error) => (None, Err(error)),
        };
        agree(comm, own)?;
        policy.refresh()?;
        if let Some(critic) = critic {
            critic.refresh()?;
        }
        state.context("every rank has read the state")
    }

    /// The unfinished work of an undamaged checkpoint.
    pub fn unfinished(path: &Path) -> Result<Option<Unfinished>> {
        if let Some(bytes) = read_optional(path, WARM_START)? {
            return Ok(Some(Unfinished::WarmStart(bytes)));
        }
        Ok(read_optional(path, INTERRUPTED)?.map(Unfinished::Update))
    }

    /// The estimator's state in an undamaged checkpoint; none where the estimator had none.
    pub fn estimator_state(path: &Path) -> Result<Option<Vec<u8>>> {
        read_optional(path, ESTIMATOR)
    }

    /// Fills this rank's shards of one set of tensors from an undamaged checkpoint.
    pub fn read(comm: &dyn Comm, path: &Path, name: &str, layouts: &[Layout], shards: &[Tensor]) -> Result<()> {
        open(&Manifest::read(path)?, path, name, layouts)?.fill(layouts, comm, shards)
    }

    /// The checkpoints with their moments, oldest first.
    fn list(&self) -> Result<Vec<(Moment, PathBuf)>> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&self.dir).with_context(|| format!("listing {}", self.dir.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut all: Vec<_> =
            paths.filter_map(|path| Some((Moment::of_name(path.file_name()?.to_str()?)?, path))).collect();
        all.sort();
        Ok(all)
    }

    fn reference_dir(&self) -> PathBuf {
        self.dir.join(REFERENCE)
    }
}

/// The bytes of a file of a checkpoint; none where it has no such file.
fn read_optional(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let file = dir.join(name);
    let bytes = file.exists().then(|| fs::read(&file)).transpose();
    bytes.with_context(|| format!("reading {}", file.display()))
}

/// True if a directory is a complete checkpoint.
pub fn is_checkpoint(dir: &Path) -> bool {
    dir.join(MANIFEST).exists()
}

/// Fills this rank's shards of a network and its optimizer's state.
fn read_network(
    comm: &dyn Comm,
    (dir, manifest): (&Path, &Manifest),
    names: NetworkSets,
    network: &mut Network,
) -> Result<()> {
    let layouts = network.trained().to_vec();
    // The set of the weights has the frozen units too, which the run reads from its start model.
    let (master_weights, stored) = match network.model.adapters {
        Some(_) => (ADAPTER, layouts.clone()),
        None => (names.master_weights, network.model.layouts.clone()),
    };
    let optimizer = &network.optimizer;
    open(manifest, dir, master_weights, &stored)?.fill(&layouts, comm, &optimizer.master_weights)?;
    for state in &optimizer.state {
        let name = names.state(state.name);
        // The checkpoint is undamaged, so a part that is not there is of another optimizer.
        let files = open(manifest, dir, &name, &state.layouts).map_err(|_| {
            input_error!(
                "{} holds no such `{name}`: its run had another optimizer; resume with that one, or start another run from the \
                 checkpoint's model",
                dir.display()
            )
        })?;
        files.fill(&state.layouts, comm, &state.shards)?;
    }
    Ok(())
}
