//! One instance: its session, and the episode that it plays.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Instance, Message, Observation, Respond, Response, Start, ToolCall};
use rmcp::model::ErrorCode;
use serde_json::{Map, Value, json};

use crate::Mcp;
use crate::config::{Config, Sessions};
use crate::results::{anchor, cut, first_anchor, number, text};
use crate::reward::answer;
use crate::session::{Outcome, Session};
use crate::tasks::Task;
use crate::tools::Tools;

/// Answers a call that could not be read.
const BROKEN: &str =
    "Error: the call is not understood. It is cut, or no JSON object with `name` and `arguments`. Nothing was called.";

/// One instance.
#[derive(Default)]
pub struct Play {
    session: Option<Arc<Session>>,
    episode: Option<Episode>,
}

/// An episode under way.
struct Episode {
    split: String,
    task: u64,
    /// The conversation so far.
    messages: Vec<Message>,
    steps: u32,
    calls: u32,
    failed_calls: u32,
}

/// The answer to a call.
struct Answered {
    message: Message,
    /// The call was one that the server has, with arguments that fit.
    valid: bool,
    failed: bool,
}

impl Instance for Play {
    type World = Mcp;

    fn reset(&mut self, world: &Mcp, start: Start<'_>) -> Result<Observation> {
        let task = world.task(start.split, start.task)?;
        self.episode = None;
        let keep = world.config.session == Sessions::Instance;
        let kept = self.session.take().filter(|session| keep && session.works());
        let session = kept.map_or_else(|| world.session(), Ok)?;
        if let Some(tool) = &world.config.reset_tool {
            // Many languages have no integers of 64 bits in JSON.
            let arguments = json!({ "seed": start.seed as u32, "task": task.line });
            hidden(&session, world, tool, arguments).context("config key `reset_tool`")?;
        }
        self.session = Some(session);
        let messages = task.messages.clone();
        self.episode = Some(Episode {
            split: start.split.into(),
            task: start.task,
            messages: messages.clone(),
            steps: 0,
            calls: 0,
            failed_calls: 0,
        });
        Ok(Observation {
            anchor: first_anchor(&messages, &world.tools.offered),
            tools: world.tools.offered.clone(),
            valid: true,
            info: info(task),
            ..asks(messages)
        })
    }

    /// A response of which only the text is known, as when a person plays.
    fn step(&mut self, world: &Mcp, response: &str) -> Result<Observation> {
        let steps = self.episode.as_ref().context("the episode is over")?.steps;
        let parsed = nestor_chat::parse(response);
        let (message, broken_call) = (parsed.message(steps), parsed.broken);
        let (prompt, tokens, logprobs) = (Vec::new(), Vec::new(), Vec::new());
        let response = Response { text: response.into(), message, broken_call, cut: false, prompt, tokens, logprobs };
        self.respond(world, &response)
    }
}

impl Respond for Play {
    fn respond(&mut self, world: &Mcp, response: &Response) -> Result<Observation> {
        let mut episode = self.episode.take().context("the episode is over")?;
        let session = self.session.clone().context("the episode is over")?;
        let task = world.task(&episode.split, episode.task)?;
        let calls = response.calls()?;
        episode.steps += 1;
        if calls.is_empty() && !response.broken_call {
            let reward = reward(&session, world, task, answer(response.message.content()))?;
            let won = reward >= world.config.won_at;
            return Ok(
                episode.ends(Observation { reward, terminated: true, valid: true, ..at_end(task, won) }, response)
            );
        }
        let asked = calls.len().max(1) as u32;
        if episode.calls + asked > world.config.max_calls {
            let valid = !response.broken_call;
            return Ok(episode.ends(Observation { truncated: true, valid, ..at_end(task, false) }, response));
        }
        let answers = match response.broken_call {
            true => vec![Answered { message: Message::new("tool", BROKEN), valid: false, failed: true }],
            false => calls.iter().map(|call| played(&session, world, call)).collect::<Result<_>>()?,
        };
        episode.calls += asked;
        episode.failed_calls += answers.iter().filter(|answer| answer.failed).count() as u32;
        let valid = answers.iter().all(|answer| answer.valid);
        let results: Vec<Message> = answers.into_iter().map(|answer| answer.message).collect();
        let anchor = anchor(&results);
        episode.messages.push(response.message.clone());
        episode.messages.extend(results);
        let seen = Observation { anchor, valid, info: info(task), ..asks(episode.messages.clone()) };
        let seen = episode.ends(seen, response);
        self.episode = Some(episode);
        Ok(seen)
    }
}

impl Episode {
    /// Adds what every observation after a response has.
    fn ends(&self, seen: Observation, response: &Response) -> Observation {
        let metrics = [("calls", self.calls), ("failed_calls", self.failed_calls)];
        let metrics = metrics.map(|(name, count)| (name.to_string(), f64::from(count)));
        Observation { action: said(response), metrics: metrics.into(), ..seen }
    }
}

/// An observation that is a whole conversation, whose last message the policy answers.
fn asks(messages: Vec<Message>) -> Observation {
    let text = messages.last().map(|last| last.content().to_string()).unwrap_or_default();
    Observation { text, messages, conversation: true, ..Observation::default() }
}

fn at_end(task: &Task, won: bool) -> Observation {
    let mut info = info(task);
    info.insert("won".into(), won.into());
    Observation { info, ..Observation::default() }
}

fn info(task: &Task) -> Map<String, Value> {
    task.task_type.iter().map(|kind| ("task_type".to_string(), json!(kind))).collect()
}

/// The action of a response: its calls, or else its text.
fn said(response: &Response) -> String {
    let calls = response.calls().unwrap_or_default();
    if calls.is_empty() {
        return response.message.content().to_string();
    }
    let call = |call: &ToolCall| format!("{}({})", call.name, json!(call.arguments));
    calls.iter().map(call).collect::<Vec<_>>().join("; ")
}

/// Plays a call of the policy. Everything that the server says of it is an answer; only a server that fails is an error.
fn played(session: &Session, world: &Mcp, call: &ToolCall) -> Result<Answered> {
    let Mcp { tools, config, .. } = world;
    let (text, valid, failed) = if tools.offers(&call.name) {
        result(session.call(&call.name, call.arguments.clone(), config.timeout())?, call, tools)
    } else {
        let known: Vec<&str> = tools.names().collect();
        (format!("Error: there is no tool `{}`; the tools are: {}", call.name, known.join(", ")), false, true)
    };
    let mut message = Message::new("tool", cut(text, config.max_result_chars));
    message.keys.insert("tool_call_id".into(), call.id.as_str().into());
    message.keys.insert("name".into(), call.name.as_str().into());
    Ok(Answered { message, valid, failed })
}

/// The answer's text, and whether the call was valid and failed.
fn result(outcome: Outcome, call: &ToolCall, tools: &Tools) -> (String, bool, bool) {
    match outcome {
        Outcome::Result(result) if result.is_error != Some(true) => (text(&result), true, false),
        Outcome::Result(result) => (error(text(&result)), tools.fits(&call.name, &call.arguments), true),
        Outcome::Refused(refused) => {
            let valid = refused.code != ErrorCode::INVALID_PARAMS && tools.fits(&call.name, &call.arguments);
            (error(refused.message.to_string()), valid, true)
        }
    }
}

/// A server's text about an error, which says that it is one.
fn error(text: String) -> String {
    let says = text.get(..5).is_some_and(|begin| begin.eq_ignore_ascii_case("error"));
    if says { text } else { format!("Error: {text}") }
}

fn reward(session: &Session, world: &Mcp, task: &Task, said: &str) -> Result<f64> {
    let Config { reward, .. } = &world.config;
    match (reward.answer, &reward.score_tool, &task.answer) {
        (Some(rule), _, Some(right)) => Ok(reward.of(rule, said, right)),
        (_, Some(tool), _) => {
            let scored = hidden(session, world, tool, json!({ "task": task.line, "answer": said }));
            scored
                .and_then(|result| {
                    number(&result).with_context(|| format!("`{tool}` gave no number: {}", cut(text(&result), 200)))
                })
                .context("config key `reward.score_tool`")
        }
        _ => bail!("the task has no answer"),
    }
}

/// Calls a tool that the policy does not see.
fn hidden(session: &Session, world: &Mcp, tool: &str, arguments: Value) -> Result<rmcp::model::CallToolResult> {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let arguments = world.tools.taken(tool, arguments);
    match session.call(tool, arguments, world.config.timeout())? {
        Outcome::Result(result) => {
            ensure!(result.is_error != Some(true), "`{tool}` failed: {}", cut(text(&result), 400));
            Ok(*result)
        }
        Outcome::Refused(refused) => bail!("the server refused the call of `{tool}`: {}", refused.message),
    }
}
