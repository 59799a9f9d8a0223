//! The plugin border from the host's side: correct plugins work, and every fault gets one clear message.

#![allow(clippy::unwrap_used)] // a test may fail so

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{example_plugins, workspace};
use nestor_host::advantage::advantage;
use nestor_host::{Kind, Plugins};
use nestor_model::data::Rows;
use nestor_model::error::InputError;
use nestor_recipe::{Isolation, PluginChoice};
use serde_json::{Value, json};

fn plugins() -> Plugins {
    Plugins::in_dir(example_plugins()).unwrap()
}

fn choice(plugin: impl ToString, config: Value) -> PluginChoice {
    // Here, since these tests are of the border inside a process.
    PluginChoice { isolate: Some(Isolation::None), ..PluginChoice::new(plugin.to_string(), config) }
}

/// The message, and true for an input error.
fn refusal<T>(result: anyhow::Result<T>) -> (String, bool) {
    let error = result.err().expect("refused");
    (format!("{error:#}"), error.chain().any(|cause| cause.is::<InputError>()))
}

fn compile(dir: &Path, name: &str, source: &Path) -> PathBuf {
    compile_as("c99", dir, name, source)
}

fn compile_as(standard: &str, dir: &Path, name: &str, source: &Path) -> PathBuf {
    let out = dir.join(name);
    let mut cc = Command::new("cc");
    cc.arg(format!("-std={standard}"))
        .args(["-shared", "-fPIC", "-pthread", "-I"])
        .arg(workspace().join("plugins/sdk"))
        .arg("-o")
        .arg(&out)
        .arg(source);
    assert!(cc.status().unwrap().success(), "{cc:?}");
    out
}

/// A plugin file without components; one C statement changes its description.
fn changed(dir: &Path, name: &str, change: &str) -> PathBuf {
    let source = dir.join(format!("{name}.c"));
    let text = format!(
        "#include \"nestor_plugin.h\"\nstatic nestor_plugin p = {{NESTOR_HEAD, 0, 0}};\n\
         const nestor_plugin *nestor_plugin_entry(void) {{ {change}; return &p; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    compile(dir, &format!("lib{name}.so"), &source)
}

/// Two groups; rows of two tokens and one.
fn rows() -> Rows {
    Rows {
        group: vec![0, 0, 1],
        episode: vec![0, 1, 2],
        step: vec![0, 0, 4],
        sequence: vec![0, 1, 2],
        span_start: vec![3, 3, 3],
        reward: vec![1.0, 0.0, 0.5],
        penalty: vec![0.0; 3],
        valid: vec![true; 3],
        terminated: vec![true; 3],
        truncated: vec![false; 3],
        anchor: vec![b"a".to_vec(), vec![], b"\xff".to_vec()],
        duplicate_of: vec![-1; 3],
        token_offsets: vec![0, 2, 3, 5],
        token_rewards: vec![0.0, 1.0, 0.0, 0.0, 0.5],
        ..Rows::default()
    }
}

#[test]
fn the_toy_environment_plays() {
    let shared_env = plugins().environment(&choice("toy", json!({ "reach": 2, "max_steps": 3 }))).unwrap();
    assert_eq!((shared_env.id(), shared_env.has_expert(), shared_env.tasks("train").unwrap()), ("toy", true, 4));
    assert!(shared_env.template().unwrap().contains("{{ observation }}"));
    let mut env = shared_env.spawn().unwrap();
    drop(shared_env);
    let first = env.reset("train", 2, 0).unwrap();
    assert_eq!((first.text.as_str(), first.task.as_str()), ("at 0 target 2", "reach 2"));
    assert_eq!((first.admissible, first.anchor), (vec!["up".to_string(), "down".into()], b"0/2".to_vec()));
    assert!(first.valid && !first.terminated && !first.truncated && first.info["won"] == false);
    let mut last = env.step("nonsense").unwrap();
    assert!(!last.valid);
    for _ in 0..2 {
        let action = env.expert_action(&[]).unwrap();
        let response = env.expert_response(&action).unwrap();
        last = env.step(&response).unwrap();
        assert_eq!(last.action, "up");
    }
    assert!(last.valid && last.terminated && last.reward == 1.0 && last.info["won"] == true);
    env.reset("train", 3, 0).unwrap();
    assert!((0..3).map(|_| env.step("").unwrap()).last().unwrap().truncated);
}

#[test]
fn a_plugin_in_c_plays() {
    let dir = tempfile::tempdir().unwrap();
    let file = compile(dir.path(), "libcounts.so", &workspace().join("plugins/sdk/examples/c/counts.c"));
    let shared_env = plugins().environment(&choice(file.display(), json!({}))).unwrap();
    let mut env = shared_env.spawn().unwrap();
    assert_eq!(env.reset("eval", 0, 7).unwrap().text, "The count is 0, make it 2.");
    assert!(!env.step("take it").unwrap().valid);
    assert_eq!(env.step("add").unwrap().anchor, b"1/2");
    let won = env.step("add").unwrap();
    assert!(won.terminated && won.reward == 1.0 && won.action == "add");
    assert_eq!(
        refusal(plugins().environment(&choice(file.display(), json!({ "x": 1 })))),
        ("plugin counts: this environment takes no config keys".into(), true)
    );
    assert_eq!(
        refusal(env.reset("eval", 9, 7)).0,
        "plugin counts: task 9 of split eval, seed 7, reset: the split has no such task"
    );
    assert!(refusal(env.expert_action(&[])).0.contains("has no expert"));
    // Both by id, from a directory.
    assert_eq!(Plugins::in_dir(dir.path()).unwrap().list().unwrap()[0].id, "counts");
    std::fs::copy(&file, dir.path().join("libsecond.so")).unwrap();
    let (message, input) = refusal(Plugins::in_dir(dir.path()).unwrap().environment(&choice("counts", json!({}))));
    assert!(message.starts_with("two plugins have the id `counts`: ") && input, "{message}");
    assert!(message.contains("libcounts.so") && message.contains("libsecond.so"), "{message}");
}

#[test]
fn files_that_are_not_plugins_of_this_border() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("libtext.so");
    std::fs::write(&text, "not a library").unwrap();
    let bare_source = dir.path().join("bare.c");
    std::fs::write(&bare_source, "int nothing;\n").unwrap();
    let cases = [
        (dir.path().join("libnone.so"), "there is no plugin file"),
        (text, "cannot be loaded as a shared library"),
        (compile(dir.path(), "libbare.so", &bare_source), "it does not export nestor_plugin_entry"),
        (changed(dir.path(), "magic", "p.magic = 7"), "is not a Nestor plugin: its description starts with 0x7"),
        (
            changed(dir.path(), "major", "p.abi_major = 2"),
            "needs version 2.0 of the plugin border, this program has 1.6",
        ),
        (
            changed(dir.path(), "minor", "p.abi_minor = 7"),
            "needs version 1.7 of the plugin border, this program has 1.6",
        ),
        (
            changed(dir.path(), "size", "p.size_rows -= 8"),
            "has structs of other sizes than version 1.6 of the plugin border (size_rows is ",
        ),
        // An older minor version is read.
        (changed(dir.path(), "older", "p.abi_minor = 0"), "holds no components"),
        (changed(dir.path(), "empty", "p.magic = p.magic"), "holds no components"),
        (
            changed(dir.path(), "many", "p.component_count = 1000000000"),
            "has a faulty description: 1000000000 components",
        ),
        (changed(dir.path(), "null", "p.component_count = 1"), "has a faulty description: 1 components at 0x0"),
        (changed(dir.path(), "crash", "__builtin_trap()"), "crashed with SIGILL while it was loaded and described"),
        (changed(dir.path(), "leave", "extern void exit(int); exit(0)"), "ended its process while it was loaded"),
        (changed(dir.path(), "lazy", "extern int nowhere(void); nowhere()"), "undefined symbol: nowhere"),
    ];
    for (file, expected) in cases {
        let (message, input) = refusal(plugins().environment(&choice(file.display(), json!({}))));
        assert!(message.contains(expected) && message.contains(file.to_str().unwrap()) && input, "{message}");
    }
    // A directory with such files still serves its good ones, and an error names the file of a missing id.
    std::fs::copy(changed(dir.path(), "old", "p.abi_major = 9"), dir.path().join("libnestor_old.so")).unwrap();
    let found = Plugins::in_dir(dir.path()).unwrap();
    assert!(found.refused().unwrap().len() >= 5);
    assert!(refusal(found.environment(&choice("old", json!({})))).0.contains("libnestor_old.so needs version 9.0"));
}

#[test]
fn missing_plugins_and_wrong_configs() {
    let found = plugins();
    let (message, input) = refusal(found.estimator(&choice("tyo", json!({}))));
    assert!(message.starts_with("there is no estimator plugin `tyo`; did you mean `toy`?") && input, "{message}");
    assert!(message.contains("NESTOR_PLUGIN_PATH") && message.contains(example_plugins().to_str().unwrap()));
    assert_eq!(
        refusal(found.environment(&choice("toy", json!({ "raech": 2 })))),
        ("plugin toy: config key `raech` is unknown; did you mean `reach`? known: reach, max_steps".into(), true)
    );
    let (message, input) = refusal(found.environment(&choice("toy", json!({ "reach": "far" }))));
    assert!(message.starts_with("plugin toy: config key `reach`: invalid type: string \"far\"") && input, "{message}");
    let shared_env = found.environment(&choice("toy", json!({}))).unwrap();
    let (message, input) = refusal(shared_env.tasks("trian"));
    assert_eq!(message, "plugin toy: split `trian` is unknown; did you mean `train`? known: train, eval");
    assert!(input);
    assert_eq!(found.find(Kind::Estimator, "toy").unwrap().schema["type"], "object");
}

#[test]
fn faults_of_an_environment() {
    let open = |fault: &str| plugins().environment(&choice("faulty", json!({ "fault": fault })));
    let step = |fault: &str| {
        let mut env = open(fault).unwrap().spawn().unwrap();
        env.reset("train", 3, 7).unwrap();
        env.step("not yet").unwrap();
        refusal(env.step("now"))
    };
    let place = "plugin faulty: task 3 of split train, seed 7, step 1: ";
    let (message, input) = step("panic");
    assert!(message.starts_with(&format!("{place}the plugin panicked at ")), "{message}");
    assert!(message.ends_with(": asked to panic") && message.contains("faulty.rs") && !input, "{message}");
    assert_eq!(step("error"), (format!("{place}asked to fail"), false));
    assert_eq!(step("nan_reward").0, format!("{place}the plugin gave the reward NaN, which is not finite"));
    assert!(refusal(open("panic_open")).0.ends_with("asked to panic while opening"));
}

/// Every rule of the header that the host checks, broken by a plugin in C.
#[test]
fn rules_of_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let source = workspace().join("tests/fixtures/plugin_faults.c");
    let file = compile_as("gnu11", dir.path(), "libfaults.so", &source);
    let named = |fault: &str| choice(file.display(), json!({ "fault": fault }));
    let open = |fault: &str| plugins().environment(&named(fault));
    let spawned = |fault: &str| open(fault).unwrap().spawn();
    let reset = |fault: &str| refusal(spawned(fault).unwrap().reset("train", 3, 7)).0;
    let step = |fault: &str| {
        let mut env = spawned(fault).unwrap();
        env.reset("train", 3, 7).unwrap();
        refusal(env.step("yes").and_then(|_| env.step("yes"))).0
    };
    let place = "plugin faults: task 3 of split train, seed 7, ";
    let cases = [
        (refusal(open("null_world")).0, "plugin faults: the plugin gave a null handle"),
        (refusal(spawned("null_env")).0, "plugin faults: spawn: the plugin gave a null handle"),
        (refusal(open("no_template").unwrap().template()).0, "did not put its template (NESTOR_TEMPLATE)"),
        (reset("no_observation"), "reset: the plugin did not put its observation (NESTOR_OBSERVATION)"),
        (reset("no_anchor"), "reset: the plugin did not put its anchor (NESTOR_ANCHOR)"),
        (reset("null_text"), "reset: a text of the plugin is null and yet has a length"),
        (reset("over_at_reset"), "reset: the episode is over at reset"),
        (reset("many_actions"), "reset: the plugin put over 65536 texts in one call"),
        (reset("won_text"), "reset: the plugin's info has `won` = \"yes\"; it must be true or false"),
        (
            reset("bad_task_type"),
            "reset: the plugin's info has `task_type` = \"a/b c\\n\"; it is part of a metric's name",
        ),
        (step("huge_text"), "step 0: the plugin put over 4 MiB of text in one call"),
        (step("bad_flag"), "step 0: the plugin gave the flag `valid` the value 7; a flag is 0 or 1"),
        (step("both_ends"), "step 1: the plugin set both `terminated` and `truncated`"),
    ];
    for (message, expected) in cases {
        assert!(message.contains(expected), "{message}: not {expected}");
        assert!(message.contains(place) || !expected.contains("step ") && !expected.contains("reset: "), "{message}");
    }
    let mut env = spawned("inadmissible").unwrap();
    let first = env.reset("train", 3, 7).unwrap();
    let message = refusal(env.expert_action(&first.admissible)).0;
    assert!(
        message.contains("expert's action at step 0: the expert's action \"perhaps\" is not one of the"),
        "{message}"
    );
    // An episode without `won` is no error: it counts as lost, and a warning says so.
    let mut env = spawned("no_won").unwrap();
    env.reset("train", 3, 7).unwrap();
    env.step("yes").unwrap();
    assert!(env.step("yes").unwrap().terminated);

    let score = |fault: &str, rows: &mut Rows| plugins().estimator(&named(fault)).unwrap().score(rows);
    let message = refusal(score("past_the_end", &mut rows())).0;
    assert_eq!(message, "plugin faults wrote behind the end of the advantages; it has one number per token");
    let mut kept = rows();
    score("writes_rows", &mut kept).unwrap();
    assert_eq!(kept.token_rewards, rows().token_rewards);
}

#[test]
fn one_file_of_several_components_is_named_with_an_id() {
    let file = example_plugins().join("libtoy.so");
    let open = |name: String| plugins().environment(&choice(name, json!({})));
    assert_eq!(open(format!("{}#toy", file.display())).unwrap().id(), "toy");
    let message = refusal(open(format!("{}#other", file.display()))).0;
    assert!(message.ends_with("and none of these is an environment `other`"), "{message}");
    let message = refusal(plugins().environment(&choice("only_estimator", json!({})))).0;
    assert!(message.starts_with("there is no environment plugin `only_estimator`"), "{message}");
}

#[test]
fn faults_of_an_estimator() {
    let score = |fault: &str| {
        refusal(plugins().estimator(&choice("faulty", json!({ "fault": fault }))).unwrap().score(&mut rows())).0
    };
    assert!(score("panic").contains("plugin faulty: score of 3 rows: the plugin panicked at "));
    assert_eq!(score("error"), "plugin faulty: score of 3 rows: asked to fail");
    let place = "of token 1 of row 2 (group 1, episode 2, step 4)";
    assert_eq!(
        score("unwritten"),
        format!("plugin faulty left the advantage {place} unwritten; an estimator must fill every token")
    );
    assert_eq!(score("infinite_return"), format!("plugin faulty gave inf as the return {place}; it must be finite"));
}

#[test]
fn an_estimator_scores() {
    let estimator = plugins().estimator(&choice("toy", json!({}))).unwrap();
    let mut rows = rows();
    estimator.score(&mut rows).unwrap();
    assert_eq!(rows.advantages, [0.5, 0.5, -0.5, 0.0, 0.0]);
    assert_eq!(rows.returns, rows.advantages);
    estimator.score(&mut Rows { token_offsets: vec![0], ..Rows::default() }).unwrap();
    rows.penalty.pop();
    assert_eq!(refusal(estimator.score(&mut rows)).0, "rows for plugin toy: column penalty has 2 entries for 3 rows");
}

#[test]
fn every_column_crosses_the_border() {
    let echo = plugins().estimator(&choice("faulty", json!({ "fault": "echo" }))).unwrap();
    let mut rows = Rows {
        sequence: vec![7, 8, 9],
        span_start: vec![3, 4, 5],
        penalty: vec![0.0, 0.125, 0.25],
        valid: vec![true, false, false],
        terminated: vec![true, true, false],
        truncated: vec![false, false, true],
        duplicate_of: vec![-1, -1, 0],
        logprobs: vec![-1.0, -2.0, -3.0, -4.0, -5.0],
        ..rows()
    };
    assert!(refusal(echo.score(&mut rows)).0.ends_with("the plugin needs critic values, and there are none"));
    rows.values = Some((0..8).map(|v| v as f32).collect());
    rows.ref_logprobs = Some(vec![-1.5, -2.5, -3.5, -4.5, -5.5]);
    let columns = "Rows { group: [0, 0, 1], episode: [0, 1, 2], step: [0, 0, 4], sequence: [7, 8, 9], \
                   span_start: [3, 4, 5], span_length: [2, 1, 2], reward: [1.0, 0.0, 0.5], \
                   penalty: [0.0, 0.125, 0.25], valid: [1, 0, 0], terminated: [1, 1, 0], truncated: [0, 0, 1], \
                   anchors: Some(Bytes { data: [97, 255], offsets: [0, 1, 1, 2] }), duplicate_of: [-1, -1, 0], \
                   token_offsets: [0, 2, 3, 5], token_rewards: [0.0, 1.0, 0.0, 0.0, 0.5], \
                   values: Some([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), \
                   logprobs: Some([-1.0, -2.0, -3.0, -4.0, -5.0]), \
                   ref_logprobs: Some([-1.5, -2.5, -3.5, -4.5, -5.5]), asked: [] }";
    assert_eq!(refusal(echo.score(&mut rows)).0, format!("plugin faulty: score of 3 rows: {columns}"));
}

#[test]
fn recorded_rows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    let row = json!({ "group": 0, "traj": "a", "anchor": "x", "reward": 1, "episode_reward": 1, "valid": false, "resp_len": 2 });
    let mut other = row.clone();
    other["traj"] = "b".into();
    other["token_rewards"] = json!([0.25, 0.0]);
    std::fs::write(&file, json!({ "rows": [row, other], "gamma": 0.5, "penalty_coef": 0.25 }).to_string()).unwrap();
    // Scores 0.75 and 0.25: the toy's advantages are the differences from 0.5. It has no key `gamma`.
    let scored = advantage(&plugins(), "toy", "{}", &file).unwrap();
    assert_eq!(
        scored,
        json!({ "advantages": [[0.25, 0.25], [-0.25, -0.25]], "returns": [[0.25, 0.25], [-0.25, -0.25]] })
    );
    std::fs::write(&file, json!({ "rows": [{ "group": 0 }] }).to_string()).unwrap();
    let (message, input) = refusal(advantage(&plugins(), "toy", "{}", &file));
    assert!(message.contains("rows.json does not hold recorded rows: missing field `traj`") && input, "{message}");
    assert!(refusal(advantage(&plugins(), "toy", "{", &file)).0.starts_with("--config is not JSON"));
}
