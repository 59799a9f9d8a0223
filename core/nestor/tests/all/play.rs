//! `nestor play` on the SDK's toy environment (walk from 0 to a target by up and down).

#![allow(clippy::unwrap_used)] // a test may fail so

use std::path::{Path, PathBuf};

use nestor_args::PlayArgs;

use crate::support::example_plugins;
use nestor::agent::play::play;
use nestor_host::Plugins;
use nestor_model::error::InputError;
use serde_json::Value;

/// Plays the actions file `text`; returns the output.
fn played(dir: &Path, text: &str, change: impl Fn(&mut PlayArgs)) -> anyhow::Result<String> {
    let file = |name: &str, text: &str| -> PathBuf {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    };
    let mut args = PlayArgs {
        plugin: "toy".into(),
        config: Some(file("config.yaml", "reach: 2\nmax_steps: 5\n")),
        split: "eval".into(),
        task: 2,
        seed: 0,
        actions: Some(file("actions.jsonl", text)),
        images: None,
        json: true,
    };
    change(&mut args);
    let mut out = Vec::new();
    play(&Plugins::in_dir(example_plugins())?, &args, &mut out)?;
    Ok(String::from_utf8(out)?)
}

const UP: &str = "\"<think></think><action>up</action>\"\n";

#[test]
fn prints_one_object_per_step_and_stops_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    // A response with an escaped line break, an empty line, one line that is not a JSON string, and one too many.
    let text = format!("\"a\\nb\"\n\nwhat {{\"a\": 1}}\n{UP}{UP}{UP}");
    let out = played(dir.path(), &text, |_| ()).unwrap();
    let steps: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let column = |key: &str| steps.iter().map(|s| s[key].clone()).collect::<Vec<_>>();
    assert_eq!(column("step"), [0, 1, 2, 3, 4]);
    assert_eq!(column("anchor"), ["0/2", "0/2", "0/2", "1/2", "2/2"]);
    assert_eq!(column("observation")[4], "at 2 target 2");
    assert_eq!(column("action"), ["", "a\nb", "what {\"a\": 1}", "up", "up"]);
    assert_eq!(column("valid"), [true, false, false, true, true]);
    assert_eq!(column("done"), [false, false, false, false, true]);
    assert_eq!(column("won"), [false, false, false, false, true]);
    assert_eq!(steps[0]["admissible"], serde_json::json!(["up", "down"]));
    assert_eq!((&steps[0]["task"], &steps[0]["reward"]), (&"reach 2".into(), &0.0.into()));
    assert_eq!(steps[4]["info"]["won"], true);
    // The form for people shows the same.
    let view = played(dir.path(), &text, |args| args.json = false).unwrap();
    assert!(
        view.starts_with("task: reach 2\n\nat 0 target 2\n\nactions: up, down\nstep 1: action \"a\\nb\", not valid")
    );
    assert!(view.ends_with("at 2 target 2\n\nthe episode is over: won\n"), "{view}");
}

#[test]
fn invalid_input_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |text: &str, change: &dyn Fn(&mut PlayArgs)| {
        let error = played(dir.path(), text, change).unwrap_err();
        assert!(error.chain().any(|cause| cause.is::<InputError>()), "{error:#}");
        format!("{error:#}")
    };
    assert!(refused(&format!("{UP}\"up\n"), &|_| ()).contains("actions.jsonl, line 2: EOF"));
    assert!(refused(UP, &|args| args.task = 4).contains("--task 4: split eval has 4 tasks"));
    assert!(refused(UP, &|args| args.split = "tset".into()).contains("`tset`"));
    assert!(refused(UP, &|args| args.plugin = "toi".into()).contains("`toi`"));
    assert!(refused(UP, &|args| args.config = Some("gone.yaml".into())).contains("--config gone.yaml"));
    std::fs::write(dir.path().join("other.yaml"), "reech: 2\n").unwrap();
    let other = dir.path().join("other.yaml");
    assert!(refused(UP, &|args| args.config = Some(other.clone())).contains("reech"));
}
