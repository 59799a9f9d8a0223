//! Checkpoints: everything that a run needs to resume, in one directory that appears complete or not at all.
//!
//! `checkpoints/iteration-000020/` holds `policy.safetensors` (float32 master weights under their Hugging Face names),
//! `exp_avg.safetensors`, `exp_avg_sq.safetensors`, the same three of a critic (`critic…`), `state.json` (counters,
//! task cursor, KL coefficient), and the model's configuration and tokenizer. `manifest.json` is written last: size and
//! SHA-256 of each file, and a SHA-256 of that list. The directory is written under a temporary name, flushed to disk
//! and renamed.
//!
//! W ranks write W files for each file of tensors, `policy-0000r-of-0000W.safetensors`. Every rank writes its shards:
//! whole tensors, and pieces of others (`NAME[first..end]`). It reads its shards from any number of files. All ranks
//! must share a file system. When one rank fails, all of them fail with its error, and the previous checkpoint remains.
//!
//! With LoRA, `policy.safetensors` holds the frozen weights and `adapter_model.safetensors` the adapters, in peft's
//! format. `eval` computes with both as the run did; `export` merges them. A resumed run reads its start model and the
//! adapters. The moments are those of the adapters. `state.json` has a checksum of the start model.
//!
//! Counters key the random streams, so the counters are the streams' state.

mod atomic_dir;
mod export;
mod manifest;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::Tensor;

pub use atomic_dir::TensorSet;
pub use export::{export, export_adapter, load_model};

use crate::dist::{Comm, agree, from_root};
use crate::files::{sum, write_json};
use crate::input_error;
use crate::model::{Config, Model};
use crate::policy::Network;
use crate::policy::network::{set_shards, shards};
use crate::shard::{Layout, Ranks};
use crate::tokenizer;
use atomic_dir::{remove, write_dir};
use export::open;
use manifest::{MANIFEST, Manifest, damage};

/// The file of an interrupted update.
const INTERRUPTED: &str = "halfway.postcard";
const STATE: &str = "state.json";
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";

/// Names of the sets of tensors of a network: master weights, first and second moments.
type NetworkSets = [&'static str; 3];
const POLICY: NetworkSets = ["policy", "exp_avg", "exp_avg_sq"];
const CRITIC: NetworkSets = ["critic", "critic_exp_avg", "critic_exp_avg_sq"];

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
    /// The folder of the configuration and the tokenizer, which are copied so that the checkpoint can be exported
    /// alone.
    pub model_files: &'a Path,
    /// The next iteration, where a signal interrupted its update.
    pub interrupted: Option<SerializedUpdate>,
}

/// An interrupted update as bytes.
#[derive(Debug)]
pub struct SerializedUpdate {
    /// Number of its finished optimiser steps.
    pub steps: usize,
    pub bytes: Vec<u8>,
}

impl<'a> Contents<'a> {
    pub fn new(
        policy: &'a Network,
        critic: Option<&'a Network>,
        model_files: &'a Path,
        interrupted: Option<SerializedUpdate>,
    ) -> Self {
        let mut sets = vec![TensorSet { name: POLICY[0], layouts: &policy.model.layouts, shards: policy.base() }];
        if let Some(adapters) = &policy.model.adapters {
            sets.push(TensorSet {
                name: ADAPTER,
                layouts: &adapters.layouts,
                shards: shallow(&policy.optimizer.master_weights),
            });
        }
        sets.extend(moments(POLICY, policy));
        if let Some(critic) = critic {
            sets.push(TensorSet {
                name: CRITIC[0],
                layouts: &critic.model.layouts,
                shards: shallow(&critic.optimizer.master_weights),
            });
            sets.extend(moments(CRITIC, critic));
        }
        let adapter_config = policy.model.adapters.as_ref().map(|adapters| adapters.peft_config(model_files));
        Self { sets, adapter_config, model_files, interrupted }
    }

    /// Writes the files that rank 0 alone writes.
    fn write_files(&self, dir: &Path, state: &impl Serialize) -> Result<()> {
        if let Some(config) = &self.adapter_config {
            write_json(&dir.join(ADAPTER_CONFIG), config)?;
        }
        tokenizer::copy_files(self.model_files, dir)?;
        let config = dir.join(CONFIG);
        fs::copy(self.model_files.join(CONFIG), &config).with_context(|| format!("writing {}", config.display()))?;
        if let Some(interrupted) = &self.interrupted {
            let path = dir.join(INTERRUPTED);
            fs::write(&path, &interrupted.bytes).with_context(|| format!("writing {}", path.display()))?;
        }
        let path = dir.join(STATE);
        fs::write(&path, serde_json::to_vec_pretty(state)?).with_context(|| format!("writing {}", path.display()))
    }
}

/// The moments of a network's optimiser.
fn moments([_, first, second]: NetworkSets, network: &Network) -> [TensorSet<'_>; 2] {
    let (layouts, optimizer) = (network.trained(), &network.optimizer);
    [
        TensorSet { name: first, layouts, shards: shallow(&optimizer.exp_avgs) },
        TensorSet { name: second, layouts, shards: shallow(&optimizer.exp_avg_sqs) },
    ]
}

fn shallow(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(Tensor::shallow_clone).collect()
}

/// The set of a frozen network that it does not share with the policy: its weights, or its adapters.
fn own_set<'a>(frozen: &'a Model, ranks: &Ranks) -> TensorSet<'a> {
    match &frozen.adapters {
        Some(adapters) => TensorSet { name: ADAPTER, layouts: &adapters.layouts, shards: adapters.shards(ranks) },
        None => TensorSet { name: POLICY[0], layouts: &frozen.layouts, shards: shards(frozen, ranks) },
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
        Self { dir: run_dir.join("checkpoints") }
    }

    /// Saves a checkpoint after `iteration` finished iterations, and keeps the newest `keep`.
    pub fn save(
        &self,
        comm: &dyn Comm,
        iteration: u64,
        contents: &Contents,
        state: &impl Serialize,
        keep: usize,
    ) -> Result<()> {
        let more =
            contents.interrupted.as_ref().map_or(String::new(), |interrupted| format!("+{:06}", interrupted.steps));
        let path = self.dir.join(format!("iteration-{iteration:06}{more}"));
        write_dir(comm, &path, &contents.sets, |dir| contents.write_files(dir, state))?;
        agree(comm, if comm.rank() == 0 { self.remove_old(&path, keep) } else { Ok(()) })
    }

    /// Removes all checkpoints but the newest `keep` up to the one just written. Later ones are damaged: the run
    /// resumed from an earlier one.
    fn remove_old(&self, newest: &Path, keep: usize) -> Result<()> {
        let (good, late): (Vec<_>, Vec<_>) = self.list()?.into_iter().partition(|path| path.as_path() <= newest);
        for old in good.iter().rev().skip(keep.max(1)).chain(&late) {
            remove(old).with_context(|| format!("removing the old checkpoint {}", old.display()))?;
        }
        Ok(())
    }

    /// Saves the frozen reference, once per run: its weights, or only its adapters where it has the policy's base.
    pub fn save_reference(&self, reference: &Model, ranks: &Ranks) -> Result<()> {
        write_dir(&*ranks.comm, &self.reference_dir(), &[own_set(reference, ranks)], |_| Ok(()))
    }

    /// Loads what [`Self::save_reference`] saved.
    pub fn load_reference(&self, reference: &mut Model, ranks: &Ranks) -> Result<()> {
        let (comm, dir) = (&*ranks.comm, self.reference_dir());
        if let Some(why) = damage(comm, &dir)? {
            return Err(input_error!("{why}"));
        }
        let TensorSet { name, layouts, shards } = own_set(reference, ranks);
        let read = || open(&Manifest::read(&dir)?, &dir, name, layouts)?.fill(layouts, comm, &shards);
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
        let all = from_root(comm, || self.list())?;
        for path in all.iter().rev() {
            let Some(why) = damage(comm, path)? else { return Ok(Some(path.clone())) };
            if comm.rank() == 0 {
                warn(&format!("skipping checkpoint {}: {why}", path.display()));
            }
        }
        ensure!(all.is_empty(), "every checkpoint in {} is damaged: start another run", self.dir.display());
        Ok(None)
    }

    pub fn has_reference(&self) -> bool {
        self.reference_dir().exists()
    }

    /// Refuses a checkpoint whose network or tokenizer differs from that in the folder `model_files`.
    pub fn check_model(path: &Path, model_files: &Path) -> Result<()> {
        let file = if Config::load(path)? != Config::load(model_files)? {
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

    /// Loads this rank's shards of the networks' master weights and moments, and the run's state, from an undamaged
    /// checkpoint.
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
                if manifest.set(path, CRITIC[0]).is_empty() {
                    return Err(input_error!(
                        "{} holds no critic: resume without one, or start another run",
                        path.display()
                    ));
                }
                read_network(comm, (path, &manifest), CRITIC, critic)?;
            }
            let text = fs::read_to_string(path.join(STATE)).with_context(|| format!("reading {}", path.display()))?;
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

    /// The interrupted update of an undamaged checkpoint.
    pub fn interrupted(path: &Path) -> Result<Option<Vec<u8>>> {
        let file = path.join(INTERRUPTED);
        if !file.exists() {
            return Ok(None);
        }
        fs::read(&file).map(Some).with_context(|| format!("reading {}", file.display()))
    }

    /// Fills this rank's shards of one set of tensors from an undamaged checkpoint.
    pub fn read(comm: &dyn Comm, path: &Path, name: &str, layouts: &[Layout], shards: &[Tensor]) -> Result<()> {
        open(&Manifest::read(path)?, path, name, layouts)?.fill(layouts, comm, shards)
    }

    /// The checkpoints, oldest first.
    fn list(&self) -> Result<Vec<PathBuf>> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&self.dir).with_context(|| format!("listing {}", self.dir.display()))?;
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(is_checkpoint_name))
            .collect();
        paths.sort();
        Ok(paths)
    }

    fn reference_dir(&self) -> PathBuf {
        self.dir.join("reference")
    }
}

/// True if a directory is a complete checkpoint.
pub fn is_checkpoint(dir: &Path) -> bool {
    dir.join(MANIFEST).exists()
}

fn is_checkpoint_name(name: &str) -> bool {
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix("iteration-")
        .is_some_and(|n| n.split_once('+').map_or(number(n), |(n, m)| number(n) && number(m)))
}

/// Fills this rank's shards of a network and its optimiser's moments.
fn read_network(
    comm: &dyn Comm,
    (dir, manifest): (&Path, &Manifest),
    [master_weights, first, second]: NetworkSets,
    network: &mut Network,
) -> Result<()> {
    let master_weights = if network.model.adapters.is_some() { ADAPTER } else { master_weights };
    let layouts = network.trained().to_vec();
    let optimizer = &mut network.optimizer;
    let tensors = [&mut optimizer.master_weights, &mut optimizer.exp_avgs, &mut optimizer.exp_avg_sqs];
    for (name, shards) in [master_weights, first, second].into_iter().zip(tensors) {
        open(manifest, dir, name, &layouts)?.fill(&layouts, comm, shards)?;
    }
    Ok(())
}
