//! A policy loss of a plugin. A guard checks that it fills every loss and every derivative with a finite number.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{LossNeeds, ffi};
use serde_json::Value;

use crate::PluginFile;
use crate::call::{Out, Texts};
use crate::isolate::Process;
use crate::loss_call::{LossCall, MARGIN, ResponseTokens, UNTOUCHED};
use crate::observation::metrics;
use crate::opened::Opened;
use crate::supervise::Limits;

/// An open loss.
pub struct Loss {
    opened: Opened<&'static ffi::Loss>,
    needs: LossNeeds,
    /// Names of the metrics of the first call, which every call has.
    metrics: OnceCell<Vec<String>>,
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
        f.debug_struct("Loss").field("id", &self.opened.id).field("needs", &self.needs).finish_non_exhaustive()
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        self.opened.close(|| call(&self.opened, LossCall::Close));
    }
}

impl Loss {
    pub(super) fn open(
        named: (&'static str, PluginFile),
        table: &'static ffi::Loss,
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        Self::of(Opened::here(named, (table, table.open), config, limits)?)
    }

    /// A loss in a process of its own, which is open.
    pub(super) fn elsewhere(named: (&'static str, PluginFile), process: Process) -> Result<Self> {
        Self::of(Opened::elsewhere(named, process))
    }

    fn of(opened: Opened<&'static ffi::Loss>) -> Result<Self> {
        let mut loss = Self { opened, needs: LossNeeds::default(), metrics: OnceCell::new() };
        let id = loss.opened.id;
        let flags = call(&loss.opened, LossCall::Needs)
            .and_then(|(_, out)| out.flags())
            .with_context(|| format!("plugin {id}: needs"))?;
        loss.needs = LossNeeds::from_flags(flags)
            .with_context(|| format!("plugin {id} needs what this program does not have (flags {flags:#x})"))?;
        Ok(loss)
    }

    pub fn id(&self) -> &str {
        self.opened.id
    }

    /// The plugin file.
    pub fn file(&self) -> &PluginFile {
        &self.opened.file
    }

    /// The columns and derivatives that it needs beyond the usual ones.
    pub fn needs(&self) -> LossNeeds {
        self.needs
    }

    /// Losses and derivatives of the response tokens of a micro-batch.
    pub fn compute(&self, tokens: ResponseTokens) -> Result<TokenLosses> {
        let (count, offsets) = (tokens.logprobs.len(), tokens.token_offsets.clone());
        self.check_columns(&tokens)?;
        let context = || format!("plugin {}: compute of {count} tokens", self.id());
        let request = LossCall::Compute(Box::new(tokens), self.needs.flags());
        let (mut texts, arrays) =
            call(&self.opened, request).and_then(|(texts, out)| Ok((texts, out.losses()?))).with_context(context)?;
        let metrics = metrics(&mut texts).with_context(context)?;
        self.check_names(&metrics)?;
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

    /// Checks that the metrics have the names of the first call: they are added up over calls.
    fn check_names(&self, metrics: &BTreeMap<String, f64>) -> Result<()> {
        let first = self.metrics.get_or_init(|| metrics.keys().cloned().collect());
        ensure!(
            metrics.keys().eq(first),
            "plugin {} put the metrics [{}], and in its first call [{}]; every call must have the same",
            self.id(),
            metrics.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
            first.join(", ")
        );
        Ok(())
    }

    /// Checks that every column has the length that the border promises the plugin.
    fn check_columns(&self, tokens: &ResponseTokens) -> Result<()> {
        let (id, count) = (self.id(), tokens.logprobs.len());
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
        let (id, count) = (self.id(), offsets.last().map_or(0, |&end| end as usize));
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

fn call(opened: &Opened<&'static ffi::Loss>, request: LossCall) -> Result<(Texts, Out)> {
    // SAFETY: the handle is open, one thread at a time uses a loss, and `compute` has checked the columns.
    let here = |request: &LossCall, table, handle| unsafe { request.perform(table, handle) };
    opened.call((request.function(), request), here, Process::loss)
}
