//! Search QA: answer a question in several turns with a search engine. Jin et al. 2025 (Search-R1), arXiv 2503.09516. Answers,
//! observations, reward and turn limit are those of the GiGPO paper's reference implementation.
//!
//! Tasks are questions, in the order of their hashes (`questions.rs`). The seed of a reset has no effect.

#![forbid(unsafe_code)]

mod config;
pub mod information;
pub mod projection;
pub mod questions;
pub mod reward;
pub mod session;
#[cfg(test)]
mod tests;
pub mod turn;
pub mod world;

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
pub use config::Config;
use information::Information;
use nestor_plugin::Environment;
use nestor_retrieve::{Bm25, Cached, Retriever};
use projection::Projection;
use questions::{Question, Splits};
use reward::Reward;
pub use session::Play;
use world::choices::Choices;
use world::{World, WorldConfig};

/// The shared data: questions, search engine, rules of play.
pub struct Search {
    questions: Splits,
    /// Present if the world is generated.
    generated: Option<Generated>,
    retriever: Cached,
    projection: Projection,
    topk: usize,
    max_steps: u32,
    information: Information,
    reward: Reward,
}

/// A generated world's part in the play.
struct Generated {
    /// Lists admissible actions.
    choices: Option<Choices>,
    /// The expert writes thoughts.
    think: bool,
}

impl Search {
    /// Makes the world of some questions and a search engine, with the rules of a config.
    fn with(questions: Splits, retriever: Arc<dyn Retriever>, config: &Config) -> Result<Search> {
        ensure!(config.max_steps > 0, "max_steps must be at least 1");
        ensure!((1..=100).contains(&config.topk), "topk is {}: take 1 to 100 passages", config.topk);
        let &Config { topk, max_steps, information, reward, cache, .. } = config;
        let (retriever, projection) = (Cached::new(retriever, cache), Projection::new()?);
        Ok(Search { questions, generated: None, retriever, projection, topk, max_steps, information, reward })
    }

    /// Makes a generated world, searched by words unless the config has a search engine.
    fn generate(spec: &WorldConfig, config: &Config) -> Result<Search> {
        let World { passages, train, eval } = world::generate(spec).context("generate")?;
        let choices = spec.choices.then(|| Choices::new(&passages));
        let retriever = match &config.retriever {
            Some(retriever) => nestor_retrieve::open(retriever)?,
            None => Arc::new(Bm25::of(passages)?),
        };
        let generated = Some(Generated { choices, think: spec.think });
        Ok(Search { generated, ..Search::with(Splits { train, eval }, retriever, config)? })
    }

    fn split(&self, split: &str) -> Result<&[Question]> {
        match split {
            "train" => Ok(&self.questions.train),
            "eval" => Ok(&self.questions.eval),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    /// The question of a task.
    fn question(&self, split: &str, task: u64) -> Result<&Question> {
        let questions = self.split(split)?;
        let index = usize::try_from(task).ok().filter(|index| *index < questions.len());
        let index = index
            .with_context(|| format!("there is no task {task} in split {split}, which has {}", questions.len()))?;
        Ok(&questions[index])
    }
}

impl Environment for Search {
    const ID: &'static str = "search";
    const DOC: &'static str = "search QA: answer a question in several turns with a search engine";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<Search> {
        let files = match (&config.questions, &config.generate) {
            (Some(files), None) => files,
            (None, Some(spec)) => return Search::generate(spec, &config),
            (Some(_), Some(_)) => bail!("questions and generate exclude each other: remove one"),
            (None, None) => bail!("set `questions` to files of questions, or `generate` for a generated world"),
        };
        let retriever = config.retriever.as_ref().context(
            "set `retriever` to the search engine, such as {http: {url: \"http://127.0.0.1:8000/retrieve\"}}",
        )?;
        let retriever = nestor_retrieve::open(retriever)?;
        Search::with(files.read()?, retriever, &config)
    }

    fn template(&self) -> String {
        include_str!("prompt.txt").trim_end().to_owned()
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        Ok(self.split(split)?.len() as u64)
    }

    fn has_expert(&self) -> bool {
        self.generated.is_some()
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }
}

nestor_plugin::export! { environments: [Search + expert + snapshot] }
