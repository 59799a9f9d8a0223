//! Arguments of `nestor embed`.

use std::path::PathBuf;

use clap::Args;

use super::Compute;

#[derive(Debug, Args)]
pub struct EmbedArgs {
    /// The encoder: a Hugging Face folder of a BERT model such as intfloat/e5-base-v2, or its cached Hub id
    pub model: PathBuf,
    /// The passages: a JSON object with `contents` on each line
    #[arg(value_name = "CORPUS.jsonl", required_unless_present = "serve", requires = "out")]
    pub corpus: Option<PathBuf>,
    /// The folder for vectors.safetensors; an interrupted command continues there
    #[arg(long, value_name = "DIR", requires = "corpus")]
    pub out: Option<PathBuf>,
    /// Answer queries instead: each line of standard input is {"queries": ["…"]}, each answer {"vectors": [[…]]}
    #[arg(long, conflicts_with_all = ["corpus", "out", "json"])]
    pub serve: bool,
    /// Text before each query
    #[arg(long, value_name = "TEXT", default_value = "query: ")]
    pub query_prefix: String,
    /// Text before each passage
    #[arg(long, value_name = "TEXT", default_value = "passage: ", conflicts_with = "serve")]
    pub passage_prefix: String,
    /// Tokens of a text that count, [CLS] and [SEP] included; the model's positions bound it too
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(3..))]
    pub max_length: u32,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
