//! Plays the classes of tests/cases.py in real workers.

use nestor_plugin::{Environment, Expert, Instance, Message, Observation, Respond, Response, Snapshot, Start};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::{Play, PythonEnv};

pub fn opened(mut config: Value) -> anyhow::Result<PythonEnv> {
    config["path"] = json!([concat!(env!("CARGO_MANIFEST_DIR"), "/tests")]);
    config["workers"] = json!(config.get("workers").and_then(Value::as_u64).unwrap_or(1));
    PythonEnv::open(nestor_plugin::parse_config(&config.to_string())?)
}

fn open(class: &str) -> PythonEnv {
    opened(json!({ "class": format!("cases:{class}") })).unwrap()
}

pub fn start(world: &PythonEnv, task: u64, seed: u64) -> (Play, Observation) {
    let mut play = world.spawn().unwrap();
    let first = play.reset(world, Start { split: "train", task, seed }).unwrap();
    (play, first)
}

fn said(action: &str) -> String {
    format!("<think></think><action>{action}</action>")
}

pub fn refused<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().unwrap())
}

#[test]
fn a_class_with_every_option() {
    let world = open("Walk");
    assert_eq!((world.tasks("train").unwrap(), world.tasks("eval").unwrap()), (4, 2));
    assert!(refused(world.tasks("test")).contains("split `test` is unknown; known: train, eval"));
    assert!(world.has_expert() && world.has_snapshots());
    assert_eq!(world.template(), "{{ observation }} of {{ task }}");
    let (mut play, first) = start(&world, 1, 5);
    assert_eq!((first.text.as_str(), first.task.as_str(), first.valid), ("at 0, seed 5", "reach 2", true));
    assert_eq!((first.admissible, first.anchor), (vec!["up".to_string(), "down".into()], b"0/2".to_vec()));
    let odd = play.step(&world, "sideways").unwrap();
    assert_eq!((odd.valid, odd.action.as_str(), odd.anchor), (false, "sideways", b"0/2".to_vec()));
    assert_eq!(odd.info, json!({ "won": false, "task_type": "walk", "ratio": null }).as_object().unwrap().clone());
    for _ in 0..2 {
        let action = play.next_action(&world).unwrap();
        let response = play.response(&world, &action).unwrap();
        assert_eq!((action.as_str(), response.as_str()), ("up", " up\n"));
        let seen = play.step(&world, &response).unwrap();
        assert_eq!((seen.reward, seen.valid, seen.terminated), (0.5, true, seen.metrics["at"] == 2.0));
    }
    assert!(refused(play.step(&world, "up")).contains("the episode is over"));
}

#[test]
fn a_class_with_tools_gets_calls() {
    let world = open("Sums");
    let (mut play, first) = start(&world, 3, 1);
    assert_eq!((first.text.as_str(), &first.tools[0]["function"]["name"]), ("3 + 2?", &json!("add")));
    let respond = |play: &mut Play, message: Value, broken_call: bool| {
        let message: Message = serde_json::from_value(message).unwrap();
        let (text, none) = (String::new(), (Vec::new(), Vec::new(), Vec::new()));
        let (prompt, tokens, logprobs) = none;
        let response = Response { text, message, broken_call, cut: false, prompt, tokens, logprobs };
        play.respond(&world, &response).unwrap()
    };
    let call = json!([{ "id": "call_0_0", "type": "function", "function": { "name": "add", "arguments": "{\"numbers\": [3, 2]}" } }]);
    let seen = respond(&mut play, json!({ "role": "assistant", "content": null, "tool_calls": call }), false);
    assert_eq!((seen.text.as_str(), seen.messages[0].role.as_str(), seen.valid), ("5", "tool", true));
    assert_eq!(seen.action, "add({\"numbers\": [3, 2]})");
    let last = respond(&mut play, json!({ "role": "assistant", "content": "it is 5" }), true);
    assert_eq!((last.terminated, last.reward, last.valid, &last.info["won"]), (true, 1.0, false, &json!(true)));
    assert!(!open("Echo").takes_responses() && world.takes_responses());
}

#[test]
fn a_class_with_as_little_as_possible() {
    let world = opened(json!({ "class": "cases:Echo", "won_at": 3 })).unwrap();
    assert_eq!((world.tasks("train").unwrap(), world.tasks("eval").unwrap()), (1000, 100));
    assert!(refused(world.tasks("tset")).contains("split `tset` is unknown"));
    assert!(!world.has_expert() && !world.has_snapshots() && world.template().contains("<action>"));
    let (mut play, first) = start(&world, 0, 9);
    assert_eq!((first.text.as_str(), first.anchor), ("seed 9", b"seed 9".to_vec()));
    assert!(refused(play.next_action(&world)).contains("Echo has no `expert`"));
    let seen = play.step(&world, "no tags").unwrap();
    assert_eq!((seen.text.as_str(), seen.valid, seen.admissible), ("step 1: no tags", false, vec!["a".to_string()]));
    let seen = play.step(&world, &said("Do\0It")).unwrap();
    assert_eq!((seen.action.as_str(), seen.valid, seen.info.get("won")), ("do\0it", true, None));
    let last = play.step(&world, &said("end")).unwrap();
    assert_eq!((last.terminated, last.truncated, last.info["won"].clone()), (false, true, json!(true)));
}

#[test]
fn faults_of_an_environment_name_their_place_and_leave_the_worker_alone() {
    let world = open("Echo");
    let cases = [
        ("raise", "ValueError: two lines at "),
        ("raise", "cases.py, line "),
        ("raise", "in step: raise ValueError"),
        ("huge", "bytes in one call; the limit is 16777216"),
        ("surrogate", "half a surrogate pair"),
        ("number", "must be a text, an image, a list of messages, or a dict with `text`"),
        ("nan", "the reward is nan"),
    ];
    let (mut other, _) = start(&world, 0, 1);
    let process = other.step(&world, &said("process")).unwrap().text;
    for (action, message) in cases {
        let (mut play, _) = start(&world, 0, 0);
        let error = refused(play.step(&world, &said(action)));
        assert!(error.contains(message) && !error.contains('\n') && error.len() < 1000, "{action}: {error}");
        assert_eq!(refused(play.step(&world, &said("a"))), "not reset yet");
    }
    assert_eq!(other.step(&world, &said("process")).unwrap().text, process);
    assert_eq!(other.step(&world, &said("a")).unwrap().text, "step 3: a");
}

#[test]
fn a_worker_that_ends_or_hangs_is_replaced_and_other_episodes_continue() {
    let world = opened(json!({ "class": "cases:Echo", "timeout_s": 3 })).unwrap();
    let (mut other, _) = start(&world, 0, 1);
    other.step(&world, &said("a")).unwrap();
    let lost = [
        ("exit", vec!["the worker ended with exit code 7 during `step`"]),
        ("hang", vec!["`step` did not return within 3 s", "cases.py\", line ", " in step"]),
    ];
    for (count, (action, parts)) in lost.into_iter().enumerate() {
        let (mut play, _) = start(&world, 0, 0);
        let error = refused(play.step(&world, &said(action)));
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(refused(play.step(&world, "")), "not reset yet");
        play.reset(&world, Start { split: "train", task: 0, seed: 4 }).unwrap();
        let seen = other.step(&world, &said("b")).unwrap();
        assert_eq!((seen.text, seen.metrics["replays"]), (format!("step {}: b", count + 2), (count + 1) as f64));
    }
}

/// The worker's connection ends before its keeper does.
#[test]
fn a_worker_that_is_killed_between_two_calls_costs_no_episode() {
    let world = open("Echo");
    let (mut play, _) = start(&world, 0, 0);
    for round in 1..=10 {
        let (mut asked, _) = start(&world, 0, 1);
        let pid: i32 = asked.step(&world, &said("process")).unwrap().text.parse().unwrap();
        drop(asked); // its answer would be another process's when it is played again
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let stat = format!("/proc/{pid}/stat");
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {}
        assert_eq!(play.step(&world, &said("a")).unwrap().metrics["replays"], f64::from(round));
    }
}

#[test]
fn an_episode_that_differs_when_played_again_is_an_error() {
    let world = open("Echo");
    let (mut other, _) = start(&world, 0, 1);
    assert_eq!(other.step(&world, &said("other")).unwrap().text, "made 1");
    let (mut play, _) = start(&world, 0, 2);
    play.step(&world, &said("a")).unwrap();
    refused(play.step(&world, &said("exit")));
    play.reset(&world, Start { split: "train", task: 0, seed: 2 }).unwrap();
    let error = refused(other.step(&world, &said("b")));
    assert!(error.contains("step 1 gave another observation, reward or end (\"made 2\")"), "{error}");
    assert_eq!(refused(other.step(&world, &said("b"))), "not reset yet");
}

/// Shape and pixels of an observation's images.
fn shown(seen: &Observation) -> Vec<(u32, u32, &[u8])> {
    seen.images.iter().map(|image| (image.width(), image.height(), image.rgb())).collect()
}

#[test]
fn images_of_pil_and_numpy_are_shown() {
    let world = open("Picture");
    let (mut play, first) = start(&world, 0, 5);
    assert_eq!((first.text.as_str(), shown(&first)), ("", vec![(2, 1, &[5, 0, 0, 5, 0, 0][..])]));
    let pil = play.step(&world, &said("pil")).unwrap();
    assert_eq!((pil.text.as_str(), shown(&pil)), ("a text", vec![(1, 2, &[1, 2, 3, 4, 5, 6][..])]));
    let both = play.step(&world, &said("both")).unwrap();
    assert_eq!(shown(&both).len(), 3);
    assert_eq!((shown(&both)[0], shown(&both)[2]), (shown(&pil)[0], shown(&first)[0]));
    // The default anchor tells pictures apart, and is the same for the same picture.
    let again = play.step(&world, &said("pil")).unwrap();
    assert!(pil.anchor == again.anchor && pil.anchor != both.anchor && pil.anchor.starts_with(b"a text "));
    assert_eq!(play.step(&world, &said("anchored")).unwrap().anchor, b"mine");
    assert_eq!(shown(&play.step(&world, &said("large")).unwrap())[0].2.len(), 3 << 24);
    let cases = [
        ("grey", "(height, width, 3) of uint8, not an array (1, 2) of uint8"),
        ("rgba", "not an array (1, 2, 4) of uint8"),
        ("floats", "not an array (1, 2, 3) of float32; put observations of other numbers into words"),
        ("path", "an image must be one of PIL's, or an array (height, width, 3) of uint8, not str"),
        ("empty", "an image has 0x2 pixels; both sides must be at least 1"),
        ("huge", "the images of one call have 16777217 pixels; the limit is 16777216: scale them down"),
        ("many", "gave 65 images in one call; the limit is 64"),
    ];
    for (action, message) in cases {
        let (mut play, _) = start(&world, 0, 0);
        let error = refused(play.step(&world, &said(action)));
        assert!(error.contains(message) && !error.contains('\n'), "{action}: {error}");
    }
}

#[test]
fn an_episode_whose_images_differ_when_played_again_is_an_error() {
    let world = open("Picture");
    let (mut other, _) = start(&world, 0, 1);
    other.step(&world, &said("made")).unwrap();
    let (mut play, _) = start(&world, 0, 2);
    refused(play.step(&world, &said("exit")));
    play.reset(&world, Start { split: "train", task: 0, seed: 2 }).unwrap();
    let error = refused(other.step(&world, &said("pil")));
    assert!(error.contains("step 1 gave another observation"), "{error}");
}

#[test]
fn snapshots_start_an_episode_again_even_in_a_new_worker() {
    let world = opened(json!({ "class": "cases:Walk", "workers": 2, "kwargs": { "start": -3 } })).unwrap();
    let (mut play, _) = start(&world, 0, 5);
    play.step(&world, "up").unwrap();
    let state = play.save(&world).unwrap();
    let after = play.step(&world, "up").unwrap();
    let mut copy = world.spawn().unwrap(); // in the other worker
    copy.load(&world, &state).unwrap();
    assert_eq!(copy.step(&world, "up").unwrap(), after);
    world.spawn().unwrap();
    let (mut beside, _) = start(&world, 0, 0); // in the worker of `copy`
    assert!(refused(beside.step(&world, "exit")).contains("exit code 3"));
    assert_eq!(copy.step(&world, "down").unwrap().text, "at -2, seed 5");
    assert!(refused(copy.load(&world, b"{}")).contains("no state of this environment"));
}

#[test]
fn dropped_instances_are_closed() {
    let world = open("Echo");
    let (mut kept, _) = start(&world, 0, 0);
    drop(start(&world, 0, 0));
    assert_eq!(kept.step(&world, &said("closed")).unwrap().text, "closed 1");
}

/// The lines that the environments of class `Helpers` noted, and the processes in them that still run.
fn noted(log: &std::path::Path) -> (Vec<String>, Vec<String>) {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<String> = text.lines().map(str::to_string).collect();
    let pid = |line: &&String| line.split(' ').nth(1).is_some_and(|pid| is_alive(pid.parse().unwrap()));
    let alive = lines.iter().filter(pid).cloned().collect();
    (lines, alive)
}

fn is_alive(pid: i32) -> bool {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok()
}

#[test]
fn every_environment_is_closed_and_no_process_outlives_its_worker() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, count) in [("well", 3), ("raise", 3), ("leave", 3), ("exit", 1), ("hang", 1)] {
        let log = dir.path().join(mode);
        let kwargs = json!({ "log": log, "mode": mode });
        let config = json!({ "class": "cases:Helpers", "workers": 1, "kwargs": kwargs, "timeout_s": 1 });
        let world = opened(config).unwrap();
        let plays = [0, 1, 2].map(|seed| start(&world, 0, seed));
        assert_eq!(noted(&log).1.len(), 6, "{mode}");
        drop((plays, world));
        let (lines, alive) = noted(&log);
        assert_eq!(lines.iter().filter(|line| *line == "closed").count(), count, "{mode}: {lines:?}");
        assert!(alive.is_empty(), "{mode}: {alive:?}");
    }
}

#[test]
fn a_faulty_close_is_no_fault_of_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    for mode in ["raise", "leave", "exit", "hang"] {
        let kwargs = json!({ "log": dir.path().join(mode), "mode": mode });
        let config = json!({ "class": "cases:Helpers", "kwargs": kwargs, "timeout_s": 1 });
        let world = opened(config).unwrap();
        let (mut kept, _) = start(&world, 0, 0);
        drop(start(&world, 0, 1));
        assert_eq!(world.tasks("train").unwrap(), 1000, "{mode}");
        assert_eq!(kept.step(&world, &said("wait")).unwrap().text, "done", "{mode}");
    }
}

#[test]
fn lost_workers_leave_nothing_and_say_how_they_were_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let config = json!({ "class": "cases:Helpers", "kwargs": { "log": log }, "timeout_s": 1 });
    let world = opened(config).unwrap();
    for (action, message) in [
        ("exit", "the worker ended with exit code 7 during `step`"),
        ("hang", "`step` did not return within 1 s"),
        ("closed", "the worker closed its connection to nestor during `step`"),
    ] {
        let (mut play, _) = start(&world, 0, 0);
        let error = refused(play.step(&world, &said(action)));
        assert!(error.contains(message), "{error}");
        assert!(noted(&log).1.is_empty(), "{action}");
    }
    let (mut play, _) = start(&world, 0, 0);
    assert_eq!(play.step(&world, &said("fork")).unwrap().text, "done", "the copy's answer is not sent");
    assert_eq!(play.step(&world, &said("a")).unwrap().text, "done");
}

#[test]
fn signals_of_an_environment_end_neither_worker_nor_run() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({ "class": "cases:Helpers", "kwargs": { "log": dir.path().join("log") } });
    let world = opened(config).unwrap();
    let (mut play, _) = start(&world, 0, 0);
    let seen = play.step(&world, &said("send sigint sigterm sighup sigusr1 sigusr2 sigchld sigcont sigwinch"));
    assert_eq!(seen.unwrap().text, "done");
}

#[test]
fn values_of_another_type_are_errors_that_name_their_field() {
    let world = open("Typed");
    let (mut play, _) = start(&world, 0, 0);
    let cases = [
        ("step None", "step returned NoneType; it must return observation"),
        ("step 'abcde'", "step returned str"),
        ("step (1, 2, 3)", "step returned 3 values"),
        ("parse ('a', True, 1)", "parse returned 3 values"),
        ("parse ('a', 'yes')", "`valid` of parse is str 'yes'"),
        ("seen None", "not NoneType"),
        ("seen {'text': 4}", "not int"),
        ("seen {'images': 3}", "`images` of the observation is int 3"),
        ("reward '1'", "the reward is str '1'; it must be a number"),
        ("reward None", "the reward is NoneType None"),
        ("reward [1]", "the reward is list [1]"),
        ("reward float('inf')", "the reward is inf; it must be finite"),
        ("terminated 'no'", "`terminated` of step is str 'no'"),
        ("truncated []", "`truncated` of step is list []"),
        ("info [1]", "info is list [1]; it must be a dict"),
        ("metrics 3", "info[\"metrics\"] is int 3; it must be a dict"),
        ("metrics {'x': float('nan')}", "info[\"metrics\"][\"x\"] is nan; it must be finite"),
        ("metrics {'x': 'many'}", "info[\"metrics\"][\"x\"] is str 'many'; it must be a number"),
        ("metrics {'x': 10**400}", "info[\"metrics\"][\"x\"] is int 1000"),
        ("admissible 'left'", "the list of admissible actions is str 'left'"),
        ("admissible 4", "the list of admissible actions is int 4"),
        ("won 'no'", "`won` of info is str 'no'"),
        ("success float('nan')", "`won` of info is nan"),
        ("other {(1, 2): 3}", "info cannot be written as JSON: keys must be"),
        ("other (lambda x: [x.append(x), x])([])", "info cannot be written as JSON: Circular reference"),
    ];
    for (response, message) in cases {
        play.reset(&world, Start { split: "train", task: 0, seed: 0 }).unwrap();
        let error = refused(play.step(&world, response));
        assert!(error.contains(message) && !error.contains('\n'), "{response}: {error}");
    }
    for (attributes, message) in [
        (json!({ "num_tasks": -5 }), "`num_tasks` is -5; it must be at least 1"),
        (json!({ "num_tasks": "many" }), "`num_tasks` is str 'many'; it must be a whole number"),
        (json!({ "num_tasks": 2.5 }), "`num_tasks` is float 2.5"),
        (json!({ "num_tasks": true }), "`num_tasks` is bool True"),
        (json!({ "num_tasks": { "train": "many" } }), "`num_tasks['train']` is str 'many'"),
        (json!({ "num_tasks": 0 }), "has no tasks in split `train`"),
        (json!({ "num_tasks": u64::MAX }), "below 2^63"),
    ] {
        let world = opened(json!({ "class": "cases:Typed", "kwargs": attributes })).unwrap();
        let error = refused(world.tasks("train"));
        assert!(error.contains(message), "{attributes}: {error}");
    }
    let error = refused(opened(json!({ "class": "cases:Typed", "kwargs": { "template": 5 } })));
    assert!(error.contains("`template` is int 5; it must be a text"), "{error}");
}

#[test]
fn reward_functions_score_the_rows_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    let rows: String = (0..10).map(|i| format!("{{\"prompt\": \"p{i}\", \"limit\": {i}}}\n")).collect();
    std::fs::write(&file, rows).unwrap();
    let world = opened(json!({ "reward": "cases:short", "data": file, "held_out": 2 })).unwrap();
    assert_eq!((world.tasks("train").unwrap(), world.tasks("eval").unwrap()), (8, 2));
    let (mut play, first) = start(&world, 3, 0);
    assert_eq!((first.text.as_str(), world.template().as_str()), ("p3", "{{ observation }}"));
    let last = play.step(&world, "abcd").unwrap();
    assert_eq!((last.reward, last.terminated, last.info["won"].clone()), (-1.0, true, json!(false)));
    let world = opened(json!({ "reward": "cases:scored", "data": { "train": file }, "won_at": 0.5 })).unwrap();
    assert!(refused(world.tasks("eval")).contains("known: train"));
    for (response, reward) in [("ab", 0.5), ("pass", 0.0)] {
        let (mut play, _) = start(&world, 4, 0);
        let last = play.step(&world, response).unwrap();
        assert_eq!((last.reward, last.info["won"].clone()), (reward, json!(reward >= 0.5)));
    }
    std::fs::write(&file, "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}], \"limit\": 2}\n").unwrap();
    let world = opened(json!({ "reward": "cases:scored", "data": { "train": file } })).unwrap();
    let (mut play, first) = start(&world, 0, 0);
    assert_eq!((first.text.as_str(), play.step(&world, "abc").unwrap().reward), ("hi", 2.0));
    std::fs::write(&file, "{\"prompt\": \"1\"}\n[]\n").unwrap();
    let error = refused(opened(json!({ "reward": "cases:short", "data": file })));
    assert!(error.contains("rows.jsonl, line 2: a row must be an object"), "{error}");
}

#[test]
fn rows_of_parquet_have_verls_messages() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/search/questions/verl.parquet");
    let data = json!({ "train": fixture, "eval": fixture });
    let world = opened(json!({ "reward": "cases:verl", "data": data })).unwrap();
    assert_eq!(world.tasks("eval").unwrap(), 5);
    let (mut play, first) = start(&world, 1, 0);
    assert_eq!(first.messages, [Message::new("user", "Question: Où est né l'auteur du « Phare » ?")]);
    assert_eq!(play.step(&world, "Zürich").unwrap().reward, 1.0);

    let damaged = dir.path().join("rows.parquet");
    let whole = std::fs::read(fixture).unwrap();
    std::fs::write(&damaged, &whole[..whole.len() - 9]).unwrap();
    let error = refused(opened(json!({ "reward": "cases:verl", "data": damaged })));
    assert!(error.contains("rows.parquet: it is no whole Parquet file"), "{error}");
    let error = refused(opened(json!({ "reward": "cases:verl", "data": "nowhere.parquet" })));
    assert!(error.contains("config key `data`: nowhere.parquet: it cannot be read"), "{error}");
}

#[test]
fn an_environment_factory_of_trl() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    let row = json!({ "prompt": [{ "role": "user", "content": "Count." }], "first": 3 });
    std::fs::write(&file, format!("{row}\n{row}\n")).unwrap();
    let kwargs = json!({ "factory": "cases:Counter", "data": file, "max_turns": 3 });
    let world = opened(json!({ "class": "nestor_shims.trl:Environment", "kwargs": kwargs })).unwrap();
    assert!(world.template().contains("- add(by: int) -> str: Adds a number."), "{}", world.template());
    assert!(!world.template().contains("hidden") && !world.template().contains("get_reward"));
    let (mut play, first) = start(&world, 0, 0);
    assert_eq!(first.text, "Count. Start at 3.");
    let call = |text: &str| format!("I add. <tool_call>{text}</tool_call>");
    let seen = play.step(&world, &call(r#"{"name": "add", "arguments": {"by": 4}}"#)).unwrap();
    assert_eq!((seen.text.as_str(), seen.terminated, seen.reward), ("7", false, 0.0));
    assert!(play.step(&world, &call("{}")).unwrap().text.contains("error"));
    let last = play.step(&world, "Done: 7.").unwrap();
    assert_eq!((last.terminated, last.reward), (true, 7.0));
    let (mut play, _) = start(&world, 0, 0);
    let cut = (0..3).map(|_| play.step(&world, &call("{}")).unwrap()).last().unwrap();
    assert_eq!((cut.terminated, cut.truncated, cut.reward), (false, true, 3.0));
}

#[test]
fn an_environment_of_verifiers() {
    let kwargs = json!({ "env": "cases:Turns", "args": { "turns": 2 } });
    let world = opened(json!({ "class": "nestor_shims.verifiers:Environment", "kwargs": kwargs })).unwrap();
    assert_eq!(world.tasks("eval").unwrap(), 1);
    let (mut play, first) = start(&world, 0, 0);
    assert_eq!(first.messages, [Message::new("system", "Count."), Message::new("user", "one")]);
    let seen = play.step(&world, "two").unwrap();
    assert_eq!((seen.text.as_str(), seen.terminated), ("after two", false));
    assert_eq!(seen.messages, [Message::new("user", "after two")]);
    let last = play.step(&world, "three").unwrap();
    assert_eq!((last.terminated, last.reward, last.info["turns"].clone()), (true, 1.0, json!(2)));
}

#[test]
fn configs_that_cannot_work_are_refused() {
    let cases = [
        (json!({}), "config needs `class: package.module:Class`, or `reward`"),
        (json!({ "class": "cases:Wlak" }), "`cases:Wlak`: AttributeError: `cases` has no `Wlak`; it has Walk, Echo"),
        (json!({ "class": "nowhere:Walk" }), "No module named 'nowhere'"),
        (json!({ "class": "Walk" }), "must have the form package.module:Name"),
        (json!({ "class": "cases:nothing" }), "NoneType has no method `reset`"),
        (json!({ "class": "cases:Walk", "kwargs": { "end": 1 } }), "unexpected keyword argument 'end'"),
        (json!({ "class": "cases:Walk", "reward": "cases:short" }), "exclude `class`"),
        (json!({ "reward": "cases:short" }), "needs `data`"),
        (json!({ "class": "cases:Walk", "timeout_s": 0 }), "`timeout_s` is 0"),
        (json!({ "class": "cases:Walk", "python": "no-python" }), "no-python cannot be started"),
        (json!({ "class": "cases:Walk", "python": "/" }), "is no venv"),
        (json!({ "class": "os:abort" }), "the worker was killed by SIGABRT during `open`"),
    ];
    for (config, message) in cases {
        let error = refused(opened(config.clone()));
        assert!(error.contains(message), "{config}: {error}");
    }
}
