//! One episode as a state machine: begin, then respond and observe in turn, then finish.

use anyhow::{Context, Result, bail};
use nestor_chat::{Parsed, for_template, parse};
use serde_json::Value;

use super::prompt::{PromptTemplate, PromptTokens, PromptVariables, RenderedPrompt, check_images, history, markers};
use super::tasks::EpisodePlan;
use crate::data::{Episode, SequenceImage, Step};
use crate::input_error;
use crate::model::Config;
use crate::plugin::Observation;
use crate::recipe::Rollout;
use crate::tokenizer::Message;

/// True if the environment counts the episode as won: its info has `won`, as true or a number over 0.
pub fn won(seen: &Observation) -> bool {
    match seen.info.get("won") {
        Some(Value::Bool(won)) => *won,
        Some(Value::Number(won)) => won.as_f64().is_some_and(|w| w > 0.0),
        _ => false,
    }
}

/// An episode under way.
#[derive(Debug, Default)]
pub struct EpisodeState {
    episode: Episode,
    now: Observation,
    /// The images of `now`: numbers of the episode's.
    images: Vec<u32>,
    /// The system message of the reset, which holds for the whole episode.
    system: Option<Message>,
    /// The tools that the policy may call, and the step from which on they are these.
    tools: Vec<Value>,
    tools_since: usize,
}

/// An episode of the expert before it is tokenised: the observation of the reset, then each response and the observation
/// after it.
pub struct Demonstration {
    pub first: Observation,
    pub steps: Vec<(String, Observation)>,
}

/// The tokens of a step.
#[derive(Debug, Clone, Default)]
pub struct StepTokens {
    pub prompt: PromptTokens,
    /// The step whose conversation the prompt continues; none where it is whole.
    pub continues: Option<u32>,
    pub response: Vec<u32>,
    /// Log-prob of each response token.
    pub logprobs: Vec<f32>,
}

impl EpisodeState {
    /// An episode that has not begun.
    pub fn new(plan: EpisodePlan) -> Self {
        let EpisodePlan { group, episode, task, seed } = plan;
        let episode = Episode { group, episode, task, seed, ..Episode::default() };
        Self { episode, ..Self::default() }
    }

    /// Takes the reset's observation; true if the episode is over before it began.
    pub fn begin(&mut self, seen: Observation) -> bool {
        let over = seen.terminated || seen.truncated;
        self.system = seen.messages.first().filter(|first| first.role == "system").cloned();
        self.look(seen);
        over
    }

    /// The prompt text of the next step.
    pub fn render(&self, template: &PromptTemplate, rollout: &Rollout) -> Result<RenderedPrompt> {
        let rendering = template.render(&self.variables(rollout)).with_context(|| self.next_step())?;
        Ok(RenderedPrompt::of(&rendering, self.episode.images.len()))
    }

    /// The messages of the next prompt, of which the template wrote the last one. Without a system message of its own, an
    /// observation gets the recipe's, or that of the reset; a transcript holds it already.
    pub fn chat(&self, text: String, rollout: &Rollout) -> Result<Vec<Message>> {
        let continues = rollout.is_transcript() && !self.episode.steps.is_empty();
        chat(self.now.messages.clone(), text, (rollout, self.system.as_ref()), continues)
    }

    /// The prompt of the next step for a model: its messages as tokens by `encode`, with its images, cut to the recipe's limit.
    pub fn prompt(
        &self,
        template: &PromptTemplate,
        (rollout, config): (&Rollout, &Config),
        encode: impl FnOnce(&[Message], Option<&[Value]>) -> Result<Vec<u32>>,
    ) -> Result<PromptTokens> {
        if self.now.conversation {
            let whole = || {
                self.check_conversation(rollout)?;
                PromptTokens::new(
                    encode(&for_template(&self.now.messages), self.tools())?,
                    (&[], Vec::new()),
                    rollout,
                    config,
                )
            };
            return whole().with_context(|| self.next_step());
        }
        let rendered = self.render(template, rollout)?;
        let built = || {
            check_images(&self.images, &rendered, template, config)?;
            let shown = self.episode.shown(&rendered.images).cloned().collect();
            let tokens = encode(&for_template(&self.chat(rendered.text.clone(), rollout)?), self.tools())?;
            PromptTokens::new(tokens, (&rendered.images, shown), rollout, config)
        };
        built().with_context(|| self.next_step())
    }

    /// The messages of the next step for a model that another program serves: all of them, or in a transcript those that the step adds.
    pub fn messages(&self, template: &PromptTemplate, rollout: &Rollout) -> Result<Vec<Message>> {
        let built = || {
            if self.now.conversation {
                self.check_conversation(rollout)?;
                return Ok(self.now.messages.clone());
            }
            if !self.images.is_empty() {
                return Err(input_error!("the environment shows images, which are not sent to an endpoint"));
            }
            self.chat(self.render(template, rollout)?.text, rollout)
        };
        built().with_context(|| self.next_step())
    }

    /// Refuses what has no place in a conversation that comes whole.
    fn check_conversation(&self, rollout: &Rollout) -> Result<()> {
        let key = match () {
            () if rollout.template.is_some() => "rollout.template",
            () if rollout.system.is_some() => "rollout.system",
            () if !self.images.is_empty() => {
                return Err(input_error!("the environment shows images in a whole conversation"));
            }
            () => return Ok(()),
        };
        Err(input_error!(
            "recipe key `{key}`: the environment's messages are the whole conversation, which nothing is added to; remove the key"
        ))
    }

    /// The tools that the policy may call; none where there are none.
    pub fn tools(&self) -> Option<&[Value]> {
        Some(&self.tools[..]).filter(|tools| !tools.is_empty())
    }

    /// The messages, where they are the whole conversation so far.
    pub fn whole_conversation(&self) -> Option<&[Message]> {
        Some(&self.now.messages[..]).filter(|_| self.now.conversation)
    }

    /// Counts one more conversation of an episode whose messages come whole, as a metric of the environment.
    pub fn count_conversation(&mut self) {
        *self.episode.metrics.entry("conversations".into()).or_insert(0.0) += 1.0;
    }

    /// Number of the first step that had the tools of now.
    pub fn tools_since(&self) -> usize {
        self.tools_since
    }

    /// The policy's response, taken apart where it may call tools.
    pub fn parsed(&self, text: &str) -> Parsed {
        if self.tools.is_empty() { Parsed::of_text(text) } else { parse(text) }
    }

    fn variables(&self, rollout: &Rollout) -> PromptVariables<'_> {
        let steps = &self.episode.steps;
        PromptVariables {
            observation: &self.now.text,
            image: markers(&self.images),
            task: &self.now.task,
            admissible: &self.now.admissible,
            history: history(steps, rollout.history_length()),
            step: steps.len() + 1,
            steps_taken: steps.len(),
            chat: !self.now.messages.is_empty(),
            follow_up: rollout.is_transcript() && !steps.is_empty(),
        }
    }

    /// Number of the current step, from 0.
    pub fn step(&self) -> u32 {
        self.episode.steps.len() as u32
    }

    /// The last step played.
    pub fn last_step(&self) -> Option<&Step> {
        self.episode.steps.last()
    }

    /// The images of a prompt behind `before` tokens of the conversation, and those of the conversation where there are any.
    pub fn images(&self, before: usize, prompt: &PromptTokens) -> Vec<SequenceImage> {
        let (mut images, mut start) = (Vec::new(), 0);
        for step in self.episode.steps.iter().filter(|_| before > 0 && !self.now.conversation) {
            images.extend(self.episode.placed(start, &step.prompt_images));
            start += step.prompt.len() + step.response.len();
        }
        images.extend(self.episode.placed(before, &prompt.images));
        images
    }

    /// The token ids of the conversation that ends with a step's response.
    pub fn conversation(&self, step: usize) -> Vec<u32> {
        let steps = self.episode.conversation(step).into_iter().map(|number| &self.episode.steps[number]);
        steps.flat_map(|step| step.prompt.iter().chain(&step.response)).copied().collect()
    }

    /// Ends the episode with its last step, although the environment is not done.
    pub fn cut(&mut self) {
        if let Some(step) = self.episode.steps.last_mut() {
            step.truncated = true;
        }
    }

    /// Number of the episode inside the iteration.
    pub fn number(&self) -> u32 {
        self.episode.episode
    }

    /// Names the step that is to be prompted, for errors.
    pub fn next_step(&self) -> String {
        self.describe(self.step() + 1)
    }

    fn describe(&self, step: u32) -> String {
        let Episode { group, episode, task, seed, .. } = &self.episode;
        format!("step {step} of episode {episode} (group {group}, task {task}, seed {seed})")
    }

    /// Records a response; [`Self::observe`] adds its outcome.
    pub fn respond(&mut self, tokens: StepTokens, response_text: String) {
        let StepTokens { prompt, continues, response, logprobs } = tokens;
        let PromptTokens { tokens: prompt, images: prompt_images } = prompt;
        let images = std::mem::take(&mut self.images);
        let observation = std::mem::take(&mut self.now.text);
        let messages = std::mem::take(&mut self.now.messages);
        let admissible = std::mem::take(&mut self.now.admissible);
        let anchor = std::mem::take(&mut self.now.anchor);
        let sampled = Step { prompt, continues, prompt_images, response, logprobs, response_text, ..Step::default() };
        let step = Step { observation, messages, images, admissible, anchor, ..sampled };
        self.episode.steps.push(step);
    }

    /// Takes the observation after the response; true if the episode is over.
    pub fn observe(&mut self, mut seen: Observation, max_steps: u32) -> Result<bool> {
        let taken = self.step();
        if !seen.reward.is_finite() {
            bail!("{}: the environment's reward is {}; rewards must be finite", self.describe(taken), seen.reward);
        }
        if let Some(step) = self.episode.steps.last_mut() {
            step.action = std::mem::take(&mut seen.action);
            step.reward = seen.reward;
            step.valid = seen.valid;
            step.terminated = seen.terminated;
            step.truncated = !seen.terminated && (seen.truncated || taken >= max_steps);
        }
        self.look(seen);
        let Some(step) = self.episode.steps.last_mut() else { return Ok(false) };
        step.info = std::mem::take(&mut self.now.info);
        Ok(step.terminated || step.truncated)
    }

    /// Makes an observation the current one.
    fn look(&mut self, mut seen: Observation) {
        self.episode.won = won(&seen);
        if let Some(Value::String(kind)) = seen.info.get("task_type")
            && !kind.is_empty()
        {
            self.episode.task_type = Some(kind.clone());
        }
        if !seen.task.is_empty() {
            self.episode.goal.clone_from(&seen.task);
        }
        self.episode.metrics.extend(std::mem::take(&mut seen.metrics));
        let tools = std::mem::take(&mut seen.tools);
        if !tools.is_empty() && tools != self.tools {
            (self.tools, self.tools_since) = (tools, self.episode.steps.len());
        }
        let images = std::mem::take(&mut seen.images);
        self.images = images.into_iter().map(|image| self.episode.number_of(image.into())).collect();
        self.now = seen;
    }

    /// Ends the episode without an outcome: the environment failed in the reset, or in the last step.
    pub fn fail(&mut self, failure: String) {
        (self.episode.failure, self.episode.won) = (Some(failure), false);
    }

    /// The record so far.
    pub fn record(&self) -> &Episode {
        &self.episode
    }

    /// The record of the episode.
    pub fn finish(self) -> Episode {
        Episode { last_anchor: self.now.anchor, ..self.episode }
    }
}

/// The messages of a prompt whose template wrote `text`: those of the observation, with the text as the last one. `system` is the
/// message of the reset; `continues`: they are added to a conversation.
pub fn chat(
    mut chat: Vec<Message>,
    text: String,
    (rollout, system): (&Rollout, Option<&Message>),
    continues: bool,
) -> Result<Vec<Message>> {
    match chat.last_mut() {
        Some(last) => last.set_content(text),
        None => chat.push(Message::new("user", text)),
    }
    let own = chat.iter().position(|message| message.role == "system");
    if continues {
        return match chat.iter().find(|message| !matches!(message.role.as_str(), "user" | "tool")) {
            None => Ok(chat),
            Some(message) => Err(input_error!(
                "the environment shows a message of role `{}` after the first step; in a transcript an observation only adds \
                 messages of the user and of tools to the conversation",
                message.role
            )),
        };
    }
    match (&rollout.system, own) {
        (Some(_), Some(_)) => Err(input_error!(
            "the environment's messages begin with a system message, and rollout.system is another one; remove one of them"
        )),
        (Some(system), None) => Ok([vec![Message::new("system", system)], chat].concat()),
        (None, None) => Ok(system.into_iter().cloned().chain(chat).collect()),
        (None, Some(_)) => Ok(chat),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn info_names_the_outcome_and_the_kind_of_task() {
        let seen =
            |info: Value| Observation { info: info.as_object().expect("a map").clone(), ..Observation::default() };
        for (value, expected) in [(json!(true), true), (json!(1), true), (json!(0.0), false), (json!("yes"), false)] {
            assert_eq!(won(&seen(json!({ "won": value }))), expected, "{value}");
        }
        assert!(!won(&seen(json!({}))));
        let mut playing = EpisodeState::new(EpisodePlan { group: 0, episode: 0, task: 0, seed: 0 });
        playing.begin(seen(json!({ "task_type": "" })));
        assert_eq!(playing.episode.task_type, None);
        playing.look(seen(json!({ "task_type": "pick" })));
        playing.look(seen(json!({ "task_type": "" })));
        assert_eq!(playing.finish().task_type.as_deref(), Some("pick"));
    }

    /// The roles and texts of the next prompt, whose template writes `said`.
    fn asked(playing: &EpisodeState, rollout: &Rollout) -> Result<Vec<(String, String)>> {
        let chat = playing.chat("said".into(), rollout)?;
        Ok(chat.iter().map(|message| (message.role.clone(), message.content().to_string())).collect())
    }

    #[test]
    fn messages_keep_their_roles_and_the_template_writes_the_last_one() -> Result<()> {
        let seen = |messages: &[(&str, &str)]| Observation {
            text: messages.last().map_or("plain", |last| last.1).into(),
            messages: messages.iter().map(|&(role, text)| Message::new(role, text)).collect(),
            ..Observation::default()
        };
        let begun = |first: &[(&str, &str)], second: &[(&str, &str)]| -> Result<EpisodeState> {
            let mut playing = EpisodeState::new(EpisodePlan { group: 0, episode: 0, task: 0, seed: 0 });
            playing.begin(seen(first));
            playing.respond(StepTokens::default(), String::new());
            playing.observe(seen(second), 9)?;
            Ok(playing)
        };
        let window = crate::agent::pack::tests::rollout(0.0);
        let mut transcript = window.clone();
        transcript.history.mode = crate::recipe::HistoryMode::Transcript;
        let all = |list: &[(&str, &str)]| -> Vec<_> {
            list.iter().map(|&(role, text)| (role.to_string(), text.to_string())).collect()
        };
        let first = &[("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")];

        let mut playing = EpisodeState::new(EpisodePlan { group: 0, episode: 0, task: 0, seed: 0 });
        playing.begin(seen(first));
        let wanted = all(&[("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "said")]);
        assert_eq!((asked(&playing, &window)?, asked(&playing, &transcript)?), (wanted.clone(), wanted));
        playing.respond(StepTokens::default(), String::new());
        assert_eq!(playing.finish().steps[0].messages.len(), 4);

        // The reset's system message holds for the episode, unless a step brings its own. A transcript has it already.
        for (second, in_window, in_transcript) in [
            (&[][..], &[("system", "s"), ("user", "said")][..], &[("user", "said")][..]),
            (&[("tool", "3")], &[("system", "s"), ("tool", "said")], &[("tool", "said")]),
            (
                &[("tool", "3"), ("user", "d")],
                &[("system", "s"), ("tool", "3"), ("user", "said")],
                &[("tool", "3"), ("user", "said")],
            ),
        ] {
            let playing = begun(first, second)?;
            assert_eq!(asked(&playing, &window)?, all(in_window));
            assert_eq!(asked(&playing, &transcript)?, all(in_transcript));
        }
        let own = begun(first, &[("system", "t"), ("user", "d")])?;
        assert_eq!(asked(&own, &window)?, all(&[("system", "t"), ("user", "said")]));
        let message = format!("{:#}", asked(&own, &transcript).expect_err("a second system message"));
        assert!(message.contains("role `system` after the first step") && message.contains("transcript"), "{message}");

        let system = Rollout { system: Some("r".into()), ..window };
        assert_eq!(asked(&begun(&[], &[])?, &system)?, all(&[("system", "r"), ("user", "said")]));
        assert_eq!(
            asked(&begun(&[("user", "a")], &[("user", "d")])?, &system)?,
            all(&[("system", "r"), ("user", "said")])
        );
        let message = format!("{:#}", asked(&own, &system).expect_err("two system messages"));
        assert!(message.contains("rollout.system is another one"), "{message}");
        Ok(())
    }

    #[test]
    fn the_last_anchor_info_and_metrics_are_recorded() -> Result<()> {
        let seen = |anchor: &str, score: f64, terminated: bool| Observation {
            anchor: anchor.into(),
            info: json!({ "score": score }).as_object().expect("a map").clone(),
            metrics: [("score".to_string(), score)].into(),
            terminated,
            ..Observation::default()
        };
        let mut playing = EpisodeState::new(EpisodePlan { group: 0, episode: 0, task: 0, seed: 0 });
        playing.begin(seen("a", 1.0, false));
        for (anchor, score, terminated) in [("b", 2.0, false), ("c", 3.0, true)] {
            playing.respond(StepTokens::default(), String::new());
            assert_eq!(playing.observe(seen(anchor, score, terminated), 9)?, terminated);
        }
        let episode = playing.finish();
        assert_eq!(episode.next_anchors().collect::<Vec<_>>(), [b"b", b"c"]);
        assert_eq!(
            episode.steps.iter().map(|step| step.info["score"].as_f64()).collect::<Vec<_>>(),
            [Some(2.0), Some(3.0)]
        );
        assert_eq!(episode.metrics["score"], 3.0);
        // Episodes travel between ranks and into checkpoints in this form.
        assert_eq!(postcard::from_bytes::<Episode>(&postcard::to_stdvec(&episode)?)?, episode);
        Ok(())
    }
}
