//! Episodes on the calculator of tests/python/mcp_server.py, a server of the Python package `mcp`, and faults of servers.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nestor_child::Child;
use nestor_plugin::{Environment, Instance, Message, Observation, Respond, Response, Start, parse_config};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const START: Start<'static> = Start { split: "train", task: 0, seed: (7 << 32) + 5 };

fn server(how: &str) -> (PathBuf, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let python = root.join(".venv/bin/python");
    assert!(python.exists(), "set up first: scripts/setup.sh --test");
    let command = format!("{} {} {how}", python.display(), root.join("tests/python/mcp_server.py").display());
    (root, command)
}

/// A config with a file of two tasks.
fn config(folder: &TempDir, keys: Value) -> Value {
    let tasks = folder.path().join("tasks.jsonl");
    let lines = [
        json!({ "prompt": "Add 2 and 3.", "answer": 5, "task_type": "sum" }),
        json!({ "messages": [{ "role": "system", "content": "own" }, { "role": "user", "content": "Hi" }], "answer": "x 0" }),
    ];
    std::fs::write(&tasks, lines.map(|line| format!("{line}\n")).concat()).expect("a file");
    let mut config = json!({ "tasks": { "train": tasks }, "reward": { "answer": "number" }, "system": "Use tools." });
    let object = config.as_object_mut().expect("an object");
    object.extend(keys.as_object().expect("keys").clone());
    config
}

fn open(config: &Value) -> Result<Mcp> {
    Mcp::open(parse_config(&config.to_string())?)
}

fn refused(config: &Value) -> String {
    format!("{:#}", open(config).err().expect("an error"))
}

/// The response that a host makes of a text.
fn response(text: &str, step: u32) -> Response {
    let parsed = nestor_chat::parse(text);
    let none = (Vec::new(), Vec::new(), Vec::new());
    let (prompt, tokens, logprobs) = none;
    let message = parsed.message(step);
    Response { text: text.into(), message, broken_call: parsed.broken, cut: false, prompt, tokens, logprobs }
}

fn call(name: &str, arguments: Value) -> String {
    format!("<tool_call>{}</tool_call>", json!({ "name": name, "arguments": arguments }))
}

/// An episode, with the number of its next step.
struct Episode<'a>(&'a Mcp, Play, u32);

impl<'a> Episode<'a> {
    fn of(world: &'a Mcp) -> (Self, Observation) {
        let mut play = world.spawn().expect("an instance");
        let seen = play.reset(world, START).expect("a reset");
        (Self(world, play, 0), seen)
    }

    fn says(&mut self, text: &str) -> Result<Observation> {
        self.2 += 1;
        self.1.respond(self.0, &response(text, self.2 - 1))
    }

    /// Plays a response with one call, and returns the result's text and whether the response was valid.
    fn calls(&mut self, name: &str, arguments: Value) -> (String, bool) {
        let seen = self.says(&call(name, arguments)).expect("a result");
        (seen.text, seen.valid)
    }
}

#[test]
fn tools_are_called_and_the_conversation_grows() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_, command) = server("stdio");
    let keys = json!({
        "command": command, "tools": ["divide", "add", "repeat", "picture", "state"],
        "reset_tool": "begin", "max_result_chars": 60, "max_calls": 12,
    });
    let world = open(&config(&folder, keys))?;
    let (mut episode, first) = Episode::of(&world);
    let names: Vec<_> = first.tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["divide", "add", "repeat", "picture", "state"]);
    assert_eq!(first.tools[1]["function"]["description"], "Adds two numbers.");
    assert_eq!(first.tools[1]["function"]["parameters"]["required"], json!(["a", "b"]));
    assert_eq!(first.messages, [Message::new("system", "Use tools."), Message::new("user", "Add 2 and 3.")]);
    assert_eq!(
        (first.text.as_str(), first.conversation, &first.info["task_type"]),
        ("Add 2 and 3.", true, &json!("sum"))
    );

    let two = format!("I add.{}{}", call("add", json!({ "a": 2, "b": 3 })), call("add", json!({ "a": 1, "b": 1 })));
    let seen = episode.says(&two)?;
    let said: Vec<_> = seen.messages[2..].iter().map(|message| (message.role.as_str(), message.content())).collect();
    assert_eq!(said, [("assistant", "I add."), ("tool", "5.0"), ("tool", "2.0")]);
    assert_eq!(seen.messages[2], response(&two, 0).message);
    assert_eq!(seen.messages[4].keys["tool_call_id"], "call_0_1");
    assert!(seen.valid && seen.tools.is_empty() && seen.conversation);
    assert_eq!(seen.action, r#"add({"a":2,"b":3}); add({"a":1,"b":1})"#);

    let (text, valid) = episode.calls("divide", json!({ "a": 1, "b": 0 }));
    assert!(text.starts_with("Error") && text.contains("division by zero") && valid, "{text}");
    let (text, valid) = episode.calls("add", json!({ "a": 1 }));
    assert!(text.starts_with("Error") && !valid, "{text}");
    assert!(!episode.calls("add", json!({ "a": "x", "b": 2 })).1);
    let hidden = "Error: there is no tool `begin`; the tools are: add, ";
    let (text, valid) = episode.calls("begin", json!({}));
    assert!(text.starts_with(hidden) && !valid, "{text}");
    let (text, valid) = episode.calls("repeat", json!({ "text": "ä", "times": 100 }));
    assert_eq!((text, valid), (format!("{}\n[cut: 40 of 100 characters are left out]", "ä".repeat(60)), true));
    assert_eq!(episode.calls("picture", json!({})).0, "[an image, image/png]");
    let state = episode.calls("state", json!({})).0;
    assert_eq!(serde_json::from_str::<Value>(&state)?, json!({ "seed": 5, "added": 2 }));
    let broken = episode.says("<tool_call>{\"name\": \"add\"")?;
    assert!(broken.text.contains("not understood") && !broken.valid);
    assert_eq!((broken.metrics["calls"], broken.metrics["failed_calls"]), (10.0, 5.0));
    assert_eq!(broken.messages.len(), 2 + 3 + 8 * 2);

    let end = episode.says("<think>4?</think>The sum is 5.")?;
    assert_eq!((end.reward, end.terminated, &end.info["won"], end.valid), (1.0, true, &json!(true), true));
    assert_eq!(end.metrics["calls"], 10.0);
    assert!(episode.says("again").is_err());

    // The same results lead to the same state, whatever led to them; and a state without effect of the episode before is as it was.
    let again = episode.1.reset(&world, START)?;
    assert_eq!(again, first);
    episode.2 = 0;
    assert_ne!(episode.says(&call("add", json!({ "a": 4, "b": 1 })))?.anchor, seen.anchor);
    let both = format!("{}{}", call("add", json!({ "a": 1, "b": 4 })), call("add", json!({ "a": 2, "b": 0 })));
    assert_eq!(episode.says(&both)?.anchor, seen.anchor);
    let many = call("picture", json!({})).repeat(10);
    let cut = episode.says(&many)?;
    assert_eq!((cut.truncated, cut.terminated, &cut.info["won"]), (true, false, &json!(false)));

    // A host that knows only texts.
    episode.1.reset(&world, START)?;
    assert_eq!(episode.1.step(&world, &call("add", json!({ "a": 1, "b": 2 })))?.text, "3.0");
    assert_eq!(episode.1.step(&world, "4")?.reward, 0.0);
    let own = episode.1.reset(&world, Start { task: 1, ..START })?;
    assert_eq!(own.messages[0].content(), "own");
    Ok(())
}

/// The calculator over HTTP.
struct Http {
    _process: Child,
    url: String,
}

impl Http {
    fn start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (_, command) = server(&format!("http {port}"));
        let process = Child::start_group(Command::new("sh").arg("-c").arg(format!("exec {command}")))?;
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { _process: process, url: format!("http://127.0.0.1:{port}/mcp") })
    }
}

#[test]
fn a_server_over_http_scores_answers_and_its_end_is_named() -> Result<()> {
    let (folder, http) = (tempfile::tempdir()?, Http::start()?);
    let keys = json!({
        "url": http.url, "reward": { "score_tool": "score" }, "headers": { "x-key": "secret" },
        "won_at": 2.5, "timeout_s": 20,
    });
    let world = open(&config(&folder, keys))?;
    let (mut one, first) = Episode::of(&world);
    let (mut two, _) = Episode::of(&world);
    assert!(first.tools.iter().all(|tool| tool["function"]["name"] != "score"));
    assert_eq!(one.calls("add", json!({ "a": 2, "b": 3 })), ("5.0".into(), true));
    assert_eq!(two.calls("add", json!({ "a": 1, "b": 1 })), ("2.0".into(), true));
    let end = one.says("5")?;
    assert_eq!((end.reward, &end.info["won"]), (2.5, &json!(true)));
    assert_eq!(two.says("6")?.reward, -1.0);
    one.1.reset(&world, START)?;
    drop(http);
    let gone = format!("{:#}", one.says(&call("add", json!({ "a": 2, "b": 3 }))).expect_err("no server"));
    assert!(gone.contains("the server at http://127.0.0.1") && gone.contains("the call of `add`"), "{gone}");
    let away = format!("{:#}", one.1.reset(&world, START).expect_err("no server"));
    assert!(away.contains("cannot be reached") && away.contains("correct config key `url`"), "{away}");
    Ok(())
}

#[test]
fn a_server_that_fails_is_named_and_the_next_reset_starts_another() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_, command) = server("stdio");
    let keys = json!({ "command": command, "timeout_s": 1.5, "session": "shared" });
    let world = open(&config(&folder, keys))?;
    let (mut episode, _) = Episode::of(&world);
    let (mut other, _) = Episode::of(&world);
    other.calls("add", json!({ "a": 1, "b": 1 }));
    assert!(episode.calls("state", json!({})).0.contains("\"added\": 1"));
    let died = format!("{:#}", episode.says(&call("die", json!({}))).expect_err("a dead server"));
    let also = format!("{:#}", other.says(&call("state", json!({}))).expect_err("the same server"));
    assert!(also.contains("has failed in another episode"), "{also}");
    assert!(died.contains("ended with code 3 before it answered the call of `die`"), "{died}");
    assert!(died.contains("its last output:\n  no more numbers"), "{died}");
    assert!(episode.says("5").is_err());
    episode.1.reset(&world, START)?;
    let hung = format!("{:#}", episode.says(&call("hang", json!({}))).expect_err("a silent server"));
    assert!(hung.contains("did not answer the call of `hang` within 1.5 s (config key `timeout_s`)"), "{hung}");
    episode.1.reset(&world, START)?;
    assert!(episode.calls("state", json!({})).0.contains("\"added\": 0"));
    Ok(())
}

#[test]
fn a_server_that_does_not_start_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut silent = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    silent = format!("http://{silent}/mcp?key=secret");
    for (keys, why) in [
        (json!({ "command": "echo oops >&2; exit 4" }), "ended with code 4; its last output:\n  oops"),
        (
            json!({ "command": "echo Welcome; sleep 60", "start_timeout_s": 0.3 }),
            "began no session within 0.3 s (config key `start_timeout_s`); its last output:\n  Welcome",
        ),
        (json!({ "command": "cat", "start_timeout_s": 0.3 }), "began no session"),
        (
            json!({ "command": "read line; echo '{\"jsonrpc\": \"2.0\", \"id\": 0, \"result\": {\"a\": 1}}'; sleep 60" }),
            "begins no session: expect initialized result",
        ),
        (json!({ "command": "echo '[1]'; echo 3; exit 0" }), "ended with code 0; its last output:\n  [1]\n  3"),
        (
            json!({ "command": "head -c 5000000 /dev/zero | tr '\\0' x; sleep 60", "start_timeout_s": 60 }),
            "a line of 4194304 bytes or more",
        ),
        (json!({ "url": silent }), "cannot be reached"),
        (json!({ "url": "localhost:8000" }), "must begin with http:// or https://"),
        (json!({ "url": "mcp" }), "is no address"),
    ] {
        let error = refused(&config(&folder, keys));
        assert!(error.contains(why) && !error.contains("secret"), "{error}");
    }
    Ok(())
}

#[test]
fn configs_that_cannot_be_used_are_refused_by_key() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "\n")?;
    let file = |name: &str, line: Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{line}\n")).expect("a file");
        json!({ "command": "true", "tasks": { "train": path } })
    };
    for (keys, why) in [
        (json!({}), "names no server"),
        (json!({ "command": "a", "url": "b" }), "both name a server"),
        (json!({ "command": " " }), "`command` is empty"),
        (json!({ "command": "a", "headers": { "a": "b" } }), "`headers` is for a server at `url`"),
        (json!({ "url": "http://h", "variables": { "a": "b" } }), "`variables` is for"),
        (json!({ "command": "a", "reward": {} }), "needs either `answer`"),
        (json!({ "command": "a", "reward": { "answer": "exact", "score_tool": "x" } }), "needs either `answer`"),
        (json!({ "command": "a", "reward": { "answer": "same" } }), "`same` is unknown"),
        (json!({ "command": "a", "max_calls": 0 }), "`max_calls` must be"),
        (json!({ "command": "a", "timeout_s": 0 }), "`timeout_s` is 0"),
        (json!({ "command": "a", "tasks": {} }), "`tasks` has no split"),
        (json!({ "command": "a", "tasks": { "train": empty } }), "has no line"),
        (json!({ "command": "a", "tasks": { "train": "/nowhere" } }), "`tasks.train`: /nowhere: No such file"),
        (file("a", json!([])), "a, line 1: it is no JSON object"),
        (file("b", json!({ "answer": 1 })), "neither `prompt` (a text) nor `messages`"),
        (file("c", json!({ "prompt": "p", "messages": [], "answer": 1 })), "both `prompt` and `messages`"),
        (file("d", json!({ "prompt": "p" })), "no `answer`, which config key `reward.answer` compares with"),
        (file("e", json!({ "prompt": "p", "answer": "none" })), "which has no number"),
        (
            file("f", json!({ "messages": [{ "role": "assistant", "content": "a" }], "answer": 1 })),
            "`messages`: the last of",
        ),
    ] {
        let error = refused(&config(&folder, keys));
        assert!(error.contains(why), "{why}: {error}");
    }
    Ok(())
}

#[test]
fn tools_are_chosen_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
    let listed: Vec<rmcp::model::Tool> = serde_json::from_value(json!([tool("add"), tool("score")]))?;
    for (keys, why) in [
        (
            json!({ "tools": ["ad"] }),
            "config key `tools`: the server has no tool `ad`; did you mean `add`? known: add, score",
        ),
        (
            json!({ "reset_tool": "begin" }),
            "config key `reset_tool`: the server has no tool `begin`; known: add, score",
        ),
        (
            json!({ "tools": ["add", "score"], "reward": { "score_tool": "score" } }),
            "config keys `tools` and `reward.score_tool` both name `score`",
        ),
        (json!({ "tools": [] }), "no tool that the policy may call"),
    ] {
        let mut config = config(&folder, keys);
        config["command"] = "true".into();
        let config: Config = parse_config(&config.to_string())?;
        let error = Tools::choose(listed.clone(), &config).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    Ok(())
}
