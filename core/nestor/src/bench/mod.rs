//! `nestor bench`: seconds and tokens per second of defined work, as the median of repetitions after a warm-up.

mod iteration;
mod logprob_diff;
mod rollout;
pub mod script;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use nestor_torch::{Backend, fused};
use rand_chacha::rand_core::Rng;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

pub use self::iteration::{IterationArgs, iteration};
pub use self::logprob_diff::logprob_diff;
pub use self::rollout::{RolloutArgs, rollout};
use crate::data::{Batch, Rows, Sequence};
use crate::dist::{self, C10d, Comm, Reduce, Rendezvous, exchange};
use crate::engine::{Completion, Engine, EngineOptions, NoiseKey, Request, Sampling, Weights};
use crate::error::message;
use crate::input_error;
use crate::model::{Compute, Model, StoredType, weights};
use crate::plan::{Gpu, UpdateSetup, update_memory};
use crate::policy::update::{UpdateSettings, update as update_policy};
use crate::policy::{Network, logprobs};
use crate::recipe::{Dist, Recompute, Sharding, Update};
use crate::shard::Ranks;
use crate::track::peak_bytes;

#[derive(Debug, Clone)]
pub struct BenchOptions {
    pub dir: PathBuf,
    pub batch: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens of each response.
    pub new: usize,
    pub kind: Kind,
    pub device: Device,
    /// Repetitions after the warm-up.
    pub repeats: usize,
    /// Blocks that an update recomputes in its backward pass.
    pub recompute: Recompute,
    /// Gives an update's sequences 10 to 100 % of the length of prompt and response.
    pub ragged: bool,
    pub sharding: Sharding,
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub struct RunArgs {
    /// Requests decoded at once; by default one per environment
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,
    /// Repetitions; the median is reported
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub repeats: usize,
    /// Unreported repetitions before them
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub warm_up: usize,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    fn check(&self) -> Result<()> {
        if self.repeats == 0 || self.slots == Some(0) {
            return Err(input_error!("--repeats and --slots must be at least 1"));
        }
        Ok(())
    }
}

/// Samples exactly `new` tokens at temperature 1 after each prompt; `tokens_per_s` counts those.
pub fn generate(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let prompts = random_rows(&model, options.batch, options.prompt);
    let seconds = median_seconds(options.repeats, || complete(&model, &prompts, options.new).map(drop))?;
    report("generate", options, options.batch * options.new, seconds)
}

/// Samples responses of exactly `new` tokens, in the order of the prompts.
fn complete(model: &Model, prompts: &[Vec<u32>], new: usize) -> Result<Vec<Completion>> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let mut engine =
        Engine::new(EngineOptions { slots: prompts.len(), capacity: longest + new, ..EngineOptions::default() });
    for (episode, prompt) in prompts.iter().enumerate() {
        let key = NoiseKey { episode: episode as u32, ..NoiseKey::default() };
        let (prompt, sampling) = (prompt.clone(), Sampling::default());
        engine.submit(Request { key, prompt, max_new_tokens: new, sampling })?;
    }
    let weights = Weights::new(model)?;
    let mut done = Vec::with_capacity(prompts.len());
    while !engine.is_idle() {
        done.extend(engine.step(&weights)?);
    }
    let generated = engine.take_counters().generated;
    ensure!(generated == (prompts.len() * new) as u64, "{generated} tokens were generated");
    done.sort_by_key(|completion| completion.key.episode);
    Ok(done)
}

/// Computes the log-probs of sequences of `prompt + new` tokens; `tokens_per_s` counts all of them.
pub fn score(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let length = options.prompt + options.new;
    let rows = random_rows(&model, options.batch, length);
    let seconds = median_seconds(options.repeats, || logprobs::logprobs(&model, &rows).map(drop))?;
    report("score", options, options.batch * length, seconds)
}

/// Makes one optimiser step of the clipped policy loss on sequences of `prompt + new` tokens (10 to 100 % of that with
/// `ragged`), with random advantages, in micro-batches of a recipe's default size. `tokens_per_s` counts all tokens. The
/// ranks of torchrun's variables share the step, with `batch` sequences each; rank 0 reports, with every rank's peak
/// memory.
pub fn update(options: &BenchOptions) -> Result<Value> {
    let rendezvous = Rendezvous::of_environment()?;
    let device = if options.device.is_cuda() { Device::Cuda(rendezvous.local_rank) } else { Device::Cpu };
    let comm = dist::join(&rendezvous, device, &Dist::default())?;
    let ranks = Ranks {
        comm,
        sharding: options.sharding,
        deterministic: false,
        stop: Arc::default(),
        progress: Default::default(),
    };
    let options = &BenchOptions { batch: options.batch * ranks.world(), device, ..options.clone() };
    let mut policy = Network::new(load(options)?, &ranks)?;
    let lengths = lengths(options);
    let section = json!({ "mini_batch": options.batch, "lr": 1e-6, "recompute": options.recompute });
    let update: Update = serde_json::from_value(section)?;
    let rows = random_rows(&policy.model, options.batch, options.prompt + options.new);
    let rows = rows.into_iter().zip(&lengths).map(|(mut row, &(prompt, new))| {
        row.truncate(prompt + new);
        (row, prompt)
    });
    let batch = random_batch(rows);
    let settings =
        UpdateSettings { update: &update, lr: update.lr, temperature: 1.0, max_response_tokens: options.new, seed: 0 };
    let products = fused::has_products(device).then(fused::product_library).transpose()?;
    let seconds = median_seconds(options.repeats, || update_policy(&mut policy, &batch, &settings).map(drop));
    let seconds = seconds.inspect_err(|error| ranks.comm.abort(&message(error)))?;
    let mut report = report("update", options, lengths.iter().map(|(prompt, new)| prompt + new).sum(), seconds)?;
    report["recompute"] = serde_json::to_value(options.recompute)?;
    report["lengths"] = serde_json::to_value(&lengths)?;
    report["products"] = json!(products);
    report["world"] = json!(ranks.world());
    report["sharding"] = serde_json::to_value(options.sharding)?;
    let rank_tokens = lengths.iter().map(|(prompt, new)| prompt + new).sum::<usize>() / ranks.world();
    let rank_responses = lengths.iter().map(|(_, new)| new).sum::<usize>() / ranks.world();
    let micro_batch = rank_tokens.min(update.micro_batch_tokens);
    let gpu = if device.is_cuda() { Gpu::H100 } else { Gpu::Cpu };
    let hardware = gpu.hardware(options.kind);
    let planned = update_memory(&UpdateSetup {
        config: &policy.model.config,
        kind: options.kind,
        cpu: !device.is_cuda(),
        ranks: ranks.world() as u64,
        sharding: options.sharding,
        lora: None,
        micro_batch_tokens: micro_batch as u64,
        response_tokens: (rank_responses * micro_batch / rank_tokens) as u64,
        recompute: options.recompute,
        memory: fused::free_bytes(device).unwrap_or(hardware.memory),
        process: hardware.process,
    });
    report["planned_bytes"] = json!(planned.peak().1);
    report["plan"] = serde_json::to_value(&planned)?;
    report["peak_bytes"] = serde_json::to_value(exchange(&*ranks.comm, Ok(peak_bytes()))?)?;
    Ok(if rendezvous.rank == 0 { report } else { Value::Null })
}

/// Returns the tokens of each sequence's prompt and response: all equal, or 10 to 100 % of that in equal steps. The order is
/// mixed but the same in every run; the response is the same share of every sequence.
fn lengths(options: &BenchOptions) -> Vec<(usize, usize)> {
    let BenchOptions { batch, prompt, new, .. } = *options;
    if !options.ragged {
        return vec![(prompt, new); batch];
    }
    // A step that shares no factor with the batch visits every length once.
    let common = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let stride = (batch * 5 / 8..).find(|&stride| common(stride, batch) == 1).unwrap_or(1);
    let share = |i: usize| 0.1 + 0.9 * (i * stride % batch) as f64 / (batch - 1).max(1) as f64;
    let part = |whole: usize, i: usize| ((whole as f64 * share(i)).round() as usize).max(1);
    (0..batch).map(|i| (part(prompt, i), part(new, i))).collect()
}

#[derive(Debug, Clone, Copy)]
pub struct CollectiveOptions {
    pub backend: Backend,
    /// Size of the float32 tensor.
    pub mib: usize,
    pub repeats: usize,
    /// Timeouts of the ranks.
    pub patience: Dist,
}

/// All-reduces a tensor over the ranks of torchrun's or srun's variables, or a group of one, and checks the sum. Only rank 0
/// reports; the others return null.
pub fn collective(options: &CollectiveOptions) -> Result<Value> {
    let CollectiveOptions { backend, mib, repeats, patience } = *options;
    if mib == 0 || repeats == 0 {
        return Err(input_error!("--mib and --repeats must be at least 1"));
    }
    let rendezvous = Rendezvous::of_environment()?;
    let device = match backend {
        Backend::Gloo => Device::Cpu,
        Backend::Nccl if tch::Cuda::is_available() => Device::Cuda(rendezvous.local_rank),
        Backend::Nccl => return Err(input_error!("--backend nccl needs a GPU, and libtorch finds none: use gloo")),
    };
    let comm = C10d::join(backend, &rendezvous, device, &patience)?;
    let seconds = sums(&comm, mib, repeats).inspect_err(|error| comm.abort(&message(error)))?;
    if rendezvous.rank > 0 {
        return Ok(Value::Null);
    }
    Ok(json!({
        "work": "collective",
        "backend": if backend == Backend::Nccl { "nccl" } else { "gloo" },
        "world": rendezvous.world,
        "mib": mib,
        "repeats": repeats,
        "seconds": seconds,
        "gb_per_s": (mib << 20) as f64 / 1e9 / seconds,
    }))
}

/// Median duration of an all-reduce of `mib` MiB.
fn sums(comm: &dyn Comm, mib: usize, repeats: usize) -> Result<f64> {
    let mut tensor = Tensor::zeros([(mib << 18) as i64], (Kind::Float, comm.device()));
    // Reading an element synchronises with the GPU.
    let finish = |tensor: &Tensor| tensor.get(0).double_value(&[]);
    median_seconds_of(repeats, || {
        let _ = tensor.fill_((comm.rank() + 1) as f64);
        finish(&tensor);
        let begin = Instant::now();
        comm.all_reduce(&tensor, Reduce::Sum)?;
        finish(&tensor);
        let seconds = begin.elapsed().as_secs_f64();
        let sum = (comm.world() * (comm.world() + 1) / 2) as f64;
        let (least, most) = (tensor.min().double_value(&[]), tensor.max().double_value(&[]));
        ensure!((least, most) == (sum, sum), "the sum over ranks is {least} to {most}, not {sum}");
        Ok(seconds)
    })
}

/// Makes a batch of one row per sequence, given as its tokens and the length of its prompt; all tokens after the prompt are
/// the response. Old log-probs are constant.
fn random_batch(sequences: impl Iterator<Item = (Vec<u32>, usize)>) -> Batch {
    let mut rows = Rows { token_offsets: vec![0], ..Rows::default() };
    let mut packed = Vec::new();
    for (i, (tokens, prompt)) in sequences.enumerate() {
        let response = tokens.len() - prompt;
        let advantage = if i % 2 == 0 { 1.0 } else { -1.0 };
        rows.span_start.push(prompt as u32);
        rows.token_offsets.push(rows.token_offsets[i] + response as u64);
        rows.logprobs.extend(vec![-10.0; response]);
        rows.advantages.extend(vec![advantage; response]);
        packed.push(Sequence { tokens, rows: vec![i as u32] });
    }
    Batch { sequences: packed, rows, recomputed: None }
}

fn load(options: &BenchOptions) -> Result<Model> {
    let BenchOptions { batch, prompt, new, repeats, .. } = options;
    if [batch, prompt, new, repeats].contains(&&0) {
        return Err(input_error!("--batch, --prompt, --new and --repeats must be at least 1"));
    }
    weights::load(&options.dir, options.kind, options.device)
}

/// Distinct rows of random tokens, the same in every run.
fn random_rows(model: &Model, rows: usize, length: usize) -> Vec<Vec<u32>> {
    let row = |row: usize| {
        let mut rng = NoiseKey { episode: row as u32, ..NoiseKey::default() }.rng(0, 0);
        (0..length).map(|_| ((u64::from(rng.next_u32()) * model.config.vocab_size as u64) >> 32) as u32).collect()
    };
    (0..rows).map(row).collect()
}

fn median_seconds(repeats: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    median_seconds_of(repeats, || {
        let begin = Instant::now();
        work()?;
        Ok(begin.elapsed().as_secs_f64())
    })
}

/// Median of the durations that `work` returns, after one warm-up run.
fn median_seconds_of(repeats: usize, mut work: impl FnMut() -> Result<f64>) -> Result<f64> {
    work()?;
    Ok(median((0..repeats).map(|_| work()).collect::<Result<_>>()?))
}

fn seconds_of(seconds: &[f64]) -> Value {
    seconds.iter().copied().collect()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// The report of a benchmark.
fn report(work: &str, options: &BenchOptions, tokens: usize, seconds: f64) -> Result<Value> {
    Ok(json!({
        "work": work,
        "batch": options.batch,
        "prompt": options.prompt,
        "new": options.new,
        "tokens": tokens,
        "dtype": StoredType::of(options.kind)?.name,
        "device": if options.device.is_cuda() { "cuda" } else { "cpu" },
        "threads": tch::get_num_threads(),
        "repeats": options.repeats,
        "seconds": seconds,
        "tokens_per_s": tokens as f64 / seconds,
    }))
}
