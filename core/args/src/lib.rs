//! The command line of both programs, with an example of each command; messages, exit codes and the terminal; the agreement
//! between a launcher and its ranks. Every crate of the trainer may use it.

mod bench;
mod compare;
mod embed;
pub mod episodes;
pub mod file_limit;
pub mod free_disk;
pub mod free_memory;
mod hints;
mod import;
mod init;
mod inspect;
pub mod launcher;
pub mod message;
mod model;
pub mod output;
pub mod oversubscribe;
mod plan;
mod plugin;
mod serve;
pub mod terminal;
mod verify;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

pub use self::bench::{
    Backend, Bench, BenchCommand, IterationArgs, LogprobDiff, ProfiledBench, RolloutArgs, RunArgs, ScriptArgs,
    Sequences, UpdateBench,
};
pub use self::compare::CompareArgs;
pub use self::embed::EmbedArgs;
use self::episodes::EpisodesArgs;
pub use self::import::ImportArgs;
pub use self::init::InitArgs;
pub use self::inspect::{PlayArgs, ViewArgs};
pub use self::model::{Compute, Export, Generate, ModelCommand, Prompt, Score, Tokenize};
pub use self::plan::{Gpu, MOST_RANKS, PlanArgs};
pub use self::plugin::{Kind, Language, NewArgs, PluginCheck, PluginCommand};
pub use self::serve::ServeArgs;
pub use self::verify::{Play, VerifyArgs};

/// Trains LLM agents by reinforcement learning over many turns
#[derive(Parser)]
#[command(
    name = "nestor",
    version = nestor_version::VERSION_AND_COMMIT,
    arg_required_else_help = true,
    after_help = EXAMPLE_AND_CODES
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLE_AND_CODES: &str = "\
Example:
  nestor train recipes/quickstart.yaml

Exit codes:
  0    success
  1    failure: the message names the cause
  2    invalid input: an argument, a recipe or a file; a restart would not help
  130  stopped by SIGINT or SIGTERM after a save; `train` continues with --resume";

/// Each command has an example, which docs/cli.md repeats; `tests/python/test_docs.py` runs them there in order.
#[derive(Subcommand)]
pub enum Command {
    #[command(flatten)]
    Torch(TorchCommand),
    #[command(flatten)]
    Own(OwnCommand),
}

/// Commands of the program `nestor-torch`, to which `nestor` hands them.
#[derive(Subcommand)]
pub enum TorchCommand {
    /// Write a commented recipe for an environment, an estimator and a model
    #[command(
        after_help = "Example:\n  nestor init --env numberline --estimator gigpo --model new --out runs/numberline.yaml"
    )]
    Init(InitArgs),
    /// Run a recipe
    #[command(after_help = "Example:\n  nestor train recipes/smoke/gigpo.yaml --run-dir runs/demo")]
    Train(Train),
    /// Asked by `doctor`: describe libtorch's view of the machine as JSON
    #[command(hide = true)]
    TorchReport,
    /// Start a command on several ranks of this machine
    #[command(
        after_help = "Example:\n  nestor launch --nproc 2 train recipes/smoke/gigpo.yaml --run-dir runs/two_ranks"
    )]
    Launch(Launch),
    /// Measure the success of models on a recipe's evaluation tasks
    #[command(after_help = "Example:\n  nestor eval runs/demo --all --episodes 8 --samples 2")]
    Eval(Evaluate),
    /// Show that a recipe is reproducible here: run it twice, kill and resume it, run it on two ranks, and compare every bit
    #[command(
        after_help = "Example:\n  nestor verify recipes/smoke/gigpo.yaml --out runs/verified\n  nestor verify --runs runs/verified/first runs/verified/again"
    )]
    Verify(VerifyArgs),
    /// Estimate memory, communication and time of a recipe without running it
    #[command(after_help = "Example:\n  nestor plan recipes/quickstart.yaml --gpus 8")]
    Plan(PlanArgs),
    /// Draw runs and their episodes on one HTML page
    #[command(after_help = "Example:\n  nestor view runs/demo runs/two_ranks --out runs/view.html")]
    View(ViewArgs),
    /// Play an environment by hand or from a file
    #[command(after_help = "Example:\n  nestor play numberline --task 3 --actions docs/examples/actions.jsonl")]
    Play(PlayArgs),
    /// Print the log-probability of each token given those before it
    #[command(after_help = "Example:\n  nestor score runs/demo/model --tokens docs/examples/tokens.json")]
    Score(Score),
    /// Continue prompts with a model
    #[command(after_help = "Example:\n  nestor generate runs/demo/model --chat Hello --max-new-tokens 8")]
    Generate(Generate),
    /// Answer chat completions over HTTP, as OpenAI's clients ask for them
    #[command(after_help = "Example:\n  nestor serve runs/demo --port 8000")]
    Serve(ServeArgs),
    /// Print the token ids of a chat, generation prompt included
    #[command(after_help = "Example:\n  nestor tokenize runs/demo/model --chat docs/examples/chat.json")]
    Tokenize(Tokenize),
    /// Write the episodes of a run as chats, such as the won ones to learn from
    #[command(after_help = "Example:\n  nestor episodes runs/demo --from all --dedupe --out runs/episodes.jsonl")]
    Episodes(EpisodesArgs),
    /// Turn the passages of a corpus into vectors for dense retrieval, or answer queries with theirs
    #[command(
        after_help = "Example:\n  nestor embed docs/examples/encoder docs/examples/corpus.jsonl --out runs/vectors"
    )]
    Embed(EmbedArgs),
    /// Create models
    #[command(subcommand, after_help = "Example:\n  nestor model new runs/tiny --shape tiny")]
    Model(ModelCommand),
    /// Write a model as a Hugging Face folder with a model card
    #[command(after_help = "Example:\n  nestor export runs/demo runs/exported")]
    Export(Export),
    /// Measure given work on random tokens
    #[command(
        subcommand,
        after_help = "Example:\n  nestor bench generate --model runs/tiny --batch 2 --prompt 16 --new 8"
    )]
    Bench(BenchCommand),
}

/// Commands that need no libtorch: the program `nestor` runs them itself.
#[derive(Subcommand)]
pub enum OwnCommand {
    /// Turn the prompts of another project, verl-agent, into templates for `rollout.template`, checked against known sums
    #[command(
        after_help = "Example:\n  nestor import-prompts docs/examples/prompts --sums docs/examples/prompts/sums.json --out runs/prompts"
    )]
    ImportPrompts(ImportArgs),
    /// Run an advantage estimator on recorded steps
    #[command(after_help = "Example:\n  nestor advantage gigpo --rows docs/examples/rows.json")]
    Advantage(Advantage),
    /// Train a grid of recipes and seeds, some at a time; the same command continues a sweep that was stopped or killed
    #[command(after_help = "Example:\n  nestor sweep recipes/smoke/sweeps/estimators.yaml --list")]
    Sweep(SweepArgs),
    /// Compare groups of runs: success over seeds with intervals, and whether differences exceed replicate noise
    #[command(after_help = "Example:\n  nestor compare docs/examples/compare.jsonl")]
    Compare(CompareArgs),
    /// Write, inspect and check plugins
    #[command(subcommand, after_help = "Example:\n  nestor plugin list")]
    Plugin(PluginCommand),
    /// Check the machine and the installation, with a remedy for each fault: exit code 0, or 1 if a check failed
    #[command(after_help = "Example:\n  nestor doctor")]
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a shell's completions of commands and options
    #[command(after_help = "Example:\n  nestor completions bash")]
    Completions {
        /// The shell. bash: put `source <(nestor completions bash)` into ~/.bashrc; fish: save the text as
        /// ~/.config/fish/completions/nestor.fish; zsh: save it as _nestor in a folder of $fpath
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

#[derive(Args)]
pub struct SweepArgs {
    /// The file of the sweep: a recipe, variants of its keys, and seeds
    pub file: PathBuf,
    /// Print the table of runs, and start none
    #[arg(long)]
    pub list: bool,
    /// Start the runs also where the machine has too few cores or too little memory
    #[arg(long)]
    pub oversubscribe: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The value of `--resume`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Resume {
    /// There must be a run.
    Always,
    /// Begin where there is none.
    Auto,
}

#[derive(Args)]
#[command(group(clap::ArgGroup::new("resumes").args(["resume", "resume_from"])))]
pub struct Train {
    /// The recipe; with --resume by default the run's own
    #[arg(required_unless_present = "resumes")]
    pub recipe: Option<PathBuf>,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// The run directory; by default the first free runs/RECIPE[-N], with --resume the only run there
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Continue from the newest complete checkpoint. `--resume auto` begins the run where the directory holds none, so that a scheduler may
    /// start the same command again; the recipe's `checkpoint.resume: auto` does the same
    #[arg(long, value_name = "auto", num_args = 0..=1, require_equals = true, default_missing_value = "always", hide_possible_values = true)]
    pub resume: Option<Resume>,
    /// Continue from another checkpoint of the run: `best`, the number of an iteration, or the checkpoint's folder. The next save removes the
    /// later ones
    #[arg(long, value_name = "CHECKPOINT")]
    pub resume_from: Option<String>,
    /// With --resume: permit a change of this recipe key, or of a section's keys, that belongs to the run's start
    #[arg(long, value_name = "KEY", requires = "resumes")]
    pub allow_change: Vec<String>,
    /// Check everything that can be known before the run, show the first prompt, and end: exit code 0 or 2, nothing is written
    #[arg(long)]
    pub check: bool,
    /// Print JSON: one object per line and event
    #[arg(long)]
    pub json: bool,
    /// Set by `launch` in a restart: resume if there is a checkpoint
    #[arg(long, hide = true)]
    pub restarted: bool,
    /// Set by `launch`, which has read the recipe: take it from standard input, resolved
    #[arg(long, hide = true)]
    pub recipe_on_stdin: bool,
}

#[derive(Args)]
pub struct Launch {
    /// Number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub nproc: u16,
    /// Maximum number of restarts of all ranks after a failure; `train` then continues from its newest complete checkpoint
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub restarts: u32,
    /// Start the ranks also where the machine has too few cores or too little memory
    #[arg(long)]
    pub oversubscribe: bool,
    /// The command with its arguments: train, bench collective or bench update
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Evaluate {
    /// A recipe and models, or runs and checkpoints alone: these play by the recipe of the first run
    #[arg(required = true, value_name = "RECIPE_OR_RUN")]
    pub targets: Vec<PathBuf>,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// A model, again for each further one: a run directory (its newest complete checkpoint), a checkpoint, a Hugging Face
    /// folder, or a cached Hub id; by default the recipe's
    #[arg(long = "model", value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// Every complete checkpoint of the runs instead of the newest
    #[arg(long)]
    pub all: bool,
    /// The base URL of a server of OpenAI's chat completions, such as `nestor serve`, whose model plays in place of one here
    #[arg(long, value_name = "URL", conflicts_with_all = ["models", "all"])]
    pub endpoint: Option<String>,
    /// The model of the endpoint; by default its only one
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub endpoint_model: Option<String>,
    /// The key that the endpoint asks for; by default the environment variable OPENAI_API_KEY
    #[arg(long, value_name = "KEY", requires = "endpoint")]
    pub api_key: Option<String>,
    /// Number of tasks to play instead of the recipe's eval.tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub episodes: Option<u32>,
    /// Episodes per task instead of the recipe's eval.samples
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub samples: Option<u32>,
    /// The folder for evaluation.json and the episodes
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Advantage {
    /// The estimator: the id of a plugin, or the path of a plugin file
    pub estimator: String,
    /// The estimator's configuration
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub config: String,
    /// The recorded steps
    #[arg(long, value_name = "FILE")]
    pub rows: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Train {
    /// Name of a new run.
    pub fn name(&self) -> String {
        let recipe = self.recipe.as_deref().and_then(Path::file_stem);
        recipe.unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Launch {
    /// Parses the command that the ranks run.
    pub fn parse(&self) -> Result<Command, clap::Error> {
        let whole = std::iter::once(OsString::from("nestor")).chain(self.command.iter().cloned());
        Ok(Cli::try_parse_from(joined(whole))?.command)
    }
}

/// Most tokens of one response, as in a recipe.
const MOST_TOKENS: u64 = 1 << 24;

/// A count up to a limit beyond any machine: a number with some digits too many is refused here, and not when memory runs out. The
/// commands refuse 0 where it means nothing.
fn at_most(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=most)
}

/// The definition of the command line, from which `docs/cli.md` is generated.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The definition without hidden commands and options, for a shell's completions.
pub fn visible_command() -> clap::Command {
    visible(&command())
}

fn visible(command: &clap::Command) -> clap::Command {
    // clap keeps names for the whole program.
    let name: &'static str = command.get_name().to_string().leak();
    let mut copy = clap::Command::new(name);
    copy = command.get_about().map_or(copy.clone(), |about| copy.about(about.clone()));
    copy = copy.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned());
    copy.subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible))
}

/// Parses this process's arguments; prints help or an error and ends the process where there is no command to run.
pub fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    parse_from(&args).unwrap_or_else(|error| error.exit())
}

/// `--resume auto` as clap takes the value of an option that may have none: behind `=`. Else `--resume RECIPE` would lose the recipe.
fn joined(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut whole: Vec<OsString> = Vec::new();
    for arg in args {
        match whole.last_mut() {
            Some(last) if last == "--resume" && (arg == "auto" || arg == "always") => {
                last.push("=");
                last.push(arg);
            }
            _ => whole.push(arg),
        }
    }
    whole
}

/// Parses a command line, and that of the command which `launch` starts.
fn parse_from(args: &[OsString]) -> Result<Cli, clap::Error> {
    let parsed = Cli::try_parse_from(joined(args.iter().cloned())).and_then(|cli| {
        if let Command::Torch(TorchCommand::Launch(launch)) = &cli.command {
            launch.parse()?;
        }
        Ok(cli)
    });
    // `nestor train update.lr=1e-5` parses: the key takes the recipe's place.
    let is_wrong = match &parsed {
        Ok(_) => true,
        Err(error) => matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument),
    };
    match hints::meant(args).filter(|_| is_wrong) {
        Some(meant) => {
            Err(Cli::command()
                .error(ErrorKind::UnknownArgument, format!("a recipe's keys are no options: use {meant}")))
        }
        None => parsed,
    }
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    #[test]
    fn completions_offer_nothing_hidden() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut super::visible_command(), "nestor", &mut script);
            let script = String::from_utf8(script).expect("a script is text");
            for hidden in ["restarted", "recipe-on-stdin", "torch-report"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
            assert!(script.contains("run-dir") && script.contains("completions"), "{shell}");
        }
    }
}
