//! The observations that requests and ends of episodes become.

use nestor_chat::{Request, StepNote};
use nestor_plugin::Environment;
use serde_json::{Value, json};

use crate::outcome::{of_end, of_line, of_request};
use crate::{Config, Harness};

fn request(more: Value) -> Request {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Request::read(body.to_string().as_bytes()).unwrap()
}

#[test]
fn the_state_is_what_a_request_says_or_else_the_last_results_of_tools_or_the_conversation() {
    let anchor = |more: Value| of_request(&request(more), None).anchor;
    assert_eq!(anchor(json!({ "nestor": { "anchor": "s" } })), b"s");
    let with = |before: &str, result: &str| {
        json!({ "messages": [{ "role": "user", "content": before }, { "role": "assistant", "content": "b" },
                             { "role": "tool", "content": result, "tool_call_id": before }] })
    };
    assert_eq!(anchor(with("a", "3")), anchor(with("c", "3")));
    assert_ne!(anchor(with("a", "3")), anchor(with("a", "4")));
    assert_eq!(anchor(json!({})), anchor(json!({ "model": "n" })));
    assert_ne!(anchor(json!({})), anchor(json!({ "messages": [{ "role": "user", "content": "b" }] })));
}

#[test]
fn a_line_with_an_outcome_ends_an_episode() {
    let note = |line: &str| of_line(line).unwrap();
    for other in ["", "done", "3", "[1]", "{\"step\": 1}", "{\"reward\": 1"] {
        assert_eq!(note(other), None, "{other}");
    }
    let won = |line: &str| {
        let seen = of_end(&note(line).unwrap(), None);
        (seen.info["won"].clone(), seen.terminated, seen.truncated)
    };
    assert_eq!(won("{\"reward\": 1}"), (json!(true), true, false));
    assert_eq!(won("{\"reward\": 1, \"won\": false, \"truncated\": true}"), (json!(false), false, true));
    assert_eq!(won("{\"won\": true}"), (json!(true), true, false));
    assert!(of_line("{\"reward\": \"much\"}").is_err() && of_line("{\"reward\": 1, \"x\": 1}").is_err());
    assert_eq!(note("{\"reward\": -1}"), Some(StepNote { reward: Some(-1.0), ..StepNote::default() }));
}

#[test]
fn a_wrong_config_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = folder.path().join("tasks.jsonl");
    std::fs::write(&tasks, "{\"a\": 1}\n\nno\n").unwrap();
    for (config, why) in [
        (json!({ "command": " ", "tasks": { "train": 1 } }), "`command` is empty"),
        (json!({ "command": "x", "tasks": {} }), "`tasks` has no split"),
        (json!({ "command": "x", "tasks": { "train": 0 } }), "the split has no task"),
        (json!({ "command": "x", "tasks": { "train": tasks } }), "line 3"),
        (json!({ "command": "x", "tasks": { "train": "nowhere.jsonl" } }), "nowhere.jsonl"),
        (json!({ "command": "x", "tasks": { "train": 1 }, "ignored": ["warmth"] }), "`warmth` is unknown"),
        (json!({ "command": "x", "tasks": { "train": 1 }, "timeout_s": 0 }), "`timeout_s` is 0"),
        (json!({ "command": "x", "tasks": { "train": 1 }, "folder": "/nowhere" }), "is no folder"),
    ] {
        let config: Config = nestor_plugin::parse_config(&config.to_string()).unwrap();
        let error = format!("{:#}", Harness::open(config).err().unwrap());
        assert!(error.contains(why), "{error}");
    }
}
