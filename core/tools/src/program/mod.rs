//! The program `nestor-torch`: it calls one function for the command and prints the result. No logic.

mod serve;
mod verify;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nestor_args::launcher::sleeping_threads;
use nestor_args::message::{exit_code, internal_error, is_closed_pipe, message, panic_text};
use nestor_args::output::{print, print_line, rows, words};
use nestor_args::oversubscribe::Asked;
use nestor_args::{
    self as args, BenchCommand, EmbedArgs, Evaluate, Generate, Launch, LogprobDiff, ModelCommand, ProfiledBench,
    Prompt, Resume, TorchCommand as Command, Train,
};
use nestor_torch::{Backend, cuda, kernels};
use serde_json::Value;

use crate::agent::play::play;
use crate::bench::{self, BenchOptions, CollectiveOptions, LogprobDiffOptions};
use crate::checkpoint::Source;
use crate::embed::{EmbedOptions, EncoderOptions, embed, serve};
use crate::engine::Sampling;
use crate::episodes::{Written, episodes};
use crate::error::{Stopped, is_quiet};
use crate::eval::{EndpointArgs, EvalArgs, eval};
use crate::event::{Event, Status};
use crate::export::{ExportOptions, Part, export};
use crate::generate::{GenerateOptions, PromptSource, generate};
use crate::init::init;
use crate::input_error;
use crate::model::{Config, device, kind, new};
use crate::out_of_memory::{caught, in_phase, will_be_caught};
use crate::plan::{self, plan};
use crate::plugin::{self, Plugins};
use crate::policy::logprobs::score;
use crate::ranks::launch::{self, end_with_launcher};
use crate::ranks::{Rendezvous, restart};
use crate::recipe::{self, Dist, Dtype, Lora, Recipe, ResumeMode};
use crate::run::{
    MemoryWarning, RECIPE, TrainArgs, check_free, default_dir, is_run, join, make_first_free, remove_empty, to_resume,
    verdict,
};
use crate::terminal;
use crate::tokenize::tokenize;
use crate::train::train;
use crate::view::view;

/// Starts this program again with the setting of [`sleeping_threads`], unless `nestor` has made it.
fn wait_without_spinning() {
    if let Some((name, value)) = sleeping_threads() {
        let mut args = std::env::args_os();
        let mut again = std::process::Command::new("/proc/self/exe");
        if let Some(program) = args.next() {
            again.arg0(program);
        }
        // Returns only on failure; the program then continues without the setting.
        let _ = again.args(args).env(name, value).exec();
    }
}

/// Runs the program: 0 success, 1 failure, 2 the user's mistake, 130 stopped by a signal.
pub fn main() -> ExitCode {
    wait_without_spinning();
    if let Err(error) = cuda::load_where_useful() {
        terminal::warn(&format!(
            "warning: there is a driver of a GPU, but libtorch's CUDA half cannot be loaded: {error:#}"
        ));
    }
    nestor_args::file_limit::report_as_full_disk();
    std::panic::set_hook(Box::new(|info| {
        if !is_quiet() && !panic_text(info.payload()).is_some_and(will_be_caught) {
            warn(&internal_error(info));
        }
    }));
    let command = match nestor_args::parse().command {
        args::Command::Own(_) => {
            return fail(&input_error!("the program `nestor` runs this command, and nestor-torch does not"), false);
        }
        args::Command::Torch(command) => command,
    };
    let json = prints_json(&command);
    // The launcher calls no plugin.
    if !matches!(command, Command::Launch(_))
        && let Err(error) = guard(json)
    {
        return fail(&error, json);
    }
    end(work(command, json))
}

/// Keeps standard output from plugins, and has the process say which plugin ended it.
fn guard(json: bool) -> Result<()> {
    terminal::keep_stdout()?;
    let mark = Rendezvous::of_environment().map_or(String::new(), |own| own.mark());
    plugin::watch_process(&(terminal::clearing().to_string() + &mark), json.then(|| terminal::out().as_raw_fd()));
    Ok(())
}

/// The code to end with. A launcher gets another code for success than the 0 of a process that a plugin ended.
fn end(code: ExitCode) -> ExitCode {
    let code = if code == ExitCode::SUCCESS { launch::success() } else { code };
    plugin::ending((0..=u8::MAX).find(|&n| ExitCode::from(n) == code).unwrap_or(1));
    code
}

/// Runs the command.
fn work(command: Command, json: bool) -> ExitCode {
    match std::panic::catch_unwind(|| caught(|| run(command))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => fail(&error, json),
        Err(_) => {
            if json {
                Event::Error { message: "internal error" }.print_json();
            }
            ExitCode::FAILURE
        }
    }
}

/// True if this process prints its events as JSON: `train --json`, at the first rank.
fn prints_json(command: &Command) -> bool {
    match command {
        Command::Train(args) => args.json && Rendezvous::of_environment().map_or(true, |own| own.rank == 0),
        Command::Launch(args) => matches!(args.parse(), Ok(args::Command::Torch(Command::Train(train))) if train.json),
        _ => false,
    }
}

/// Prints an error of this process, with its rank if there are several.
fn warn(text: &str) {
    let mark = Rendezvous::of_environment().map_or(String::new(), |own| own.mark());
    terminal::warn(&format!("{mark}error: {text}"));
}

/// Prints the one message of an error.
fn fail(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS; // the reader of a pipe, such as `head`, has seen enough
    }
    warn(&message(error));
    if json {
        Event::Error { message: &message(error) }.print_json();
    }
    ExitCode::from(exit_code(error))
}

fn run(command: Command) -> Result<ExitCode> {
    if matches!(command, Command::Train(_) | Command::Bench(_) | Command::Launch(_) | Command::Export(_)) {
        end_with_launcher()?;
    }
    match command {
        Command::Train(args) => return run_train(args),
        Command::Launch(args) => return run_launch(args),
        Command::Eval(args) => {
            let json = args.json;
            let options = eval_args(args);
            let report = caught(|| eval(&options)).map_err(|error| in_phase(error, "evaluate"))?;
            print(json, &report.to_json(), || report.text(terminal::width()))?;
        }
        Command::Verify(args) => return verify::verify(args),
        Command::Plan(args) => {
            let plan = plan(&args)?;
            print(args.json, &plan.to_json()?, || plan.to_string())?;
        }
        Command::TorchReport => print_line(&torch_report().to_string())?,
        Command::Init(args) => print_line(&init(&args)?)?,
        Command::View(args) => print_line(&view(&args)?.to_string())?,
        Command::Play(args) => play(&Plugins::discover()?, &args, &mut terminal::out())?,
        Command::Score(args) => {
            let device = device(args.compute.device)?;
            let scores = score(&args.tokens, || Source::find(&args.model)?.load(kind(args.compute.dtype), device))?;
            print(args.json, &scores, || rows(&scores["logprobs"]))?;
        }
        Command::Generate(args) => run_generate(args)?,
        Command::Serve(args) => serve::serve(args)?,
        Command::Tokenize(args) => {
            let ids = tokenize(Source::find(&args.model)?.folder(), &args.chat, args.thinking)?;
            let several = ids["ids"][0].is_array();
            print(args.json, &ids, || if several { rows(&ids["ids"]) } else { words(&ids["ids"]) })?;
        }
        Command::Episodes(args) => {
            let Written { rows, episodes: [chosen, all] } = episodes(&args)?;
            print_line(&format!("wrote {rows} rows of {chosen} of {all} episodes to {}", args.out.display()))?;
        }
        Command::Embed(args) => run_embed(args)?,
        Command::Model(ModelCommand::New { dir, shape, layers, tokenizer, seed, dtype }) => {
            let mut config = Config::shape(&shape)?;
            if let Some(layers) = layers {
                config.cut(i64::from(layers));
            }
            new::create(&dir, &new::RandomModel { config, tokenizer: tokenizer.as_deref(), seed, kind: kind(dtype) })?;
        }
        Command::Export(args) => {
            let part = match (args.critic, args.adapter) {
                (true, _) => Part::Critic,
                (_, true) => Part::Adapter,
                _ => Part::Policy,
            };
            let options = ExportOptions { model: args.model, dir: args.dir, part, kind: kind(args.dtype) };
            let source = export(&options)?;
            print_line(&format!("exported {} to {}", source.display(), options.dir.display()))?;
        }
        Command::Bench(BenchCommand::Generate(args)) => run_bench(args, None, bench::generate)?,
        Command::Bench(BenchCommand::Score(args)) => run_bench(args.into(), None, bench::score)?,
        Command::Bench(BenchCommand::Update(args)) => run_bench(args.profiled, args.lora, bench::update)?,
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
            let measured = bench::logprob_diff(&logprob_diff_options(args)?)?;
            print(json, &measured, || differences(&measured))?;
        }
        Command::Bench(BenchCommand::Kernels { device, verbose, json }) => {
            let tested = bench::kernels(device, verbose)?;
            print(json, &tested, || kernels_line(&tested))?;
        }
        Command::Bench(BenchCommand::Collective { backend, mib, repeats, timeout, silence, json }) => {
            let patience = Dist { timeout_s: timeout, silence_s: silence };
            let measured = bench::collective(&CollectiveOptions { backend: library(backend), mib, repeats, patience })?;
            print(json, &measured, || format!("{} s, {} GB/s", measured["seconds"], measured["gb_per_s"]))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// libtorch's view of the machine, for `nestor doctor`.
fn torch_report() -> Value {
    let half = match cuda::load_where_useful() {
        Ok(true) => "loaded".to_string(),
        Ok(false) => "not loaded, as there is no driver of a GPU".to_string(),
        Err(error) => format!("cannot be loaded: {error:#}"),
    };
    let devices = tch::Cuda::device_count();
    let kernels: Vec<_> = (0..devices as usize).map(|gpu| kernels::code_of(tch::Device::Cuda(gpu))).collect();
    serde_json::json!({
        "cuda_devices": devices,
        "cuda_half": half,
        "kernels": kernels,
        "threads": tch::get_num_threads(),
    })
}

/// Checks a recipe for some ranks without running it.
fn run_check(args: &Train, how: TrainArgs, recipe: Recipe, ranks: usize) -> Result<ExitCode> {
    let verdict = caught(|| Ok(verdict(recipe, &args.name(), &how, ranks)))?;
    print(args.json, &verdict.to_json(), || verdict.to_string())?;
    verdict.problems().for_each(|problem| warn(&problem));
    Ok(if verdict.passes() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn run_train(args: Train) -> Result<ExitCode> {
    let (how, recipe) = options_and_recipe(&args)?;
    if args.check {
        return run_check(&args, how, recipe, Rendezvous::of_environment()?.world);
    }
    let ranks = join(&recipe)?;
    let ending = train(recipe, &args.name(), &how, &ranks);
    let ending = ending.inspect_err(|error| ranks.comm.abort(&message(error)));
    if ending.as_ref().is_err_and(|error| error.is::<Stopped>()) {
        terminal::warn("stopped by a signal before the run began");
        return Ok(ExitCode::from(130));
    }
    Ok(match ending? {
        Status::Done => ExitCode::SUCCESS,
        Status::Stopped => ExitCode::from(130),
    })
}

/// The options of a run, with the directory of the run to resume, and its recipe.
fn options_and_recipe(args: &Train) -> Result<(TrainArgs, Recipe)> {
    let mut how = train_options(args)?;
    let recipe = read_recipe(args, &how)?;
    if recipe.checkpoint.resume == ResumeMode::Auto && !how.resume {
        how.restarted = true;
        how.run_dir.get_or_insert_with(|| default_dir(&args.name(), args.recipe.as_deref()));
    }
    if let (None, Some(why)) = (&how.run_dir, restart::sign()?) {
        return Err(input_error!(
            "{why}, so this command must name the run that a restart continues: add --run-dir DIR"
        ));
    }
    Ok((how, recipe))
}

fn train_options(args: &Train) -> Result<TrainArgs> {
    let auto = args.resume == Some(Resume::Auto);
    let resume = args.resume == Some(Resume::Always) || args.resume_from.is_some();
    let run_dir = match &args.run_dir {
        None if resume => Some(to_resume(args.recipe.as_deref())?),
        None if auto => Some(default_dir(&args.name(), args.recipe.as_deref())),
        named => named.clone(),
    };
    let (json, restarted) = (args.json, args.restarted || auto || restart::count()? > 0);
    let (resume_from, allow_change) = (args.resume_from.clone(), args.allow_change.clone());
    let memory_warning = Some(plan::memory_warning as MemoryWarning);
    Ok(TrainArgs { run_dir, resume, resume_from, allow_change, restarted, json, memory_warning })
}

/// The recipe of a run: the launcher's, the file named, or the run's own.
fn read_recipe(args: &Train, options: &TrainArgs) -> Result<Recipe> {
    if args.recipe_on_stdin {
        let text = std::io::read_to_string(std::io::stdin()).context("reading the launcher's recipe")?;
        return recipe::load_resolved("the launcher's recipe", &text);
    }
    let own = || options.run_dir.as_ref().map(|dir| dir.join(RECIPE));
    let file = args.recipe.clone().or_else(own).context("clap asks for a recipe or --resume")?;
    if let (None, Some(dir)) = (&args.recipe, &options.run_dir)
        && !is_run(dir)
    {
        return Err(input_error!("{} holds no run yet: name the recipe that begins it", dir.display()));
    }
    recipe::load(&file, &args.sets)
}

/// Checks the command before any rank starts. All ranks and restarts get the same recipe and run directory.
fn run_launch(args: Launch) -> Result<ExitCode> {
    let signals = launch::collect_signals()?;
    let command = args.parse().unwrap_or_else(|error| error.exit());
    let args::Command::Torch(command) = command else { return Err(not_for_ranks(args.nproc)) };
    let Launch { nproc, restarts, oversubscribe, command: mut arguments } = args;
    let (mut again, mut json, mut input, mut made) = (Vec::new(), false, String::new(), Vec::new());
    match command {
        Command::Train(train) if train.check => {
            let (how, recipe) = options_and_recipe(&train)?;
            return run_check(&train, how, recipe, nproc.into());
        }
        Command::Train(train) => {
            let (how, recipe) = options_and_recipe(&train)?;
            // Read once: a file that changes during the run changes nothing.
            input = recipe.to_yaml()?;
            let dir = match &how.run_dir {
                Some(dir) => {
                    if !(how.resume || how.restarted && is_run(dir)) {
                        check_free(dir, &how)?;
                    }
                    dir.clone()
                }
                None => {
                    let (dir, all) = make_first_free(&train.name())?;
                    made = all;
                    dir
                }
            };
            if train.run_dir.is_none() {
                arguments.splice(1..1, ["--run-dir".into(), dir.into_os_string()]);
            }
            arguments.insert(1, "--recipe-on-stdin".into());
            again.push("--restarted".into());
            json = train.json;
        }
        Command::Bench(BenchCommand::Collective { .. } | BenchCommand::Update(_)) => {}
        _ => return Err(not_for_ranks(nproc)),
    }
    Asked { count: nproc.into(), name: "ranks", option: "--nproc" }.check(oversubscribe)?;
    let options = launch::LaunchOptions { ranks: nproc.into(), restarts, arguments, again, json, input };
    let code = launch::launch(&options, signals);
    remove_empty(&made); // of refused ranks
    Ok(ExitCode::from(code?))
}

fn not_for_ranks(nproc: u16) -> anyhow::Error {
    input_error!(
        "only train, bench collective and bench update run on several ranks: leave out `launch --nproc {nproc}`"
    )
}

fn eval_args(args: Evaluate) -> EvalArgs {
    let Evaluate { targets, sets, models, all, episodes, samples, out, json, endpoint, endpoint_model, api_key } = args;
    let endpoint = endpoint.map(|url| {
        let key = api_key.or_else(|| std::env::var("OPENAI_API_KEY").ok()).filter(|key| !key.is_empty());
        EndpointArgs { url, model: endpoint_model, key }
    });
    EvalArgs { targets, models, all, sets, episodes, samples, out, endpoint, quiet: json }
}

fn run_generate(args: Generate) -> Result<()> {
    let source = match args.prompt {
        Prompt { prompt: Some(text), .. } => PromptSource::Text(text),
        Prompt { chat: Some(argument), .. } => {
            PromptSource::Chat { argument, images: args.image, thinking: args.thinking }
        }
        Prompt { tokens, .. } => PromptSource::Tokens(tokens.expect("clap asks for one of the three")),
    };
    let generated = generate(&GenerateOptions {
        model: args.model,
        source,
        max_new_tokens: args.max_new_tokens,
        sampling: Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, min_p: args.min_p },
        seed: args.seed,
        kind: kind(args.compute.dtype),
        device: device(args.compute.device)?,
    })?;
    print(args.json, &serde_json::to_value(&generated)?, || generated.text.join("\n"))
}

fn run_embed(args: EmbedArgs) -> Result<()> {
    let encoder = EncoderOptions {
        model: args.model,
        max_length: args.max_length as usize,
        kind: kind(args.compute.dtype),
        device: device(args.compute.device)?,
    };
    if args.serve {
        return serve(&encoder, &args.query_prefix, std::io::stdin().lock(), &mut terminal::out());
    }
    let embedded = embed(&EmbedOptions {
        encoder,
        corpus: args.corpus.context("clap asks for a corpus or --serve")?,
        out: args.out.context("clap asks for --out")?,
        query_prefix: args.query_prefix,
        passage_prefix: args.passage_prefix,
        quiet: args.json,
    })?;
    print(args.json, &serde_json::to_value(&embedded)?, || embedded.to_string())
}

fn run_bench(args: ProfiledBench, lora: Option<i64>, work: fn(&BenchOptions) -> Result<Value>) -> Result<()> {
    let json = args.bench.json;
    let lora = lora.map(|rank| Lora::of_all(rank, 2.0 * rank as f64));
    let measured = work(&BenchOptions { lora, ..bench_options(args)? })?;
    print(json, &measured, || seconds_and_rate(&measured))
}

fn bench_options(args: ProfiledBench) -> Result<BenchOptions> {
    let ProfiledBench { bench: args, ragged, profile } = args;
    let sequences = args.sequences;
    Ok(BenchOptions {
        dir: sequences.model,
        batch: sequences.batch,
        prompt: sequences.prompt,
        new: sequences.new,
        kind: kind(args.compute.dtype),
        device: device(args.compute.device)?,
        repeats: args.repeats,
        recompute: args.recompute,
        ragged,
        sharding: args.sharding,
        lora: None,
        profile,
    })
}

fn logprob_diff_options(args: LogprobDiff) -> Result<LogprobDiffOptions> {
    let all = || vec![Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];
    let sequences = args.sequences;
    Ok(LogprobDiffOptions {
        dir: sequences.model,
        batch: sequences.batch,
        prompt: sequences.prompt,
        prompts: args.tokens,
        new: sequences.new,
        recompute: args.recompute,
        kinds: args.dtype.map_or_else(all, |dtype| vec![dtype]).into_iter().map(kind).collect(),
        device: device(args.device)?,
    })
}

/// The library of `bench collective`.
fn library(backend: args::Backend) -> Backend {
    match backend {
        args::Backend::Gloo => Backend::Gloo,
        args::Backend::Nccl => Backend::Nccl,
    }
}

/// One line per compute type.
fn differences(measured: &Value) -> String {
    let line = |(dtype, found): (&String, &Value)| format!("{dtype}: mean {}, largest {}", found["mean"], found["max"]);
    measured["types"].as_object().into_iter().flatten().map(line).collect::<Vec<_>>().join("\n")
}

fn seconds_and_rate(measured: &Value) -> String {
    format!("{} s, {} tokens/s", measured["seconds"], measured["tokens_per_s"])
}

/// The number of kernels, and a line for each that is left out.
fn kernels_line(tested: &Value) -> String {
    let count = |list: &str| tested[list].as_array().map_or(0, Vec::len);
    let mut text =
        format!("{} kernels, tested in {:.0} ms", count("kernels"), tested["ms"].as_f64().unwrap_or_default());
    for one in tested["left_out"].as_array().into_iter().flatten() {
        let name = |key: &str| one[key].as_str().unwrap_or_default().to_string();
        text += &format!("\nleft out: {} ({})", name("kernel"), name("reason"));
    }
    text
}
