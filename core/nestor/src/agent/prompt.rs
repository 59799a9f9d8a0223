//! Builds prompt text from an observation and the steps before it, and cuts prompts to their limit.
//!
//! A template places images by the variable `image`. While it is rendered, a marker of characters that no text uses stands
//! for each image. So the order of images in a prompt is the one that the template gave them.

use anyhow::Result;

use crate::data::{KeyedImage, PromptImage, Step};
use crate::input_error;
use crate::model::Config;
use crate::model::vision::{PlacedImage, blind, expand, place};
use crate::plugin::SharedEnv;
pub use crate::plugin::{HistoryStep, PromptTemplate, PromptVariables};
use crate::recipe::{Rollout, Truncation};
use crate::tokenizer::IMAGE;

/// The last `length` of these steps, numbered over the episode.
pub fn history(steps: &[Step], length: usize) -> Vec<HistoryStep<'_>> {
    steps
        .iter()
        .enumerate()
        .skip(steps.len().saturating_sub(length))
        .map(|(i, s)| HistoryStep {
            step: i + 1,
            observation: &s.observation,
            image: markers(&s.images),
            action: &s.action,
        })
        .collect()
}

/// Private characters of Unicode around the number of an image.
const MARKER: [char; 2] = ['\u{F0000}', '\u{F0001}'];

/// Stands for these images in a template's rendering.
pub fn markers(images: &[u32]) -> String {
    images.iter().map(|number| format!("{}{number}{}", MARKER[0], MARKER[1])).collect()
}

/// A rendered prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// With a placeholder for each image.
    pub text: String,
    /// The images: numbers of the episode's, in the order of their placeholders.
    pub images: Vec<u32>,
}

impl RenderedPrompt {
    /// Replaces the markers of a rendering; `count` is the number of the episode's images so far.
    pub fn of(rendering: &str, count: usize) -> Self {
        let mut prompt = Self::default();
        let mut rest = rendering;
        while let Some((before, after)) = rest.split_once(MARKER[0]) {
            prompt.text.push_str(before);
            let number = after.split_once(MARKER[1]).and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
            rest = match number.filter(|&(number, _)| (number as usize) < count) {
                Some((number, rest)) => {
                    prompt.text.push_str(IMAGE);
                    prompt.images.push(number);
                    rest
                }
                None => after,
            };
        }
        prompt.text.push_str(rest);
        prompt
    }
}

/// The tokens of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    pub tokens: Vec<u32>,
    /// The images among them.
    pub images: Vec<PromptImage>,
}

impl PromptTokens {
    /// Tokens without images.
    pub fn of(tokens: Vec<u32>) -> Self {
        Self { tokens, images: Vec::new() }
    }

    /// Number of first tokens that two prompts have in common, up to the first image.
    pub fn common(&self, other: &Self) -> usize {
        let tokens = self.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
        let images = self.images.iter().chain(&other.images);
        images.map(|image| image.start as usize).fold(tokens, usize::min)
    }

    /// Gives each image as many tokens as the model reads of it, and cuts the prompt to the recipe's limit.
    pub fn new(
        tokens: Vec<u32>,
        images: (&[u32], Vec<KeyedImage>),
        rollout: &Rollout,
        config: &Config,
    ) -> Result<Self> {
        let (numbers, shown) = images;
        let tokens = expand(tokens, &shown, config)?;
        let image_token = config.vision.as_ref().map(|vision| vision.image_token_id);
        let tokens = fit(tokens, rollout, |token| Some(i64::from(token)) == image_token)?;
        if tokens.is_empty() {
            return Err(input_error!("the prompt is empty"));
        }
        let places = place(&tokens, &shown, config)?;
        let image = |(&number, placed): (&u32, &PlacedImage)| PromptImage { number, start: placed.start as u32 };
        Ok(Self { tokens, images: numbers.iter().zip(&places).map(image).collect() })
    }
}

/// Refuses images that the model cannot read, or that the template does not show.
pub fn check_images(now: &[u32], rendered: &RenderedPrompt, template: &PromptTemplate, config: &Config) -> Result<()> {
    if now.is_empty() {
        return Ok(());
    }
    if config.vision.is_none() {
        return Err(blind(config).context("the environment shows images"));
    }
    match now.iter().all(|number| rendered.images.contains(number)) {
        true => Ok(()),
        false => Err(input_error!(
            "{}: it shows none of the observation's images; write {{{{ image }}}} where they belong",
            template.origin()
        )),
    }
}

/// The recipe's prompt template, or the environment's.
pub fn template(shared_env: &SharedEnv, rollout: &Rollout) -> Result<PromptTemplate> {
    match &rollout.template {
        Some(source) => PromptTemplate::new(source, "rollout.template"),
        None => PromptTemplate::of(shared_env),
    }
}

/// Cuts a prompt to the recipe's limit; with `truncation: error`, a longer one is an error. No cut goes through the tokens of
/// an image.
fn fit(mut tokens: Vec<u32>, rollout: &Rollout, is_image: impl Fn(u32) -> bool) -> Result<Vec<u32>> {
    let limit = rollout.max_prompt_tokens;
    let excess = tokens.len().saturating_sub(limit);
    if excess == 0 {
        return Ok(tokens);
    }
    let cut = match rollout.truncation {
        Truncation::Error | Truncation::Drop => 0..tokens.len(),
        Truncation::Left => 0..excess,
        Truncation::Right => limit..tokens.len(),
        Truncation::Middle => limit / 2..limit / 2 + excess,
    };
    if tokens[cut].iter().any(|&token| is_image(token)) {
        let of_images = tokens.iter().filter(|&&token| is_image(token)).count();
        return Err(input_error!(
            "the prompt has {} tokens, {of_images} of them for images, which are never cut, and rollout.max_prompt_tokens \
             is {limit}; raise it, lower model.vision.max_pixels, or show fewer images",
            tokens.len()
        ));
    }
    match rollout.truncation {
        Truncation::Error | Truncation::Drop => {
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
            let variables = PromptVariables {
                observation: "<d>",
                image: String::new(),
                task: "go",
                admissible: &["left".into(), "right".into()],
                history: history(&steps, length),
                step: 4,
                steps_taken: 3,
                chat: false,
                follow_up: false,
            };
            template.render(&variables)
        };
        assert_eq!(render(2)?, "go 4/3 2:b>right 3:c> now <d> [left, right]");
        assert_eq!(render(0)?, "go 4/3 now <d> [left, right]");
        assert_eq!(render(9)?, "go 4/3 1:a>left 2:b>right 3:c> now <d> [left, right]");
        Ok(())
    }

    #[test]
    fn truncation_keeps_what_its_name_says() -> Result<()> {
        let tokens: Vec<u32> = (0..10).collect();
        let cut = |limit, truncation, image: u32| {
            let rollout = Rollout { max_prompt_tokens: limit, truncation, ..rollout(0.0) };
            fit(tokens.clone(), &rollout, |token| token == image)
        };
        let no_image = 99;
        assert_eq!(cut(3, Truncation::Left, no_image)?, [7, 8, 9]);
        assert_eq!(cut(3, Truncation::Right, no_image)?, [0, 1, 2]);
        assert_eq!(cut(5, Truncation::Middle, no_image)?, [0, 1, 7, 8, 9]);
        assert_eq!(cut(10, Truncation::Error, no_image)?, tokens);
        let message = cut(9, Truncation::Error, no_image).expect_err("too long").to_string();
        assert!(message.contains("10 tokens") && message.contains("is 9"), "{message}");

        // Truncation, an image's token that it keeps, and one that it would cut.
        for (truncation, kept, cut_token) in
            [(Truncation::Left, 7, 6), (Truncation::Right, 2, 3), (Truncation::Middle, 0, 1)]
        {
            assert!(cut(3, truncation, kept).is_ok());
            let message = cut(3, truncation, cut_token).expect_err("an image").to_string();
            assert!(message.contains("1 of them for images") && message.contains("max_pixels"), "{message}");
        }
        Ok(())
    }

    #[test]
    fn images_have_the_order_that_the_template_gives_them() -> Result<()> {
        let steps = [Step { images: vec![0], ..step("a", "left") }, Step { images: vec![1], ..step("b", "up") }];
        let source =
            "now {{ image }}{% for h in history %} {{ h.observation }}={{ h.image }}{% endfor %} {{ observation }}";
        let template = PromptTemplate::new(source, "rollout.template")?;
        // The observation holds the marker of an image that the episode does not have.
        let foreign = markers(&[7]) + "?";
        let variables = PromptVariables {
            observation: &foreign,
            image: markers(&[2, 3]),
            task: "",
            admissible: &[],
            history: history(&steps, 2),
            step: 3,
            steps_taken: 2,
            chat: false,
            follow_up: false,
        };
        let rendered = RenderedPrompt::of(&template.render(&variables)?, 4);
        assert_eq!(rendered.images, [2, 3, 0, 1]);
        let p = IMAGE;
        let [_, end] = MARKER;
        assert_eq!(rendered.text, format!("now {p}{p} a={p} b={p} 7{end}?"));

        let seeing = Config::shape("qwen2.5-vl-tiny")?;
        check_images(&[2], &rendered, &template, &seeing)?;
        let message = format!("{:#}", check_images(&[4], &rendered, &template, &seeing).expect_err("not shown"));
        assert!(message.contains("{{ image }}") && message.contains("rollout.template"), "{message}");
        let message =
            format!("{:#}", check_images(&[2], &rendered, &template, &Config::shape("tiny")?).expect_err("blind"));
        assert!(message.contains("reads no images") && message.contains("Qwen2.5-VL"), "{message}");
        Ok(())
    }
}
