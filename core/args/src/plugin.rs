//! Arguments of `nestor plugin`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub enum PluginCommand {
    /// Write the project of a new plugin, which builds and trains without the network
    #[command(after_help = "Example:\n  nestor plugin new walk --kind env --lang c --dir runs/plugins")]
    New(NewArgs),
    /// List the plugins found and the files refused
    #[command(after_help = "Example:\n  nestor plugin list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check that a plugin file keeps the rules and can be trained with: exit code 0, or 1 if a check failed
    #[command(after_help = "Example:\n  nestor plugin check target/release/libnestor_numberline.so --episodes 500")]
    Check(PluginCheck),
    /// Describe a plugin: its file, config keys, extensions, and the columns that it asks for
    #[command(after_help = "Example:\n  nestor plugin show gigpo")]
    Show {
        /// The id of a plugin, the path of a plugin file, or FILE#ID
        plugin: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct PluginCheck {
    /// The plugin: a file, `file.so#id` for one of its components, or an id
    pub file: PathBuf,
    /// The configuration of its components, YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the component with this id only
    #[arg(long, value_name = "ID")]
    pub component: Option<String>,
    /// The splits of an environment, which must share no task
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "train,eval")]
    pub splits: Vec<String>,
    /// Leave out a check, and those that need it
    #[arg(long, value_name = "CHECK")]
    pub skip: Vec<String>,
    /// Episodes to play in a row
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub episodes: u64,
    /// Tasks of each split to sample
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..))]
    pub tasks: u64,
    /// Seconds after which a check does no more of the same
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub time: u64,
    /// Seconds that one call may take
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The component of a new plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Env,
    Estimator,
    Loss,
}

/// The language of a new plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    Rust,
    C,
    Python,
}

#[derive(Debug, Clone, Args)]
pub struct NewArgs {
    /// The plugin's name, and its id in recipes: lower case letters, digits, underscores
    pub name: String,
    /// The component: an environment or an estimator
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// The language
    #[arg(long, value_enum)]
    pub lang: Language,
    /// The folder to write the project into, as DIR/NAME
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// For Rust: use the SDK in this folder (plugins/sdk of a checkout) instead of a copy in the project
    #[arg(long, value_name = "PATH")]
    pub sdk: Option<PathBuf>,
}
