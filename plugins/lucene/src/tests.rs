//! The whole search against Lucene's own hits, against plain scoring, and against damage.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use crate::hits::adjust_ties;
use crate::{Builder, Hit, Index, bm25};

/// Documents of a WebShop catalogue: `documents.jsonl` without the products, which nothing here reads.
const DOCUMENTS: &str = include_str!("../../../tests/fixtures/webshop/documents.jsonl");
/// Recorded from Anserini 0.14.3 over these documents.
const HITS: &str = include_str!("../../../tests/fixtures/webshop/lucene_hits.json");

fn catalogue() -> (Vec<String>, Vec<u8>) {
    let mut builder = Builder::new();
    let mut ids = Vec::new();
    for line in DOCUMENTS.lines() {
        let document: Value = serde_json::from_str(line).unwrap();
        let id = document["id"].as_str().unwrap().to_owned();
        builder.add(&id, document["contents"].as_str().unwrap());
        ids.push(id);
    }
    (ids, builder.finish().unwrap())
}

#[test]
fn ranks_and_scores_as_lucene_does() {
    let (ids, bytes) = catalogue();
    let index = Index::from_bytes(bytes).unwrap();
    let recorded: Vec<Value> = serde_json::from_str(HITS).unwrap();
    assert!(!recorded.is_empty());
    for case in recorded {
        let query = case["query"].as_str().unwrap();
        let expected = case["hits"].as_array().unwrap();
        let hits = index.search(query, 50).unwrap();
        assert_eq!(hits.len(), expected.len(), "{query}");
        for (hit, expected) in hits.iter().zip(expected) {
            assert_eq!(ids[hit.document as usize], expected[0].as_str().unwrap(), "{query}");
            assert_eq!(hit.score, expected[1].as_f64().unwrap() as f32, "{query}");
        }
    }
}

/// Windows are 4,096 documents, so that these collections have up to six of them.
fn collection(seed: u64, size: usize) -> Vec<String> {
    let mut state = seed | 1;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut text = || {
        let (topic, length) = (below(6), below(8));
        let words = (0..length).map(|_| match below(60) {
            0 => "often ".repeat(10 + below(20) as usize),
            kind @ 1..20 => format!("c{} ", kind % 5),
            20..40 => format!("t{topic}{} ", below(3)),
            _ => {
                let rare = below(12);
                format!("w{} ", below(1 << rare))
            }
        });
        words.collect()
    };
    (0..size).map(|_| text()).collect()
}

/// Scores all documents, by the formula and without an index.
fn plainly(texts: &[String], query: &str, top: usize) -> Vec<Hit> {
    let documents: Vec<Vec<&str>> = texts.iter().map(|text| text.split_whitespace().collect()).collect();
    let tokens = documents.iter().map(Vec::len).sum::<usize>() as u64;
    let filled = documents.iter().filter(|document| !document.is_empty()).count() as u32;
    let norms = bm25::inverse_norms(tokens, filled);
    let count = |words: &[&str], word: &str| words.iter().filter(|&&other| other == word).count() as u32;
    let words: Vec<&str> = query.split_whitespace().collect();
    let mut terms: Vec<(&str, f32)> = BTreeSet::from_iter(&words)
        .into_iter()
        .map(|&word| (word, documents.iter().filter(|document| document.contains(&word)).count() as u32))
        .filter(|&(_, having)| having > 0)
        .map(|(word, having)| (word, bm25::weight(count(&words, word), having, filled)))
        .collect();
    terms.sort_by(|a, b| b.1.total_cmp(&a.1));
    let score = |document: &Vec<&str>| {
        let norm = norms[usize::from(bm25::encode(document.len() as u32))];
        let part = |(word, weight): &(&str, f32)| f64::from(bm25::part(*weight, count(document, word) as f32 * norm));
        terms.iter().filter(|term| document.contains(&term.0)).map(part).sum::<f64>() as f32
    };
    let numbered =
        documents.iter().enumerate().filter(|(_, document)| terms.iter().any(|term| document.contains(&term.0)));
    let mut hits: Vec<Hit> = numbered.map(|(n, document)| Hit { document: n as u32, score: score(document) }).collect();
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| id(a.document).cmp(&id(b.document))));
    hits.truncate(top);
    adjust_ties(&mut hits);
    hits
}

/// Ids whose order is not that of the documents.
fn id(document: u32) -> String {
    format!("{:x}", document.wrapping_mul(2_654_435_769))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn skipping_changes_no_hit(seed: u64, size in 1usize..24_000, top in 1usize..60) {
        let texts = collection(seed, size);
        let mut builder = Builder::new();
        texts.iter().enumerate().for_each(|(number, text)| builder.add(&id(number as u32), text));
        let index = Index::from_bytes(builder.finish().unwrap()).unwrap();
        for query in ["t00 c1 c2 c3 c4", "t10 t11 c0 c0 often", "w0 w1 w2 w3 w9 w77 w500", "c3", "often t50 t51 t52 w1"] {
            prop_assert_eq!(index.search(query, top).unwrap(), plainly(&texts, query, top), "{}", query);
        }
    }
}

#[test]
fn queries_that_lucene_refuses_find_nothing() {
    let mut builder = Builder::new();
    builder.add("one", "w1 w2");
    let index = Index::from_bytes(builder.finish().unwrap()).unwrap();
    let words = |count: usize| (1..=count).map(|word| format!("w{word} ")).collect::<String>();
    let found = [&words(1024), &words(1025), "", "the", "w3"].map(|query| index.search(query, 50).unwrap().len());
    assert_eq!(found, [1, 0, 0, 0, 0]);
    assert!(index.search("w1", 0).unwrap().is_empty());
    let empty = Index::from_bytes(Builder::new().finish().unwrap()).unwrap();
    assert!(empty.search("w1", 50).unwrap().is_empty());
}

#[test]
fn a_file_answers_as_memory_does_and_an_unfit_one_is_refused() {
    let (_, bytes) = catalogue();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("products.index");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Index::open(&path)
    };
    let query = "men's running shoes";
    let hits = Index::from_bytes(bytes.clone()).unwrap().search(query, 50).unwrap();
    assert_eq!(open(&bytes).unwrap().search(query, 50).unwrap(), hits);

    let changed = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        (vec![], "the file is empty"),
        (b"{\"not\": \"an index\"}".to_vec(), "these bytes are no search index"),
        (changed(8, 99), "the search index has version 99; this program reads version 1"),
        (changed(20, 99), "the header of the search index is damaged"),
        (bytes[..bytes.len() - 1].to_vec(), "were written"),
        (bytes[..40].to_vec(), "the search index is cut inside its header"),
    ];
    for (bytes, message) in cases {
        let error = format!("{:#}", open(&bytes).map(|_| ()).unwrap_err());
        assert!(error.contains(message) && error.contains("products.index"), "{error}");
        assert!(error.contains("build it again"), "{error}");
    }
}

#[test]
fn damage_is_an_error_or_a_wrong_hit_but_no_panic() {
    let (_, bytes) = catalogue();
    let query = "men's running shoes rubber sole dark chocolate often";
    let mut refused = 0;
    for at in (0..bytes.len()).step_by(7) {
        for flip in [0x01, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            let searched = Index::from_bytes(bytes).and_then(|index| index.search(query, 50));
            if let Err(error) = searched {
                assert!(format!("{error:#}").contains("build the"), "{error:#}");
                refused += 1;
            }
        }
    }
    assert!(refused > 20, "{refused} errors");
}
