//! Remedies for wrong keys and values. A wrong remedy is worse than none, so each needs a reason: a name of another program, a
//! spelling within a few letters, or the words of a known key.

use serde_json::Value;

use super::foreign::{VALUES, meaning, squeezed};
use super::keys::{Key, alternatives};
use super::tree::Node;

/// Most keys that one hint proposes.
const MOST_PROPOSED: usize = 3;

/// The remedy for an unknown key of a section, whose keys are `known`.
pub(super) fn key_hint(keys: &[Key], section: &[String], unknown: &str, known: &[String]) -> String {
    let dotted = |key: &str| section.iter().map(String::as_str).chain([key]).collect::<Vec<_>>().join(".");
    let plain = unknown.trim_start_matches(['+', '~']);
    if plain.contains('.') {
        return dotted_hint(keys, plain);
    }
    if plain != unknown && !plain.is_empty() {
        return format!("the signs `+` and `~` of Hydra mean nothing here; {}", key_hint(keys, section, plain, known));
    }
    if let Some(key) = known.iter().find(|key| squeezed(key) == squeezed(unknown)) {
        return did_you_mean(&[dotted(key)]);
    }
    let is_key = |last: &str| !named(keys, |known| known == last).is_empty();
    if let Some(meaning) = meaning(unknown, is_key) {
        return meaning.into();
    }
    let mut near: Vec<(usize, &String)> =
        known.iter().map(|key| (distance(key, unknown), key)).filter(|(d, key)| is_near(*d, key, unknown)).collect();
    near.sort();
    if let Some((_, key)) = near.first() {
        return did_you_mean(&[dotted(key)]);
    }
    let elsewhere = named(keys, |last| last == unknown);
    if !elsewhere.is_empty() {
        return did_you_mean(&elsewhere);
    }
    let longer: Vec<String> = known.iter().filter(|key| has_words(key, unknown)).map(|key| dotted(key)).collect();
    if (1..=MOST_PROPOSED).contains(&longer.len()) {
        return did_you_mean(&longer);
    }
    // A short name is near too many keys of other sections.
    let is_long = unknown.len() >= 6;
    let elsewhere =
        named(keys, |last| is_long && is_near(distance(last, unknown), last, unknown) || has_words(last, unknown));
    if (1..=MOST_PROPOSED).contains(&elsewhere.len()) {
        return did_you_mean(&elsewhere);
    }
    format!("known here: {}", alternatives(known.iter().map(|key| format!("`{key}`")).collect()))
}

/// The remedy for a key with dots, as other programs and `--set` write it.
fn dotted_hint(keys: &[Key], unknown: &str) -> String {
    let parts: Vec<&str> = unknown.split('.').collect();
    let nested = |path: &str| match path.split_once('.') {
        Some((section, key)) => format!("`{section}:` with `{}:` below it", key.replace('.', ": {")),
        None => format!("`{path}:`"),
    };
    if let Some(key) = keys.iter().find(|key| key.path == unknown) {
        return format!("in a file a key is inside its section: write {}", nested(&key.path));
    }
    let sections = "in a file a key is inside its section";
    let last = parts.last().copied().unwrap_or_default();
    let is_key = |last: &str| !named(keys, |key| key == last).is_empty();
    let found = meaning(unknown, is_key).or_else(|| meaning(parts[0], is_key).filter(|_| !is_key(last)));
    if let Some(meaning) = found {
        return format!("{sections}, and {meaning}");
    }
    match named(keys, |key| key == last) {
        found if found.is_empty() => format!("{sections}, such as `update:` with `lr:` below it"),
        found => format!("{sections}; {}", did_you_mean(&found)),
    }
}

/// The paths of the keys whose last part is wanted.
fn named(keys: &[Key], wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let last = |path: &str| path.rsplit('.').next().is_some_and(&wanted);
    keys.iter().filter(|key| last(&key.path)).map(|key| key.path.clone()).take(MOST_PROPOSED + 1).collect()
}

fn did_you_mean(paths: &[String]) -> String {
    let paths = paths.iter().take(MOST_PROPOSED).map(|path| format!("`{path}`")).collect();
    format!("did you mean {}?", alternatives(paths))
}

fn distance(a: &str, b: &str) -> usize {
    strsim::damerau_levenshtein(a, b)
}

/// True for a misspelling: one letter, and another for every five.
fn is_near(distance: usize, key: &str, unknown: &str) -> bool {
    let length = key.chars().count().min(unknown.chars().count());
    distance <= 1 + length / 5 && distance < length
}

/// True if a key has all words of a shorter name, which are more than a syllable.
fn has_words(key: &str, name: &str) -> bool {
    let words = |text: &str| text.split('_').map(str::to_string).collect::<Vec<_>>();
    let own = words(key);
    name.len() >= 4 && words(name).iter().all(|word| own.contains(word))
}

/// The remedy for a wrong value of a key; empty where there is none.
pub(super) fn value_hint(keys: &[Key], key: &Key, wrong: &Node) -> String {
    let hint = match wrong {
        Node::Scalar(Value::String(text)) => text_hint(keys, key, text),
        Node::Scalar(Value::Number(number)) => number_hint(keys, key, number),
        Node::Scalar(Value::Bool(on)) => switch_hint(keys, key, *on),
        Node::Scalar(_) => section_keys(keys, key).filter(|_| key.default.is_none()).or_else(|| Some(no_value(key))),
        Node::List(items) if takes_one(&key.kind) => Some(match items.len() {
            1 => "write the value without brackets".into(),
            _ => "one run has one value; the `grid` of a sweep file (`nestor sweep`) takes several".into(),
        }),
        Node::List(_) => section_keys(keys, key),
        Node::Map(map) if takes_one(&key.kind) => {
            let inner = map.iter().map(|entry| format!("`{}`", entry.key)).take(MOST_PROPOSED).collect();
            Some(format!("write one value in place of {}", alternatives(inner))).filter(|_| !map.is_empty())
        }
        Node::Map(_) => None,
    };
    hint.map_or(String::new(), |hint| format!("; {hint}"))
}

/// The remedy for a key without a value.
fn no_value(key: &Key) -> String {
    match key.default.as_deref() {
        None => "this key needs a value".into(),
        Some("none") => "leave the key out, or write `null`, for none".into(),
        Some("see below") => "leave the key out for its defaults".into(),
        Some(default) => format!("leave the key out for its default, {default}"),
    }
}

/// The remedy for `true` or `false` in place of a section.
fn switch_hint(keys: &[Key], key: &Key, on: bool) -> Option<String> {
    if !key.kind.contains("section") {
        let meant = if on { "all" } else { "none" };
        return quoted(&key.kind).contains(&meant.to_string()).then(|| format!("did you mean `{meant}`?"));
    }
    let needs_keys = inner(keys, key).any(|inner| inner.default.is_none());
    match (on, needs_keys) {
        (true, true) => section_keys(keys, key),
        (true, false) => Some("write `{}` for all its defaults".into()),
        (false, _) if key.default.is_some() => Some("leave the section out".into()),
        (false, _) => section_keys(keys, key),
    }
}

/// True for keys that take text, a number or a switch.
fn takes_one(kind: &str) -> bool {
    !(kind.contains("list") || kind.contains("section") || kind.contains("map"))
}

fn text_hint(keys: &[Key], key: &Key, text: &str) -> Option<String> {
    let kind = &key.kind;
    let options = quoted(kind);
    let lower = text.trim().trim_start_matches("torch.").to_lowercase();
    let known = |option: &&str| options.iter().any(|own| own == option);
    let synonym = VALUES.iter().find(|(other, _)| *other == lower).map(|(_, own)| *own).filter(known);
    let nearest = options.iter().min_by_key(|option| distance(option, &lower));
    let near = nearest.filter(|option| is_near(distance(option, &lower), option, &lower));
    if kind.starts_with("a list") && options.contains(&lower) {
        return Some(format!("write a list, such as `[{lower}]`"));
    }
    if let Some(option) = synonym.or(near.map(String::as_str)) {
        return Some(format!("did you mean `{option}`?"));
    }
    if ["none", "null", "nil", "~"].contains(&lower.as_str()) {
        return Some(no_value(key));
    }
    if options == ["true", "false"] {
        let switch = [("yes", true), ("on", true), ("1", true), ("no", false), ("off", false), ("0", false)];
        let meant = switch.iter().find(|(word, _)| *word == lower).map(|(_, meant)| meant);
        return meant.map(|meant| format!("write `{meant}`"));
    }
    if kind.contains("number") {
        return number_text(&lower, kind);
    }
    if kind.contains("list") && !kind.contains("section") {
        return Some(
            default_of(key)
                .map_or("write a list, such as `[a, b]`".into(), |list| format!("write a list, such as {list}")),
        );
    }
    section_with(keys, key, text, true)
}

/// The remedy for a text in place of a number.
fn number_text(text: &str, kind: &str) -> Option<String> {
    let whole = kind.contains("whole");
    let form = |number: f64| match whole {
        true => (number.fract() == 0.0 && number.abs() < 1e15).then(|| format!("{number:.0}")),
        false => Some(shown(number)),
    };
    let digits: String = text.chars().filter(|c| !['_', ',', ' '].contains(c)).collect();
    if let Ok(number) = text.parse::<f64>()
        && number.is_finite()
    {
        return form(number).map(|number| match number == text {
            true => "write the number without quotes".into(),
            false => format!("write {number}, without quotes"),
        });
    }
    if let Some(percent) = digits.strip_suffix('%').and_then(|number| number.parse::<f64>().ok()).filter(|_| !whole) {
        return Some(format!("write a share of 1 in place of a percentage: {}", shown(percent / 100.0)));
    }
    let grouped = text.contains('_') || text.split(',').skip(1).all(|group| group.len() == 3);
    if let Some(number) = digits.parse::<f64>().ok().filter(|number| number.is_finite() && grouped) {
        return form(number).map(|number| format!("write {number}"));
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '-') {
        return Some("write one plain number, without a unit or a formula".into());
    }
    None
}

/// A number as people write it.
fn shown(number: f64) -> String {
    let tidy = format!("{number:.12}").parse().unwrap_or(number);
    match tidy {
        x if x != 0.0 && !(1e-3..1e6).contains(&f64::abs(x)) => format!("{number:e}"),
        x => format!("{x}"),
    }
}

fn number_hint(keys: &[Key], key: &Key, number: &serde_json::Number) -> Option<String> {
    let value = number.as_f64()?;
    if key.kind.contains("whole number") {
        let whole = number.is_f64() && value.fract() == 0.0 && (0.0..1e15).contains(&value);
        return whole.then(|| format!("write {value:.0}, without a point or an exponent"));
    }
    if quoted(&key.kind) == ["true", "false"] {
        return [(0.0, "false"), (1.0, "true")]
            .iter()
            .find(|(n, _)| *n == value)
            .map(|(_, meant)| format!("write `{meant}`"));
    }
    if key.kind == "text" {
        return Some("write it in quotes".into());
    }
    if key.kind.contains("list") {
        return default_of(key).map(|list| format!("write a list, such as {list}"));
    }
    section_with(keys, key, &number.to_string(), false)
}

/// The default of a key that takes a list.
fn default_of(key: &Key) -> Option<&String> {
    key.default.as_ref().filter(|default| default.starts_with("`["))
}

/// The keys of a section.
fn inner<'a>(keys: &'a [Key], section: &'a Key) -> impl Iterator<Item = &'a Key> {
    let name = |key: &'a Key| key.path.strip_prefix(&section.path)?.strip_prefix('.');
    keys.iter().filter(move |key| name(key).is_some_and(|rest| !rest.contains(['.', '['])))
}

/// The remedy for one value in place of a section: the section with this value, if it is clear which key takes it.
fn section_with(keys: &[Key], key: &Key, value: &str, is_text: bool) -> Option<String> {
    let takes = |inner: &&Key| if is_text { inner.kind == "text" } else { inner.kind.contains("number") };
    let found = inner(keys, key).find(|inner| inner.default.is_none()).or_else(|| inner(keys, key).next());
    let last = |path: &'_ str| path.rsplit('.').next().unwrap_or_default().to_string();
    let Some(found) = found.filter(takes) else { return section_keys(keys, key) };
    let others = inner(keys, key).filter(|inner| inner.default.is_none() && inner.path != found.path);
    let others: String = others.map(|inner| format!(", {}: …", last(&inner.path))).collect();
    Some(format!("write `{}: {{{}: {value}{others}}}`", last(&key.path), last(&found.path)))
}

/// The names of a section's keys.
fn section_keys(keys: &[Key], key: &Key) -> Option<String> {
    const MOST: usize = 8;
    let names: Vec<&str> = inner(keys, key).filter_map(|key| key.path.rsplit('.').next()).collect();
    let shown = names.iter().take(MOST).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = if names.len() > MOST { ", …" } else { "" };
    (!names.is_empty()).then(|| format!("its keys are {shown}{more}"))
}

/// Extracts the names in backticks.
pub(super) fn quoted(message: &str) -> Vec<String> {
    message.split('`').skip(1).step_by(2).map(str::to_string).collect()
}
