//! The plugin's tool: makes catalogues and indexes, searches, scores, and measures.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser};
use indicatif::{ProgressBar, ProgressStyle};
use nestor_webshop::catalogue::index;
use nestor_webshop::catalogue::load::Files;
use nestor_webshop::generate::{self, Size, Spec};
use nestor_webshop::reward::{score_lines, token_set_ratio};
use nestor_webshop::{bench, open_catalogue};
use serde_json::json;

/// Characters of an error message that are printed.
const MESSAGE: usize = 2000;

/// WebShop's catalogues: makes, indexes, searches and measures them
#[derive(Parser)]
#[command(name = "nestor-webshop", version, arg_required_else_help = true)]
enum Command {
    /// Write an invented catalogue in the shop's file formats
    Catalogue(CatalogueArgs),
    /// Make the index of a large catalogue, which ranks map into memory
    Index(IndexArgs),
    /// Print the best products for a query
    Search(SearchArgs),
    /// Print the token set ratio of two texts, 0 to 100
    Ratio {
        /// A text
        a: String,
        /// Another text
        b: String,
    },
    /// Score purchases. Each line of standard input is {"goal": {…}, "asin": "…", "options": {…}}
    Reward(RewardArgs),
    /// Measure steps and searches per second on one thread, and the memory of 128 environments
    Bench(BenchArgs),
}

/// The catalogue to open.
#[derive(Args)]
struct Data {
    /// Folder of the shop's files
    #[arg(long = "data", value_name = "DIR")]
    folder: PathBuf,
    /// Take the full files where the folder has those of 1,000 products too
    #[arg(long)]
    full: bool,
    /// Folder of the index, by default nestor_index (or nestor_index_1000 for the files of 1,000 products) beside the files
    #[arg(long, value_name = "DIR")]
    index: Option<PathBuf>,
}

#[derive(Args)]
struct CatalogueArgs {
    /// The folder to write to
    folder: PathBuf,
    /// Number of products
    #[arg(long, value_name = "N", default_value_t = 1000)]
    products: u64,
    /// Another seed gives another shop
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Size of products and vocabulary
    #[arg(long, value_enum, default_value = "real")]
    size: Size,
}

#[derive(Args)]
struct IndexArgs {
    #[command(flatten)]
    data: Data,
}

#[derive(Args)]
struct SearchArgs {
    #[command(flatten)]
    data: Data,
    /// The query
    #[arg(long, value_name = "TEXT")]
    query: String,
    /// Products to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print JSON: a list of [ASIN, score]
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RewardArgs {
    #[command(flatten)]
    data: Data,
    /// Prices by ASIN (JSON)
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
}

#[derive(Args)]
struct BenchArgs {
    #[command(flatten)]
    data: Data,
    /// Steps to play
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    steps: u64,
    /// Searches to make
    #[arg(long, value_name = "N", default_value_t = 5000)]
    searches: u64,
    /// Seed of the random policy
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Catalogue(args) => catalogue(&args),
        Command::Index(args) => make_index(&args.data),
        Command::Search(args) => search(&args),
        Command::Ratio { a, b } => print(&token_set_ratio(&a, &b).to_string()),
        Command::Reward(args) => reward(&args),
        Command::Bench(args) => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A message may quote a file, which may contain anything.
            let text = format!("{error:#}");
            let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MESSAGE).collect();
            eprintln!("error: {line}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line. A reader that leaves early ends the program without a message.
fn print(line: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}

fn bar(length: u64, unit: &str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {unit}, {{elapsed}} of {{duration}}"))?;
    Ok(ProgressBar::new(length).with_style(style))
}

fn catalogue(args: &CatalogueArgs) -> Result<()> {
    let spec = Spec { products: args.products, seed: args.seed, size: args.size };
    let bar = bar(args.products, "{human_pos} of {human_len} products")?;
    generate::write(&args.folder, &spec, |products| bar.set_position(products))?;
    bar.finish_and_clear();
    print(&args.folder.display().to_string())
}

fn make_index(data: &Data) -> Result<()> {
    let files = Files::find(&data.folder, data.full)?;
    let folder = data.index.clone().unwrap_or_else(|| index::beside(&data.folder, &files));
    let bar = bar(std::fs::metadata(&files.items)?.len(), "{bytes} of {total_bytes}")?;
    let built = index::build(&files, &folder, &mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let (products, synthetic, human) = (built.product_count, built.synthetic_goals, built.human_goals);
    print(&format!("{}: {products} products, {synthetic} synthetic goals, {human} human goals", folder.display()))
}

fn search(args: &SearchArgs) -> Result<()> {
    let catalogue = open_catalogue(&args.data.folder, args.data.full, args.data.index.as_deref())?;
    let mut found = Vec::new();
    for hit in catalogue.hits(&args.query, args.top)? {
        found.push((catalogue.store.card(hit.document)?, hit.score));
    }
    if args.json {
        let pairs: Vec<_> = found.iter().map(|(card, score)| json!([card.asin, score])).collect();
        return print(&json!(pairs).to_string());
    }
    if found.is_empty() {
        eprintln!("no product has a word of this query");
    }
    found.iter().try_for_each(|(card, score)| print(&format!("{score:9.6}  {}  {}", card.asin, card.title)))
}

fn reward(args: &RewardArgs) -> Result<()> {
    let mut catalogue = open_catalogue(&args.data.folder, args.data.full, args.data.index.as_deref())?;
    if let Some(prices) = &args.prices {
        catalogue = catalogue.with_prices(prices)?;
    }
    let find = |asin: &str| {
        let number = catalogue.store.find(asin)?;
        let product = number.map(|number| catalogue.store.product(number)).transpose()?;
        Ok(product.map(|product| (catalogue.price(&product), product)))
    };
    score_lines(std::io::stdin().lock(), BufWriter::new(std::io::stdout().lock()), find)
}

fn measure(args: &BenchArgs) -> Result<()> {
    let open = || open_catalogue(&args.data.folder, args.data.full, args.data.index.as_deref());
    let figures = bench::run(open, &bench::Plan { steps: args.steps, searches: args.searches, seed: args.seed })?;
    if args.json {
        return print(&json!(figures).to_string());
    }
    print(&figures.to_string())
}
