//! The whole search against Lucene's own hits, against plain scoring, and against damage.

use serde_json::Value;

use crate::{Builder, Index};

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
