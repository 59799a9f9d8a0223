//! A policy loss of a plugin. A guard checks that it fills every loss and every derivative with a finite number.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use nestor_args::terminal;
use nestor_plugin::{LossNeeds, ffi};
use serde_json::Value;

use crate::PluginFile;
use crate::call::{Handle, Out, Texts, open};
use crate::calls::{Call, Function, Name};
use crate::isolate::Process;
use crate::loss_call::{LossCall, MARGIN, ResponseTokens, UNTOUCHED};
use crate::observation::metrics;
use crate::supervise::{Limits, Supervisor};

/// An open loss.
pub struct Loss {
    id: &'static str,
    file: PluginFile,
    place: Place,
    needs: LossNeeds,
}

/// The process that has the loss open.
enum Place {
    Here { table: &'static ffi::Loss, handle: Handle, supervisor: Supervisor },
    Elsewhere(Process),
}

/// Losses of response tokens and their derivatives (T each).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLosses {
    /// The loss of each token.
    pub losses: Vec<f64>,
    /// Derivative by the token's log-prob of the sum of all losses of its response.
    pub by_logprob: Vec<f64>,
    /// The same by the token's entropy; empty unless the loss needs entropies.
    pub by_entropy: Vec<f64>,
    /// The loss's own metrics: sums over the tokens, by name.
    pub metrics: BTreeMap<String, f64>,
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss").field("id", &self.id).field("needs", &self.needs).finish_non_exhaustive()
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        let over = match &self.place {
            Place::Here { supervisor, .. } => supervisor.gave_up(),
            Place::Elsewhere(process) => process.is_over(),
        };
        if over {
            return; // the plugin may hang again, or is gone
        }
        if let Err(error) = self.call(LossCall::Close) {
            terminal::warn(&format!("warning: plugin {}: closing: {error:#}", self.id));
        }
    }
}

impl Loss {
    pub(super) fn open(
        (id, file): (&'static str, PluginFile),
        table: &'static ffi::Loss,
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        let (text, supervisor) = (config.to_string(), Supervisor::new(limits.clone()));
        let (function, under) =
            (table.open, Call { plugin: Name::of_opened(id), function: Function::Open, position: None });
        let handle = supervisor
            .run(under, move || open(function, &text).result())
            .and_then(|(_, out)| out.handle())
            .with_context(|| format!("plugin {id}"))?;
        Self::of((id, file), Place::Here { table, handle, supervisor })
    }

    /// A loss in a process of its own, which is open.
    pub(super) fn elsewhere(named: (&'static str, PluginFile), process: Process) -> Result<Self> {
        Self::of(named, Place::Elsewhere(process))
    }

    fn of((id, file): (&'static str, PluginFile), place: Place) -> Result<Self> {
        let mut loss = Self { id, file, place, needs: LossNeeds::default() };
        let flags = loss
            .call(LossCall::Needs)
            .and_then(|(_, out)| out.flags())
            .with_context(|| format!("plugin {id}: needs"))?;
        loss.needs = LossNeeds::from_flags(flags)
            .with_context(|| format!("plugin {id} needs what this program does not have (flags {flags:#x})"))?;
        Ok(loss)
    }

    fn call(&self, request: LossCall) -> Result<(Texts, Out)> {
        let call = Call { plugin: Name::of(self.id), function: request.function(), position: None };
        match &self.place {
            Place::Here { table, handle, supervisor } => {
                let (table, handle) = (*table, *handle);
                // SAFETY: the handle is open, one thread at a time uses a loss, and `compute` has checked the columns.
                supervisor.run(call, move || unsafe { request.perform(table, handle) }.result())
            }
            Place::Elsewhere(process) => process.loss(call, request),
        }
    }

    pub fn id(&self) -> &str {
        self.id
    }

    /// The plugin file.
    pub fn file(&self) -> &PluginFile {
        &self.file
    }

    /// The columns and derivatives that it needs beyond the usual ones.
    pub fn needs(&self) -> LossNeeds {
        self.needs
    }

    /// Losses and derivatives of the response tokens of a micro-batch.
    pub fn compute(&self, tokens: ResponseTokens) -> Result<TokenLosses> {
        let (count, offsets) = (tokens.logprobs.len(), tokens.token_offsets.clone());
        self.check_columns(&tokens)?;
        let context = || format!("plugin {}: compute of {count} tokens", self.id);
        let (mut texts, arrays) = self
            .call(LossCall::Compute(Box::new(tokens), self.needs.flags()))
            .and_then(|(texts, out)| Ok((texts, out.losses()?)))
            .with_context(context)?;
        let metrics = metrics(&mut texts).with_context(context)?;
        let [losses, by_logprob, by_entropy] = arrays;
        let taken = |numbers, name| self.taken(numbers, &offsets, name);
        Ok(TokenLosses {
            losses: taken(losses, "loss")?,
            by_logprob: taken(by_logprob, "derivative by the log-prob")?,
            by_entropy: match self.needs.entropy {
                true => taken(by_entropy, "derivative by the entropy")?,
                false => Vec::new(),
            },
            metrics,
        })
    }

    /// Checks that every column has the length that the border promises the plugin.
    fn check_columns(&self, tokens: &ResponseTokens) -> Result<()> {
        let (id, count) = (self.id, tokens.logprobs.len());
        let columns = [
            ("old_logprobs", tokens.old_logprobs.len()),
            ("behaviour", tokens.behaviour.len()),
            ("detached_logprobs", tokens.detached_logprobs.as_ref().map_or(count, Vec::len)),
            ("entropy", tokens.entropy.len()),
            ("advantages", tokens.advantages.len()),
            ("ref_logprobs", tokens.ref_logprobs.as_ref().map_or(count, Vec::len)),
        ];
        for (name, length) in columns {
            ensure!(length == count, "tokens for plugin {id}: column {name} has {length} entries for {count} tokens");
        }
        let offsets = &tokens.token_offsets;
        let whole = offsets.first() == Some(&0) && offsets.last() == Some(&(count as u64)) && offsets.is_sorted();
        ensure!(whole, "tokens for plugin {id}: token_offsets do not run from 0 to the {count} tokens");
        let lacks = self.needs.reference && tokens.ref_logprobs.is_none();
        ensure!(!lacks, "the plugin {id} needs reference log-probs, and there are none");
        Ok(())
    }

    /// The numbers without their margin, if each was written and is finite.
    fn taken(&self, mut numbers: Vec<f64>, offsets: &[u64], name: &str) -> Result<Vec<f64>> {
        let (id, count) = (self.id, offsets.last().map_or(0, |&end| end as usize));
        ensure!(numbers.len() == count + MARGIN, "plugin {id} gave another number of entries: {name}");
        let margin = numbers.split_off(count);
        let untouched = margin.iter().all(|x| x.to_bits() == UNTOUCHED);
        ensure!(untouched, "plugin {id} wrote behind the end of an array ({name}); it has one number per token");
        let Some(at) = numbers.iter().position(|x| !x.is_finite()) else { return Ok(numbers) };
        let response = offsets.partition_point(|&offset| offset <= at as u64) - 1;
        let described = format!("{name} of token {} of response {response}", at as u64 - offsets[response]);
        if numbers[at].to_bits() == UNTOUCHED {
            bail!("plugin {id} left the {described} unwritten; a loss must fill every token");
        }
        bail!("plugin {id} gave {} as the {described}; it must be finite", numbers[at])
    }
}
