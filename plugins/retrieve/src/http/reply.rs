//! The reply of a retrieval server, which must fit the queries exactly.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::Passage;

/// The body of a reply. Further fields are ignored.
#[derive(Deserialize)]
#[serde(expecting = "an object with `result`")]
struct Reply {
    /// A list for each query.
    result: Vec<Vec<Item>>,
}

/// A passage with or without a score. The servers of Search-R1 for online search name none.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a passage is neither {\"document\": {\"contents\": TEXT}, \"score\": NUMBER} nor {\"contents\": TEXT}; a score \
                 may be missing"
)]
enum Item {
    Wrapped { document: Document, score: Option<f64> },
    Bare(Document),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Contents {
        id: Option<Id>,
        contents: String,
    },
    /// As corpora of other retrievers have it.
    TitleAndText {
        id: Option<Id>,
        title: Option<String>,
        text: String,
    },
    Text(String),
}

/// Search-R1's corpora have texts for ids, others numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(u64),
}

/// Reads the passages for each of `queries` queries, the first `topk` of each list: servers that search online return more than
/// they were asked for.
///
/// # Errors
/// Bytes that are no JSON, another shape, another number of lists.
pub fn parse(body: &[u8], queries: usize, topk: usize) -> Result<Vec<Vec<Passage>>> {
    let reply: Reply = serde_json::from_slice(body).with_context(|| format!("the reply {}", start(body)))?;
    let lists = reply.result.len();
    ensure!(lists == queries, "the reply has {lists} lists of passages for {queries} queries");
    Ok(reply.result.into_iter().map(|list| list.into_iter().take(topk).map(passage).collect()).collect())
}

fn passage(item: Item) -> Passage {
    let (document, score) = match item {
        Item::Wrapped { document, score } => (document, score),
        Item::Bare(document) => (document, None),
    };
    let (id, contents) = match document {
        Document::Contents { id, contents } => (id, contents),
        Document::TitleAndText { id, title: Some(title), text } => (id, format!("\"{title}\"\n{text}")),
        Document::TitleAndText { id, title: None, text } => (id, text),
        Document::Text(contents) => (None, contents),
    };
    let id = match id {
        Some(Id::Text(id)) => id,
        Some(Id::Number(id)) => id.to_string(),
        None => String::new(),
    };
    Passage { id, contents, score: score.unwrap_or(0.0) }
}

/// The start of a body, for a message.
pub fn start(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(400)]);
    let start: String = text.chars().take(100).collect();
    format!("{start:?}{}", if start.len() < body.len() { " …" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str, queries: usize) -> String {
        format!("{:#}", parse(body.as_bytes(), queries, 2).unwrap_err())
    }

    /// The shapes of Search-R1's retrieval server: `return_scores` true and false.
    #[test]
    fn both_shapes_are_read() {
        let scored = r#"{"result": [[{"document": {"id": "7", "contents": "\"T\"\nx"}, "score": 1.5}], []]}"#;
        let passage = Passage { id: "7".into(), contents: "\"T\"\nx".into(), score: 1.5 };
        assert_eq!(parse(scored.as_bytes(), 2, 3).unwrap(), [vec![passage], vec![]]);
        let bare = r#"{"result": [[{"id": 7, "contents": "x", "url": null}, {"contents": "y"}]], "ms": 3}"#;
        let found = parse(bare.as_bytes(), 1, 2).unwrap();
        assert_eq!(found[0].iter().map(|p| (p.id.as_str(), p.score)).collect::<Vec<_>>(), [("7", 0.0), ("", 0.0)]);
    }

    /// Search-R1's servers for online search (`serp_search_server.py`, `google_search_server.py`) return documents without
    /// scores, an answer box beside the asked number of pages among them.
    #[test]
    fn servers_for_online_search_are_read() {
        let online = r#"{"result": [[
            {"document": {"contents": "\"No title.\"\nbox"}}, {"document": {"contents": "\"T\"\nx"}}, {"document": {"contents": "y"}}
        ]]}"#;
        let texts = |body: &str, topk| -> Vec<String> {
            let lists = parse(body.as_bytes(), 1, topk).unwrap();
            lists[0].iter().map(|p| format!("{} {:?} {}", p.id, p.contents, p.score)).collect()
        };
        assert_eq!(texts(online, 2), [r#" "\"No title.\"\nbox" 0"#, r#" "\"T\"\nx" 0"#]);
        let others = [
            (r#"{"document": {"id": 7, "contents": "x"}, "score": null}"#, r#"7 "x" 0"#),
            (r#"{"document": "x", "score": 2}"#, r#" "x" 2"#),
            (r#""x""#, r#" "x" 0"#),
            (r#"{"document": {"id": "7", "title": "T", "text": "x"}, "score": -1.5}"#, r#"7 "\"T\"\nx" -1.5"#),
            (r#"{"id": null, "title": null, "text": "x"}"#, r#" "x" 0"#),
            (r#"{"title": "T", "text": "x", "contents": "\"T\"\nx"}"#, r#" "\"T\"\nx" 0"#),
            (r#"{"document": {"contents": "\u00e9\ud83d\ude00"}, "url": {}, "score": 1}"#, r#" "é😀" 1"#),
        ];
        for (item, passage) in others {
            assert_eq!(texts(&format!(r#"{{"result": [[{item}]]}}"#), 3), [passage], "{item}");
        }
    }

    #[test]
    fn other_replies_are_refused() {
        let item = r#"{"document": {"id": "7", "contents": "x"}, "score": 1}"#;
        let of = |items: &str| format!(r#"{{"result": [[{items}]]}}"#);
        let cases = [
            (String::new(), "EOF"),
            ("<html>busy".into(), "<html>busy"),
            ("{}".into(), "missing field `result`"),
            (r#"{"result": null}"#.into(), "invalid type: null"),
            (r#"{"result": [null]}"#.into(), "invalid type: null"),
            (of("null"), "a passage is neither"),
            (of(r#"{"document": null, "score": 1}"#), "a passage is neither"),
            (of(r#"{"document": {"id": "7", "contents": "x"}, "score": "high"}"#), "a passage is neither"),
            (of(r#"{"document": {"id": "7", "contents": "x"}, "score": NaN}"#), "expected value"),
            (of(r#"{"document": {"id": "7", "contents": "x"}, "score": 1e999}"#), "out of range"),
            (of(r#"{"document": {"id": "7", "contents": null}, "score": 1}"#), "a passage is neither"),
            (of(r#"{"id": "7", "url": "x"}"#), "a passage is neither"),
            (of(r#"{"document": {"id": "7", "contents": ["x"]}}"#), "a passage is neither"),
            (of(r#"{"document": {"id": 7.5, "contents": "x"}}"#), "a passage is neither"),
            (of(r#"[{"contents": "x"}, 0.5]"#), "a passage is neither"),
            (of(item)[..30].into(), "EOF"),
            (of(item) + "}", "trailing"),
        ];
        for (body, message) in cases {
            assert!(error(&body, 1).contains(message), "{body}: {}", error(&body, 1));
        }
        assert_eq!(error(&of(item), 2), "the reply has 1 lists of passages for 2 queries");
        assert_eq!(error(r#"{"result": [[], []]}"#, 1), "the reply has 2 lists of passages for 1 queries");
    }
}
