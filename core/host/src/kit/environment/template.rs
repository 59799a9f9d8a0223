//! The prompt template, rendered as a run does.

use anyhow::{Context, Result, ensure};
use nestor_plugin::Observation;

use super::player::{Form, Player};
use super::{Loaded, Start};
use crate::kit::{Finding, Subject, passed};
use crate::{Env, HistoryStep, PromptTemplate, PromptVariables};

/// Steps of an episode whose prompts are rendered: without history, with some, and with more than a window holds.
const STEPS: usize = 4;
/// Past steps in a prompt.
const HISTORY: usize = 2;
/// Stands for the images of an observation.
const IMAGE: &str = "\u{F0000}image\u{F0001}";

/// Prompts of the first steps of an episode of each split, for a window of past steps and for a transcript.
pub fn prompt_template(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let shared = loaded.open()?;
    let template = PromptTemplate::of(&shared)?;
    let (mut env, starts) = (shared.spawn()?, loaded.starts(&shared, 1)?);
    let mut player = Player::new(Form::find(&mut env, starts.first().context("there is no task")?)?, 5);
    let mut prompts = 0;
    for start in &starts {
        prompts += render(&template, &mut env, start, &mut player)?;
    }
    passed(format!("{prompts} prompts rendered"))
}

/// Renders the prompts of an episode's first steps; returns their number.
fn render(template: &PromptTemplate, env: &mut Env, start: &Start, player: &mut Player) -> Result<usize> {
    // The observations before each action, and the actions.
    let mut past: Vec<(Observation, String)> = Vec::new();
    let mut seen = env.reset(&start.split, start.task, start.seed)?;
    let mut prompts = 0;
    while !(seen.terminated || seen.truncated) && past.len() < STEPS {
        for follow_up in [false, true].into_iter().filter(|&follow_up| !(follow_up && past.is_empty())) {
            let prompt = template.render(&variables(&past, &seen, follow_up))?;
            let place = || format!("{start}, the prompt of step {}", past.len() + 1);
            ensure!(!prompt.trim().is_empty(), "{} is empty", place());
            let shows = seen.images.is_empty() || prompt.contains(IMAGE);
            ensure!(shows, "{} shows none of the observation's images; write {{{{ image }}}}", place());
            prompts += 1;
        }
        let response = player.respond(env, &seen);
        let next = env.step(&response)?;
        let action = next.action.clone();
        past.push((std::mem::replace(&mut seen, next), action));
    }
    Ok(prompts)
}

fn variables<'a>(past: &'a [(Observation, String)], seen: &'a Observation, follow_up: bool) -> PromptVariables<'a> {
    let image = |seen: &Observation| if seen.images.is_empty() { String::new() } else { IMAGE.to_owned() };
    let shown = if follow_up { past.len() } else { past.len().saturating_sub(HISTORY) };
    let history = past.iter().enumerate().skip(shown).map(|(at, (seen, action))| HistoryStep {
        step: at + 1,
        observation: &seen.text,
        image: image(seen),
        action,
    });
    PromptVariables {
        observation: &seen.text,
        image: image(seen),
        task: &past.first().map_or(seen, |(first, _)| first).task,
        admissible: &seen.admissible,
        history: history.collect(),
        step: past.len() + 1,
        steps_taken: past.len(),
        chat: !seen.messages.is_empty(),
        follow_up,
    }
}
