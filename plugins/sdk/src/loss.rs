//! The trait that the author of a policy loss implements, and the C functions generated from it.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use anyhow::Result;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::guard::{guard, utf8};
use crate::{config, ffi};

/// Computes the policy loss of response tokens, and its derivatives. Both depend on the arguments alone.
pub trait Loss: Sized + Send + 'static {
    /// The name that recipes use: lower case letters, digits, underscores.
    const ID: &'static str;
    /// A description in one line.
    const DOC: &'static str;
    /// The keys of `loss.config`; derive with `#[serde(deny_unknown_fields)]`. A loss whose keys need no check can be its own
    /// config.
    type Config: DeserializeOwned + JsonSchema;

    /// Checks the config. Errors are reported as the user's mistakes.
    fn open(config: Self::Config) -> Result<Self>;
    /// Returns what it needs beyond the usual columns; nothing by default.
    fn needs(&self) -> LossNeeds {
        LossNeeds::default()
    }
    /// Fills every loss and every derivative. A loss may depend on all tokens of its own response, and on no other response.
    fn compute(&self, tokens: &Tokens<'_>, out: &mut Losses<'_>) -> Result<()>;
}

/// The columns and derivatives of a loss beyond the usual ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossNeeds {
    /// Reference log-probs: the run keeps a reference policy.
    pub reference: bool,
    /// The loss depends on the entropies, so it fills [`Losses::by_entropy`].
    pub entropy: bool,
}

impl LossNeeds {
    /// Returns the flags of `nestor_plugin.h`.
    pub fn flags(self) -> u32 {
        u32::from(self.reference) * ffi::NEEDS_REFERENCE + u32::from(self.entropy) * ffi::NEEDS_ENTROPY
    }

    /// Reads the flags of `nestor_plugin.h`; `None` if this version does not know one of them.
    pub fn from_flags(flags: u32) -> Option<Self> {
        let has = |flag| flags & flag != 0;
        let needs = Self { reference: has(ffi::NEEDS_REFERENCE), entropy: has(ffi::NEEDS_ENTROPY) };
        (needs.flags() == flags).then_some(needs)
    }
}

/// The response tokens of one micro-batch: B whole responses of T tokens together, each the response of one environment step.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// `[B + 1]` Tokens of response `i` are `token_offsets[i]..token_offsets[i + 1]` of every column.
    pub token_offsets: &'a [u64],
    /// `[T]` Log-probs under the policy that is trained, at the temperature of sampling.
    pub logprobs: &'a [f32],
    /// `[T]` The same numbers as constants: factors that a paper does not differentiate (stop-gradient) are computed from these.
    pub detached_logprobs: &'a [f32],
    /// `[T]` Log-probs under the policy before the update: a ratio is taken against these.
    pub old_logprobs: &'a [f32],
    /// `[T]` Log-probs under the engine that sampled.
    pub behaviour: &'a [f32],
    /// `[T]` Log-probs under the reference policy, if [`LossNeeds::reference`].
    pub ref_logprobs: Option<&'a [f32]>,
    /// `[T]` Entropy in nats of the policy that is trained.
    pub entropy: &'a [f32],
    /// `[T]` Advantages.
    pub advantages: &'a [f32],
    /// Responses of the whole mini-batch, over all micro-batches and ranks.
    pub mini_batch_responses: u64,
    /// Response tokens of the whole mini-batch.
    pub mini_batch_tokens: u64,
    /// The recipe's `rollout.max_response_tokens`.
    pub most_response_tokens: u64,
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Iterations of the run.
    pub iterations: u64,
}

impl<'a> Tokens<'a> {
    /// The responses, as ranges of their tokens.
    pub fn responses(&self) -> impl Iterator<Item = Range<usize>> + 'a {
        self.token_offsets.windows(2).map(|bounds| bounds[0] as usize..bounds[1] as usize)
    }

    /// Log-ratio of a token's probability to the old one.
    pub fn log_ratio(&self, token: usize) -> f64 {
        f64::from(self.logprobs[token]) - f64::from(self.old_logprobs[token])
    }

    /// The same number as a constant, for a factor that is not differentiated.
    pub fn detached_log_ratio(&self, token: usize) -> f64 {
        f64::from(self.detached_logprobs[token]) - f64::from(self.old_logprobs[token])
    }

    /// Advantage of a token.
    pub fn advantage(&self, token: usize) -> f64 {
        f64::from(self.advantages[token])
    }

    /// Share of the run that was done before this iteration: 0 in the first one, 1 in the last one.
    pub fn progress(&self) -> f64 {
        self.iteration.saturating_sub(1) as f64 / self.iterations.saturating_sub(1).max(1) as f64
    }

    /// # Safety
    /// The host's struct, with columns of the lengths that the header gives.
    unsafe fn from_ffi(tokens: &'a ffi::Tokens) -> Self {
        let count = tokens.tokens as usize;
        // SAFETY: the caller's promise.
        let column = |data: *const f32| unsafe { ffi::slice(data, count) };
        Self {
            // SAFETY: as above.
            token_offsets: unsafe { ffi::slice(tokens.token_offsets, tokens.responses as usize + 1) },
            logprobs: column(tokens.logprobs),
            detached_logprobs: column(tokens.detached_logprobs),
            old_logprobs: column(tokens.old_logprobs),
            behaviour: column(tokens.behaviour),
            ref_logprobs: (!tokens.ref_logprobs.is_null()).then(|| column(tokens.ref_logprobs)),
            entropy: column(tokens.entropy),
            advantages: column(tokens.advantages),
            mini_batch_responses: tokens.mini_batch_responses,
            mini_batch_tokens: tokens.mini_batch_tokens,
            most_response_tokens: tokens.most_response_tokens,
            iteration: tokens.iteration,
            iterations: tokens.iterations,
        }
    }
}

/// The output of a loss: `[T]` each, NaN until written.
#[derive(Debug)]
pub struct Losses<'a> {
    /// `[T]` The loss of each token.
    pub losses: &'a mut [f64],
    /// `[T]` Derivative by the token's log-prob of the sum of all losses of its response.
    pub by_logprob: &'a mut [f64],
    /// `[T]` The same by the token's entropy; empty unless [`LossNeeds::entropy`].
    pub by_entropy: &'a mut [f64],
    metrics: Map<String, Value>,
}

impl<'a> Losses<'a> {
    /// Borrows the arrays.
    pub fn new(losses: &'a mut [f64], by_logprob: &'a mut [f64], by_entropy: &'a mut [f64]) -> Self {
        Self { losses, by_logprob, by_entropy, metrics: Map::new() }
    }

    /// Sets the loss of a token and its derivative by the token's log-prob.
    pub fn set(&mut self, token: usize, loss: f64, by_logprob: f64) {
        (self.losses[token], self.by_logprob[token]) = (loss, by_logprob);
    }

    /// Adds a sum over this call's tokens to the metric `loss/NAME`, such as the number of clipped tokens: the mean over the response
    /// tokens of the update is written. Every call gives the same names: lower case letters, digits and underscores.
    pub fn metric(&mut self, name: &str, sum: f64) {
        self.metrics.insert(name.to_string(), sum.into());
    }
}

/// The C functions for one type of loss.
pub struct Functions<L>(PhantomData<L>);

impl<L: Loss> Functions<L> {
    /// The function table of `nestor_loss`.
    pub const TABLE: &'static ffi::Loss =
        &ffi::Loss { open: Self::open, needs: Self::needs, compute: Self::compute, close: Self::close };

    unsafe extern "C" fn open(text: ffi::Str, sink: *mut ffi::Sink, loss: *mut *mut c_void) -> i32 {
        // SAFETY: the host's arguments, as nestor_plugin.h has them; the loss goes back in `close`.
        unsafe {
            guard(sink, ffi::INPUT, |_| {
                let opened = L::open(config::parse(utf8(text, "config")?)?)?;
                *loss = Box::into_raw(Box::new(opened)).cast();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn needs(loss: *mut c_void, sink: *mut ffi::Sink, flags: *mut u32) -> i32 {
        // SAFETY: `loss` is from `open`.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                *flags = (*loss.cast::<L>()).needs().flags();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn compute(
        loss: *mut c_void,
        tokens: *const ffi::Tokens,
        sink: *mut ffi::Sink,
        losses: *mut f64,
        by_logprob: *mut f64,
        by_entropy: *mut f64,
    ) -> i32 {
        // SAFETY: `loss` is from `open`; tokens and arrays are the host's, of the lengths the header gives, and no two arrays
        // overlap.
        unsafe {
            guard(sink, ffi::FAILED, |text| {
                let tokens = Tokens::from_ffi(&*tokens);
                let array = |data: *mut f64| match data.is_null() || tokens.logprobs.is_empty() {
                    true => &mut [][..],
                    false => std::slice::from_raw_parts_mut(data, tokens.logprobs.len()),
                };
                let mut out = Losses::new(array(losses), array(by_logprob), array(by_entropy));
                (*loss.cast::<L>()).compute(&tokens, &mut out)?;
                if !out.metrics.is_empty() {
                    text.text(ffi::METRICS, &Value::Object(out.metrics).to_string());
                }
                Ok(())
            })
        }
    }

    unsafe extern "C" fn close(loss: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `loss` is from `open` and never used again.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                drop(Box::from_raw(loss.cast::<L>()));
                Ok(())
            })
        }
    }
}
