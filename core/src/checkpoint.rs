//! Checkpoints: everything a run needs to go on, in one directory that appears whole or not at all.
//!
//! `checkpoints/iteration-000020/` holds `policy.safetensors` (float32 masters under their Hugging Face names),
//! `exp_avg.safetensors`, `exp_avg_sq.safetensors`, the same three of a critic (`critic…`), `state.json` (counters, task
//! cursor, KL coefficient) and, written last, `manifest.json` with a SHA-256 of each file. It is written under a temporary
//! name, flushed to disk and renamed.
//!
//! With LoRA `policy.safetensors` holds the merged weights that the run computed with, so that it is all that `eval` and
//! `export` need; a resumed run merges anew, from its start model and the adapters (`adapter_model.safetensors`, in peft's
//! form). The moments are the adapters'. `state.json` has a checksum of the start model.
//!
//! Random streams are keyed by counters, so the counters are their state.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tch::{Device, Kind};

use crate::failpoint::failpoint;
use crate::files::write_json;
use crate::input_error;
use crate::model::config::Output;
use crate::model::weights::{self, read_flats, write_flats};
use crate::model::{Config, Model};
use crate::policy::Network;
use crate::tokenizer;

const MANIFEST: &str = "manifest.json";
const STATE: &str = "state.json";
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";

/// Files of a network: masters, first and second moments.
type NetworkFiles = [&'static str; 3];
const POLICY: NetworkFiles = ["policy.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors"];
const CRITIC: NetworkFiles = ["critic.safetensors", "critic_exp_avg.safetensors", "critic_exp_avg_sq.safetensors"];

/// A policy's adapters, in the form and under the names that peft gives them.
const ADAPTER: &str = "adapter_model.safetensors";
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// What a checkpoint is made of beside the run's state.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// The policy.
    pub policy: &'a Network,
    /// The critic, where there is one.
    pub critic: Option<&'a Network>,
    /// The folder with configuration and tokenizer, so that a checkpoint can be exported by itself.
    pub model_files: &'a Path,
}

/// SHA-256 of each file of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    files: BTreeMap<String, String>,
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

    /// Saves the networks and a run's state as of `iteration` iterations done; keeps the newest `keep`.
    pub fn save(&self, iteration: u64, saved: &Saved, state: &impl Serialize, keep: usize) -> Result<()> {
        let path = self.dir.join(format!("iteration-{iteration:06}"));
        let (policy, files) = (&saved.policy, saved.model_files);
        write_whole(&path, |dir| {
            write_flats(&dir.join(POLICY[0]), &policy.model.layouts, &policy.weights())?;
            failpoint("mid-checkpoint");
            if let Some(adapters) = &policy.adapters {
                write_flats(&dir.join(ADAPTER), &adapters.layouts, &policy.optimizer.masters)?;
                write_json(&dir.join(ADAPTER_CONFIG), &adapters.peft_config(files))?;
            }
            write_moments(dir, POLICY, policy)?;
            if let Some(critic) = saved.critic {
                write_flats(&dir.join(CRITIC[0]), &critic.model.layouts, &critic.optimizer.masters)?;
                write_moments(dir, CRITIC, critic)?;
            }
            tokenizer::copy_files(files, dir)?;
            fs::copy(files.join(CONFIG), dir.join(CONFIG))
                .with_context(|| format!("writing {}", dir.join(CONFIG).display()))?;
            let path = dir.join(STATE);
            fs::write(&path, serde_json::to_vec_pretty(state)?).with_context(|| format!("writing {}", path.display()))
        })?;
        for old in self.list()?.iter().rev().skip(keep.max(1)) {
            fs::remove_dir_all(old).with_context(|| format!("removing the old checkpoint {}", old.display()))?;
        }
        Ok(())
    }

    /// Saves the frozen reference, once per run.
    pub fn save_reference(&self, reference: &Model) -> Result<()> {
        write_whole(&self.reference_dir(), |dir| {
            write_flats(&dir.join(POLICY[0]), &reference.layouts, reference.units.held())
        })
    }

    /// Loads the frozen reference.
    pub fn load_reference(&self, reference: &mut Model) -> Result<()> {
        let dir = self.reference_dir();
        verify(&dir)?;
        read_flats(&dir.join(POLICY[0]), &reference.layouts, reference.units.held())
    }

    /// The newest checkpoint whose files are whole, if there is any. Damaged ones are named on `warn` and passed over.
    ///
    /// # Errors
    /// When there are checkpoints, and all are damaged.
    pub fn newest(&self, mut warn: impl FnMut(&str)) -> Result<Option<PathBuf>> {
        let all = self.list()?;
        for path in all.iter().rev() {
            match verify(path) {
                Ok(()) => return Ok(Some(path.clone())),
                Err(error) => warn(&format!("checkpoint {} is passed over: {error:#}", path.display())),
            }
        }
        ensure!(all.is_empty(), "every checkpoint in {} is damaged: start another run", self.dir.display());
        Ok(None)
    }

    /// Whether the run kept a frozen reference.
    pub fn has_reference(&self) -> bool {
        self.reference_dir().exists()
    }

    /// Refuses a checkpoint of another model than the one in the folder `model_files`: of another network, or with other
    /// tokens.
    pub fn check_model(path: &Path, model_files: &Path) -> Result<()> {
        let file = if Config::load(path)? != Config::load(model_files)? {
            CONFIG
        } else if sha256(&path.join(TOKENIZER))? != sha256(&model_files.join(TOKENIZER))? {
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

    /// Loads the networks' masters and moments from a checkpoint, and the run's state beside them.
    pub fn load<S: DeserializeOwned>(path: &Path, policy: &mut Network, critic: Option<&mut Network>) -> Result<S> {
        read_network(path, POLICY, policy)?;
        if let Some(critic) = critic {
            if !path.join(CRITIC[0]).exists() {
                return Err(input_error!(
                    "{} holds no critic: resume without one, or start another run",
                    path.display()
                ));
            }
            read_network(path, CRITIC, critic)?;
        }
        let text = fs::read_to_string(path.join(STATE)).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("reading {}", path.join(STATE).display()))
    }

    /// Whole directories, oldest first.
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

/// Whether a directory is a checkpoint that was written whole.
pub fn is_checkpoint(dir: &Path) -> bool {
    dir.join(MANIFEST).exists()
}

/// Refuses what is no checkpoint, or a damaged one.
fn check_whole(checkpoint: &Path) -> Result<()> {
    if !is_checkpoint(checkpoint) {
        return Err(input_error!(
            "{} is no checkpoint (it has no {MANIFEST}): name a directory like RUN/checkpoints/iteration-000100",
            checkpoint.display()
        ));
    }
    verify(checkpoint)
}

/// The policy of a checkpoint, or its critic, the float32 masters rounded to the given type as a run does.
pub fn load_model(checkpoint: &Path, output: Output, kind: Kind, device: Device) -> Result<Model> {
    check_whole(checkpoint)?;
    let [masters, ..] = match output {
        Output::Tokens => POLICY,
        Output::Value => CRITIC,
    };
    if !checkpoint.join(masters).exists() {
        return Err(input_error!("{} holds no critic: export its policy", checkpoint.display()));
    }
    let config = Config { output, ..Config::load(checkpoint)? };
    weights::read_model(&checkpoint.join(masters), config, kind, device)
        .with_context(|| format!("{} is damaged, or its files are of two models", checkpoint.display()))
}

/// Writes a checkpoint as a Hugging Face folder in the given type: its policy, or its critic (as transformers'
/// token classification with one label).
pub fn export(checkpoint: &Path, dir: &Path, output: Output, kind: Kind) -> Result<()> {
    let model = load_model(checkpoint, output, Kind::Float, Device::Cpu)?;
    weights::save_pretrained(&model, dir, Some(checkpoint), kind)
}

/// Writes the adapters of a checkpoint as a folder that peft loads.
pub fn export_adapter(checkpoint: &Path, dir: &Path) -> Result<()> {
    check_whole(checkpoint)?;
    if !checkpoint.join(ADAPTER).exists() {
        return Err(input_error!(
            "{} holds no adapter, since its run trained all weights: export its policy",
            checkpoint.display()
        ));
    }
    weights::in_new_folder(dir, |staged| {
        for name in [ADAPTER, ADAPTER_CONFIG] {
            fs::copy(checkpoint.join(name), staged.join(name))
                .with_context(|| format!("writing {}", staged.join(name).display()))?;
        }
        Ok(())
    })
}

/// SHA-256 of a network's weights in their order, which adapters belong to.
pub fn fingerprint(model: &Model) -> String {
    const SLICE: i64 = 1 << 24;
    let mut hasher = Sha256::new();
    for flat in model.units.held() {
        for slice in flat.split(SLICE, 0) {
            let slice = slice.to_device(Device::Cpu);
            let mut bytes = vec![0; slice.numel() * slice.kind().elt_size_in_bytes()];
            slice.copy_data_u8(&mut bytes, slice.numel());
            hasher.update(&bytes);
        }
    }
    hex(hasher)
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the moments of a network's optimiser.
fn write_moments(dir: &Path, [_, first, second]: NetworkFiles, network: &Network) -> Result<()> {
    let (layouts, optimizer) = (network.trained(), &network.optimizer);
    write_flats(&dir.join(first), layouts, &optimizer.exp_avgs)?;
    write_flats(&dir.join(second), layouts, &optimizer.exp_avg_sqs)
}

/// Fills a network and its optimiser's moments.
fn read_network(dir: &Path, [masters, first, second]: NetworkFiles, network: &mut Network) -> Result<()> {
    let masters = if network.adapters.is_some() { ADAPTER } else { masters };
    let layouts = network.trained().to_vec();
    let optimizer = &mut network.optimizer;
    read_flats(&dir.join(masters), &layouts, &optimizer.masters)?;
    read_flats(&dir.join(first), &layouts, &optimizer.exp_avgs)?;
    read_flats(&dir.join(second), &layouts, &optimizer.exp_avg_sqs)?;
    network.refresh()
}

fn is_checkpoint_name(name: &str) -> bool {
    name.strip_prefix("iteration-").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Fills a directory under a temporary name, adds the manifest, flushes everything and renames it into place.
fn write_whole(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let context = || format!("saving {}", path.display());
    let parent = path.parent().unwrap_or(Path::new("."));
    let temporary = path.with_extension("tmp");
    fs::create_dir_all(parent).with_context(context)?;
    remove_if_there(&temporary)?;
    fs::create_dir(&temporary).with_context(context)?;
    let filled = fill(&temporary).and_then(|()| add_manifest(&temporary));
    if filled.is_err() {
        // The first error is the one to report. Half a checkpoint only takes room, which may be what was missing.
        let _ = fs::remove_dir_all(&temporary);
    }
    filled.with_context(context)?;
    failpoint("before-rename");
    remove_if_there(path)?;
    fs::rename(&temporary, path).with_context(context)?;
    File::open(parent).and_then(|d| d.sync_all()).with_context(context)?;
    failpoint("after-rename");
    Ok(())
}

/// Flushes every file of a directory to disk and writes their checksums beside them.
fn add_manifest(dir: &Path) -> Result<()> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let file = entry?.path();
        File::open(&file).and_then(|f| f.sync_all()).with_context(|| format!("flushing {}", file.display()))?;
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        files.insert(name, sha256(&file)?);
    }
    let path = dir.join(MANIFEST);
    let context = || format!("writing {}", path.display());
    let mut manifest = File::create(&path).with_context(context)?;
    manifest.write_all(&serde_json::to_vec_pretty(&Manifest { files })?).with_context(context)?;
    manifest.sync_all().with_context(context)?;
    File::open(dir).and_then(|d| d.sync_all()).with_context(|| format!("flushing {}", dir.display()))
}

fn remove_if_there(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    Ok(())
}

/// Checks every file of a checkpoint against its manifest.
pub fn verify(dir: &Path) -> Result<()> {
    let path = dir.join(MANIFEST);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| input_error!("{}: damaged ({error})", path.display()))?;
    for (name, want) in &manifest.files {
        let path = dir.join(name);
        if &sha256(&path)? != want {
            return Err(input_error!(
                "{}: damaged: it does not have the checksum that was written with it",
                path.display()
            ));
        }
    }
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let context = || format!("reading {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buffer).with_context(context)?;
        if n == 0 {
            return Ok(hex(hasher));
        }
        hasher.update(&buffer[..n]);
    }
}
