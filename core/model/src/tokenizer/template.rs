//! Chat templates: renders Jinja as transformers does (trimmed blocks, Python's string methods, its `tojson`).
//!
//! A template comes with a model's files, which are not trusted. So a rendering has a limit of instructions and of text,
//! filters have limits of widths and counts, and a new template renders a sample on a thread whose memory is watched.

use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, StringInput, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use serde_json::{Map, Value, json};

use super::Message;
use super::bounded::{LimitedText, bounded, within};
use super::jinja;
use super::python::{self, check_widths};
use crate::input_error;

/// The template of a folder that has none: each turn between `<|im_start|>role` and `<|im_end|>`.
pub(super) const CHATML: &str = "{%- for message in messages %}\n    \
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n\
    {%- endfor %}\n\
    {%- if add_generation_prompt %}\n    \
    {{- '<|im_start|>assistant\\n' }}\n\
    {%- endif %}\n";

/// Qwen2.5-Instruct's template, for tokenizers made from its tokenizer.json alone.
pub(super) const QWEN: &str = include_str!("qwen2.5_chat_template.jinja");

/// The template of Qwen2.5-VL in our words: a content may be a text, or a list of texts and images.
pub(super) const QWEN_VL: &str = include_str!("qwen2.5_vl_chat_template.jinja");

/// Qwen3's template, for tokenizers with Qwen3's `<think>`; from `chat_templates` of TRL 1.16.0 (Apache-2.0).
pub(super) const QWEN3: &str = include_str!("qwen3_chat_template.jinja");

/// The variable of Qwen3's template, and of others after it, that switches thinking on or off.
const THINKING: &str = "enable_thinking";

/// The special tokens that transformers passes to a template by name.
pub(super) const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Most instructions of one rendering. A conversation of 1,000 turns takes 50,000 with Qwen's template.
const FUEL: u64 = 5_000_000;
/// Longest text of one rendering in bytes.
const LONGEST_TEXT: usize = 64 << 20;
/// A compiled chat template.
#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// Variables of every rendering besides the chat: the special tokens, and the thinking switch if it is set.
    known: Map<String, Value>,
}

impl Template {
    /// Compiles a template and renders a sample chat with it; the special tokens come from `tokenizer_config.json`.
    ///
    /// # Errors
    /// If the template does not compile, or the sample takes too much time or memory. A refusal of the sample is none.
    pub fn new(source: &str, settings: &Map<String, Value>) -> Result<Self> {
        let (source, settings) = (source.to_string(), settings.clone());
        bounded("the template", move || {
            let template = Self::compiled(source, &settings)?;
            let sample = [Message::new("user", "a"), Message::new("assistant", "b"), Message::new("user", "c")];
            match template.rendered(&sample, None, true) {
                Err(error) => exceeded(&error).map_or(Ok(template), |limit| Err(input_error!("{limit}"))),
                Ok(_) => Ok(template),
            }
        })
    }

    fn compiled(source: String, settings: &Map<String, Value>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        python::add_to(&mut environment)?;
        environment.add_filter("indent", indent);
        environment.add_filter("batch", |state: &State, items, count, fill| {
            filters::batch(state, items, within(count, "a batch")?, fill)
        });
        environment.add_filter("slice", |state: &State, items, count, fill| {
            filters::slice(state, items, within(count, "a slice")?, fill)
        });
        environment.add_filter("format", format);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned("chat", jinja::rewritten(&source))?;
        let known = SPECIAL
            .iter()
            .filter_map(|&name| Some((name.to_string(), Value::from(special_token(settings, name)?))))
            .collect();
        Ok(Self { environment, known })
    }

    /// Sets the thinking switch of all renderings.
    ///
    /// # Errors
    /// If the template has no switch and would ignore the setting.
    pub fn set_thinking(&mut self, thinking: bool) -> Result<()> {
        let template = self.environment.get_template("chat").context("the template is compiled")?;
        if !template.undeclared_variables(false).contains(THINKING) {
            return Err(input_error!(
                "thinking cannot be set to {thinking}: the model's chat template has no switch for it ({THINKING})"
            ));
        }
        self.known.insert(THINKING.into(), thinking.into());
        Ok(())
    }

    pub fn render(&self, chat: &[Message], tools: Option<&[Value]>, add_generation_prompt: bool) -> Result<String> {
        self.rendered(chat, tools, add_generation_prompt).map_err(|error| match exceeded(&error) {
            Some(limit) => input_error!("the chat template fails on this chat: {limit}"),
            None => input_error!("the chat template refuses this chat: {error:#}"),
        })
    }

    fn rendered(&self, chat: &[Message], tools: Option<&[Value]>, generation: bool) -> Result<String, Error> {
        let mut context = self.known.clone();
        context.insert("messages".into(), chat.iter().map(with_reasoning).collect());
        context.insert("tools".into(), json!(tools));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), generation.into());
        let mut text = LimitedText::new(LONGEST_TEXT);
        self.environment
            .get_template("chat")?
            .render_captured_to(minijinja::Value::from(Serde(&context)), &mut text)?;
        Ok(text.into_string())
    }
}

/// A message as a template gets it. As in transformers, a thought has the names that templates read, whichever it came under.
fn with_reasoning(message: &Message) -> Value {
    let mut keys = message.keys.clone();
    let names = ["reasoning_content", "thinking", "reasoning"];
    if let Some(thought) = names.iter().find_map(|name| keys.get(*name).filter(|value| !value.is_null())).cloned() {
        keys.entry("thinking").or_insert_with(|| thought.clone());
        keys.insert("reasoning_content".into(), thought);
    }
    let role = [("role".to_string(), Value::from(message.role.as_str()))];
    Value::Object(role.into_iter().chain(keys).collect())
}

/// The template in `tokenizer_config.json`: one text, or the entry `default` of a list.
pub(super) fn of_settings(settings: &Map<String, Value>) -> Result<Option<String>, String> {
    match settings.get("chat_template") {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            let names = || list.iter().filter_map(|entry| entry["name"].as_str()).collect::<Vec<_>>().join(", ");
            let text = default.and_then(|entry| entry["template"].as_str());
            text.map(|text| Some(text.to_string())).ok_or_else(|| {
                format!(
                    "chat_template lists {}, but no template of the name default; write one as chat_template.jinja",
                    names()
                )
            })
        }
        _ => Ok(None),
    }
}

/// A special token of `tokenizer_config.json`: a text, or an object with `content`.
pub(super) fn special_token(settings: &Map<String, Value>, name: &str) -> Option<String> {
    let value = settings.get(name)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_string)
}

/// The limit that a rendering exceeded; none for any other error.
fn exceeded(error: &Error) -> Option<String> {
    match error.kind() {
        ErrorKind::OutOfFuel => Some(format!("a rendering takes more than {FUEL} instructions")),
        ErrorKind::WriteFailure => Some(format!("its text is longer than {} MiB", LONGEST_TEXT >> 20)),
        _ => None,
    }
}

/// minijinja's filter with a limit of the width.
fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<minijinja::Value, Error> {
    within(width.or(options.peek("width").ok()).unwrap_or(0), "an indent")?;
    filters::indent(text, width, first, blank, options)
}

/// minijinja's filter with a limit of every number in the format.
fn format(state: &mut State, text: &minijinja::Value, values: Rest<ValueOrKwargs>) -> Result<minijinja::Value, Error> {
    check_widths(text.as_str().unwrap_or_default())?;
    filters::format(state, text, values)
}

/// The current local time in a `strftime` format.
fn strftime_now(format: &str, rest: Rest<minijinja::Value>) -> Result<String, Error> {
    use std::fmt::Write;
    if !rest.is_empty() {
        return Err(Error::new(ErrorKind::TooManyArguments, "strftime_now takes a format"));
    }
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: unknown format \"{format}\"")))?;
    Ok(text)
}
