//! The tokens before a step's response.

use anyhow::{Context, Result};
use nestor_chat::{for_template, same};

use super::episode_state::EpisodeState;
use super::prompt::{PromptTemplate, PromptTokens};
use crate::data::Message;
use crate::model::Config;
use crate::recipe::Rollout;
use crate::tokenizer::{Answered, Continuing, Tokenizer, Turns};

/// Token ids before a response.
#[derive(Debug, Clone, Default)]
pub struct StepPrompt {
    /// The conversation so far; empty where `new` is the whole prompt.
    pub before: Vec<u32>,
    /// Those that the step adds.
    pub new: PromptTokens,
    /// The step whose conversation `before` is.
    pub continues: Option<u32>,
    /// Its place among the conversations of an episode whose messages come whole.
    pub place: Place,
}

impl StepPrompt {
    /// All tokens before the response.
    pub fn tokens(&self) -> Vec<u32> {
        [&self.before[..], &self.new.tokens].concat()
    }
}

/// The place of a prompt among the conversations of its episode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Place {
    /// It begins one.
    #[default]
    Begins,
    /// It continues the tokens of an earlier step.
    Continues,
    /// It would continue one, but the chat template writes the messages before in another way. Its tokens are encoded anew.
    Rewritten,
}

/// Settings of prompts.
#[derive(Clone, Copy)]
pub struct PromptSettings<'a> {
    pub tokenizer: &'a Tokenizer,
    pub rollout: &'a Rollout,
    /// That of the model, for the tokens of images.
    pub config: &'a Config,
}

/// Builds the prompts of steps.
#[derive(Debug)]
pub struct StepPrompts {
    /// One for each environment.
    templates: Vec<PromptTemplate>,
    /// Continues an episode that is one conversation.
    turns: Option<Turns>,
    /// Continues conversations that come whole.
    continuing: Continuing,
}

impl StepPrompts {
    /// # Errors
    /// If the recipe asks for transcripts and the chat template cannot continue a conversation.
    pub fn new(templates: Vec<PromptTemplate>, tokenizer: &Tokenizer, rollout: &Rollout) -> Result<Self> {
        let turns = if rollout.is_transcript() { Some(Turns::new(tokenizer)?) } else { None };
        Ok(Self { templates, turns, continuing: Continuing::new(tokenizer) })
    }

    /// The prompt of the next step of an episode of this environment, cut to the recipe's limit.
    pub fn next(&self, playing: &EpisodeState, environment: usize, settings: PromptSettings) -> Result<StepPrompt> {
        let PromptSettings { tokenizer, rollout, config } = settings;
        let template = &self.templates[environment];
        if let Some(messages) = playing.whole_conversation() {
            let found = self.continued(playing, messages, settings).with_context(|| playing.next_step())?;
            if let Ok(prompt) = found {
                return Ok(prompt);
            }
            let new = playing
                .prompt(template, (rollout, config), |chat, tools| tokenizer.chat_with_tools(chat, tools, true))?;
            return Ok(StepPrompt { new, place: found.err().unwrap_or_default(), ..StepPrompt::default() });
        }
        let new =
            playing.prompt(template, (rollout, config), |chat, tools| match (&self.turns, playing.last_step()) {
                (Some(turns), Some(last)) => turns.follow_up(tokenizer, &last.response, chat),
                _ => tokenizer.chat_with_tools(chat, tools, true),
            })?;
        let continues = playing.step().checked_sub(1).filter(|_| self.turns.is_some());
        let before = continues.map(|last| playing.conversation(last as usize)).unwrap_or_default();
        Ok(StepPrompt { before, new, continues, ..StepPrompt::default() })
    }

    /// The prompt that continues the tokens of an earlier step, the latest one whose conversation these messages extend.
    fn continued(
        &self,
        playing: &EpisodeState,
        messages: &[Message],
        settings: PromptSettings,
    ) -> Result<Result<StepPrompt, Place>> {
        let steps = &playing.record().steps;
        let mut place = Place::Begins;
        for (number, step) in steps.iter().enumerate().skip(playing.tools_since()).rev() {
            let Some(added) = extends(messages, playing, number) else { continue };
            let asked = for_template(&step.messages);
            let answered = Answered { messages: &asked, text: &step.response_text, response: &step.response };
            let added = self.continuing.added(settings.tokenizer, answered, &for_template(added), playing.tools())?;
            let Some(added) = added else {
                place = Place::Rewritten;
                continue;
            };
            let (before, place) = (playing.conversation(number), Place::Continues);
            let is_last = steps.iter().all(|step| step.continues != Some(number as u32));
            return Ok(Ok(match settings.rollout.is_transcript() && is_last {
                true => StepPrompt { before, new: PromptTokens::of(added), continues: Some(number as u32), place },
                // Each step of a window is a sequence of its own, and so is a second continuation of one step.
                false => StepPrompt { new: PromptTokens::of([before, added].concat()), place, ..StepPrompt::default() },
            }));
        }
        Ok(Err(place))
    }
}

/// The messages behind those of a step and its response; none where they are no longer conversation of these.
fn extends<'a>(messages: &'a [Message], playing: &EpisodeState, number: usize) -> Option<&'a [Message]> {
    let step = &playing.record().steps[number];
    let asked = step.messages.len();
    let (before, added) = (messages.get(..asked)?, messages.get(asked + 1..)?);
    let all_same = before.iter().zip(&step.messages).all(|(a, b)| same(a, b));
    let reply = || playing.parsed(&step.response_text).message(number as u32);
    (all_same && !added.is_empty() && same(&messages[asked], &reply())).then_some(added)
}

#[cfg(test)]
mod tests;
