//! Prompt templates in Jinja: those of environments, and those of recipes.

use anyhow::Result;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use nestor_recipe::input_error;
use schemars::JsonSchema;
use serde::Serialize;

use crate::SharedEnv;

/// Instructions of a template's rendering, so that an endless one ends with an error instead of a run that hangs. A prompt
/// takes some thousands.
const FUEL: u64 = 10_000_000;
/// The template's name in minijinja's messages.
const NAME: &str = "template";

/// A prompt template. It needs no tokenizer, so that a tokenizer can be trained on what it renders.
#[derive(Debug)]
pub struct PromptTemplate {
    environment: Environment<'static>,
    origin: String,
    /// Variables beyond those of [`PromptVariables`], as errors name them.
    more: &'static str,
}

/// The variables of a template; docs/recipe.md lists them with these comments.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PromptVariables<'a> {
    /// The current observation.
    pub observation: &'a str,
    /// The images of the current observation, where the environment shows any; else empty.
    pub image: String,
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
    /// True if the observation is a list of messages. The template then writes the last one, whose text is `observation`; the
    /// others come before it as they are.
    pub chat: bool,
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
    /// The images of that observation; empty where there are none.
    pub image: String,
    /// The action that the environment read in the response.
    pub action: &'a str,
}

impl PromptTemplate {
    /// The environment's template.
    pub fn of(shared_env: &SharedEnv) -> Result<Self> {
        Self::new(&shared_env.template()?, format!("the prompt template of environment `{}`", shared_env.id()))
    }

    /// Parses a template; `origin` names it in errors.
    pub fn new(source: &str, origin: impl Into<String>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        // As jinja2 reads line ends.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let mut template = Self { environment, origin: origin.into(), more: "" };
        template.environment.add_template_owned(NAME, source).map_err(|error| template.explain(&error))?;
        Ok(template)
    }

    /// The same with further variables, as errors name them.
    pub fn with_variables(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// Its name in errors.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Renders a prompt, by default from [`PromptVariables`].
    ///
    /// # Errors
    /// If it names an unknown variable, fails, or does not end.
    pub fn render(&self, variables: &impl Serialize) -> Result<String> {
        let variables = minijinja::Value::from(Serde(variables));
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(variables));
        rendered.map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &minijinja::Error) -> anyhow::Error {
        let template = self.environment.get_template(NAME);
        let part = template.ok().and_then(|template| Some(template.source().get(error.range()?)?.to_string()));
        let part = part.map_or(String::new(), |part| format!(", at `{part}`"));
        input_error!(
            "{}: {error}{part}; a prompt template may use observation, image, task, admissible, history (step, observation, \
             image, action), step, steps_taken, chat, follow_up{}",
            self.origin,
            self.more
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_an_error_that_lists_the_right_ones() -> Result<()> {
        let template = PromptTemplate::new("line\n{{ observatoin }}", "rollout.template")?;
        let variables = PromptVariables {
            observation: "",
            image: String::new(),
            task: "",
            admissible: &[],
            history: Vec::new(),
            step: 1,
            steps_taken: 0,
            chat: false,
            follow_up: false,
        };
        let message = template.render(&variables).expect_err("undefined").to_string();
        assert!(
            message.contains("rollout.template")
                && message.contains("(in template:2), at `observatoin`")
                && message.contains("steps_taken"),
            "{message}"
        );
        assert!(PromptTemplate::new("{% if %}", "rollout.template").is_err());
        let nested = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        let endless = PromptTemplate::new(nested, "rollout.template")?;
        let message = endless.render(&variables).expect_err("out of fuel").to_string();
        assert!(message.contains("rollout.template") && message.contains("fuel"), "{message}");
        Ok(())
    }
}
