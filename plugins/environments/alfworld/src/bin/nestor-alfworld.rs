//! The plugin's tool: makes games, and measures the engine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use nestor_alfworld::engine::Game;
use nestor_alfworld::games::Split;
use nestor_alfworld::generate::{Package, Size, generate};
use nestor_alfworld::task_type::TaskType;
use nestor_alfworld::{AlfWorld, walkthrough};
use nestor_plugin::{Environment, Instance, Start};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Makes ALFWorld games, and measures how fast they are played
#[derive(Parser)]
#[command(name = "nestor-alfworld", version, arg_required_else_help = true)]
enum Command {
    /// Write random valid games, each with a list of commands that wins it
    Games(GamesArgs),
    /// Measure resets and steps per second, one thread, random policy, and the memory of 128 environments
    Bench(BenchArgs),
}

#[derive(Args)]
struct GamesArgs {
    /// The folder to write to, FOLDER/<task>/<trial>/{game.tw-pddl,traj_data.json}
    folder: PathBuf,
    /// Games of each task type
    #[arg(long, value_name = "N", default_value_t = 10)]
    per_type: u64,
    /// Size of the households
    #[arg(long, value_enum, default_value = "real")]
    size: Size,
    /// The task types; all six if omitted
    #[arg(long, value_name = "NAME")]
    task_type: Vec<String>,
    /// Seed of the first game of each type; the next ones follow
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The split to write, in its folder of the real layout (train, valid_seen, valid_unseen)
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// The folder of the Python package alfworld, which contains domain and grammar; by default .venv/alfworld in the working
    /// directory, or beside the program or above
    #[arg(long, value_name = "DIR")]
    package: Option<PathBuf>,
}

#[derive(Args)]
struct BenchArgs {
    /// A game or a folder of games
    games: PathBuf,
    /// Steps to play
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    steps: u64,
    /// Resets to make, one game after the other
    #[arg(long, value_name = "N", default_value_t = 1000)]
    resets: u64,
    /// Seed of the random policy
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Games(args) => make_games(&args),
        Command::Bench(args) => bench(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn make_games(args: &GamesArgs) -> Result<()> {
    let package = Package::read(&args.package.clone().unwrap_or_else(Package::installed)).context("--package")?;
    let types = match args.task_type.as_slice() {
        [] => TaskType::ALL.to_vec(),
        names => names.iter().map(|n| TaskType::from_name(n)).collect::<Result<_>>().context("--task-type")?,
    };
    let folder = match &args.split {
        Some(split) => args.folder.join(Split::from_name(split).context("--split")?.folder()),
        None => args.folder.clone(),
    };
    for index in 0..args.per_type {
        for &task_type in &types {
            let game = generate(task_type, args.size, args.seed + index);
            let commands = walkthrough(&Game::new(&game.content(&package))?)?;
            let path = game.write(&folder, &package, Some(commands))?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// Environments that exist at once when memory is measured.
const ENVIRONMENTS: usize = 128;

fn bench(args: &BenchArgs) -> Result<()> {
    let config = json!({ "games": args.games, "raw_commands": true, "max_steps": 50 });
    let world = AlfWorld::open(nestor_plugin::parse_config(&config.to_string())?)?;
    let tasks = world.tasks("train")?;
    let start = |task: u64| Start { split: "train", task: task % tasks, seed: 0 };
    let mut dice = ChaCha8Rng::seed_from_u64(args.seed);

    let mut env = world.spawn()?;
    env.reset(&world, start(0))?;
    let clock = Instant::now();
    for task in 0..args.resets {
        env.reset(&world, start(task))?;
    }
    let resets_per_s = args.resets as f64 / clock.elapsed().as_secs_f64();

    // Only steps are timed: a reset comes whenever an episode ends.
    let (mut seconds, mut played, mut task) = (0.0, 0, 0);
    while played < args.steps {
        let mut seen = env.reset(&world, start(task))?;
        task += 1;
        let clock = Instant::now();
        while !(seen.terminated || seen.truncated || played == args.steps) {
            ensure!(!seen.admissible.is_empty(), "no command is possible");
            let choice = dice.next_u64() % seen.admissible.len() as u64;
            seen = env.step(&world, &seen.admissible[choice as usize])?;
            played += 1;
        }
        seconds += clock.elapsed().as_secs_f64();
    }
    let steps_per_s = played as f64 / seconds;

    let before = memory("VmRSS")?;
    let mut envs = Vec::new();
    for task in 0..ENVIRONMENTS as u64 {
        let mut env = world.spawn()?;
        let seen = env.reset(&world, start(task))?;
        env.step(&world, &seen.admissible[0])?;
        envs.push(env);
    }
    let memory_mb = (memory("VmRSS")? - before) / 1024.0;
    let whole_mb = memory("VmHWM")? / 1024.0;
    let report = json!({
        "games": tasks, "steps": played, "steps_per_s": steps_per_s, "resets": args.resets,
        "resets_per_s": resets_per_s, "environments": envs.len(), "environments_mb": memory_mb,
        "process_peak_mb": whole_mb,
    });
    print_report(&report, args.json);
    Ok(())
}

fn print_report(report: &Value, as_json: bool) {
    if as_json {
        println!("{report}");
        return;
    }
    println!(
        "{} games: {:.0} resets/s, {:.0} steps/s, {} environments take {:.1} MB (the whole process {:.1} MB)",
        report["games"],
        report["resets_per_s"].as_f64().unwrap_or_default(),
        report["steps_per_s"].as_f64().unwrap_or_default(),
        report["environments"],
        report["environments_mb"].as_f64().unwrap_or_default(),
        report["process_peak_mb"].as_f64().unwrap_or_default(),
    );
}

/// Returns a line of this process's status, in kB.
fn memory(line: &str) -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let found = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':')?.trim().strip_suffix(" kB"));
    found.with_context(|| format!("/proc/self/status has no {line}"))?.trim().parse().context("/proc/self/status")
}
