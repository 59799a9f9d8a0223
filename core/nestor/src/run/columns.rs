//! The columns that networks and the estimator add to a batch.

use anyhow::Result;

use super::Run;
use super::alarms::check_rows;
use super::report;
use super::speed::{forward_flops, scoring_flops};
use crate::agent::TeacherPrompts;
use crate::data::{Batch, Episode};
use crate::model::{Model, hub, kind, weights};
use crate::plugin::{Asked, Column, Values};
use crate::policy::batching::{MicroBatching, ScoringPasses};
use crate::policy::columns::{HiddenMean, PolicyColumns, policy_columns};
use crate::policy::critic::ragged_values;
use crate::policy::kl_reward::subtract_kl;
use crate::policy::logprobs::ragged_logprobs;
use crate::policy::network::shard;
use crate::ranks::from_root;
use crate::recipe::{OldLogprobs, Recipe};
use crate::shard::Ranks;

impl Run {
    /// Adds the columns that the recipe or the estimator asks for: log-probs recomputed before the update, entropies, hidden
    /// states, log-probs of reference and teacher, values of the critic. Then subtracts KL from the rewards.
    pub fn columns(&mut self, batch: &mut Batch, episodes: &[Episode]) -> Result<()> {
        self.ledger.kl_coefficient = self.ledger.state.kl_coefficient;
        if batch.rows.is_empty() {
            return Ok(());
        }
        let passes =
            ScoringPasses::new(self.learner.policy.micro_batching(self.recipe.update.micro_batch_tokens), batch);
        self.policy_columns(batch, &passes)?;
        self.reference_logprobs(batch, &passes)?;
        self.teacher_logprobs(batch, episodes, &passes)?;
        let Self { recipe, ranks, learner, meter, ledger, .. } = self;
        let update = &recipe.update;
        if let Some(critic) = &learner.critic {
            meter.phases.start("values");
            let _bar = ranks.progress.phase("values", "sequences");
            batch.rows.values = Some(ragged_values(ranks, &critic.model, batch, &passes)?);
            meter.speed.count(passes.computed_share * scoring_flops(&critic.model.config, batch));
        }
        if let (Some(section), Some(coefficient)) = (&update.kl_in_reward, &mut ledger.kl_coefficient) {
            let kl = subtract_kl(batch, section, *coefficient);
            meter.metrics.set("reward/kl", kl);
            meter.metrics.set("reward/kl_coef", coefficient.0);
            coefficient.update(section, kl, batch.rows.len());
        }
        Ok(())
    }

    /// Adds the log-probs of the frozen reference, where the run has one.
    pub(super) fn reference_logprobs(&mut self, batch: &mut Batch, passes: &ScoringPasses) -> Result<()> {
        let Self { recipe, ranks, learner, meter, .. } = self;
        let Some(reference) = &learner.reference else { return Ok(()) };
        let temperature = recipe.rollout.temperature;
        meter.phases.start("reference");
        let _bar = ranks.progress.phase("reference", "sequences");
        batch.rows.ref_logprobs = Some(ragged_logprobs(ranks, reference, batch, passes, temperature)?);
        meter.speed.count(passes.computed_share * scoring_flops(&reference.config, batch));
        Ok(())
    }

    /// Adds the teacher's log-probs, where the run has one: behind the policy's prompts, or behind its own.
    fn teacher_logprobs(&mut self, batch: &mut Batch, episodes: &[Episode], passes: &ScoringPasses) -> Result<()> {
        let Self { recipe, ranks, learner, meter, player, .. } = self;
        let Some(teacher) = &learner.teacher else { return Ok(()) };
        let temperature = recipe.rollout.temperature;
        meter.phases.start("teacher");
        let _bar = ranks.progress.phase("teacher", "sequences");
        let template = recipe.estimator.teacher.as_ref().and_then(|teacher| teacher.template.as_ref());
        let (logprobs, flops) = match template {
            None => (
                ragged_logprobs(ranks, teacher, batch, passes, temperature)?,
                passes.computed_share * scoring_flops(&teacher.config, batch),
            ),
            Some(template) => {
                let reads = (player.tokenizer(), &learner.policy.model.config);
                let limit = teacher.config.max_position_embeddings as usize;
                let prompts = TeacherPrompts::new(template, &recipe.rollout, reads, limit)?;
                let own = prompts.batch(episodes, &batch.rows)?;
                let budget = recipe.update.micro_batch_tokens;
                let passes = ScoringPasses::new(MicroBatching { ranks, config: &teacher.config, budget }, &own);
                (
                    ragged_logprobs(ranks, teacher, &own, &passes, temperature)?,
                    passes.computed_share * scoring_flops(&teacher.config, &own),
                )
            }
        };
        batch.rows.columns.insert(Column::TeacherLogprobs.to_string(), Values::F32(logprobs));
        meter.speed.count(flops);
        Ok(())
    }

    /// One pass of the policy for recomputed log-probs and the columns that need one. None where nobody asks.
    pub(super) fn policy_columns(&mut self, batch: &mut Batch, passes: &ScoringPasses) -> Result<()> {
        let Self { recipe, ranks, learner, meter, estimator, .. } = self;
        let model = &learner.policy.model;
        let recomputes = recipe.update.old_logprobs == OldLogprobs::Recompute;
        let asked = PolicyAsked::of(estimator.asked(), model.blocks());
        if !recomputes && asked.is_empty() {
            return Ok(());
        }
        let (phase, title) = if recomputes { ("old_logprobs", "old log-probs") } else { ("columns", "columns") };
        meter.phases.start(phase);
        let _bar = ranks.progress.phase(title, "sequences");
        let temperature = recipe.rollout.temperature;
        let logprobs = if asked.is_empty() {
            ragged_logprobs(ranks, model, batch, passes, temperature)?
        } else {
            let means: Vec<HiddenMean> = asked.hidden.iter().map(|(_, mean)| *mean).collect();
            let PolicyColumns { logprobs, entropy, hidden } =
                policy_columns(ranks, model, batch, passes, temperature, &means)?;
            let columns = &mut batch.rows.columns;
            if asked.entropy {
                columns.insert(Column::Entropy.to_string(), Values::F32(entropy));
            }
            columns.extend(asked.hidden.into_iter().map(|(name, _)| name).zip(hidden.into_iter().map(Values::F32)));
            logprobs
        };
        batch.recomputed = recomputes.then_some(logprobs);
        meter.speed.count(passes.computed_share * forward_flops(&model.config, batch));
        Ok(())
    }

    /// Calls the estimator, which computes advantages and returns. Rank 0 computes them for all, since it has the full
    /// batch. Without a row it is not called, and remembers what it remembered.
    pub fn score(&mut self, batch: &mut Batch) -> Result<()> {
        if batch.rows.is_empty() {
            self.ledger.scored.clone_from(&self.ledger.estimator);
            return Ok(());
        }
        let Self { ranks, estimator, meter, ledger, .. } = self;
        meter.phases.start("advantage");
        let (rows, metrics) = (&mut batch.rows, &mut meter.metrics);
        (rows.advantages, rows.returns) = from_root(&*ranks.comm, || {
            check_rows(rows)?;
            report::estimator(metrics, estimator.score(rows)?)?;
            ledger.scored = estimator.has_state().then(|| estimator.save()).transpose()?;
            Ok((std::mem::take(&mut rows.advantages), std::mem::take(&mut rows.returns)))
        })?;
        Ok(())
    }
}

/// The asked columns that need a pass of the policy.
struct PolicyAsked {
    entropy: bool,
    /// With the names of their columns.
    hidden: Vec<(String, HiddenMean)>,
}

impl PolicyAsked {
    fn of(asked: &[Asked], blocks: usize) -> Self {
        let hidden = |one: &Asked| Some((one.column.to_string(), HiddenMean::of(&one.column, blocks)?));
        Self {
            entropy: asked.iter().any(|one| one.column == Column::Entropy),
            hidden: asked.iter().filter_map(hidden).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        !self.entropy && self.hidden.is_empty()
    }
}

/// Loads a frozen model that the recipe names beside the policy, sharded as the policy is.
pub fn load_frozen(path: &str, recipe: &Recipe, ranks: &Ranks) -> Result<Model> {
    let folder = hub::folder(path.as_ref())?;
    let model = weights::load(&folder, kind(recipe.dtype), ranks.comm.device())?;
    // It must see as many tokens of an image as the policy.
    let seeing = model.config.vision.is_some();
    let model = if seeing { model.with_vision(&recipe.model, recipe.deterministic)? } else { model };
    shard(model, ranks)
}
