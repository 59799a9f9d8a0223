//! Turns a tree into a struct such as [`Recipe`](super::Recipe): unknown keys, wrong types and values out of range, each
//! with its location.

use anyhow::Result;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::hints::{key_hint, quoted, value_hint};
use super::keys::{Key, keys_of};
use super::location::Location;
use super::secret;
use super::tree::Node;
use super::*;

/// Builds the struct, or explains all bad keys: those of the wrong form, or else those out of range. Errors about a missing
/// key name `start`.
pub(super) fn read<T, P>(root: &Node, start: &Location, problems: impl Fn(&T) -> P) -> Result<T>
where
    T: DeserializeOwned + JsonSchema,
    P: IntoIterator<Item = Problem>,
{
    let value: T = build(root, start)?;
    let located = problems(&value).into_iter().map(|(path, message)| {
        let parts: Vec<String> = path.split('.').map(str::to_string).collect();
        (locate(root, start, &parts), format!("`{path}` {message}"))
    });
    in_order(located.collect(), start).map_or(Ok(value), Err)
}

/// One error for problems with their locations, in the order of the file.
fn in_order(mut problems: Vec<(Location, String)>, start: &Location) -> Option<anyhow::Error> {
    problems.sort_by_key(|(location, _)| location.order(start));
    all_of(problems.into_iter().map(|(location, message)| input_error!("{location}: {message}")).collect())
}

/// Builds the struct, or explains every key of the wrong form. serde stops at the first, so each is mended in a copy until
/// serde finds no other.
fn build<T: DeserializeOwned + JsonSchema>(root: &Node, start: &Location) -> Result<T> {
    let mut json = root.to_json();
    let first = match serde_path_to_error::deserialize(json.clone()) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let keys = keys_of(&schemars::schema_for!(T).to_value());
    let (mut problems, mut mended) = (Vec::new(), Mended::default());
    let mut next = Some(first);
    while let Some(error) = next {
        let path: Vec<String> = error.path().iter().filter_map(name).collect();
        let message = error.into_inner().to_string();
        let (reported, again) = mended.mend(&mut json, &keys, &path, &message);
        if reported {
            problems.push(explain(root, start, &keys, path, &message));
        }
        next = if again { serde_path_to_error::deserialize::<_, T>(json.clone()).err() } else { None };
    }
    Err(in_order(problems, start).unwrap_or_else(|| input_error!("{start}: some keys have the wrong form")))
}

/// Most bad keys of one recipe that are looked for.
const MOST_FORMS: usize = 200;

/// Keys that were mended in a copy of a recipe.
#[derive(Default)]
struct Mended {
    /// The sections that held an unknown key, which may be the misspelt name of one that is missing.
    misspelt: Vec<Vec<String>>,
    /// The keys that were filled in.
    filled: Vec<Vec<String>>,
    count: usize,
}

impl Mended {
    /// Mends the key that serde complained of. Returns whether it is worth a message, and whether to look for the next one.
    fn mend(&mut self, json: &mut Value, keys: &[Key], path: &[String], message: &str) -> (bool, bool) {
        let mut path = path.to_vec();
        let named = quoted(message).into_iter().next().unwrap_or_default();
        let (unknown, missing) = (message.starts_with("unknown field"), message.starts_with("missing field"));
        if missing || unknown && path.last() != Some(&named) {
            path.push(named);
        }
        // An item of a list is mended with its list.
        let last = path.iter().rposition(|part| part.parse::<usize>().is_err()).unwrap_or(0);
        path.truncate(last + 1);
        let section = path[..path.len().saturating_sub(1)].to_vec();
        let known = keys.iter().find(|key| key.path == path.join("."));
        let below_filled = self.filled.iter().any(|filled| section.starts_with(filled));
        let reported = !(missing && (below_filled || self.misspelt.contains(&section)));
        let again = self.filled.contains(&path);
        self.count += 1;
        let parent = section.iter().try_fold(json, |json, part| json.get_mut(part)).and_then(Value::as_object_mut);
        let (Some(parent), Some(key), false) = (parent, path.last(), again || self.count >= MOST_FORMS) else {
            return (reported && !again, false);
        };
        if unknown {
            self.misspelt.push(section);
        }
        match known.filter(|known| known.default.is_none()).and_then(|known| example(&known.kind)) {
            Some(example) => parent.insert(key.clone(), example),
            None => parent.remove(key),
        };
        self.filled.push(path);
        (reported, true)
    }
}

/// A value of a kind, as [`Key::kind`] words it.
fn example(kind: &str) -> Option<Value> {
    match kind {
        "a section" | "a map" => Some(Value::Object(Default::default())),
        "text" => Some("text".into()),
        "`true` or `false`" => Some(false.into()),
        _ if kind.starts_with('`') => kind.split('`').nth(1).map(Value::from),
        _ if kind.contains("number") => Some(1.into()),
        _ => None,
    }
}

fn name(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// The location of the deepest part of `path` that the document has.
fn locate(root: &Node, start: &Location, path: &[String]) -> Location {
    let mut location = start;
    let mut node = root;
    for part in path {
        let next = match node {
            Node::Map(map) => map.iter().find(|e| e.key == *part).map(|e| (&e.location, &e.node)),
            Node::List(items) => {
                part.parse().ok().and_then(|i: usize| items.get(i)).map(|(location, node)| (location, node))
            }
            Node::Scalar(_) => None,
        };
        let Some(next) = next else { break };
        (location, node) = next;
    }
    location.clone()
}

/// Turns serde's message about the value at `path` into its location and one that names key and remedy.
fn explain(root: &Node, start: &Location, keys: &[Key], mut path: Vec<String>, message: &str) -> (Location, String) {
    if message.starts_with("unknown field") {
        let mut names = quoted(message);
        let unknown = if names.is_empty() { String::new() } else { names.remove(0) };
        if path.last() != Some(&unknown) {
            path.push(unknown.clone());
        }
        let location = locate(root, start, &path);
        let hint = key_hint(keys, &path[..path.len() - 1], &unknown, &names);
        return (location, format!("unknown key `{}`; {hint}", path.join(".")));
    }
    let location = locate(root, start, &path);
    if message.starts_with("missing field") {
        path.extend(quoted(message).into_iter().next());
        let dotted = path.join(".");
        let takes = keys
            .iter()
            .find(|k| k.path == dotted)
            .map_or(String::new(), |k| format!(" ({})", [k.kind.as_str(), &k.doc].join(": ").trim_end_matches(": ")));
        return (location, format!("the key `{dotted}` is missing{takes}"));
    }
    let dotted = path.join(".");
    let found = describe(root, &path);
    let key = path.iter().rposition(|part| part.parse::<usize>().is_err()).map(|last| path[..=last].join("."));
    let text = match keys.iter().find(|k| Some(&k.path) == key.as_ref()) {
        Some(key) => {
            let hint = node_at(root, &path).map_or(String::new(), |node| value_hint(keys, key, node));
            match key.path == dotted {
                true => format!("`{dotted}` must be {}, but is {found}{hint}", key.kind),
                false => format!("`{}` must be {}; item {dotted} is {found}{hint}", key.path, key.kind),
            }
        }
        None => format!("`{dotted}`: {message}"),
    };
    (location, text)
}

/// The value at `path`.
fn node_at<'a>(root: &'a Node, path: &[String]) -> Option<&'a Node> {
    path.iter().try_fold(root, |node, part| match node {
        Node::Map(map) => map.iter().find(|e| e.key == *part).map(|e| &e.node),
        Node::List(items) => part.parse().ok().and_then(|i: usize| items.get(i)).map(|(_, node)| node),
        Node::Scalar(_) => None,
    })
}

/// Describes the value at `path`.
fn describe(root: &Node, path: &[String]) -> String {
    match node_at(root, path) {
        Some(Node::Scalar(_)) if path.last().is_some_and(|key| secret::is_name(key)) => {
            "a value that is not shown".into()
        }
        Some(Node::Scalar(serde_json::Value::String(text))) if text.chars().count() > 80 => {
            format!("a text that begins \"{}\"", text.chars().take(60).collect::<String>())
        }
        // YAML reads it as text.
        Some(Node::Scalar(serde_json::Value::String(text)))
            if text.bytes().all(|byte| byte.is_ascii_digit())
                && text.parse::<u128>().is_ok_and(|n| n > u64::MAX.into()) =>
        {
            format!("{text}, more than 64 bits hold")
        }
        Some(Node::Scalar(serde_json::Value::String(text))) => format!("the text \"{text}\""),
        Some(Node::Scalar(serde_json::Value::Null)) | None => "empty".into(),
        Some(Node::Scalar(value)) => value.to_string(),
        Some(Node::List(items)) => format!("a list of {}", items.len()),
        Some(Node::Map(_)) => "a section".into(),
    }
}
