//! The plugin's tool: writes a generated world as files.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser};
use nestor_search::questions::Question;
use nestor_search::world::{self, Size, World, WorldConfig};
use serde_json::{Value, json};

/// Search QA: writes generated corpora and questions
#[derive(Parser)]
#[command(name = "nestor-search", version, arg_required_else_help = true)]
enum Command {
    /// Write a generated world: corpus.jsonl, train.jsonl and eval.jsonl
    World(WorldArgs),
}

#[derive(Args)]
struct WorldArgs {
    /// The folder to write to
    folder: PathBuf,
    /// Number of entities, each with a passage
    #[arg(long, value_name = "N", default_value_t = WorldConfig::default().entities)]
    entities: u32,
    /// Number of training questions
    #[arg(long, value_name = "N", default_value_t = WorldConfig::default().train)]
    train: u32,
    /// Number of held-out questions
    #[arg(long, value_name = "N", default_value_t = WorldConfig::default().eval)]
    eval: u32,
    /// Share of the questions that need two searches
    #[arg(long, value_name = "SHARE", default_value_t = WorldConfig::default().two_hop)]
    two_hop: f64,
    /// Another seed gives another world
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Size of names and texts
    #[arg(long, value_enum, default_value = "real")]
    size: Size,
}

fn main() -> ExitCode {
    let Command::World(args) = Command::parse();
    match write_world(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn write_world(args: &WorldArgs) -> Result<()> {
    let &WorldArgs { entities, train, eval, two_hop, seed, size, .. } = args;
    let config = WorldConfig { seed, entities, train, eval, two_hop, size, ..WorldConfig::default() };
    let World { passages, train, eval } = world::generate(&config)?;
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let corpus = passages.iter().map(|passage| json!({ "id": passage.id, "contents": passage.contents }));
    write_lines(&folder.join("corpus.jsonl"), corpus)?;
    write_lines(&folder.join("train.jsonl"), train.iter().map(row))?;
    write_lines(&folder.join("eval.jsonl"), eval.iter().map(row))
}

/// A question under the column names of FlashRAG's files.
fn row(question: &Question) -> Value {
    json!({ "question": question.question, "golden_answers": question.answers, "data_source": question.source })
}

fn write_lines(path: &Path, lines: impl Iterator<Item = Value>) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.flush()
    };
    write().with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    Ok(())
}
