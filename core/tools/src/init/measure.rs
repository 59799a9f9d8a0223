//! The lengths of an environment's episodes, prompts and responses, measured in tokens of the model.

use std::path::Path;

use anyhow::Result;

use crate::agent::{EpisodePlan, Rehearsal, TaskCursor, count_tasks, exchanges, plan};
use crate::checkpoint::Source;
use crate::model::Config;
use crate::plugin::SharedEnv;
use crate::preflight::new_tokenizer;
use crate::recipe::Recipe;
use crate::tokenizer::Tokenizer;

/// Episodes to measure.
const EPISODES: usize = 16;
/// Longest response of a model that may think before it acts.
const THINKING: usize = 512;
/// Longest steps of an episode where nobody knows the environment's own limit.
const UNKNOWN_STEPS: u32 = 20;
/// Episodes that wrong responses play to their end.
const IDLE_EPISODES: usize = 2;
/// Steps after which such an episode counts as one without a limit.
const MOST_IDLE: u32 = 200;
/// Responses that are wrong in most environments. An episode that one of them ends may last longer with another.
const WRONG: [&str; 3] = ["", "?", "<action>?</action>"];

/// Limits of a rollout, without room for longer tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutLimits {
    pub steps: u32,
    pub prompt: usize,
    pub response: usize,
}

/// Limits for the measurement itself: no episode of interest is longer.
pub const GENEROUS: RolloutLimits = RolloutLimits { steps: 100, prompt: 1 << 16, response: 1 << 12 };

/// Measures episodes of the draft's training split.
pub fn limits(draft: &Recipe, shared_env: &SharedEnv) -> Result<RolloutLimits> {
    let environments = &shared_env.clone().into();
    let tasks = count_tasks(shared_env, "rollout.split", &draft.rollout.split)?;
    let plan = plan(&TaskCursor::new(tasks, draft.seed).next(EPISODES), 1, draft.seed, 0);
    let tokenizer = match draft.model.path.as_deref() {
        Some(name) => Tokenizer::load(Source::of_recipe(Path::new(name))?.folder())?,
        None => new_tokenizer(draft, environments, &tasks.into())?,
    };
    if !shared_env.has_expert() {
        return first_prompts(draft, shared_env, &tokenizer, &plan);
    }
    let (mut steps, mut prompt, mut response) = (0, 0, 0);
    let own = own_limit(draft, shared_env, &plan)?.unwrap_or(0);
    for episode in plan.chunks(1) {
        // Random actions last until the environment's own limit; the expert knows the long answers.
        for noise in [0.0, 1.0] {
            let played = exchanges(environments, &draft.rollout, episode, noise, draft.seed)?;
            steps = steps.max(played.len());
            for (asked, answer) in played {
                prompt = prompt.max(tokenizer.chat(&asked, true)?.len());
                response = response.max(tokenizer.encode(&answer)?.len() + 1);
            }
        }
    }
    let thinking = if draft.model.path.is_some() { THINKING } else { 0 };
    Ok(RolloutLimits { steps: own.max(steps as u32), prompt, response: roomy(response).max(thinking) })
}

/// Steps after which the environment itself ends an episode that gets nowhere; none where some episode does not end.
fn own_limit(draft: &Recipe, shared_env: &SharedEnv, plan: &[EpisodePlan]) -> Result<Option<u32>> {
    let (mut env, mut longest) = (shared_env.spawn()?, 0);
    for (plan, response) in plan.iter().take(IDLE_EPISODES).flat_map(|plan| WRONG.map(|wrong| (plan, wrong))) {
        env.reset(&draft.rollout.split, plan.task, plan.seed)?;
        let mut steps = 0;
        loop {
            steps += 1;
            let Ok(seen) = env.step(response) else { return Ok(None) };
            if seen.terminated || seen.truncated {
                break;
            }
            if steps == MOST_IDLE {
                return Ok(None);
            }
        }
        longest = longest.max(steps);
    }
    Ok((longest > 0).then_some(longest))
}

/// Without an expert only the first prompts are known; later ones hold the past steps too.
fn first_prompts(
    draft: &Recipe,
    shared_env: &SharedEnv,
    tokenizer: &Tokenizer,
    plan: &[EpisodePlan],
) -> Result<RolloutLimits> {
    let config = &Config::shape("tiny")?; // of a model that reads text: its sizes do not matter
    let rehearsal =
        Rehearsal { shared_env, rollout: &draft.rollout, tokenizer, config, imitates: false, teacher: None };
    let mut prompt = 0;
    for episode in plan.chunks(1) {
        let first = rehearsal.play(&draft.rollout.split, episode)?;
        prompt = prompt.max(first.prompts.into_iter().max().unwrap_or(0));
    }
    let steps = own_limit(draft, shared_env, plan)?.unwrap_or(UNKNOWN_STEPS);
    // The first step has no past ones.
    let history = draft.rollout.history_length().min(steps as usize - 1);
    Ok(RolloutLimits { steps, prompt: prompt * (1 + history), response: THINKING })
}

/// Half as much again, as a multiple of 16: other tasks may be longer.
pub fn roomy(tokens: usize) -> usize {
    (tokens + tokens / 2).next_multiple_of(16)
}
