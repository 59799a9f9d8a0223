//! Plugins that were built for older versions of the border, by other compilers, or in C for this version work; files that
//! are no plugins of this border get one message.

#![allow(clippy::unwrap_used)] // a test may fail so

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nestor_host::{Kind, Plugins, Rows, TakenResponse, Values};
use nestor_recipe::{InputError, PluginChoice};
use serde_json::{Value, json};

/// A path in the repository.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn choice(file: &Path, config: Value) -> PluginChoice {
    PluginChoice::new(file.display().to_string(), config)
}

/// Compiles a source with the headers of a folder.
fn compile(compiler: &str, headers: &Path, source: &Path, out: PathBuf) -> PathBuf {
    let mut cc = Command::new(compiler);
    cc.args(["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]);
    cc.arg("-I").arg(headers).arg("-o").arg(&out).arg(source);
    assert!(cc.status().unwrap().success(), "{cc:?}");
    out
}

fn counts(out: PathBuf) -> PathBuf {
    compile("cc", &root("plugins/sdk"), &root("plugins/sdk/examples/c/counts.c"), out)
}

/// C compilers of this machine: the usual one, and others where there are any.
fn compilers() -> Vec<&'static str> {
    let answers = |name: &&str| {
        let asked = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    ["cc", "gcc-11", "gcc-13", "gcc-14", "clang"].into_iter().filter(answers).collect()
}

/// One group of two rows, of one token and two.
fn rows() -> Rows {
    Rows {
        group: vec![0, 0],
        episode: vec![0, 1],
        step: vec![0, 0],
        sequence: vec![0, 1],
        span_start: vec![3, 3],
        reward: vec![1.0, 0.5],
        penalty: vec![0.0; 2],
        valid: vec![true; 2],
        terminated: vec![true; 2],
        truncated: vec![false; 2],
        anchor: vec![b"abc".to_vec(), vec![]],
        duplicate_of: vec![-1; 2],
        token_offsets: vec![0, 1, 3],
        token_rewards: vec![1.0, 0.0, 0.5],
        ..Rows::default()
    }
}

#[test]
fn plugins_of_older_versions_play_and_score() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in compilers() {
        for version in ["1.0", "1.1", "1.2", "1.3"] {
            let headers = root("tests/fixtures/plugin").join(version);
            let build = |source: &str, name: &str| {
                let out = dir.path().join(format!("lib{name}_{compiler}_{version}.so"));
                compile(compiler, &headers, &root(source), out)
            };
            let file = build("plugins/sdk/examples/c/counts.c", "counts");
            let counts = Plugins::default().environment(&choice(&file, json!({}))).unwrap();
            // Since 1.2 a plugin says the least version that it needs.
            assert_eq!(counts.file().border, if version >= "1.2" { "1.0" } else { version });
            let mut env = counts.spawn().unwrap();
            assert_eq!(env.reset("eval", 0, 0).unwrap().text, "The count is 0, make it 2.");
            assert!(!env.step("add").unwrap().terminated && env.step("add").unwrap().terminated);

            let file = build("tests/fixtures/plugin/old.c", "old");
            let old = Plugins::default().estimator(&choice(&file, json!({}))).unwrap();
            let mut rows = rows();
            old.score(&mut rows).unwrap();
            assert_eq!(rows.advantages, [1.0, 0.5, 0.5]);
            let parts = old.parts(&rows).unwrap();
            match version {
                "1.0" => assert!(parts.is_empty()),
                _ => assert_eq!(parts.of(0).collect::<Vec<_>>(), [("anchor_length", 3.0)]),
            }
        }
    }
}

#[test]
fn an_estimator_in_c_asks_for_a_column() {
    let dir = tempfile::tempdir().unwrap();
    let source = root("plugins/sdk/examples/c/mean.c");
    let file = compile("cc", &root("plugins/sdk"), &source, dir.path().join("libmean.so"));
    let mean = Plugins::default().estimator(&choice(&file, json!({}))).unwrap();
    let mut rows = rows();
    let missing = format!("{:#}", mean.score(&mut rows).unwrap_err());
    assert!(missing.ends_with("plugin mean asks for the column `success`, and there is none"), "{missing}");
    rows.columns.insert("success".into(), Values::U8(vec![0, 1]));
    mean.score(&mut rows).unwrap();
    assert_eq!(rows.advantages, [-0.5, 0.5, 0.5]);
    let refused = format!("{:#}", Plugins::default().estimator(&choice(&file, json!({ "x": 1 }))).err().unwrap());
    assert_eq!(refused, "plugin mean: config must be {}: this component takes no keys");

    let shown = Plugins::default().show(&file.display().to_string()).unwrap();
    let [mean] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((mean.found.id.as_str(), mean.found.kind, mean.found.border.as_str()), ("mean", Kind::Estimator, "1.2"));
    assert_eq!(mean.found.extensions, ["nestor.rows.columns/1"]);
    let text = mean.to_string();
    for line in ["columns     success (with the default config)", "needs       none (with", "config      takes no keys"]
    {
        assert!(text.contains(line), "{text}");
    }
    let wrong = Plugins::default().show(&format!("{}#meen", file.display())).unwrap_err();
    assert!(wrong.to_string().ends_with("holds no component `meen`; did you mean `mean`? known: mean"), "{wrong}");
}

#[test]
fn an_environment_in_c_shows_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let source = root("plugins/sdk/examples/c/picture.c");
    let file = compile("cc", &root("plugins/sdk"), &source, dir.path().join("libpicture.so"));
    let picture = Plugins::default().environment(&choice(&file, json!({}))).unwrap();
    assert_eq!(picture.file().border, "1.3");
    let mut env = picture.spawn().unwrap();
    let first = env.reset("train", 0, 0).unwrap();
    let colours = |seen: &nestor_plugin::Observation| -> Vec<[u8; 3]> {
        let [image] = &seen.images[..] else { panic!("{seen:?}") };
        assert_eq!((image.width(), image.height()), (224, 28));
        let middle = |cell: usize| 3 * (14 * 224 + 28 * cell + 14);
        (0..3).map(|cell| [0, 1, 2].map(|channel| image.rgb()[middle(cell) + channel])).collect()
    };
    let (black, red, green) = ([0; 3], [255, 0, 0], [0, 255, 0]);
    assert_eq!(colours(&first), [red, green, black]);
    assert_eq!(colours(&env.step("left").unwrap()), [red, green, black]);
    let last = env.step("right").unwrap();
    assert_eq!((colours(&last), last.terminated), (vec![black, red, black], true));
}

/// A response with this message of the assistant.
fn response(message: Value) -> TakenResponse {
    let (prompt, tokens, logprobs) = (vec![1], vec![2], vec![-0.5]);
    let (text, message) = (message["content"].to_string(), message.to_string());
    TakenResponse { text, message, broken_call: false, cut: false, prompt, tokens, logprobs }
}

#[test]
fn an_environment_in_c_has_a_tool() {
    let dir = tempfile::tempdir().unwrap();
    let source = root("plugins/sdk/examples/c/sums.c");
    let file = compile("cc", &root("plugins/sdk"), &source, dir.path().join("libsums.so"));
    let sums = Plugins::default().environment(&choice(&file, json!({}))).unwrap();
    assert_eq!(sums.file().border, "1.6");
    let mut env = sums.spawn().unwrap();
    let first = env.reset("train", 3, 0).unwrap();
    assert_eq!(first.tools[0]["function"]["name"], "add");
    assert_eq!(first.text, "How much is 13 + 7? Use the tool, then answer with the number.");
    let call = |arguments: &str| {
        let function = json!({ "name": "add", "arguments": arguments });
        let calls = json!([{ "id": "call_0_0", "type": "function", "function": function }]);
        response(json!({ "role": "assistant", "content": null, "tool_calls": calls }))
    };
    let seen = env.respond(call("{\"a\":13,\"b\": 7}")).unwrap();
    let [result] = &seen.messages[..] else { panic!("{seen:?}") };
    assert_eq!((result.role.as_str(), result.content()), ("tool", "20"));
    assert_eq!((&result.keys["tool_call_id"], seen.valid, seen.terminated), (&json!("call_0_0"), true, false));
    assert!(!env.respond(call("{}")).unwrap().valid);
    let last = env.respond(response(json!({ "role": "assistant", "content": "It is 20." }))).unwrap();
    assert_eq!((last.reward, last.terminated, &last.info["won"]), (1.0, true, &json!(true)));
}

#[test]
fn a_hidden_file_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|folder| {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
        counts(dir.path().join(folder).join("libcounts.so"))
    });
    let plugins = Plugins::in_dirs([first.parent().unwrap(), second.parent().unwrap()]);
    let shown = &plugins.show("counts").unwrap()[0];
    assert_eq!((&shown.found.path, &shown.hides), (&first, &vec![second.clone()]));
    let hidden = plugins.hidden().unwrap();
    assert_eq!(hidden.iter().map(|one| (&one.path, &one.by)).collect::<Vec<_>>(), [(&second, &first)]);
    assert_eq!(shown.sha256, plugins.environment(&choice(&first, json!({}))).unwrap().file().sha256);
    assert!(plugins.show("count").unwrap_err().to_string().contains("did you mean `counts`?"));
}

/// The message of a file that is refused: one line, and the user's mistake.
fn refusal(file: &Path) -> String {
    let error = Plugins::default().environment(&choice(file, json!({}))).err().unwrap();
    let message = format!("{error:#}");
    assert!(error.chain().any(|cause| cause.is::<InputError>()) && !message.contains('\n'), "{message}");
    assert!(message.contains(file.to_str().unwrap()), "{message}");
    message
}

/// The faults of a description are in core/nestor/tests/all/plugins.rs.
#[test]
fn damaged_and_foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(counts(dir.path().join("libcounts.so"))).unwrap();
    let refused = |bytes: &[u8]| {
        let file = tempfile::Builder::new().suffix(".so").tempfile_in(&dir).unwrap();
        std::fs::write(&file, bytes).unwrap();
        refusal(file.path())
    };
    for part in [bytes.len() - 1, bytes.len() / 2, 200] {
        assert!(refused(&bytes[..part]).contains("is cut short; build or copy it again"), "{part}");
    }
    let changed = |at: usize, byte: u8| [&bytes[..at], &[byte], &bytes[at + 1..]].concat();
    let narrow = changed(4, 1); // ELFCLASS32
    assert!(refused(&narrow).contains("is a library for 32-bit programs; build it for 64 bits"));
    let foreign = changed(18, 0xf3); // e_machine: RISC-V
    assert!(refused(&foreign).contains("is a library for RISC-V, and this machine is "));
    for other in [b"a text\nof two lines\n".as_slice(), b""] {
        assert!(refused(other).contains("cannot be loaded as a shared library: "));
    }
}
