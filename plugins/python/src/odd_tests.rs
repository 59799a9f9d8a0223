//! Reward functions and files of prompts with one fault each: every one gives one message that says where it is.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nestor_plugin::{Environment, Instance};
use serde_json::{Value, json};

use crate::tests::{opened, refused, start};

/// A name, the file's bytes, and a part of the message.
type OddFile = (&'static str, Vec<u8>, &'static str);

fn gzip(text: &str) -> Vec<u8> {
    let mut child = Command::new("python3")
        .args(["-c", "import gzip, sys; sys.stdout.buffer.write(gzip.compress(sys.stdin.buffer.read()))"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap().stdout
}

fn written(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

const ROW: &str = r#"{"prompt": "p", "ground_truth": "5", "log": "x"}"#;

#[test]
fn odd_functions_give_one_message_each() {
    let dir = tempfile::tempdir().unwrap();
    let data = written(dir.path(), "rows.jsonl", format!("{ROW}\n{ROW}\n").as_bytes());
    let cases = [
        ("odd", "must have the form package.module:Name"),
        ("od:fine", "No module named 'od'"),
        ("odd:fien", "`odd` has no `fien`; it has Decimal, fine"),
        ("odd:number", "`odd:number` is int, no function"),
        ("odd:unknown_argument", "needs the argument answers, which"),
        ("odd:by_place", "takes prompt, completion by position only"),
        ("odd:forgets", "`odd:forgets` returned None; it must return a number"),
        ("odd:text", "`odd:text` returned str '0.5', not a number"),
        ("odd:one_number", "`odd:one_number` returned float; with lists of arguments it must return a list"),
        ("odd:two_numbers", "`odd:two_numbers` returned 2 rewards for one completion"),
        ("odd:list_of_one", "`odd:list_of_one` returned list '[1.0]', not a number"),
        ("odd:no_score", "returned a dict without `score`; it has accuracy, format"),
        ("odd:infinite", "`odd:infinite` returned inf; a reward must be finite"),
        ("odd:not_a_number", "`odd:not_a_number` returned nan; a reward must be finite"),
        ("odd:yields", "has a `yield`, so it returns no number"),
        ("odd:raises", "in raises: return json.loads(completion)[\"answer\"]"),
        ("odd:leaves", "the worker ended with exit code 1 during `step`"),
        ("odd:hangs", "did not return within 1 s (config key `timeout_s`); it was at"),
        ("odd:Judge", "`odd:Judge` returned Judge"),
    ];
    for (function, message) in cases {
        let config = json!({ "reward": function, "data": data, "timeout_s": 1 });
        let error = opened(config).and_then(|world| start(&world, 0, 0).0.step(&world, "").map(|_| ()));
        let error = refused(error);
        assert!(error.contains(message) && !error.contains('\n'), "{function}: {error}");
    }
}

#[test]
fn odd_files_give_one_message_each() {
    let dir = tempfile::tempdir().unwrap();
    let lines = |rows: &[&str]| rows.join("\n").into_bytes();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let zipped = gzip(&format!("{ROW}\n{ROW}\n"));
    let mut flipped = zipped.clone();
    let last = flipped.len() - 6;
    flipped[last] ^= 1;
    let utf16 = ROW.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let cases: Vec<OddFile> = vec![
        ("empty.jsonl", Vec::new(), "empty.jsonl has no rows"),
        ("blank.jsonl", b"\n \n\n".to_vec(), "blank.jsonl has no rows"),
        ("one.jsonl", lines(&[ROW]), "1 rows, 1 of them held out: no row is left to train on"),
        ("cut.jsonl", lines(&[ROW, &ROW[..20]]), "cut.jsonl, line 2 is not JSON ("),
        ("list.jsonl", lines(&[ROW, "[1]"]), "list.jsonl, line 2: a row must be an object, not [1]"),
        ("text.jsonl", lines(&["a question"]), "line 1 is not JSON (Expecting value at column 1): a question"),
        ("table.csv", lines(&["prompt,answer", "p,5"]), "a CSV file must be written as JSON Lines or Parquet"),
        ("two.jsonl", lines(&[&format!("{ROW}{ROW}")]), "line 1 is not JSON (Extra data at column"),
        (
            "no_prompt.jsonl",
            lines(&[ROW, r#"{"question": "p"}"#]),
            "line 2: the row has no `prompt` and no `messages`; it has question",
        ),
        (
            "number.jsonl",
            lines(&[r#"{"prompt": 5}"#]),
            "line 1: the prompt must be a text or a list of messages, not a number",
        ),
        ("role.jsonl", lines(&[r#"{"prompt": [{"role": "human", "content": "p"}]}"#]), "the role \"human\" is unknown"),
        ("answered.jsonl", lines(&[r#"{"messages": [{"role": "assistant", "content": "p"}]}"#]), "is the assistant's"),
        ("quoted.jsonl", lines(&[r#"{"prompt": "[{\"role\": \"user\"}]"}"#]), "write the list itself"),
        ("deep.jsonl", deep.into_bytes(), "nested too deep"),
        (
            "latin1.jsonl",
            b"{\"prompt\": \"p\"}\n{\"prompt\": \"\xe9t\xe9\"}".to_vec(),
            "latin1.jsonl, line 2: byte 0xe9 is not UTF-8",
        ),
        ("utf16.jsonl", utf16, "line 1 is not JSON"),
        ("cut.jsonl.gz", zipped[..zipped.len() - 12].to_vec(), "is a damaged gzip file"),
        ("flipped.jsonl.gz", flipped, "is a damaged gzip file"),
        ("rows.zip", b"PK\x03\x04rest".to_vec(), "is a zip archive; unpack it"),
        ("parquet.jsonl", b"PAR1rest".to_vec(), "is a Parquet file: its name must end with .parquet"),
        ("rows.parquet", ROW.as_bytes().to_vec(), "rows.parquet: it is no whole Parquet file"),
    ];
    let check = |data: Value, columns: Value, message: &str| {
        let error = refused(opened(json!({ "reward": "odd:fine", "data": data, "columns": columns })));
        assert!(error.contains(message) && !error.contains('\n'), "{data}: {error}");
    };
    for (name, bytes, message) in cases {
        check(json!(written(dir.path(), name, &bytes)), json!({}), message);
    }
    let good = written(dir.path(), "good.jsonl", format!("{ROW}\n{ROW}\n").as_bytes());
    check(
        json!(good),
        json!({ "prompt": "question" }),
        "`columns` names question, and the row has prompt, ground_truth, log",
    );
    check(json!(dir.path()), json!({}), "is no regular file; name the files in it");
    check(json!("nowhere.jsonl"), json!({}), "No such file or directory: 'nowhere.jsonl'");
    check(json!([]), json!({}), "the list of files has no rows");
    check(
        json!({ "train": good, "eval": written(dir.path(), "none.jsonl", b"") }),
        json!({}),
        "none.jsonl of split eval has no rows",
    );
}

/// Compressed rows, a JSON list, and several files in a split; a function that changes its arguments changes no later episode.
#[test]
fn files_may_be_several_and_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let zipped = written(dir.path(), "a.jsonl.gz", &gzip(&format!("{ROW}\r\n{ROW}\r\n")));
    let list = written(dir.path(), "b.json", format!("[{ROW}, {ROW}, {ROW}]").as_bytes());
    let world = opened(json!({ "reward": "odd:fine", "data": [zipped, list], "held_out": 1 })).unwrap();
    assert_eq!((world.tasks("train").unwrap(), world.tasks("eval").unwrap()), (4, 1));
    let (mut play, first) = start(&world, 2, 0);
    assert!(first.info["source"].as_str().unwrap().ends_with("b.json, line 1"), "{:?}", first.info);
    assert_eq!(play.step(&world, "").unwrap().reward, 0.5);
    let (mut play, first) = start(&world, 2, 0);
    assert_eq!((first.text.as_str(), play.step(&world, "").unwrap().reward), ("p", 0.5));
    let world = opened(json!({ "reward": "odd:waits", "data": { "train": [zipped, list], "eval": list } })).unwrap();
    assert_eq!((world.tasks("train").unwrap(), world.tasks("eval").unwrap()), (5, 3));
    assert_eq!(start(&world, 0, 0).0.step(&world, "abc").unwrap().reward, 3.0);
}

/// Completions that finish while a call runs are scored by one more call, each with its own reward.
#[test]
fn completions_are_scored_together() {
    let dir = tempfile::tempdir().unwrap();
    let data = written(dir.path(), "rows.jsonl", format!("{ROW}\n").repeat(20).as_bytes());
    let rewards = json!([{ "fn": "odd:together" }, { "fn": "odd:waits", "weight": 10.0 }]);
    let world = opened(json!({ "rewards": rewards, "data": data, "batch": true, "won_at": 5.0 })).unwrap();
    let mut plays: Vec<_> = (0..9).map(|number| start(&world, number, 0).0).collect();
    let seen: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = plays
            .iter_mut()
            .enumerate()
            .map(|(number, play)| {
                let world = &world;
                scope.spawn(move || play.step(world, &number.to_string()).unwrap())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let calls = seen.iter().map(|one| one.metrics["calls"] as usize).max().unwrap();
    assert!(calls < 9, "no two completions were scored together");
    for (number, one) in seen.iter().enumerate() {
        assert_eq!(
            (one.reward, one.metrics["together"], one.metrics["waits"]),
            (number as f64 + 10.0, number as f64, 1.0)
        );
        assert!(one.terminated && one.info["won"] == json!(true) && one.metrics["measured_batch"] >= 1.0);
    }
    let (mut play, _) = start(&world, 0, 0);
    let error = refused(play.step(&world, "bad"));
    assert!(error.contains("could not convert string to float: 'bad'") && error.contains("odd.py"), "{error}");
    assert_eq!(start(&world, 1, 0).0.step(&world, "3").unwrap().reward, 13.0); // the worker still runs
    assert!(refused(opened(json!({ "class": "cases:Walk", "batch": true }))).contains("`batch` needs `reward`"));
}
