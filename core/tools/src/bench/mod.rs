//! `nestor bench`: seconds and tokens per second of defined work, as the median of repetitions after a warm-up.

mod generate;
mod iteration;
mod kernels;
mod lengths;
mod logprob_diff;
mod rollout;
pub mod script;
mod timing;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use nestor_args::Gpu;
use nestor_torch::{Backend, cuda, fused};
use rand_chacha::rand_core::Rng;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

pub use self::generate::generate;
pub use self::iteration::iteration;
pub use self::kernels::kernels;
use self::lengths::lengths;
pub use self::logprob_diff::{LogprobDiffOptions, logprob_diff};
pub use self::rollout::rollout;
use self::timing::{Times, first_and_hundredth, profiled, seconds};
use crate::data::{Batch, Rows, Sequence};
use crate::engine::NoiseKey;
use crate::error::message;
use crate::files::TokenRow;
use crate::input_error;
use crate::model::{Model, StoredType, hub, rank_device, weights};
use crate::plan::{Hardware, Images, UpdateSetup, update_memory};
use crate::policy::batching::{MicroBatching, all_mini_batches};
use crate::policy::update::{UpdateSettings, update as update_policy};
use crate::policy::{Network, logprobs};
use crate::process_memory::peak_bytes;
use crate::ranks::{self, C10d, Comm, Reduce, Rendezvous, exchange};
use crate::recipe::{self, DeviceChoice, Dist, Lora, Recompute, Sharding, Update, VisionTrain};
use crate::shard::{Ranks, update_rule};

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
    /// Gives the sequences 10 to 100 % of the length of prompt and response.
    pub ragged: bool,
    pub sharding: Sharding,
    /// Adapters that an update trains in place of all weights.
    pub lora: Option<Lora>,
    /// Profiles one more run.
    pub profile: bool,
}

/// Computes the log-probs of sequences of `prompt + new` tokens; `tokens_per_s` counts all of them.
pub fn score(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let length = options.prompt + options.new;
    let row = |tokens| TokenRow { tokens, images: Vec::new() };
    let rows: Vec<_> = random_rows(&model, options.batch, length).into_iter().map(row).collect();
    let times = Times::of(options.repeats, |_| seconds(|| logprobs::logprobs(&model, &rows).map(drop)))?;
    report("score", options, options.batch * length, &times)
}

/// Makes one optimizer step of the clipped policy loss on sequences of `prompt + new` tokens (10 to 100 % of that with
/// `ragged`), with random advantages, in micro-batches of a recipe's default size. `tokens_per_s` counts all tokens. The
/// ranks of torchrun's variables share the step, with `batch` sequences each; rank 0 reports, with every rank's peak
/// memory: the device's on a GPU.
pub fn update(options: &BenchOptions) -> Result<Value> {
    let rendezvous = Rendezvous::of_environment()?;
    let choice = if options.device.is_cuda() { DeviceChoice::Cuda } else { DeviceChoice::Cpu };
    let device = rank_device(choice, rendezvous.local_rank)?;
    let comm = ranks::join(&rendezvous, device, &Dist::default())?;
    let ranks = Ranks {
        comm,
        sharding: options.sharding,
        deterministic: false,
        stop: Arc::default(),
        progress: Default::default(),
        notice: Default::default(),
    };
    let options = &BenchOptions { batch: options.batch * ranks.world(), device, ..options.clone() };
    let (model, rule) = (load(options)?, update_rule(&recipe::Optimizer::default()));
    let mut policy = match &options.lora {
        Some(lora) => Network::with_lora(model, rule, (lora, 0), &ranks)?,
        None => Network::new(model, rule, &ranks)?,
    };
    // Those of the first repetition, so that another program can be given the same work.
    let (first, layers) = (lengths(options, 1), policy.model.config.num_hidden_layers);
    let section = json!({ "mini_batch": options.batch, "lr": 1e-6, "recompute": options.recompute });
    let update: Update = serde_json::from_value(section)?;
    let longest = random_rows(&policy.model, options.batch, options.prompt + options.new);
    let batch_of = |run: usize| {
        let rows = longest.iter().zip(lengths(options, run));
        random_batch(rows.map(|(row, (prompt, new))| (row[..prompt + new].to_vec(), prompt)))
    };
    let settings = UpdateSettings {
        update: &update,
        loss: None,
        lr: update.lr,
        temperature: 1.0,
        max_response_tokens: options.new,
        seed: 0,
    };
    let config = policy.model.config.clone();
    let batching = MicroBatching { ranks: &ranks, config: &config, budget: update.micro_batch_tokens };
    let mut step = |run: usize| {
        let batch = batch_of(run);
        seconds(|| update_policy(&mut policy, &batch, &settings).map(drop))
    };
    let times = Times::of(options.repeats, &mut step);
    let times = times.inspect_err(|error| ranks.comm.abort(&message(error)))?;
    let passes = |run: usize| {
        let batch = batch_of(run);
        let own = |indices: &Vec<usize>| batching.own(&batch, indices);
        all_mini_batches(&batch, &update, settings.seed).iter().flat_map(own).flatten().count()
    };
    let tokens = first.iter().map(|(prompt, new)| prompt + new).sum::<usize>();
    let mut report = report("update", options, tokens, &times)?;
    report["passes"] = json!(passes(1));
    first_and_hundredth(&mut report, &times.all);
    if options.profile {
        let run = options.repeats + 1;
        let profile = profiled(device, layers, || step(run).map(|_| passes(run)));
        report["profile"] = profile.inspect_err(|error| ranks.comm.abort(&message(error)))?;
    }
    report["recompute"] = serde_json::to_value(options.recompute)?;
    report["lengths"] = serde_json::to_value(&first)?;
    let products = fused::has_products(device).then(fused::product_library).transpose()?;
    report["products"] = json!(products);
    report["world"] = json!(ranks.world());
    report["sharding"] = serde_json::to_value(options.sharding)?;
    let rank_tokens = tokens / ranks.world();
    let rank_responses = first.iter().map(|(_, new)| new).sum::<usize>() / ranks.world();
    let micro_batch = rank_tokens.min(update.micro_batch_tokens);
    let gpu = if device.is_cuda() { Gpu::H100 } else { Gpu::Cpu };
    let hardware = Hardware::of(gpu, options.kind);
    let planned = update_memory(&UpdateSetup {
        config: &policy.model.config,
        kind: options.kind,
        cpu: !device.is_cuda(),
        ranks: ranks.world() as u64,
        sharding: options.sharding,
        lora: options.lora.as_ref(),
        optimizer: &update.optimizer,
        offload: update.offload,
        micro_batch_tokens: micro_batch as u64,
        response_tokens: (rank_responses * micro_batch / rank_tokens) as u64,
        image_tokens: 0,
        images: Images { train: VisionTrain::All, ..Images::NONE },
        recompute: options.recompute,
        memory: fused::free_bytes(device).unwrap_or(hardware.memory),
        process: hardware.process,
    });
    report["planned_bytes"] = json!(planned.peak().1);
    report["plan"] = serde_json::to_value(&planned)?;
    let (peak_of, peak) = peak_memory(device)?;
    report["peak_of"] = json!(peak_of);
    report["peak_bytes"] = serde_json::to_value(exchange(&*ranks.comm, Ok(peak))?)?;
    Ok(if rendezvous.rank == 0 { report } else { Value::Null })
}

/// The memory that a benchmark fills, and its peak in bytes: the GPU's, or on a CPU the process's.
fn peak_memory(device: Device) -> Result<(&'static str, Option<f64>)> {
    match device {
        Device::Cuda(gpu) => Ok(("device", Some(cuda::memory(gpu)?.peak() as f64))),
        _ => Ok(("host", peak_bytes())),
    }
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
        Backend::Nccl if tch::Cuda::is_available() => rank_device(DeviceChoice::Cuda, rendezvous.local_rank)?,
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
    let times = Times::of(repeats, |_| {
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
    })?;
    Ok(times.median())
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
        packed.push(Sequence { tokens, rows: vec![i as u32], ..Sequence::default() });
    }
    Batch { sequences: packed, rows, ..Batch::default() }
}

/// Most tokens of all sequences, beyond what any machine measures.
const MOST_TOKENS: usize = 1 << 28;

/// Refuses sizes that are 0, and sizes whose tokens no machine holds.
fn check_sizes(batch: usize, prompt: usize, new: usize) -> Result<()> {
    if [batch, prompt, new].contains(&0) {
        return Err(input_error!("--batch, --prompt and --new must be at least 1"));
    }
    match prompt.checked_add(new).and_then(|length| length.checked_mul(batch)) {
        Some(tokens) if tokens <= MOST_TOKENS => Ok(()),
        _ => Err(input_error!("--batch times --prompt and --new is more than {MOST_TOKENS} tokens; lower one")),
    }
}

fn load(options: &BenchOptions) -> Result<Model> {
    let BenchOptions { batch, prompt, new, repeats, .. } = options;
    check_sizes(*batch, *prompt, *new)?;
    if *repeats == 0 {
        return Err(input_error!("--repeats must be at least 1"));
    }
    weights::load(&hub::folder(&options.dir)?, options.kind, options.device)
}

/// Distinct rows of random tokens, the same in every run.
fn random_rows(model: &Model, rows: usize, length: usize) -> Vec<Vec<u32>> {
    let row = |row: usize| {
        let mut rng = NoiseKey { episode: row as u32, ..NoiseKey::default() }.rng(0, 0);
        (0..length).map(|_| ((u64::from(rng.next_u32()) * model.config.vocab_size as u64) >> 32) as u32).collect()
    };
    (0..rows).map(row).collect()
}

/// The report of a benchmark.
fn report(work: &str, options: &BenchOptions, tokens: usize, times: &Times) -> Result<Value> {
    let mut report = json!({
        "work": work,
        "batch": options.batch,
        "prompt": options.prompt,
        "new": options.new,
        "tokens": tokens,
        "dtype": StoredType::of(options.kind)?.name,
        "device": if options.device.is_cuda() { "cuda" } else { "cpu" },
        "threads": tch::get_num_threads(),
        "repeats": options.repeats,
        "tokens_per_s": tokens as f64 / times.median(),
    });
    times.write(&mut report);
    Ok(report)
}
