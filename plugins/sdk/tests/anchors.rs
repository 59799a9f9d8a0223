//! Definitions of a state on hand-made episodes.

#![allow(clippy::unwrap_used)] // a test may fail so

use nestor_plugin::anchor::{Anchor, number};
use nestor_plugin::recorded::{Columns, Recorded};
use serde_json::{Value, json};

/// One episode of (anchor, action, admissible actions), and the anchor after its last step.
fn episode(steps: &[(&str, &str, &[&str])], end: &str) -> Columns {
    let next = steps.iter().skip(1).map(|step| step.0).chain([end]);
    let row = |((anchor, action, admissible), next): (&(&str, &str, &[&str]), &str)| {
        json!({
            "group": 0, "traj": "a", "anchor": anchor, "reward": 0.0, "valid": true, "resp_len": 1,
            "action": action, "admissible": admissible, "next_anchor": next,
        })
    };
    let rows: Vec<Value> = steps.iter().zip(next).map(row).collect();
    serde_json::from_value::<Recorded>(json!({ "rows": rows })).unwrap().columns().unwrap()
}

/// Keys before each step, and the one after the last.
fn keys(anchor: Anchor, columns: &Columns) -> Vec<String> {
    let asked = columns.asked();
    let rows = columns.view_with(&asked);
    let keys = anchor.read(&rows).unwrap();
    let before = (0..rows.len()).map(|row| keys.before(row));
    let all = before.chain([keys.after(rows.len() - 1).unwrap()]);
    all.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

#[test]
fn definitions_differ_as_documented() {
    let steps: [(&str, &str, &[&str]); 5] = [
        ("room", "look", &["go", "close"]),
        ("room again", "go", &["go"]),
        ("You heat the egg", "eat", &["eat"]),
        ("Nothing happens", "inventory", &["go", "eat"]),
        ("an egg", "go", &["go"]),
    ];
    let columns = episode(&steps, "Nothing happens.");
    let own = ["room", "room again", "You heat the egg", "Nothing happens", "an egg", "Nothing happens."];
    assert_eq!(keys(Anchor::Observation, &columns), own);
    assert_eq!(
        keys(Anchor::ObservationCommands, &columns),
        [
            "room\nclose\ngo",
            "room again\ngo",
            "You heat the egg\neat",
            "Nothing happens\neat\ngo",
            "an egg\ngo",
            "Nothing happens."
        ]
    );
    let joined = "room again\nYou heat the egg";
    assert_eq!(
        keys(Anchor::G2po, &columns),
        ["room\nclose\ngo", "room again\ngo", joined, joined, "an egg\ngo", "an egg\ngo"]
    );
    assert_eq!(
        keys(Anchor::Rewardflow, &columns),
        ["room", "room", "You heat the egg", "You heat the egg", "You heat the egg", "You heat the egg"]
    );
}

#[test]
fn a_definition_without_its_column_is_an_error() {
    let row = json!({ "group": 0, "traj": "a", "anchor": "s", "reward": 0.0, "valid": true, "resp_len": 1 });
    let columns = serde_json::from_value::<Recorded>(json!({ "rows": [row] })).unwrap().columns().unwrap();
    for anchor in [Anchor::ObservationCommands, Anchor::G2po, Anchor::Rewardflow] {
        let error = anchor.read(&columns.view()).unwrap_err().to_string();
        assert!(error.contains("`admissible`") || error.contains("`action`"), "{error}");
    }
    assert!(Anchor::Observation.read(&columns.view()).unwrap().after(0).is_err());
}

#[test]
fn similar_keys_share_the_number_of_the_first() {
    let keys: [&[u8]; 4] = [b"go to shelf 1", b"a desk", b"go to shelf 2", b"a desk"];
    assert_eq!(number(keys, None).unwrap(), [0, 1, 2, 1]);
    assert_eq!(number(keys, Some(0.9)).unwrap(), [0, 1, 0, 1]);
    assert!(number([&b"\xff"[..]], Some(0.9)).unwrap_err().to_string().contains("not UTF-8"));
}
