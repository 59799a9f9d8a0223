//! The work of an iteration: episodes, steps, tokens and passes.

use anyhow::Result;
use nestor_args::PlanArgs;
use serde::Serialize;

use super::images::Images;
use crate::agent::MeasuredLengths;
use crate::input_error;
use crate::model::Config;
use crate::plugin::Column;
use crate::preflight::{Findings, needs_reference};
use crate::recipe::{OldLogprobs, Recipe};

/// The work of one iteration; counts of steps and tokens are means.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PlannedWork {
    pub tasks: u64,
    pub group_size: u64,
    /// Steps of an episode.
    pub steps: f64,
    /// Tokens of a prompt; in a transcript of the part that a step adds.
    pub prompt: f64,
    /// Tokens of a response.
    pub response: f64,
    /// True if an episode is one sequence.
    pub transcript: bool,
    /// Tokens that the sequences of a group begin with in common, states that recur left out. A micro-batch computes them once.
    pub common: f64,
    /// Sequences of a group in a mini-batch.
    pub siblings: f64,
    /// Steps per optimizer step.
    pub mini_batch: u64,
    /// Passes over the steps.
    pub epochs: u64,
    /// Tokens per forward and backward pass.
    pub micro_batch_tokens: u64,
    /// Requests decoded at once.
    pub slots: u64,
    /// Capacity of the cache; a request waits for room for its prompt and a response at its limit.
    pub cache_tokens: u64,
    /// Longest response in tokens.
    pub longest_response: f64,
    /// Forward passes of policy and reference that only compute log-probs.
    pub logprob_passes: u64,
    /// True if one of them is of a frozen copy of the policy.
    pub reference: bool,
    /// True if a critic is trained.
    pub critic: bool,
    /// The images of steps.
    #[serde(skip_serializing_if = "Images::is_none")]
    pub images: Images,
}

/// The passes that only compute log-probs or columns, beside those that the recipe's keys ask for.
#[derive(Debug, Clone, Copy, Default)]
pub struct AskedPasses {
    /// The estimator asks for columns that a pass of the policy gives.
    pub policy: bool,
    /// A frozen copy of the policy is the reference.
    pub reference: bool,
}

impl AskedPasses {
    pub fn of(recipe: &Recipe, findings: &Findings) -> Self {
        let Findings { estimator, loss, .. } = findings;
        let mut asked = estimator.iter().flat_map(|estimator| estimator.asked());
        let reads = needs_reference(recipe, estimator.as_ref(), loss.as_ref());
        Self {
            policy: asked.any(|one| matches!(one.column, Column::Entropy | Column::Hidden { .. })),
            reference: reads && recipe.reference.is_none(),
        }
    }
}

impl PlannedWork {
    /// Steps of all episodes.
    pub fn all_steps(&self) -> f64 {
        (self.tasks * self.group_size) as f64 * self.steps
    }

    /// Steps of one sequence.
    pub fn sequence_steps(&self) -> f64 {
        if self.transcript { self.steps } else { 1.0 }
    }

    pub fn sequence_tokens(&self) -> f64 {
        self.sequence_steps() * (self.prompt + self.response)
    }

    /// Tokens that a pass computes for this many sequences.
    pub fn distinct_tokens(&self, sequences: f64) -> f64 {
        let own = self.sequence_tokens() - self.common;
        sequences * own + (sequences / self.siblings).max(1.0) * self.common
    }

    /// Tokens of this many sequences by those that a pass computes.
    pub fn tree_factor(&self, sequences: f64) -> f64 {
        sequences * self.sequence_tokens() / self.distinct_tokens(sequences)
    }

    /// The most sequences of a micro-batch.
    fn most_sequences(&self) -> f64 {
        let (budget, own) = (self.micro_batch_tokens as f64, self.sequence_tokens() - self.common);
        let of_a_group = (budget - self.common) / own;
        let most = if of_a_group <= self.siblings { of_a_group } else { budget / (own + self.common / self.siblings) };
        most.floor().max(1.0)
    }

    /// Tokens of a request in the middle of an episode, before its response.
    pub fn context(&self) -> f64 {
        if self.transcript { self.sequence_tokens() / 2.0 } else { self.prompt }
    }

    /// Tokens of the cache that such a request reserves.
    pub fn held(&self) -> f64 {
        self.context() + self.longest_response
    }

    /// Optimizer steps of an iteration.
    pub fn mini_batches(&self) -> u64 {
        (self.all_steps() / self.mini_batch as f64).ceil().max(1.0) as u64 * self.epochs
    }

    /// Sequences of a mini-batch.
    pub fn sequences(&self) -> f64 {
        self.all_steps() * self.epochs as f64 / self.mini_batches() as f64 / self.sequence_steps()
    }

    /// The busiest rank's micro-batches of a mini-batch of `sequences`, and the sequences of each.
    pub fn micro_batches(&self, sequences: f64, ranks: u64) -> (f64, f64) {
        let sequences = (sequences / ranks as f64).ceil();
        let count = (sequences / self.most_sequences()).ceil();
        (count, sequences / count)
    }

    /// Bytes of batch and episodes on the host of every rank: token ids twice and text, the columns of response tokens, and
    /// the other columns of a row.
    pub fn host_bytes(&self) -> u64 {
        (self.all_steps() * (12.0 * (self.prompt + self.response) + 36.0 * self.response + 400.0)) as u64
    }
}

/// Means that the caller gives, and those that a rehearsal measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Means {
    /// Steps of an episode.
    pub steps: Option<f64>,
    /// Tokens of a prompt.
    pub prompt: Option<f64>,
    /// Tokens of a response.
    pub response: Option<f64>,
    pub measured: Option<MeasuredLengths>,
}

impl Means {
    /// Those of the command line.
    pub fn of(args: &PlanArgs, measured: Option<MeasuredLengths>) -> Self {
        Self { steps: args.steps, prompt: args.prompt, response: args.response, measured }
    }

    /// Tokens of a prompt as measured: of a later one, which has a history. In a transcript, the mean over the steps.
    fn measured_prompt(&self, recipe: &Recipe, steps: f64) -> Option<f64> {
        let MeasuredLengths { first, later, .. } = self.measured?;
        match later {
            Some(later) if recipe.rollout.is_transcript() => Some((first + later * (steps - 1.0)) / steps),
            later => Some(later.unwrap_or(first)),
        }
    }

    /// A line of the lengths that were measured and are used.
    pub fn measurement(&self, recipe: &Recipe) -> Option<String> {
        let MeasuredLengths { episodes, one_step, response, .. } = self.measured?;
        let mut used = Vec::new();
        if self.prompt.is_none() {
            used.push("prompts");
        }
        if self.response.is_none() && response.is_some() && recipe.imitates_expert() {
            used.push("responses (the expert's)");
        }
        if self.steps.is_none() && one_step {
            used.push("episodes of one step");
        }
        (!used.is_empty()).then(|| format!("{} as measured in {episodes} rehearsed episodes", used.join(", ")))
    }
}

/// The work of an iteration. The lengths are those given, else those measured. The default means are close to the published ALFWorld run: 34 of 50 steps, prompts of 521 of
/// 2048 tokens, responses of 81 of 512.
pub fn planned_work(recipe: &Recipe, config: &Config, means: &Means, passes: AskedPasses) -> Result<PlannedWork> {
    let (r, u) = (&recipe.rollout, &recipe.update);
    let mean = |flag: &str, given: Option<f64>, share: f64, most: f64| match given {
        None => Ok((share * most).max(1.0)),
        Some(mean) if (1.0..=most).contains(&mean) => Ok(mean),
        Some(mean) => Err(input_error!("{flag} must be from 1 to {most}, the recipe's limit, not {mean}")),
    };
    let longest = r.max_prompt_tokens as f64;
    // A prompt has room for its image.
    let one_step = means.measured.is_some_and(|measured| measured.one_step);
    let usual_steps = if one_step { 1.0 } else { 2.0 / 3.0 * f64::from(r.max_steps) };
    let steps = mean("--steps", means.steps, usual_steps / f64::from(r.max_steps), f64::from(r.max_steps))?;
    let usual = means.measured_prompt(recipe, steps).unwrap_or(0.25 * longest).min(longest);
    let usual = usual.max(Images::new(recipe, config, None).least_tokens());
    let prompt = mean("--prompt", means.prompt, usual / longest, longest)?;
    // An expert's responses are those of a policy that imitates it, and no others.
    let expert = means.measured.and_then(|measured| measured.response).filter(|_| recipe.imitates_expert());
    let usual_response = expert.map_or(1.0 / 6.0, |response| response / r.max_response_tokens as f64);
    let mut workload = PlannedWork {
        tasks: u64::from(r.tasks),
        group_size: u64::from(r.group_size),
        steps,
        prompt,
        response: mean("--response", means.response, usual_response, r.max_response_tokens as f64)?,
        transcript: r.is_transcript(),
        common: 0.0,
        siblings: 1.0,
        mini_batch: u.mini_batch as u64,
        epochs: u64::from(u.epochs),
        micro_batch_tokens: u.micro_batch_tokens as u64,
        slots: r.slots as u64,
        cache_tokens: r.cache_tokens.map_or(u64::MAX, |tokens| tokens as u64),
        longest_response: r.max_response_tokens as f64,
        // One pass gives recomputed log-probs and columns.
        reference: passes.reference,
        logprob_passes: u64::from(u.old_logprobs == OldLogprobs::Recompute || passes.policy)
            + u64::from(passes.reference),
        critic: recipe.critic.is_some(),
        images: Images::new(recipe, config, Some(prompt)),
    };
    if workload.transcript {
        let room = r.max_tokens() as f64 / (workload.prompt + workload.response);
        workload.steps = workload.steps.min(room.max(1.0));
    }
    let common = means.measured.map_or(0.0, |measured| measured.common);
    workload.common =
        common.min(if workload.transcript { workload.sequence_tokens() - workload.response } else { prompt });
    let of_a_group = workload.group_size as f64 * workload.steps / workload.sequence_steps();
    let shuffled = workload.sequences() / workload.tasks as f64;
    workload.siblings = (if u.shuffle { shuffled } else { of_a_group.min(workload.sequences()) }).max(1.0);
    Ok(workload)
}
