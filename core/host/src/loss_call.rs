//! The calls of a loss as data, and the response tokens as the border has them.

use nestor_plugin::{LossNeeds, ffi};
use serde::{Deserialize, Serialize};

use crate::call::{Answer, Handle, Out, call, call_for_texts};
use crate::calls::Function;

/// Numbers behind the end of each array that a loss fills. A plugin that writes there has written too far.
pub const MARGIN: usize = 64;
/// The value of a number that the loss has not written, and of the margin: a NaN that no arithmetic makes.
pub const UNTOUCHED: u64 = 0x7ff8_5a3d_17fc_5a3d;

/// The response tokens of one micro-batch, as a loss sees them: B whole responses of T tokens together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseTokens {
    /// Start of each response's tokens (B + 1).
    pub token_offsets: Vec<u64>,
    /// Log-probs under the policy that is trained (T).
    pub logprobs: Vec<f32>,
    /// The same as constants, where they are other numbers: the kit holds them while it moves a log-prob (T).
    pub detached_logprobs: Option<Vec<f32>>,
    /// Log-probs that a ratio is taken against (T).
    pub old_logprobs: Vec<f32>,
    /// Log-probs under the engine that sampled (T).
    pub behaviour: Vec<f32>,
    /// Log-probs under the reference, where the loss needs them (T).
    pub ref_logprobs: Option<Vec<f32>>,
    /// Entropy of the policy that is trained, in nats (T).
    pub entropy: Vec<f32>,
    /// Advantages (T).
    pub advantages: Vec<f32>,
    pub mini_batch_responses: u64,
    pub mini_batch_tokens: u64,
    /// The recipe's `rollout.max_response_tokens`.
    pub most_response_tokens: u64,
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Iterations of the run.
    pub iterations: u64,
}

/// A call after `open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LossCall {
    Needs,
    /// The columns have the lengths that the border promises. The flags of [`LossNeeds`] go along.
    Compute(Box<ResponseTokens>, u32),
    Close,
}

impl LossCall {
    pub fn function(&self) -> Function {
        match self {
            Self::Needs => Function::Needs,
            Self::Compute(..) => Function::Compute,
            Self::Close => Function::Close,
        }
    }

    /// Number of numbers that the answer holds.
    pub fn numbers(&self) -> usize {
        match self {
            Self::Compute(tokens, _) => 3 * (tokens.logprobs.len() + MARGIN),
            _ => 0,
        }
    }

    /// Makes the call in this process.
    ///
    /// # Safety
    /// The handle is open, this thread alone uses it, and the lengths of the columns were checked.
    pub unsafe fn perform(&self, table: &ffi::Loss, handle: Handle) -> Answer {
        let handle = handle.pointer();
        // SAFETY: the caller's promises; columns and arrays have the lengths that the header gives and outlive the call.
        unsafe {
            match self {
                Self::Needs => call(0, Out::Flags, |sink, flags| (table.needs)(handle, sink, flags)),
                Self::Compute(tokens, flags) => {
                    let needs = LossNeeds::from_flags(*flags).unwrap_or_default();
                    let array = || vec![f64::from_bits(UNTOUCHED); tokens.logprobs.len() + MARGIN];
                    call([array(), array(), array()], Out::Losses, |sink, [losses, by_logprob, by_entropy]| {
                        let by_entropy = if needs.entropy { by_entropy.as_mut_ptr() } else { std::ptr::null_mut() };
                        let tokens = tokens.to_ffi(needs);
                        (table.compute)(handle, &tokens, sink, losses.as_mut_ptr(), by_logprob.as_mut_ptr(), by_entropy)
                    })
                }
                Self::Close => call_for_texts(|sink| (table.close)(handle, sink)),
            }
        }
    }
}

impl ResponseTokens {
    fn to_ffi(&self, needs: LossNeeds) -> ffi::Tokens {
        let reference = self.ref_logprobs.as_ref().filter(|_| needs.reference);
        ffi::Tokens {
            responses: self.token_offsets.len().saturating_sub(1) as u64,
            tokens: self.logprobs.len() as u64,
            token_offsets: self.token_offsets.as_ptr(),
            logprobs: self.logprobs.as_ptr(),
            detached_logprobs: self.detached_logprobs.as_ref().unwrap_or(&self.logprobs).as_ptr(),
            old_logprobs: self.old_logprobs.as_ptr(),
            behaviour: self.behaviour.as_ptr(),
            ref_logprobs: reference.map_or(std::ptr::null(), |column| column.as_ptr()),
            entropy: self.entropy.as_ptr(),
            advantages: self.advantages.as_ptr(),
            mini_batch_responses: self.mini_batch_responses,
            mini_batch_tokens: self.mini_batch_tokens,
            most_response_tokens: self.most_response_tokens,
            iteration: self.iteration,
            iterations: self.iterations,
        }
    }
}
