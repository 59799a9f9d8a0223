//! `nestor plan --fit`: the settings that fit into the memory with the least estimated time.
//!
//! The rollout and the update take memory at different moments, so each is searched by itself. In the rollout more requests
//! at once are faster, and take more. In the update there are two ways to save: fewer tokens a micro-batch, and more blocks
//! that are recomputed. For each number of blocks a binary search finds the most tokens that fit, since memory grows with
//! the tokens.

use std::fmt::{self, Formatter};

use anyhow::Result;
use nestor_args::Gpu;
use serde::Serialize;

use super::format::{bytes, duration};
use super::hardware::Hardware;
use super::knobs::Knobs;
use super::planner::{Fit, Planner};
use crate::engine::PAGE;
use crate::input_error;
use crate::recipe::{Dtype, Lora, Offload, Recipe, Recompute, Sharding, VisionTrain};

/// Micro-batches are whole multiples of this number of tokens, unless a whole mini-batch or one sequence has fewer.
const TOKENS: u64 = 64;
/// Share of a rank's memory that the settings leave free where they can: for what the estimate leaves out, and for other
/// programs.
const MARGIN: f64 = 0.05;
/// The rank of adapters that a refusal suggests, as in the published 7B recipes.
const LORA_RANK: i64 = 64;

/// A choice of settings beside the recipe's own.
#[derive(Debug, Clone, Serialize)]
pub struct Fitted {
    pub knobs: Knobs,
    /// Arguments of `--set`.
    pub sets: Vec<String>,
    pub before: Estimate,
    pub after: Estimate,
    /// Bytes of a rank's memory that were kept free; 0 if the run needs them.
    pub margin: u64,
    /// True if every request is decoded at once, a micro-batch holds a whole mini-batch, and nothing is recomputed.
    pub more_memory_would_not_help: bool,
}

/// Memory and time of an iteration under some settings.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Estimate {
    pub peak_bytes: u64,
    pub capacity: u64,
    pub fits: bool,
    /// Seconds of an iteration.
    pub seconds: f64,
}

impl Fitted {
    /// Writes the arguments on one line, and what they change.
    pub fn write(&self, f: &mut Formatter) -> fmt::Result {
        let Self { sets, before, after, margin, .. } = self;
        let shown = |e: &Estimate| format!("{} and {} an iteration", bytes(e.peak_bytes), duration(e.seconds));
        let fits = if before.fits { "fits" } else { "does not fit" };
        if sets.is_empty() {
            writeln!(f, "The recipe has the best settings for this memory already.")?;
        } else {
            writeln!(f, "The recipe {fits} as it is: {}. For this memory: {}, with", shown(before), shown(after))?;
            writeln!(f, "\n  {}\n", sets.iter().map(|set| format!("--set {set}")).collect::<Vec<_>>().join(" "))?;
        }
        if *margin > 0 {
            writeln!(f, "A margin of {} ({:.0} %) stays free.", bytes(*margin), 100.0 * MARGIN)?;
        } else {
            writeln!(f, "The run needs the margin of {:.0} % too: no memory stays free.", 100.0 * MARGIN)?;
        }
        if self.more_memory_would_not_help {
            writeln!(
                f,
                "More memory would not help: all requests are decoded at once, a micro-batch holds a mini-batch, and no \
                 block is recomputed."
            )?;
        }
        Ok(())
    }
}

/// The largest of `least..=most` with a property that small numbers have and large ones lack; `None` if `least` lacks it.
fn largest(least: u64, most: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    if !holds(least) {
        return None;
    }
    let (mut low, mut high) = (least, most.max(least));
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

impl Planner {
    /// The settings with the least estimated time that fit into the memory of a rank, less a margin. Where nothing fits
    /// beside the margin, they use it.
    ///
    /// # Errors
    /// If none fit; the message names the nearest remedies.
    pub fn search(&self, ranks: u64) -> Result<Fitted> {
        let memory = (self.hardware.memory as f64 * (1.0 - MARGIN)) as u64;
        let less = Self { hardware: Hardware { memory, ..self.hardware }, ..self.clone() };
        let Ok(Fitted { knobs, .. }) = less.search_whole(ranks) else { return self.search_whole(ranks) };
        let own = Knobs::of(&self.recipe);
        let (before, after) = (self.estimate(ranks, &own), self.estimate(ranks, &knobs));
        let margin = after.capacity - less.capacity(ranks);
        let more_memory_would_not_help = self.is_most(ranks, &knobs);
        Ok(Fitted { sets: knobs.sets(&own), before, after, margin, more_memory_would_not_help, knobs })
    }

    /// [`Self::search`] without a margin.
    fn search_whole(&self, ranks: u64) -> Result<Fitted> {
        let own = Knobs::of(&self.recipe);
        let modes = if ranks == 1 { vec![own.sharding] } else { vec![Sharding::GradOp, Sharding::Full] };
        let choices = modes.into_iter().filter_map(|sharding| self.choose(ranks, Knobs { sharding, ..own }));
        let best = choices.map(|knobs| (self.estimate(ranks, &knobs), knobs)).min_by(|(a, ka), (b, kb)| {
            // The recipe's own mode where times are equal.
            let other = |knobs: &Knobs| knobs.sharding != own.sharding;
            a.seconds.total_cmp(&b.seconds).then(other(ka).cmp(&other(kb)))
        });
        let Some((after, knobs)) = best else { return Err(self.refusal(ranks)) };
        let before = self.estimate(ranks, &own);
        Ok(Fitted {
            sets: knobs.sets(&own),
            before,
            after,
            margin: 0,
            more_memory_would_not_help: self.is_most(ranks, &knobs),
            knobs,
        })
    }

    fn estimate(&self, ranks: u64, knobs: &Knobs) -> Estimate {
        let Fit { peak_bytes, capacity, fits, .. } = self.fit(ranks, knobs);
        Estimate { peak_bytes, capacity, fits, seconds: self.seconds(ranks, knobs) }
    }

    fn seconds(&self, ranks: u64, knobs: &Knobs) -> f64 {
        self.iteration(&self.fit(ranks, knobs), knobs).seconds()
    }

    /// The fastest settings under one mode of sharding.
    fn choose(&self, ranks: u64, own: Knobs) -> Option<Knobs> {
        let knobs = self.choose_rollout(ranks, own)?;
        self.choose_update(ranks, knobs)
    }

    /// True if the rollout fits.
    fn rollout_fits(&self, ranks: u64, knobs: &Knobs) -> bool {
        let fit = self.fit(ranks, knobs);
        fit.memory.totals()[0] <= fit.capacity
    }

    /// As many requests at once as fit with a cache that holds them, each with a mean prompt and a response at its limit.
    /// The cache then takes the rest of the memory.
    fn choose_rollout(&self, ranks: u64, own: Knobs) -> Option<Knobs> {
        let (longest, page) = (self.longest(), PAGE as u64);
        let held = (self.workload.held().ceil() as u64).next_multiple_of(page).min(longest);
        let with = |slots: u64, cache: u64| {
            let cache_tokens = (cache < slots * longest).then_some(cache);
            Knobs { slots, cache_tokens, ..own }
        };
        let slots = largest(1, self.episodes(ranks), |slots| {
            self.rollout_fits(ranks, &with(slots, (slots * held).max(longest)))
        })?;
        let most = slots * longest / page;
        let pages = largest(longest / page, most, |pages| self.rollout_fits(ranks, &with(slots, pages * page)))?;
        let mut knobs = with(slots, pages * page);
        // The recipe's own values where they do as much.
        let whole = slots == self.episodes(ranks) && knobs.cache_tokens.is_none();
        if whole && own.slots >= slots {
            knobs.slots = own.slots;
        }
        if whole && own.cache_tokens.is_some_and(|tokens| tokens >= slots * longest) {
            knobs.cache_tokens = own.cache_tokens;
        }
        Some(knobs)
    }

    /// The fastest pair of recomputed blocks and tokens that fits.
    fn choose_update(&self, ranks: u64, own: Knobs) -> Option<Knobs> {
        let blocks = self.config.num_hidden_layers as usize;
        let most = self.most_tokens(ranks);
        let least = self.recipe.rollout.max_tokens() as u64;
        let choices = (0..=blocks).filter_map(|again| {
            let recompute = match again {
                0 => Recompute::None,
                n if n == blocks => Recompute::All,
                n => Recompute::Blocks(n),
            };
            let with = |micro_batch_tokens| Knobs { micro_batch_tokens, recompute, ..own };
            let tokens = largest(least, most, |tokens| self.fit(ranks, &with(tokens)).fits)?;
            let round = tokens / TOKENS * TOKENS;
            Some(with(match tokens == most {
                true => own.micro_batch_tokens.max(most),
                false => {
                    if round >= least {
                        round
                    } else {
                        tokens
                    }
                }
            }))
        });
        choices
            .map(|knobs| (self.seconds(ranks, &knobs), knobs))
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, knobs)| knobs)
    }

    /// True if no setting could use more memory.
    fn is_most(&self, ranks: u64, knobs: &Knobs) -> bool {
        let cache = knobs.slots.min(self.episodes(ranks)) * self.longest();
        knobs.slots >= self.episodes(ranks)
            && knobs.cache_tokens.is_none_or(|tokens| tokens >= cache)
            && knobs.micro_batch_tokens >= self.most_tokens(ranks)
            && knobs.recompute == Recompute::None
    }

    /// The least memory that a rank needs under any settings.
    pub fn need(&self, ranks: u64) -> Fit {
        let modes: &[Sharding] = match ranks {
            1 => &[self.recipe.sharding],
            _ => &[Sharding::Full, Sharding::GradOp],
        };
        // In the backward pass the last block's graph exists anyway: to recompute it, too, only adds its input.
        let but_one = Recompute::Blocks(self.config.num_hidden_layers as usize - 1);
        let fits = modes.iter().flat_map(|&sharding| {
            [Recompute::All, but_one].map(|recompute| {
                let micro_batch_tokens = self.recipe.rollout.max_tokens() as u64;
                self.fit(ranks, &Knobs { micro_batch_tokens, slots: 1, cache_tokens: None, recompute, sharding })
            })
        });
        fits.min_by_key(|fit| fit.peak_bytes).expect("there is at least one mode")
    }

    /// The error where nothing fits, with the remedies that would do.
    fn refusal(&self, ranks: u64) -> anyhow::Error {
        let need = self.need(ranks);
        let with = |change: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            change(&mut other);
            other.need(ranks).fits
        };
        let mut remedies = Vec::new();
        if self.hardware.gpu != Gpu::Cpu {
            let fewest = self.clusters().find(|&n| n > ranks && self.need(n).fits);
            remedies.extend(fewest.map(|fewest| format!("{fewest} ranks (--gpus {fewest})")));
        }
        let lora = Lora::of_all(LORA_RANK, LORA_RANK as f64);
        let freeze = |recipe: &mut Recipe| {
            let vision = recipe.model.vision.get_or_insert_default();
            vision.train = Some(VisionTrain::None);
        };
        let frozen = "--set model.vision.train=none";
        let seeing = self.config.vision.is_some();
        if seeing && self.recipe.model.vision_train() != VisionTrain::None && with(&|other| freeze(&mut other.recipe)) {
            remedies.push(format!("a frozen vision tower ({frozen})"));
        }
        let adapt = |other: &mut Self| {
            other.recipe.model.lora = Some(lora.clone());
            if seeing {
                freeze(&mut other.recipe);
            }
        };
        if self.recipe.model.lora.is_none() && with(&adapt) {
            // A recipe may ask for a trained tower, which adapters exclude.
            let asked = self.recipe.model.vision.as_ref().and_then(|vision| vision.train);
            let also = if asked.is_some_and(|train| train != VisionTrain::None) {
                format!(" {frozen}")
            } else {
                String::new()
            };
            remedies.push(format!("adapters (--set 'model.lora={{rank: {LORA_RANK}, alpha: {LORA_RANK}}}'{also})"));
        }
        let offload = if self.recipe.dtype == Dtype::Float32 { Offload::Moments } else { Offload::All };
        let on_gpu = self.hardware.gpu != Gpu::Cpu && self.recipe.update.offload != offload;
        if on_gpu && with(&|other| other.recipe.update.offload = offload) {
            let name = if offload == Offload::All { "all" } else { "moments" };
            remedies.push(format!("the optimizer's tensors on the host (--set update.offload={name})"));
        }
        if self.recipe.dtype == Dtype::Float32 && with(&|other| other.recipe.dtype = Dtype::Bfloat16) {
            remedies.push("a smaller type (--set dtype=bfloat16)".into());
        }
        let shorter = |tokens: u64| {
            with(&|other| {
                let rollout = &mut other.recipe.rollout;
                match &mut rollout.max_sequence_tokens {
                    Some(limit) => *limit = tokens as usize,
                    None => rollout.max_prompt_tokens = tokens as usize,
                }
            })
        };
        let rollout = &self.recipe.rollout;
        let (key, now, least) = match rollout.max_sequence_tokens {
            Some(limit) => ("max_sequence_tokens", limit, rollout.max_prompt_tokens + rollout.max_response_tokens),
            None => ("max_prompt_tokens", rollout.max_prompt_tokens, 16),
        };
        if let Some(tokens) = largest(least.min(now) as u64, now as u64, shorter) {
            remedies.push(format!("a smaller context (--set rollout.{key}={tokens})"));
        }
        remedies.push(format!("{} of memory", bytes(need.peak_bytes.next_multiple_of(10_000_000))));
        input_error!(
            "no settings fit into {}: with one request at a time, one sequence a micro-batch and every block recomputed, a \
             rank takes {} in {}; it would fit with {}",
            bytes(need.capacity),
            bytes(need.peak_bytes),
            need.peak_phase,
            remedies.join(", or ")
        )
    }
}
