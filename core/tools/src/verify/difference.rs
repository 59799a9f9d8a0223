//! A difference between two runs: its place, and both values.

use std::fmt::{self, Display, Formatter};

use serde_json::{Map, Value, json};

/// Characters of a text that a message shows.
const SHOWN: usize = 40;

/// Keys whose differences are named before those of others: the causes before their consequences.
const FIRST: [&str; 8] = ["group", "episode", "task", "seed", "sample", "steps", "prompt", "tokens"];

/// The first difference between two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// From the outside in, such as iteration 2, episode 5, step 1, token 3.
    place: Vec<(String, Value)>,
    first: Value,
    other: Value,
    /// A remark, such as the number of bits.
    note: Option<String>,
}

impl Difference {
    pub fn new(first: impl Into<Value>, other: impl Into<Value>) -> Self {
        Self { place: Vec::new(), first: first.into(), other: other.into(), note: None }
    }

    /// The difference of something that only one run has.
    pub fn missing(what: &str, in_first: bool) -> Self {
        let (there, none) = (Value::from("there"), Value::from("missing"));
        let (first, other) = if in_first { (there, none) } else { (none, there) };
        Self::new(first, other).within("item", what)
    }

    pub fn with_note(self, note: String) -> Self {
        Self { note: Some(note), ..self }
    }

    /// The same difference inside something.
    pub fn within(mut self, name: &str, at: impl Into<Value>) -> Self {
        self.place.insert(0, (name.into(), at.into()));
        self
    }

    /// The same difference under a key: keys of keys are joined by dots.
    fn under(mut self, key: &str) -> Self {
        if let Some((name, Value::String(inner))) = self.place.first_mut()
            && name == "field"
        {
            *inner = format!("{key}.{inner}");
            return self;
        }
        self.within("field", key)
    }

    /// The difference as an object: `place`, both values and a note.
    pub fn to_json(&self) -> Value {
        let place: Map<String, Value> = self.place.iter().cloned().collect();
        json!({ "place": place, "first": self.first, "other": self.other, "note": self.note })
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        for (number, (name, at)) in self.place.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            match (name.as_str(), at) {
                ("field" | "item" | "tensor", Value::String(text)) => write!(f, "{comma}{text}")?,
                ("bits", bits) => write!(f, "{comma}{bits} of 32 bits")?,
                (name, Value::String(text)) => write!(f, "{comma}{name} {text}")?,
                (name, at) => write!(f, "{comma}{name} {at}")?,
            }
        }
        let (first, other) = excerpts(&self.first, &self.other);
        write!(f, ": {first} in the first run, {other} in the other")?;
        self.note.as_ref().map_or(Ok(()), |note| write!(f, " ({note})"))
    }
}

/// Both values as text; long ones from shortly before their first difference.
fn excerpts(first: &Value, other: &Value) -> (String, String) {
    let texts = [first, other].map(|value| match value {
        Value::String(text) if ["there", "missing"].contains(&text.as_str()) => text.clone(),
        value => value.to_string(),
    });
    let common = texts[0].chars().zip(texts[1].chars()).take_while(|(a, b)| a == b).count();
    let excerpt = |text: &String| {
        let skipped = if text.chars().count() > SHOWN { common.saturating_sub(SHOWN / 2) } else { 0 };
        let mut shown: String = text.chars().skip(skipped).take(SHOWN).collect();
        if skipped > 0 {
            shown.insert(0, '…');
        }
        if text.chars().count() > skipped + SHOWN {
            shown.push('…');
        }
        shown
    };
    (excerpt(&texts[0]), excerpt(&texts[1]))
}

/// The first difference between two JSON values.
pub fn first_difference(first: &Value, other: &Value) -> Option<Difference> {
    match (first, other) {
        (Value::Array(a), Value::Array(b)) => {
            let differs = |(at, (a, b))| first_difference(a, b).map(|found| (at, found));
            let inside = a.iter().zip(b).enumerate().find_map(differs);
            let inside = inside.map(|(at, found): (usize, _)| found.within("entry", at));
            inside
                .or_else(|| (a.len() != b.len()).then(|| Difference::new(a.len(), b.len()).under("number of entries")))
        }
        (Value::Object(a), Value::Object(b)) => keys(a, b).into_iter().find_map(|key| match (a.get(key), b.get(key)) {
            (Some(a), Some(b)) => first_difference(a, b).map(|found| named(found, key)),
            (a, _) => Some(Difference::missing(key, a.is_some())),
        }),
        (a, b) => (a != b).then(|| Difference::new(a.clone(), b.clone())),
    }
}

/// The keys of two objects, those of [`FIRST`] before the others.
fn keys<'a>(a: &'a Map<String, Value>, b: &'a Map<String, Value>) -> Vec<&'a str> {
    let mut keys: Vec<&str> =
        a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).map(String::as_str).collect();
    keys.sort_by_key(|key| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
    keys
}

/// Names an entry of a known list after the list.
fn named(mut found: Difference, key: &str) -> Difference {
    let name = match key {
        "steps" => "step",
        "tokens" => "token",
        "logprobs" => "log-prob of token",
        _ => return found.under(key),
    };
    match found.place.first_mut() {
        Some((entry, _)) if entry == "entry" => {
            *entry = name.into();
            found
        }
        _ => found.under(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_named_before_its_consequences() {
        let episode = |token: &str, response: &str| {
            let steps = json!([{ "response": "x", "tokens": ["x"] }, { "response": response, "tokens": ["a", token] }]);
            json!({ "won": response == "a b", "steps": steps })
        };
        let found = first_difference(&episode("b", "a b"), &episode("c", "a c")).expect("a difference");
        assert_eq!(found.to_string(), r#"step 1, token 1: "b" in the first run, "c" in the other"#);
        assert_eq!(found.to_json()["place"], json!({ "step": 1, "token": 1 }));
        assert_eq!(first_difference(&episode("b", "a b"), &episode("b", "a b")), None);
    }

    #[test]
    fn nested_keys_lengths_and_missing_keys_are_named() {
        let text = |a: Value, b: Value| first_difference(&a, &b).expect("a difference").to_string();
        assert_eq!(text(json!({"a": {"b": 1}}), json!({"a": {"b": 2}})), "a.b: 1 in the first run, 2 in the other");
        let steps = text(json!({"steps": [1, 2]}), json!({"steps": [1]}));
        assert_eq!(steps, "steps.number of entries: 2 in the first run, 1 in the other");
        assert_eq!(text(json!({"a": 1}), json!({})), "a: there in the first run, missing in the other");
    }
}
