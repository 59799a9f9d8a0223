//! The command line: arguments in, one call, what it gave printed. No logic.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use nestor::agent::play::{PlayArgs, play};
use nestor::bench::{self, BenchOptions, CollectiveOptions, IterationArgs, RolloutArgs};
use nestor::checkpoint;
use nestor::dist::launch::{self, end_with_launcher};
use nestor::engine::Sampling;
use nestor::error::{InputError, brief, message};
use nestor::eval::{EvalArgs, eval};
use nestor::generate::{GenerateOptions, Source, generate};
use nestor::input_error;
use nestor::model::config::Output;
use nestor::model::{Compute, Config, device, kind, new};
use nestor::plan::{PlanArgs, plan};
use nestor::plugin::{Plugins, advantage::advantage};
use nestor::policy::score::score;
use nestor::recipe::{self, Dist, Dtype, Recompute, Sharding};
use nestor::run::{Ending, TrainArgs, join, run_dir};
use nestor::tokenizer::tokenize;
use nestor::train::train;
use nestor_c10d::Backend;
use serde_json::Value;

/// Trains LLM agents by reinforcement learning over many turns
#[derive(Parser)]
#[command(name = "nestor", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a recipe
    Train(Train),
    /// Start a command on several ranks of this machine
    Launch(Launch),
    /// Measure a model's success on a recipe's evaluation tasks
    Eval(Eval),
    /// Memory, communication and time of a recipe, without a run
    Plan(PlanArgs),
    /// Play an environment by hand or from a file
    Play(PlayArgs),
    /// Run an advantage estimator on recorded steps
    Advantage(Advantage),
    /// Log-probability of each token given those before it
    Score(Score),
    /// Continue prompts with a model
    Generate(Generate),
    /// Token ids of a chat, generation prompt included
    Tokenize(Tokenize),
    /// Make models
    #[command(subcommand)]
    Model(ModelCommand),
    /// Write a checkpoint in Hugging Face form
    Export(Export),
    /// Measure stated work on random tokens
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Look at plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
}

#[derive(Args)]
struct Train {
    /// The recipe
    recipe: PathBuf,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The run directory; by default the first free runs/RECIPE[-N]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Go on from the newest whole checkpoint
    #[arg(long)]
    resume: bool,
    /// Set by `launch` when it starts the ranks again: resume if there is something to go on from
    #[arg(long, hide = true)]
    restarted: bool,
}

#[derive(Args)]
struct Launch {
    /// Number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    nproc: u16,
    /// Start all ranks again after a failure, this often at most; `train` then goes on from its newest whole checkpoint
    #[arg(long, value_name = "R", default_value_t = 0)]
    restarts: u32,
    /// The command: train, bench collective or bench update, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Args)]
struct Eval {
    /// The recipe; RUN/recipe.yaml is one
    recipe: PathBuf,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// A run directory (its newest whole checkpoint), a checkpoint, or a Hugging Face folder; by default the recipe's
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Episodes to play instead of the recipe's eval.tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    episodes: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Advantage {
    /// The estimator: id of a plugin, or path of a plugin file
    estimator: String,
    /// The estimator's configuration
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
    /// The recorded steps
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Score {
    /// A model in Hugging Face form
    model_dir: PathBuf,
    /// Token ids: {"rows": [[id, …], …]}
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    #[command(flatten)]
    compute: Compute,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Generate {
    /// A model in Hugging Face form
    model_dir: PathBuf,
    #[command(flatten)]
    prompt: Prompt,
    /// Whether the chat template asks the model to think first; without it the template's default
    #[arg(long, value_name = "true|false", conflicts_with_all = ["prompt", "tokens"])]
    thinking: Option<bool>,
    /// Longest continuation
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_new_tokens: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f64,
    /// Sample among the K likeliest tokens; 0 is off
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: i64,
    /// Sample among the likeliest tokens that hold this much probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Seed of the samples
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    compute: Compute,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Prompt {
    /// Text to continue as it stands
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A user's message, put through the chat template
    #[arg(long, value_name = "TEXT")]
    chat: Option<String>,
    /// Token ids: {"rows": [[id, …], …]}
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
}

#[derive(Args)]
struct Tokenize {
    /// A folder with a tokenizer in Hugging Face form
    model_dir: PathBuf,
    /// The chat: [{"role": …, "content": …}, …]
    #[arg(long, value_name = "FILE")]
    chat: PathBuf,
    /// Whether the chat template asks the model to think first; without it the template's default
    #[arg(long, value_name = "true|false")]
    thinking: Option<bool>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum ModelCommand {
    /// Write a model with random weights in Hugging Face form
    New {
        /// The folder to make
        dir: PathBuf,
        /// Size of the network: tiny, 0.5b, 1.5b, 3b, 7b, 14b, qwen3-tiny, qwen3-0.6b or qwen3-1.7b
        #[arg(long)]
        shape: String,
        /// A tokenizer.json with Qwen's tokens
        #[arg(long, value_name = "FILE")]
        tokenizer: Option<PathBuf>,
        /// Seed of the weights
        #[arg(long, value_name = "S", default_value_t = 0)]
        seed: u64,
        /// The type of the weights
        #[arg(long, value_enum, default_value = "bfloat16")]
        dtype: Dtype,
    },
}

#[derive(Args)]
struct Export {
    /// A checkpoint, such as RUN/checkpoints/iteration-000100
    checkpoint: PathBuf,
    /// The folder to make
    dir: PathBuf,
    /// The critic in place of the policy
    #[arg(long)]
    critic: bool,
    /// LoRA's adapter in place of the policy, as peft loads it
    #[arg(long, conflicts_with_all = ["critic", "dtype"])]
    adapter: bool,
    /// The type of the weights; checkpoints hold float32
    #[arg(long, value_enum, default_value = "float32")]
    dtype: Dtype,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Sample exactly --new tokens after each prompt
    Generate(Bench),
    /// Log-probs of sequences of --prompt + --new tokens
    Score(Bench),
    /// One optimiser step on sequences of --prompt + --new tokens
    Update(Bench),
    /// Play a scripted multi-turn environment with responses of ragged, forced lengths
    Rollout(RolloutArgs),
    /// A whole iteration on a scripted environment, by phase
    Iteration(IterationArgs),
    /// How far the engine's log-probs are from the update's, on --new tokens sampled after each prompt
    LogprobDiff(Bench),
    /// Sum a tensor over the ranks of torchrun's or srun's variables, or of a group of one
    Collective {
        /// The library: gloo (CPU) or nccl (GPU)
        #[arg(long, value_parser = backend)]
        backend: Backend,
        /// Size of the tensor
        #[arg(long, value_name = "N", default_value_t = 64)]
        mib: usize,
        /// Repetitions, of which the median counts
        #[arg(long, value_name = "R", default_value_t = 5)]
        repeats: usize,
        /// Seconds after which a sum fails
        #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=604_800))]
        timeout: u64,
        /// Seconds without a sign of life after which a rank counts as dead
        #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=50))]
        silence: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn backend(text: &str) -> Result<Backend, String> {
    match text {
        "gloo" => Ok(Backend::Gloo),
        "nccl" => Ok(Backend::Nccl),
        _ => Err("expected gloo or nccl".into()),
    }
}

#[derive(Args)]
struct Bench {
    /// A model in Hugging Face form
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Sequences at once
    #[arg(long, value_name = "B", default_value_t = 16)]
    batch: usize,
    /// Tokens of each prompt
    #[arg(long, value_name = "P", default_value_t = 128)]
    prompt: usize,
    /// Tokens of each response
    #[arg(long, value_name = "N", default_value_t = 32)]
    new: usize,
    /// Repetitions, of which the median counts
    #[arg(long, value_name = "R", default_value_t = 3)]
    repeats: usize,
    /// Blocks that an update computes again in its backward pass: auto, all, none, or the first N
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    recompute: Recompute,
    /// Sequences of an update are 10 to 100 % of prompt and response long
    #[arg(long)]
    ragged: bool,
    /// How the weights of an update are spread over ranks
    #[arg(long, value_enum, default_value = "full")]
    sharding: Sharding,
    #[command(flatten)]
    compute: Compute,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum PluginCommand {
    /// What is found where
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// OpenMP's threads spin while they wait, which on a machine that is shared (or has other work on its cores) costs many
/// times the work itself. Its runtime reads the setting before `main`, so the program starts itself anew with it.
fn wait_without_spinning() {
    const POLICY: &str = "OMP_WAIT_POLICY";
    if std::env::var_os(POLICY).is_none() && std::env::var_os("GOMP_SPINCOUNT").is_none() {
        let mut args = std::env::args_os();
        let mut again = std::process::Command::new("/proc/self/exe");
        if let Some(name) = args.next() {
            again.arg0(name);
        }
        again.args(args).env(POLICY, "passive");
        // Only comes back where it could not start: then the program goes on as it is.
        let _ = again.exec();
    }
}

fn main() -> ExitCode {
    wait_without_spinning();
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(String::new(), |place| format!(" ({}:{})", place.file(), place.line()));
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        let text = brief(text.unwrap_or("a panic without a message"));
        eprintln!("error: internal error{place}: {text}; please report this with the command and the recipe");
    }));
    let cli = Cli::parse();
    match std::panic::catch_unwind(|| run(cli.command)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => fail(&error),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints the one message of an error.
fn fail(error: &anyhow::Error) -> ExitCode {
    let closed = |cause: &std::io::Error| cause.kind() == ErrorKind::BrokenPipe;
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(closed) {
        return ExitCode::SUCCESS; // the reader of a pipe, such as `head`, has seen enough
    }
    eprintln!("error: {}", message(error));
    ExitCode::from(if error.chain().any(|cause| cause.is::<InputError>()) { 2 } else { 1 })
}

fn run(command: Command) -> Result<ExitCode> {
    if matches!(command, Command::Train(_) | Command::Bench(_)) {
        end_with_launcher()?;
    }
    match command {
        Command::Train(args) => return run_train(args),
        Command::Launch(args) => return run_launch(args),
        Command::Eval(args) => {
            let recipe = recipe::load(&args.recipe, &args.sets)?;
            let report = eval(&recipe, &EvalArgs { model: args.model, episodes: args.episodes })?;
            print(args.json, &report.to_json(), || report.to_string())?;
        }
        Command::Plan(args) => {
            let plan = plan(&args)?;
            print(args.json, &plan.to_json()?, || plan.to_string())?;
        }
        Command::Play(args) => play(&Plugins::discover()?, &args, &mut std::io::stdout())?,
        Command::Advantage(args) => {
            let scores = advantage(&Plugins::discover()?, &args.estimator, &args.config, &args.rows)?;
            print(args.json, &scores, || rows(&scores["advantages"]))?;
        }
        Command::Score(args) => {
            let scores = score(&args.model_dir, &args.tokens, kind(args.compute.dtype), device(args.compute.device)?)?;
            print(args.json, &scores, || rows(&scores["logprobs"]))?;
        }
        Command::Generate(args) => run_generate(args)?,
        Command::Tokenize(args) => {
            let ids = tokenize(&args.model_dir, &args.chat, args.thinking)?;
            print(args.json, &ids, || words(&ids["ids"]))?;
        }
        Command::Model(ModelCommand::New { dir, shape, tokenizer, seed, dtype }) => {
            let config = Config::shape(&shape)?;
            new::create(&dir, &new::NewModel { config, tokenizer: tokenizer.as_deref(), seed, kind: kind(dtype) })?;
        }
        Command::Export(args) if args.adapter => checkpoint::export_adapter(&args.checkpoint, &args.dir)?,
        Command::Export(args) => {
            let output = if args.critic { Output::Value } else { Output::Tokens };
            checkpoint::export(&args.checkpoint, &args.dir, output, kind(args.dtype))?;
        }
        Command::Bench(BenchCommand::Generate(args)) => run_bench(args, bench::generate)?,
        Command::Bench(BenchCommand::Score(args)) => run_bench(args, bench::score)?,
        Command::Bench(BenchCommand::Update(args)) => run_bench(args, bench::update)?,
        Command::Bench(BenchCommand::Rollout(args)) => {
            let measured = bench::rollout(&args)?;
            print(args.run.json, &measured, || seconds_and_rate(&measured))?;
        }
        Command::Bench(BenchCommand::Iteration(args)) => {
            let measured = bench::iteration(&args)?;
            print(args.run.json, &measured, || seconds_and_rate(&measured))?;
        }
        Command::Bench(BenchCommand::LogprobDiff(args)) => {
            let json = args.json;
            let measured = bench::logprob_diff(&bench_options(args)?)?;
            print(json, &measured, || format!("mean {}, largest {}", measured["mean"], measured["max"]))?;
        }
        Command::Bench(BenchCommand::Collective { backend, mib, repeats, timeout, silence, json }) => {
            let patience = Dist { timeout_s: timeout, silence_s: silence };
            let measured = bench::collective(&CollectiveOptions { backend, mib, repeats, patience })?;
            print(json, &measured, || format!("{} s, {} GB/s", measured["seconds"], measured["gb_per_s"]))?;
        }
        Command::Plugin(PluginCommand::List { json }) => list_plugins(json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_train(args: Train) -> Result<ExitCode> {
    let recipe = recipe::load(&args.recipe, &args.sets)?;
    let ranks = join(&recipe)?;
    let ending = train(recipe, &args.name(), &args.how(), &ranks);
    Ok(match ending.inspect_err(|error| ranks.comm.abort(&message(error)))? {
        Ending::Done => ExitCode::SUCCESS,
        Ending::Stopped => ExitCode::from(130),
    })
}

impl Train {
    /// What the run is called after.
    fn name(&self) -> String {
        self.recipe.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn how(&self) -> TrainArgs {
        TrainArgs { run_dir: self.run_dir.clone(), resume: self.resume, restarted: self.restarted }
    }
}

/// Finds what is wrong with a command before anything starts, and lets all ranks, and all restarts, share a run directory.
fn run_launch(args: Launch) -> Result<ExitCode> {
    let Launch { nproc, restarts, command: mut arguments } = args;
    let whole = std::iter::once(OsString::from("nestor")).chain(arguments.iter().cloned());
    let command = Cli::try_parse_from(whole).unwrap_or_else(|error| error.exit()).command;
    let mut again = Vec::new();
    match command {
        Command::Train(train) => {
            recipe::load(&train.recipe, &train.sets)?;
            let dir = run_dir(&train.name(), &train.how())?;
            if train.run_dir.is_none() {
                arguments.splice(1..1, ["--run-dir".into(), dir.into_os_string()]);
            }
            again.push("--restarted".into());
        }
        Command::Bench(BenchCommand::Collective { .. } | BenchCommand::Update(_)) => {}
        _ => {
            return Err(input_error!(
                "only train, bench collective and bench update run on several ranks: leave out `launch --nproc {nproc}`"
            ));
        }
    }
    let options = launch::Launch { ranks: nproc.into(), restarts, arguments, again };
    Ok(ExitCode::from(launch::launch(&options)?))
}

fn run_generate(args: Generate) -> Result<()> {
    let source = match args.prompt {
        Prompt { prompt: Some(text), .. } => Source::Text(text),
        Prompt { chat: Some(text), .. } => Source::Chat { text, thinking: args.thinking },
        Prompt { tokens, .. } => Source::Tokens(tokens.expect("clap asks for one of the three")),
    };
    let generated = generate(&GenerateOptions {
        dir: args.model_dir,
        source,
        max_new_tokens: args.max_new_tokens,
        sampling: Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p },
        seed: args.seed,
        kind: kind(args.compute.dtype),
        device: device(args.compute.device)?,
    })?;
    print(args.json, &serde_json::to_value(&generated)?, || generated.text.join("\n"))
}

fn run_bench(args: Bench, work: fn(&BenchOptions) -> Result<Value>) -> Result<()> {
    let json = args.json;
    let measured = work(&bench_options(args)?)?;
    print(json, &measured, || seconds_and_rate(&measured))
}

fn bench_options(args: Bench) -> Result<BenchOptions> {
    Ok(BenchOptions {
        dir: args.model,
        batch: args.batch,
        prompt: args.prompt,
        new: args.new,
        kind: kind(args.compute.dtype),
        device: device(args.compute.device)?,
        repeats: args.repeats,
        recompute: args.recompute,
        ragged: args.ragged,
        sharding: args.sharding,
    })
}

fn seconds_and_rate(measured: &Value) -> String {
    format!("{} s, {} tokens/s", measured["seconds"], measured["tokens_per_s"])
}

fn list_plugins(json: bool) -> Result<()> {
    let plugins = Plugins::discover()?;
    let all = serde_json::json!({ "found": plugins.list(), "refused": plugins.refused() });
    print(json, &all, || {
        let found =
            plugins.list().into_iter().map(|p| format!("{} {}: {} ({})", p.kind, p.id, p.doc, p.path.display()));
        let refused = plugins.refused().iter().map(|p| format!("refused {}: {}", p.path.display(), p.why));
        found.chain(refused).collect::<Vec<_>>().join("\n")
    })
}

/// Prints JSON, or the plain form.
fn print(json: bool, value: &Value, plain: impl FnOnce() -> String) -> Result<()> {
    if value.is_null() {
        return Ok(()); // another rank tells it
    }
    let text = if json { value.to_string() } else { plain() };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// One line per row.
fn rows(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(words).collect::<Vec<_>>().join("\n")
}

/// Numbers on one line.
fn words(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(Value::to_string).collect::<Vec<_>>().join(" ")
}
