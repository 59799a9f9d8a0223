//! The calls of an environment as data. They are made in this process, or sent to another one that makes them.

use anyhow::Result;
use nestor_plugin::ffi;
use serde::{Deserialize, Serialize};

use crate::call::{Answer, Handle, Out, Texts, call, call_for_handle, call_for_texts};
use crate::calls::Function;
use crate::library::EnvironmentTables;

/// A response, taken apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenResponse {
    /// Raw, as the policy wrote it.
    pub text: String,
    /// The message of the assistant, as JSON.
    pub message: String,
    /// The text holds a call of a tool that is cut or no JSON.
    pub broken_call: bool,
    /// The response reached its limit of tokens.
    pub cut: bool,
    /// Token ids before the response.
    pub prompt: Vec<u32>,
    /// Token ids of the response.
    pub tokens: Vec<u32>,
    /// Log-prob of each of them.
    pub logprobs: Vec<f32>,
}

impl TakenResponse {
    /// As the border has it; the texts and arrays are borrowed.
    fn borrowed(&self) -> ffi::Response {
        ffi::Response {
            text: ffi::Str::new(self.text.as_bytes()),
            message: ffi::Str::new(self.message.as_bytes()),
            broken_call: self.broken_call.into(),
            cut: self.cut.into(),
            prompt: self.prompt.as_ptr(),
            prompt_tokens: self.prompt.len() as u64,
            tokens: self.tokens.as_ptr(),
            logprobs: self.logprobs.as_ptr(),
            count: self.tokens.len().min(self.logprobs.len()) as u64,
        }
    }
}

/// A call after `open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EnvironmentCall {
    // Those of the shared part.
    PromptTemplate,
    Tasks {
        split: String,
    },
    Spawn,
    CloseWorld,
    // Those of an instance.
    Reset {
        split: String,
        task: u64,
        seed: u64,
    },
    /// The response is UTF-8, but for the kit, which tries other bytes.
    Step {
        response: Vec<u8>,
    },
    /// A response taken apart, for an environment that asks for it.
    Respond(Box<TakenResponse>),
    NextAction,
    Response {
        action: String,
    },
    Save,
    Load {
        state: Vec<u8>,
    },
    Close,
}

impl EnvironmentCall {
    pub fn function(&self) -> Function {
        match self {
            Self::PromptTemplate => Function::PromptTemplate,
            Self::Tasks { .. } => Function::Tasks,
            Self::Spawn => Function::Spawn,
            Self::CloseWorld => Function::CloseWorld,
            Self::Reset { .. } => Function::Reset,
            Self::Step { .. } | Self::Respond(_) => Function::Step,
            Self::NextAction => Function::NextAction,
            Self::Response { .. } => Function::Response,
            Self::Save => Function::Save,
            Self::Load { .. } => Function::Load,
            Self::Close => Function::Close,
        }
    }

    /// True for a call of the shared part, which all episodes use.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::PromptTemplate | Self::Tasks { .. } | Self::Spawn | Self::CloseWorld)
    }

    /// Makes the call in this process.
    ///
    /// # Safety
    /// The handle is open: that of the shared part ([`Self::is_shared`]), or that of an instance which this thread alone
    /// uses.
    pub unsafe fn perform(&self, tables: &EnvironmentTables, handle: Handle) -> Answer {
        let functions = tables.functions;
        let text = |text: &str| ffi::Str::new(text.as_bytes());
        // SAFETY: the caller's promise for the handle; texts and room outlive the call.
        unsafe {
            match self {
                Self::PromptTemplate => call_for_texts(|sink| (functions.prompt_template)(handle.pointer(), sink)),
                Self::Tasks { split } => {
                    call(0, Out::Count, |sink, count| (functions.tasks)(handle.pointer(), text(split), sink, count))
                }
                Self::Spawn => call_for_handle(|sink, env| (functions.spawn)(handle.pointer(), sink, env)),
                Self::CloseWorld => call_for_texts(|sink| (functions.close_world)(handle.pointer(), sink)),
                Self::Reset { split, task, seed } => call(ffi::Step::default(), step, |sink, out| {
                    (functions.reset)(handle.pointer(), text(split), *task, *seed, sink, out)
                }),
                Self::Step { response } => call(ffi::Step::default(), step, |sink, out| {
                    (functions.step)(handle.pointer(), ffi::Str::new(response), sink, out)
                }),
                Self::Respond(response) => match tables.respond {
                    Some(table) => call(ffi::Step::default(), step, |sink, out| {
                        (table.respond)(handle.pointer(), &response.borrowed(), sink, out)
                    }),
                    None => Answer::missing(),
                },
                Self::NextAction => match tables.expert {
                    Some(expert) => call_for_texts(|sink| (expert.next_action)(handle.pointer(), sink)),
                    None => Answer::missing(),
                },
                Self::Response { action } => match tables.expert {
                    Some(expert) => call_for_texts(|sink| (expert.response)(handle.pointer(), text(action), sink)),
                    None => Answer::missing(),
                },
                Self::Save => match tables.snapshot {
                    Some(table) => call_for_texts(|sink| (table.save)(handle.pointer(), sink)),
                    None => Answer::missing(),
                },
                Self::Load { state } => match tables.snapshot {
                    Some(table) => call_for_texts(|sink| (table.load)(handle.pointer(), ffi::Str::new(state), sink)),
                    None => Answer::missing(),
                },
                Self::Close => call_for_texts(|sink| (functions.close)(handle.pointer(), sink)),
            }
        }
    }
}

fn step(out: ffi::Step) -> Out {
    let ffi::Step { reward, terminated, truncated, valid } = out;
    Out::Step { reward, terminated, truncated, valid }
}

/// The extensions that an environment lacks although its component has them, as `open` puts them.
pub fn lacks(texts: &mut Texts) -> Result<Vec<String>> {
    texts.all(ffi::LACKS, "missing extension")
}
