//! One episode as a state machine: begin, then respond and observe in turn, then finish.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::prompt::{PromptTemplate, PromptVariables, history};
use super::tasks::EpisodePlan;
use crate::data::{Episode, Step};
use crate::plugin::Observation;
use crate::recipe::Rollout;

/// True if the environment counts the episode as won: its info has `won`, as true or a number over 0.
pub fn won(seen: &Observation) -> bool {
    match seen.info.get("won") {
        Some(Value::Bool(won)) => *won,
        Some(Value::Number(won)) => won.as_f64().is_some_and(|w| w > 0.0),
        _ => false,
    }
}

/// An episode under way.
#[derive(Debug)]
pub struct EpisodeState {
    episode: Episode,
    now: Observation,
}

/// An episode of the expert before it is tokenised: the observation of the reset, then each response and the observation
/// after it.
pub struct Demonstration {
    pub first: Observation,
    pub steps: Vec<(String, Observation)>,
}

/// Prompt ids, response ids and their log-probs.
pub type StepTokens = (Vec<u32>, Vec<u32>, Vec<f32>);

impl EpisodeState {
    /// An episode that has not begun.
    pub fn new(plan: EpisodePlan) -> Self {
        let EpisodePlan { group, episode, task, seed } = plan;
        Self { episode: Episode { group, episode, task, seed, ..Episode::default() }, now: Observation::default() }
    }

    /// Takes the reset's observation; true if the episode is over before it began.
    pub fn begin(&mut self, seen: Observation) -> bool {
        let over = seen.terminated || seen.truncated;
        self.look(seen);
        over
    }

    /// The prompt text of the next step.
    pub fn render(&self, template: &PromptTemplate, rollout: &Rollout) -> Result<String> {
        template.render(&self.variables(rollout)).with_context(|| self.next_step())
    }

    fn variables(&self, rollout: &Rollout) -> PromptVariables<'_> {
        let steps = &self.episode.steps;
        PromptVariables {
            observation: &self.now.text,
            task: &self.now.task,
            admissible: &self.now.admissible,
            history: history(steps, rollout.history_length()),
            step: steps.len() + 1,
            steps_taken: steps.len(),
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

    /// The token ids of the whole conversation: in a transcript each step's `prompt` holds only what it added.
    pub fn conversation(&self) -> Vec<u32> {
        self.episode.steps.iter().flat_map(|s| s.prompt.iter().chain(&s.response)).copied().collect()
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
    pub fn respond(&mut self, (prompt, response, logprobs): StepTokens, response_text: String) {
        let observation = std::mem::take(&mut self.now.text);
        let admissible = std::mem::take(&mut self.now.admissible);
        let anchor = std::mem::take(&mut self.now.anchor);
        let sampled = Step { prompt, response, logprobs, response_text, ..Step::default() };
        let step = Step { observation, admissible, anchor, ..sampled };
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
        self.episode.metrics.extend(std::mem::take(&mut seen.metrics));
        self.now = seen;
    }

    /// Ends the episode with its last step, which the environment failed in: the response is not to blame.
    pub fn fail(&mut self) {
        if let Some(step) = self.episode.steps.last_mut() {
            (step.truncated, step.valid) = (true, true);
        }
    }

    /// The record of the episode.
    pub fn finish(self) -> Episode {
        Episode { last_anchor: self.now.anchor, ..self.episode }
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
            playing.respond((vec![1], vec![2], vec![0.0]), String::new());
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
