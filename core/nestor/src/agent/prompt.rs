//! Builds prompt text from an observation and the steps before it, and cuts prompts to their limit.

use anyhow::Result;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use schemars::JsonSchema;
use serde::Serialize;

use crate::data::Step;
use crate::input_error;
use crate::plugin::SharedEnv;
use crate::recipe::{Rollout, Truncation};

/// Instructions of a template's rendering, so that an endless one ends with an error instead of a run that hangs. A prompt
/// takes some thousands.
const FUEL: u64 = 10_000_000;

/// A prompt template. It needs no tokenizer, so that a tokenizer can be trained on what it renders.
#[derive(Debug)]
pub struct PromptTemplate {
    environment: Environment<'static>,
    source: String,
    origin: String,
}

/// The variables of a template; docs/recipe.md lists them with these comments.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PromptVariables<'a> {
    /// The current observation.
    pub observation: &'a str,
    /// The goal of this episode.
    pub task: &'a str,
    /// The actions that are possible now.
    pub admissible: &'a [String],
    /// The last steps, oldest first.
    pub history: Vec<HistoryStep<'a>>,
    /// Number of this step, from 1.
    pub step: usize,
    /// Number of steps before this one.
    pub steps_taken: usize,
    /// True from a transcript's second turn on: the template need not repeat what it wrote at the start of the
    /// conversation.
    pub follow_up: bool,
}

/// A step of the history.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HistoryStep<'a> {
    /// Its number in the episode, from 1.
    pub step: usize,
    /// The observation before the action.
    pub observation: &'a str,
    /// The action that the environment read in the response.
    pub action: &'a str,
}

/// The last `length` of these steps, numbered over the episode.
pub fn history(steps: &[Step], length: usize) -> Vec<HistoryStep<'_>> {
    steps
        .iter()
        .enumerate()
        .skip(steps.len().saturating_sub(length))
        .map(|(i, s)| HistoryStep { step: i + 1, observation: &s.observation, action: &s.action })
        .collect()
}

impl PromptTemplate {
    /// The recipe's prompt template, or the environment's.
    pub fn of(shared_env: &SharedEnv, rollout: &Rollout) -> Result<Self> {
        match &rollout.template {
            Some(source) => Self::new(source, "rollout.template"),
            None => {
                Self::new(&shared_env.template()?, format!("the prompt template of environment `{}`", shared_env.id()))
            }
        }
    }

    /// Parses a template; `origin` names it in errors.
    pub fn new(source: &str, origin: impl Into<String>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let template = Self { environment, source: source.into(), origin: origin.into() };
        template.environment.template_from_str(&template.source).map_err(|error| template.explain(&error))?;
        Ok(template)
    }

    pub fn render(&self, variables: &PromptVariables) -> Result<String> {
        self.environment
            .render_str(&self.source, minijinja::Value::from(Serde(variables)))
            .map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &minijinja::Error) -> anyhow::Error {
        input_error!(
            "{}: {error}; a prompt template may use observation, task, admissible, history (step, observation, action), \
             step, steps_taken and follow_up",
            self.origin
        )
    }
}

/// Cuts a prompt to the recipe's limit; with `truncation: error`, a longer one is an error.
pub fn fit(mut tokens: Vec<u32>, rollout: &Rollout) -> Result<Vec<u32>> {
    let limit = rollout.max_prompt_tokens;
    let excess = tokens.len().saturating_sub(limit);
    if excess == 0 {
        return Ok(tokens);
    }
    match rollout.truncation {
        Truncation::Error => {
            let remedy = if rollout.is_transcript() {
                "or shorten the template"
            } else {
                "shorten rollout.history.length or the template, or set rollout.truncation to left, right or middle"
            };
            return Err(input_error!(
                "the prompt has {} tokens, rollout.max_prompt_tokens is {limit}; raise it, {remedy}",
                tokens.len()
            ));
        }
        Truncation::Left => drop(tokens.drain(..excess)),
        Truncation::Right => tokens.truncate(limit),
        // The first half (rounded down) and the last half.
        Truncation::Middle => drop(tokens.drain(limit / 2..limit / 2 + excess)),
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::super::pack::tests::rollout;
    use super::*;

    fn step(observation: &str, action: &str) -> Step {
        Step { observation: observation.into(), action: action.into(), ..Step::default() }
    }

    #[test]
    fn history_holds_the_last_steps_under_their_numbers() -> Result<()> {
        let steps = [step("a", "left"), step("b", "right"), step("c", "")];
        let template = PromptTemplate::new(
            "{{ task }} {{ step }}/{{ steps_taken }}{% for h in history %} {{ h.step }}:{{ h.observation }}>{{ h.action }}\
             {% endfor %} now {{ observation }} [{{ admissible | join(', ') }}]",
            "rollout.template",
        )?;
        let render = |length: usize| {
            template.render(&PromptVariables {
                observation: "<d>",
                task: "go",
                admissible: &["left".into(), "right".into()],
                history: history(&steps, length),
                step: 4,
                steps_taken: 3,
                follow_up: false,
            })
        };
        assert_eq!(render(2)?, "go 4/3 2:b>right 3:c> now <d> [left, right]");
        assert_eq!(render(0)?, "go 4/3 now <d> [left, right]");
        assert_eq!(render(9)?, "go 4/3 1:a>left 2:b>right 3:c> now <d> [left, right]");
        Ok(())
    }

    #[test]
    fn a_wrong_name_is_an_error_that_lists_the_right_ones() -> Result<()> {
        let template = PromptTemplate::new("line\n{{ observatoin }}", "rollout.template")?;
        let variables = PromptVariables {
            observation: "",
            task: "",
            admissible: &[],
            history: Vec::new(),
            step: 1,
            steps_taken: 0,
            follow_up: false,
        };
        let message = template.render(&variables).expect_err("undefined").to_string();
        assert!(
            message.contains("rollout.template") && message.contains(":2") && message.contains("steps_taken"),
            "{message}"
        );
        assert!(PromptTemplate::new("{% if %}", "rollout.template").is_err());
        let nested = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        let endless = PromptTemplate::new(nested, "rollout.template")?;
        let message = endless.render(&variables).expect_err("out of fuel").to_string();
        assert!(message.contains("rollout.template") && message.contains("fuel"), "{message}");
        Ok(())
    }

    #[test]
    fn truncation_keeps_what_its_name_says() -> Result<()> {
        let tokens: Vec<u32> = (0..10).collect();
        let cut =
            |limit, truncation| fit(tokens.clone(), &Rollout { max_prompt_tokens: limit, truncation, ..rollout(0.0) });
        assert_eq!(cut(3, Truncation::Left)?, [7, 8, 9]);
        assert_eq!(cut(3, Truncation::Right)?, [0, 1, 2]);
        assert_eq!(cut(5, Truncation::Middle)?, [0, 1, 7, 8, 9]);
        assert_eq!(cut(10, Truncation::Error)?, tokens);
        let message = cut(9, Truncation::Error).expect_err("too long").to_string();
        assert!(message.contains("10 tokens") && message.contains("is 9"), "{message}");
        Ok(())
    }
}
