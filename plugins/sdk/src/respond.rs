//! Steps that see more than the text of a response: the calls of tools in it, and its tokens.

use std::ffi::c_void;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::environment::{Functions, Instance, Observation};
use crate::guard::{guard, utf8};
use crate::{Environment, Message, ffi};

/// An instance that declares tools or wants tokens (extension `nestor.env.respond/1`).
pub trait Respond: Instance {
    /// Plays one response, in place of [`Instance::step`].
    fn respond(&mut self, world: &Self::World, response: &Response) -> Result<Observation>;
}

/// A response of the policy, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// Raw, as the policy wrote it.
    pub text: String,
    /// The message of the assistant, with `tool_calls` where it has some.
    pub message: Message,
    /// The text holds a call that is cut or no JSON, and stays content.
    pub broken_call: bool,
    /// The response reached its limit of tokens.
    pub cut: bool,
    /// Token ids before the response.
    pub prompt: Vec<u32>,
    /// Token ids of the response, the end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Log-prob of each token.
    pub logprobs: Vec<f32>,
}

/// One call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Names the call in the message that answers it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

impl Response {
    /// The calls of tools, in their order.
    ///
    /// # Errors
    /// When the message's `tool_calls` are not in OpenAI's form, which no host sends.
    pub fn calls(&self) -> Result<Vec<ToolCall>> {
        let calls = self.message.keys.get("tool_calls").and_then(Value::as_array);
        calls
            .into_iter()
            .flatten()
            .map(|call| read(call).with_context(|| format!("no call of a tool: {call}")))
            .collect()
    }
}

fn read(call: &Value) -> Option<ToolCall> {
    let function = call.get("function")?;
    let arguments = serde_json::from_str(function.get("arguments")?.as_str()?).ok()?;
    let name = function.get("name")?.as_str()?.to_string();
    Some(ToolCall { id: call.get("id")?.as_str()?.to_string(), name, arguments })
}

impl<E: Environment> Functions<E>
where
    E::Instance: Respond,
{
    /// The function table of the respond extension.
    pub const RESPOND: &'static ffi::Respond = &ffi::Respond { respond: Self::respond };

    unsafe extern "C" fn respond(
        env: *mut c_void,
        response: *const ffi::Response,
        sink: *mut ffi::Sink,
        out: *mut ffi::Step,
    ) -> i32 {
        // SAFETY: `env` is from `spawn` and used by this thread alone; the response is the host's, borrowed for the call.
        unsafe {
            guard(sink, ffi::FAILED, |text| {
                let given = &*response;
                let message = utf8(given.message, "message")?;
                let response = Response {
                    text: utf8(given.text, "response")?.to_string(),
                    message: serde_json::from_str(message).context("the host's message")?,
                    broken_call: given.broken_call != 0,
                    cut: given.cut != 0,
                    prompt: ffi::slice(given.prompt, given.prompt_tokens as usize).to_vec(),
                    tokens: ffi::slice(given.tokens, given.count as usize).to_vec(),
                    logprobs: ffi::slice(given.logprobs, given.count as usize).to_vec(),
                };
                let (world, instance) = Self::parts(env);
                *out = instance.respond(world, &response)?.put(text);
                Ok(())
            })
        }
    }
}
