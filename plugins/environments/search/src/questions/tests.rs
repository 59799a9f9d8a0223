use std::fs;

use serde_json::{Value, json};

use super::*;

/// `rows.jsonl` and Parquet files that `make.py` wrote from it with pyarrow.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/search/questions").join(name)
}

fn rows(name: &str) -> Vec<Row> {
    read_rows(&fixture(name), &Columns::default()).unwrap()
}

fn read(config: Value) -> Result<Splits> {
    serde_json::from_value::<QuestionFiles>(config)?.read()
}

/// Reads a file as both splits.
fn read_file(path: &Path, more: Value) -> Result<Splits> {
    let mut config = json!({"train": path, "eval": path});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read(config)
}

#[test]
fn parquet_files_of_pyarrow_have_the_rows_that_they_were_made_of() {
    let expected = rows("rows.jsonl");
    assert!(!expected.is_empty());
    for name in ["plain", "zstd", "gzip", "brotli", "lz4", "large"] {
        assert_eq!(rows(&format!("{name}.parquet")), expected, "{name}");
    }
    let verl = rows("verl.jsonl");
    assert_eq!(rows("verl.parquet"), verl);
    let all = |name| read_file(&fixture(name), json!({})).unwrap().eval;
    assert_eq!(all("verl.parquet"), all("rows.jsonl"), "the prefix of verl's sources is removed");
}

/// `hashlib.sha256(question.encode()).hexdigest()` of Python gives the order.
#[test]
fn order_and_panel_follow_the_hash_of_the_question_alone() {
    let folder = tempfile::tempdir().unwrap();
    let line = |question: &str, source: &str| {
        json!({"question": question, "golden_answers": "x", "data_source": source}).to_string() + "\n"
    };
    // c 2e7d…, b 3e23…, d 18ac…, a ca97…
    let mut lines = [line("a", "nq"), line("b", "nq"), line("c", "popqa"), line("d", "nq"), line("d", "popqa")];
    for (first, name) in [(0, "one.jsonl"), (3, "two.jsonl")] {
        lines.rotate_left(first);
        fs::write(folder.path().join(name), lines.concat()).unwrap();
        let more = json!({"eval_per_source": 2, "train_sources": ["nq"]});
        let splits = read_file(&folder.path().join(name), more).unwrap();
        let names = |split: &[Question]| -> Vec<String> {
            split.iter().map(|it| format!("{} {}", it.source, it.question)).collect()
        };
        assert_eq!(names(&splits.eval), ["nq d", "popqa d", "popqa c", "nq b"], "{name}");
        assert_eq!(names(&splits.train), ["nq d", "nq b", "nq a"], "{name}");
    }
}

#[test]
fn columns_and_sources_may_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.jsonl");
    fs::write(
        &path,
        "\n{\"meta\": {\"q\": \"who?\"}, \"gold\": [\"a\"]}\r\n\n{\"meta\": {\"q\": \"when?\"}, \"gold\": \"b\"}",
    )
    .unwrap();
    let columns = json!({"question": "meta.q", "answers": "gold"});
    let file = json!({"path": path, "source": "own"});
    let splits = read(json!({"train": file, "eval": [file], "columns": columns})).unwrap();
    let mut eval = splits.eval;
    eval.sort_by(|a, b| a.answers.cmp(&b.answers));
    let own = |question: &str, answer: &str| Question {
        question: question.into(),
        answers: vec![answer.into()],
        source: "own".into(),
    };
    assert_eq!(eval, [own("who?", "a"), own("when?", "b")]);
    let error = read(json!({"train": path, "eval": file, "columns": columns})).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.starts_with("questions.train: ") && error.contains("q.jsonl: row 2: there is no source"), "{error}");
}

#[test]
fn files_are_refused_with_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |path: &Path, more: Value| format!("{:#}", read_file(path, more).unwrap_err());
    let line = r#"{"question": "q", "golden_answers": ["a"], "data_source": "nq"}"#;
    let cases: &[(&str, String, &str)] = &[
        ("1.jsonl", String::new(), "1.jsonl: the file has no questions"),
        (
            "2.jsonl",
            format!("{line}\n{{\"question\": 1}}"),
            "2.jsonl:2: column question must be a text, found a number",
        ),
        ("3.jsonl", format!("{line}\n{{\"question\": }}"), "3.jsonl:2: column 14: expected value"),
        (
            "4.jsonl",
            r#"{"q": "x", "golden_answers": []}"#.into(),
            "4.jsonl:1: there is no column question or env_kwargs.question: name it in questions.columns.question; there are q, golden_answers",
        ),
        ("5.jsonl", line.replace("[\"a\"]", "[\" \"]"), "5.jsonl: row 1: the question has no answers"),
        (
            "6.jsonl",
            line.replace("[\"a\"]", "[1]"),
            "6.jsonl:1: column golden_answers must be a list of texts, found a number in it",
        ),
        ("7.jsonl", format!("{line}\n{line}"), "7.jsonl: row 2: the question is that of"),
        ("8.jsonl", line.replace("nq", "a/b"), "8.jsonl: row 1: the source \"a/b\" cannot be the name of a metric"),
        ("9.jsonl", format!("\u{feff}{line}"), "9.jsonl:1: the file starts with a byte order mark"),
        ("10.jsonl", "[]".into(), "10.jsonl:1: expected an object"),
        ("11.csv", String::new(), "11.csv: the name must end in .jsonl or .parquet"),
        ("12.parquet", line.into(), "12.parquet: this is no whole Parquet file"),
    ];
    for (name, content, message) in cases {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let error = refusal(&path, json!({}));
        assert!(error.contains(message), "{error}");
    }
    for (name, message) in [
        ("empty", "empty.parquet: the file has no questions"),
        ("null_question", "null_question.parquet: row 2: column question is null"),
        ("no_answers", "no_answers.parquet: row 2: the question has no answers"),
        ("null_answers", "null_answers.parquet: row 1: the question has no answers"),
        ("numbers", "numbers.parquet: column question must be a text, found INT64 in question"),
        (
            "other",
            "other.parquet: there is no column question or env_kwargs.question: name it in questions.columns.question; there are query, answer",
        ),
        ("nested", "nested.parquet: column golden_answers must be a list of texts, found lists of lists"),
    ] {
        let error = refusal(&fixture(&format!("{name}.parquet")), json!({}));
        assert!(error.contains(message), "{error}");
    }
    let error = refusal(&fixture("rows.jsonl"), json!({"train_sources": ["nq", "squad"]}));
    assert!(
        error.contains("no training question has the source `squad`; there are bamboogle, hotpotqa, nq, triviaqa"),
        "{error}"
    );
    assert!(refusal(&folder.path().join("none.jsonl"), json!({})).contains("none.jsonl"));
    // Two rows of one question are two tasks if they may be.
    let kept = read_file(&folder.path().join("7.jsonl"), json!({"duplicates": "keep"})).unwrap();
    assert_eq!(kept.eval.len(), 2);
    assert!(read(json!({"train": 1, "eval": "x"})).unwrap_err().to_string().contains("expected a path"));
}
