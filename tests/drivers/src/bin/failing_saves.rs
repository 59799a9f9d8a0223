//! Saves a checkpoint on a disk whose n-th write fails, for every n (tests/python/test_checkpoint_faults.py loads that
//! disk). Prints a JSON line for each attempt: the error, and the files that remain.
//!
//! `failing_saves RUN_DIR WORLD KIND…`: a run directory with a folder `model`; ranks are threads. A kind of failure may
//! list several, which take turns: `enospc,eio,short`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor::checkpoint::{Checkpoints, Contents, Moment, Retention, Save, TensorSet};
use nestor_model::error::message;
use nestor_model::model::{Config, unit_weights};
use nestor_model::ranks::{C10d, Comm, Rendezvous, Secret, Solo};
use nestor_model::shard::Layout;
use nestor_recipe::Dist;
use nestor_torch::Backend;
use serde_json::json;
use tch::{Device, Kind, Tensor};

const SOLO: Solo = Solo { device: Device::Cpu };

/// The checkpoint that a save removes, the one before it, and the one that the save writes.
const OLDEST: u64 = 1;
const BEFORE: u64 = 2;
const TRIED: u64 = 3;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [run_dir, world, kinds @ ..] = &arguments[..] else {
        anyhow::bail!("usage: failing_saves RUN_DIR WORLD KIND…")
    };
    let (run_dir, world) = (Path::new(run_dir), world.parse()?);
    // Below the ports that Linux assigns: no other program is given one of them.
    let begin = 10_000 + (std::process::id() % 1_000) as u16;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (begin..12_000).find(free).context("no free port")?;
    let rank = |rank: usize| {
        if world == 1 {
            return attempts(&SOLO, run_dir, kinds);
        }
        let (host, prefix, secret) = ("127.0.0.1".to_string(), "faults".to_string(), Secret::default());
        let place =
            Rendezvous { rank, world, local_rank: rank, host, port, prefix, served: false, launched: true, secret };
        attempts(&C10d::join(Backend::Gloo, &place, Device::Cpu, &Dist::default())?, run_dir, kinds)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..world).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a rank died"))?)
    })
}

/// Sends a command to the disk: `N:KIND` makes the N-th write fail, `fired` asks if it did.
fn disk(word: &str) -> bool {
    std::fs::remove_file(format!("/failing-disk/{word}")).is_ok()
}

fn attempts(comm: &dyn Comm, run_dir: &Path, kinds: &[String]) -> Result<()> {
    let root = comm.rank() == 0;
    for kinds in kinds {
        let kinds: Vec<&str> = kinds.split(',').collect();
        for n in 1.. {
            let kind = kinds[n as usize % kinds.len()];
            if root {
                prepare(run_dir)?;
            }
            comm.barrier()?;
            // The disk counts the writes of all ranks together, so the threads' timing decides whose is the n-th.
            if root {
                anyhow::ensure!(disk(&format!("{n}:{kind}")), "the failing disk is not loaded");
            }
            comm.barrier()?;
            let error = save(comm, run_dir, TRIED).err().map(|error| message(&error));
            comm.barrier()?;
            let fired = Tensor::from(f32::from(u8::from(root && disk("fired"))));
            if root {
                disk("0:none");
                println!("{}", report(run_dir, kind, n, error.as_deref())?);
            }
            comm.broadcast(&fired)?;
            if fired.double_value(&[]) == 0.0 {
                anyhow::ensure!(error.is_none(), "{error:?}, though the disk did not fail");
                break;
            }
        }
    }
    Ok(())
}

fn directory(run_dir: &Path, iteration: u64) -> PathBuf {
    run_dir.join(format!("checkpoints/iteration-{iteration:06}"))
}

/// Makes two checkpoints, and an incomplete third as a killed run leaves it.
fn prepare(run_dir: &Path) -> Result<()> {
    let dir = run_dir.join("checkpoints");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    save(&SOLO, run_dir, OLDEST)?;
    save(&SOLO, run_dir, BEFORE)?;
    let half = directory(run_dir, TRIED).with_extension("tmp");
    std::fs::create_dir(&half)?;
    std::fs::write(half.join("policy.safetensors"), "half")?;
    Ok(())
}

/// This rank's shard of a unit at an iteration.
fn shard(comm: &dyn Comm, layout: &Layout, iteration: u64) -> Tensor {
    let partition = layout.partition(comm.world());
    let own = Tensor::zeros([partition.shard_numel()], (Kind::Float, Device::Cpu));
    for piece in partition.pieces(comm.rank()) {
        let end = piece.start + piece.length;
        let numbers = Tensor::arange_start(piece.start, end, (Kind::Float, Device::Cpu)) * iteration as f64;
        own.narrow(0, piece.shard_start, piece.length).copy_(&numbers);
    }
    own
}

fn shards(comm: &dyn Comm, layouts: &[Layout], iteration: u64) -> Vec<Tensor> {
    layouts.iter().map(|layout| shard(comm, layout, iteration)).collect()
}

fn save(comm: &dyn Comm, run_dir: &Path, iteration: u64) -> Result<()> {
    let model_files = run_dir.join("model");
    let layouts = unit_weights::layouts(&Config::load(&model_files)?);
    let tensors = shards(comm, &layouts, iteration);
    let shards = || tensors.iter().map(Tensor::shallow_clone).collect();
    let set = |name: &str| TensorSet { name: name.into(), layouts: &layouts, shards: shards() };
    let sets = ["policy", "exp_avg", "exp_avg_sq"].map(set).into();
    let saved = Contents {
        sets,
        adapter_config: None,
        base: None,
        ties: true,
        vision: None,
        model_files: &model_files,
        unfinished: None,
        estimator: None,
    };
    let state = json!({ "iteration": iteration });
    let retention = Retention { keep: 2, best: None, good: None };
    let save = Save { moment: Moment::iteration(iteration), contents: &saved, retention, background: false };
    Checkpoints::new(run_dir).save(comm, save, &state)
}

/// The report of an attempt: the newest undamaged checkpoint, `sound` if its tensors are those saved, and all files
/// beside it.
fn report(run_dir: &Path, kind: &str, n: u64, error: Option<&str>) -> Result<serde_json::Value> {
    let mut warnings = Vec::new();
    let newest = Checkpoints::new(run_dir).newest(&SOLO, |line| warnings.push(line.to_string()))?;
    let newest = newest.context("no checkpoint is left")?;
    let config = Config::load(&newest)?;
    let layouts = unit_weights::layouts(&config);
    let sound = (BEFORE..=TRIED).find(|&iteration| newest == directory(run_dir, iteration)).is_some_and(|iteration| {
        let want = shards(&SOLO, &layouts, iteration);
        ["policy", "exp_avg", "exp_avg_sq"].iter().all(|set| {
            let found = shards(&SOLO, &layouts, 0);
            let read = Checkpoints::read(&SOLO, &newest, set, &layouts, &found);
            read.is_ok() && found.iter().zip(&want).all(|(found, want)| found.equal(want))
        })
    });
    let mut left = Vec::new();
    for entry in std::fs::read_dir(run_dir.join("checkpoints"))? {
        left.push(entry?.file_name().to_string_lossy().into_owned());
    }
    left.sort();
    let newest = newest.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(json!({
        "kind": kind, "n": n, "error": error, "newest": newest, "sound": sound, "left": left, "warnings": warnings,
    }))
}
