//! The prompts of a teacher that has a template of its own (`estimator.teacher.template`): it scores the policy's responses behind
//! a prompt that the policy never sees, such as one with the answer.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Map, Value};

use super::episode_state::chat;
use super::prompt::{PromptTemplate, PromptTokens, PromptVariables, RenderedPrompt, history, markers};
use crate::data::{Batch, Episode, Rows, Sequence, Step};
use crate::input_error;
use crate::model::Config;
use crate::recipe::{HistoryMode, Rollout};
use crate::tokenizer::Tokenizer;

/// Its key in the recipe.
pub const KEY: &str = "estimator.teacher.template";

/// The variables of a teacher's template: those of a prompt's, and of its step's outcome.
#[derive(Debug, Serialize)]
struct TeacherVariables<'a> {
    #[serde(flatten)]
    prompt: PromptVariables<'a>,
    /// The environment's info after the response.
    info: &'a Map<String, Value>,
    /// The episode was won.
    won: bool,
}

/// Renders the teacher's prompts, all steps of an episode afresh.
#[derive(Debug)]
pub struct TeacherPrompts<'a> {
    template: PromptTemplate,
    /// Without the limit of the policy's prompts, and without a transcript.
    rollout: Rollout,
    tokenizer: &'a Tokenizer,
    /// The policy's, for the tokens of images.
    config: &'a Config,
    /// Most tokens of a prompt and its response.
    limit: usize,
}

impl<'a> TeacherPrompts<'a> {
    pub fn new(
        template: &str,
        rollout: &Rollout,
        (tokenizer, config): (&'a Tokenizer, &'a Config),
        limit: usize,
    ) -> Result<Self> {
        let mut rollout = Rollout { max_prompt_tokens: usize::MAX, ..rollout.clone() };
        if rollout.is_transcript() {
            (rollout.history.mode, rollout.history.length) = (HistoryMode::Window, Some(rollout.max_steps as usize));
        }
        let template = PromptTemplate::new(template, KEY)?.with_variables(", info (after the response) and won");
        Ok(Self { template, rollout, tokenizer, config, limit })
    }

    /// The batch of the teacher's pass: the rows of `rows`, each in a sequence of its own, the teacher's prompt and the response.
    pub fn batch(&self, episodes: &[Episode], rows: &Rows) -> Result<Batch> {
        let mut rows = rows.clone();
        (rows.span_start, rows.sequence) = (Vec::new(), Vec::new());
        let mut sequences = Vec::new();
        for episode in episodes.iter().filter(|episode| !episode.failed()) {
            for number in 0..episode.steps.len() {
                let row = sequences.len() as u32;
                let (prompt, response) = (self.prompt(episode, number)?, &episode.steps[number].response);
                rows.sequence.push(row);
                rows.span_start.push(prompt.tokens.len() as u32);
                let images = episode.placed(0, &prompt.images).collect();
                sequences.push(Sequence {
                    tokens: [prompt.tokens, response.clone()].concat(),
                    images,
                    rows: vec![row],
                });
            }
        }
        ensure!(sequences.len() == rows.group.len(), "the episodes have other steps than the rows");
        Ok(Batch { sequences, rows, ..Batch::default() })
    }

    /// The teacher's prompt for a step of an episode, counted from 0.
    pub fn prompt(&self, episode: &Episode, number: usize) -> Result<PromptTokens> {
        let step = &episode.steps[number];
        let built = || {
            let rendering = self.template.render(&self.variables(episode, number, step))?;
            let rendered = RenderedPrompt::of(&rendering, episode.images.len());
            let system = episode.steps[0].messages.first().filter(|first| first.role == "system");
            let messages = chat(step.messages.clone(), rendered.text, (&self.rollout, system), false)?;
            let shown = episode.shown(&rendered.images).cloned().collect();
            let tokens = self.tokenizer.chat(&messages, true)?;
            let prompt = PromptTokens::new(tokens, (&rendered.images, shown), &self.rollout, self.config)?;
            let (tokens, response) = (prompt.tokens.len(), step.response.len());
            match tokens + response <= self.limit {
                true => Ok(prompt),
                false => Err(input_error!(
                    "{KEY}: the teacher's prompt has {tokens} tokens and the response {response}, and its \
                     max_position_embeddings is {}; shorten the template",
                    self.limit
                )),
            }
        };
        built().with_context(|| format!("step {} of task {}, seed {}", number + 1, episode.task, episode.seed))
    }

    fn variables<'b>(&self, episode: &'b Episode, number: usize, step: &'b Step) -> TeacherVariables<'b> {
        let before = &episode.steps[..number];
        let prompt = PromptVariables {
            observation: &step.observation,
            image: markers(&step.images),
            task: &episode.goal,
            admissible: &step.admissible,
            history: history(before, self.rollout.history_length()),
            step: number + 1,
            steps_taken: number,
            chat: !step.messages.is_empty(),
            follow_up: false,
        };
        TeacherVariables { prompt, info: &step.info, won: episode.won }
    }
}
