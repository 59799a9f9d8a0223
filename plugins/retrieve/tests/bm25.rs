//! BM25 over a corpus in a file.

#![allow(clippy::unwrap_used)] // a test may fail so

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use nestor_retrieve::{Bm25, Bm25Config, Passage, Retriever};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Texts of a WebShop catalogue as a corpus, and what Anserini 0.14.3 (Lucene 8.11) found in them.
const DOCUMENTS: &str = include_str!("../../../tests/fixtures/webshop/documents.jsonl");
const HITS: &str = include_str!("../../../tests/fixtures/webshop/lucene_hits.json");

fn config(corpus: &Path) -> Bm25Config {
    Bm25Config { corpus: corpus.to_owned(), index: None, threads: Some(2) }
}

fn corpus(text: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corpus.jsonl");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn error(config: &Bm25Config) -> String {
    format!("{:#}", Bm25::open(config).map(|_| ()).unwrap_err())
}

fn ids(found: &[Passage]) -> Vec<&str> {
    found.iter().map(|passage| passage.id.as_str()).collect()
}

#[test]
fn finds_what_lucene_finds() {
    let (_folder, path) = corpus(DOCUMENTS.as_bytes());
    let lines = DOCUMENTS.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let passages: Vec<Passage> =
        lines.map(|line| Passage { id: text(&line["id"]), contents: text(&line["contents"]), score: 0.0 }).collect();
    let on_disk = Bm25::open(&config(&path)).unwrap();
    let in_memory = Bm25::of(passages.clone()).unwrap();
    for case in serde_json::from_str::<Vec<Value>>(HITS).unwrap() {
        let query = case["query"].as_str().unwrap();
        let found = on_disk.retrieve(query, 50).unwrap();
        let hits = case["hits"].as_array().unwrap();
        let scored: Vec<_> = found.iter().map(|passage| (passage.id.as_str(), passage.score as f32)).collect();
        let expected: Vec<_> =
            hits.iter().map(|hit| (hit[0].as_str().unwrap(), hit[1].as_f64().unwrap() as f32)).collect();
        assert_eq!(scored, expected, "{query}");
        for passage in &found {
            assert!(passages.iter().any(|other| other.id == passage.id && other.contents == passage.contents));
        }
        assert_eq!(in_memory.retrieve(query, 50).unwrap(), found, "{query}");
    }
}

/// Passages in several windows of 4,096, with rare and frequent words.
fn many(count: usize) -> Vec<Passage> {
    let passage = |number: usize| {
        let contents = format!(
            "\"Town {number}\"\nword{} word{} word{} common {}",
            number % 7,
            number % 501,
            number,
            "deep ".repeat(number % 40)
        );
        Passage { id: (number * 7919 % count).to_string(), contents, score: 0.0 }
    };
    (0..count).map(passage).collect()
}

fn lines(passages: &[Passage]) -> String {
    passages.iter().map(|p| json!({"id": p.id, "url": null, "contents": p.contents}).to_string() + "\n").collect()
}

/// Processes and threads do not change the index, and the second opener waits for the first.
#[test]
fn threads_make_the_index_that_one_makes() {
    let passages = many(30_011);
    let (folder, path) = corpus(lines(&passages).as_bytes());
    let openers: Vec<Bm25> = thread::scope(|scope| {
        let openers: Vec<_> = (0..4).map(|_| scope.spawn(|| Bm25::open(&config(&path)).unwrap())).collect();
        openers.into_iter().map(|opener| opener.join().unwrap()).collect()
    });
    let made = fs::metadata(folder.path().join("corpus.jsonl.bm25/search.bin")).unwrap().modified().unwrap();
    let alone = Bm25Config { index: Some(folder.path().join("other/index")), threads: Some(1), ..config(&path) };
    let in_memory = Bm25::of(passages).unwrap();
    let other = Bm25::open(&alone).unwrap();
    let file = |name: &str| fs::read(folder.path().join(name).join("search.bin")).unwrap();
    assert!(file("corpus.jsonl.bm25") == file("other/index"));
    for query in ["word3 deep", "word499 word29000", "common town", "nothing"] {
        let found = in_memory.retrieve(query, 10).unwrap();
        for opened in openers.iter().chain([&other]) {
            assert_eq!(opened.retrieve(query, 10).unwrap(), found, "{query}");
        }
    }
    // Opening again makes nothing, and nothing is left beside.
    Bm25::open(&config(&path)).unwrap();
    assert_eq!(fs::metadata(folder.path().join("corpus.jsonl.bm25/search.bin")).unwrap().modified().unwrap(), made);
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["corpus.jsonl", "corpus.jsonl.bm25", "corpus.jsonl.bm25.lock", "other"]);
}

#[test]
fn a_changed_corpus_gets_a_new_index() {
    let (_folder, path) =
        corpus(b"{\"id\": \"a\", \"contents\": \"red house\"}\n\n{\"id\": 7, \"contents\": \"red door\"}");
    let first = Bm25::open(&config(&path)).unwrap();
    assert_eq!(ids(&first.retrieve("red", 3).unwrap()), ["7", "a"]);
    assert_eq!(first.passages(), 2);
    // The open index notices a change in place, and does not give another passage's text.
    fs::write(&path, b"{\"id\": \"b\", \"contents\": \"red boats\"}\n\n{\"id\": 8, \"contents\": \"red door\"}")
        .unwrap();
    let changed = format!("{:#}", first.retrieve("house", 3).unwrap_err());
    assert!(
        changed.contains("corpus.jsonl: the line of passage 0 has changed since the corpus was opened: start again"),
        "{changed}"
    );
    fs::write(&path, b"{\"id\": \"b\", \"contents\": \"red boat\"}\n").unwrap();
    assert!(first.retrieve("door", 3).is_err());
    assert_eq!(ids(&Bm25::open(&config(&path)).unwrap().retrieve("red house", 3).unwrap()), ["b"]);
}

#[test]
fn faults_of_a_corpus_are_named_with_their_line() {
    let good = |id: usize| format!("{{\"id\": \"{id}\", \"contents\": \"x\"}}\n");
    let goods: String = (0..5000).map(good).collect();
    let cases = [
        (String::new(), "corpus.jsonl: the corpus has no passages"),
        (" \n\n".into(), "corpus.jsonl: the corpus has no passages"),
        (goods.clone() + "\n{\"id\": 3", "corpus.jsonl: line 5002: no passage such as"),
        (goods.clone() + "[]\n", "corpus.jsonl: line 5001: no passage such as"),
        (
            good(1) + "{\"id\": \"2\", \"text\": \"x\"}\n" + "broken",
            "corpus.jsonl: line 2: no passage such as {\"id\": \"7\", \"contents\": \"\\\"Title\\\"\\ntext\"}: missing field `contents`",
        ),
        ("{\"contents\": \"x\"}".into(), "line 1: no passage such as"),
        ("{\"id\": null, \"contents\": \"x\"}".into(), "`id` is neither a text nor a whole number"),
        (
            goods.clone() + "\n" + &good(17),
            "corpus.jsonl: lines 18 and 5002 have the same id `17`: give each passage an id of its own",
        ),
    ];
    for (text, message) in cases {
        let (folder, path) = corpus(text.as_bytes());
        let found = error(&config(&path));
        assert!(found.contains(message), "{message}: {found}");
        assert!(
            !folder.path().join("corpus.jsonl.bm25").exists()
                && !folder.path().join("corpus.jsonl.bm25.partial").exists()
        );
    }
    let (folder, path) = corpus(b"{\"id\": \"1\", \"contents\": \"\xff\"}");
    assert!(error(&config(&path)).contains("line 1"));
    assert!(error(&config(folder.path())).contains("no file of lines"));
    assert!(error(&config(&folder.path().join("none"))).contains("none: cannot read the corpus"));
    fs::write(folder.path().join("mine.txt"), "keep").unwrap();
    fs::write(&path, good(1)).unwrap();
    let foreign = Bm25Config { index: Some(folder.path().to_owned()), ..config(&path) };
    assert!(error(&foreign).contains("is no part of an index: give a folder of its own"), "{}", error(&foreign));
    assert!(error(&Bm25Config { threads: Some(0), ..config(&path) }).contains("bm25.threads"));
    let same = |id: &str| Passage { id: id.into(), contents: "x".into(), score: 0.0 };
    let message = Bm25::of(vec![same("a"), same("b"), same("a")]).map(|_| ()).unwrap_err().to_string();
    assert_eq!(message, "passages 0 and 2 have the same id `a`: give each an id of its own");
    assert!(Bm25::of(vec![]).is_err());
}

#[test]
fn a_damaged_index_is_refused() {
    let (_folder, path) = corpus(lines(&many(100)).as_bytes());
    Bm25::open(&config(&path)).unwrap();
    let index = path.with_file_name("corpus.jsonl.bm25");
    for name in ["search.bin", "places.bin", "index.json"] {
        let file = index.join(name);
        let whole = fs::read(&file).unwrap();
        let mut altered = whole.clone();
        let middle = whole.len() / 2;
        altered[middle] ^= 0x80;
        for (damaged, message) in
            [(&altered[..], "altered"), (&whole[..middle], "were written"), (&[][..], "the file is empty")]
        {
            fs::write(&file, damaged).unwrap();
            let found = error(&config(&path));
            assert!(
                found.contains("corpus.jsonl.bm25: remove this folder, and the next start makes the index again"),
                "{found}"
            );
            assert!(
                found.contains(if name == "index.json" { "index.json is damaged" } else { message }),
                "{name}: {found}"
            );
        }
        fs::write(&file, &whole).unwrap();
    }
    Bm25::open(&config(&path)).unwrap();
    // An index of another version is made again.
    let about = fs::read_to_string(index.join("index.json")).unwrap().replace("\"version\": 1", "\"version\": 0");
    fs::write(index.join("index.json"), about).unwrap();
    Bm25::open(&config(&path)).unwrap();
    assert!(fs::read_to_string(index.join("index.json")).unwrap().contains("\"version\": 1"));
}

/// The rest of a process that was killed, and a folder that was copied without its description.
#[test]
fn a_half_written_index_is_made_again() {
    let (folder, path) = corpus(lines(&many(100)).as_bytes());
    let at = |name: &str| folder.path().join(name);
    for rest in ["corpus.jsonl.bm25.partial", "corpus.jsonl.bm25"] {
        fs::create_dir(at(rest)).unwrap();
        fs::write(at(rest).join("search.bin"), b"half").unwrap();
    }
    assert_eq!(Bm25::open(&config(&path)).unwrap().passages(), 100);
    assert!(!at("corpus.jsonl.bm25.partial").exists());
    // Another program's files stay.
    fs::create_dir(at("corpus.jsonl.bm25.partial")).unwrap();
    fs::write(at("corpus.jsonl.bm25.partial/mine.txt"), b"keep").unwrap();
    fs::remove_file(at("corpus.jsonl.bm25/index.json")).unwrap();
    let found = error(&config(&path));
    assert!(found.contains("mine.txt is no part of an index: give a folder of its own by the key `index`"), "{found}");
}
