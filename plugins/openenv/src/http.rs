//! The few things that are asked over HTTP before a run: health, and the schema of the server's actions.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use ureq::Agent;

use crate::action::{Field, field};
use crate::address::Address;
use crate::config::Config;
use crate::wire::start;

/// The longest answer that is read, in bytes.
const LONGEST: u64 = 4 << 20;

/// Checks the server's health and learns the field that takes the policy's action.
pub fn learn(address: &Address, config: &Config) -> Result<Field> {
    let agent = agent(config.connect_timeout());
    let (status, _) = get(&agent, &format!("{}/health", address.http))?;
    ensure!(
        status == 200,
        "{}/health answered with HTTP {status}, so this is no healthy OpenEnv server; check config key `url` and the \
         server's log",
        address.http
    );
    match &config.tool {
        Some(tool) => field(&arguments(&agent, address, tool)?, config, &format!("tool `{tool}`")),
        None => {
            let place = format!("{}/schema", address.http);
            match (get(&agent, &place)?, &config.action) {
                ((200, schema), _) => {
                    let action = schema.get("action").with_context(|| format!("{place} shows no `action`"))?;
                    field(action, config, &format!("the action in {place}"))
                }
                // Old servers show no schema.
                ((_, _), Some(name)) => Ok(Field { name: name.clone(), is_text: true }),
                ((status, _), None) => bail!(
                    "{place} answered with HTTP {status}: name the field for the policy's action by config key `action`"
                ),
            }
        }
    }
}

/// The JSON schema of a tool's arguments.
fn arguments(agent: &Agent, address: &Address, tool: &str) -> Result<Value> {
    let place = format!("{}/mcp", address.http);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} }).to_string();
    let answer = agent.post(&place).header("Content-Type", "application/json").send(body);
    let (status, answer) = json_of(&place, answer)?;
    if let Some(message) = answer.pointer("/error/message").and_then(Value::as_str) {
        bail!("config key `tool`: {place} refuses to list its tools: {}", start(message));
    }
    let tools = answer.pointer("/result/tools").and_then(Value::as_array);
    let tools = tools.with_context(|| format!("config key `tool`: {place} lists no tools (HTTP {status})"))?;
    let name = |tool: &Value| tool.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let found = tools.iter().find(|other| name(other) == tool).with_context(|| {
        let names: Vec<String> = tools.iter().map(name).collect();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("config key `tool`: the server has no tool `{tool}`{}", nestor_plugin::suggest(tool, &known))
    })?;
    let schema = ["inputSchema", "input_schema"].iter().find_map(|key| found.get(*key));
    Ok(schema.cloned().unwrap_or_default())
}

/// An agent without proxy: the WebSocket has none either.
fn agent(timeout: Duration) -> Agent {
    let config = Agent::config_builder().timeout_global(Some(timeout)).proxy(None).http_status_as_error(false);
    config.build().new_agent()
}

fn get(agent: &Agent, place: &str) -> Result<(u16, Value)> {
    json_of(place, agent.get(place).call())
}

/// Status and JSON of an answer; null where the answer is no JSON.
fn json_of(place: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<(u16, Value)> {
    let mut answer = answer.map_err(|error| {
        anyhow!("cannot reach {place} ({error}): start the OpenEnv server, or correct config key `url`")
    })?;
    let status = answer.status().as_u16();
    let text = answer.body_mut().with_config().limit(LONGEST).read_to_string();
    let text = text.with_context(|| format!("cannot read the answer of {place}"))?;
    Ok((status, serde_json::from_str(&text).unwrap_or_default()))
}
