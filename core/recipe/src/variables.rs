//! `${VAR}` and `${VAR:-default}` in a recipe: variables of the environment.
//!
//! A value without quotes is read after its variables are replaced, so that `lr: ${LR}` is a number. `$${` stands for the text
//! `${`, and `${{` is left as it is, since prompt templates write prices so.
//!
//! YAML forbids braces in a value of `{...}` or `[...]`. The reader therefore shields every reference: it moves its characters
//! into a private range before the text is parsed, one for one, so that places in messages stay right.

use std::borrow::Cow;

use anyhow::Result;

use super::location::Location;
use super::secret;
use crate::input_error;

/// Returns the value of a variable that is set.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
pub(super) fn of_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// First character of the range that shields ASCII.
const SHIELD: u32 = 0x10_F000;

/// Hides the references in a YAML text from its parser.
pub(super) fn shield(text: &str) -> Cow<'_, str> {
    let is_shielded = |c: char| (SHIELD..SHIELD + 128).contains(&u32::from(c));
    if !text.contains("${") || text.contains(is_shielded) {
        return text.into();
    }
    let (mut shielded, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        shielded += before;
        let line = from.split('\n').next().unwrap_or_default();
        let length = if is_template(from) { None } else { closing(line) };
        let (reference, behind) = from.split_at(length.unwrap_or(2));
        // In a literal only `${` and `}` are hidden: the YAML parser must see the quotes and backslashes between them.
        let inside = if before.ends_with('$') { 2..reference.len() - 1 } else { 0..0 };
        let hide = |c: char| if c.is_ascii() { char::from_u32(SHIELD + u32::from(c)).unwrap_or(c) } else { c };
        let hidden = |(at, c): (usize, char)| if length.is_some() && !inside.contains(&at) { hide(c) } else { c };
        shielded.extend(reference.char_indices().map(hidden));
        rest = behind;
    }
    (shielded + rest).into()
}

/// The text as it was before [`shield`], which hid something.
pub(super) fn unshield(text: &str) -> String {
    let back = |c: char| u32::from(c).checked_sub(SHIELD).filter(|code| *code < 128).and_then(char::from_u32);
    text.chars().map(|c| back(c).unwrap_or(c)).collect()
}

/// Protects a text of a recipe from the expansion of variables.
pub fn escape(text: &str) -> String {
    let (mut escaped, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        escaped += &rest[..at];
        escaped += if is_template(&rest[at..]) { "${" } else { "$${" };
        rest = &rest[at + 2..];
    }
    escaped + rest
}

/// Replaces the references of a text.
pub(super) fn expand(text: &str, location: &Location, lookup: Lookup) -> Result<String> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if is_template(from) {
            expanded += before;
            expanded += "${";
            rest = &from[2..];
        } else if let Some(literal) = before.strip_suffix('$') {
            expanded += literal;
            expanded += "${";
            rest = &from[2..];
        } else {
            let length = closing(from).ok_or_else(|| {
                input_error!("{location}: `${{` has no closing brace; `$${{` stands for the text `${{`")
            })?;
            expanded += before;
            expanded += &value(&from[2..length - 1], location, lookup)?;
            rest = &from[length..];
        }
    }
    Ok(expanded + rest)
}

/// True for `${{`.
fn is_template(from: &str) -> bool {
    from.starts_with("${{")
}

/// Length of the reference that a text begins with.
fn closing(from: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    while at < from.len() {
        let rest = &from[at..];
        if rest.starts_with("${") {
            (depth, at) = (depth + 1, at + 2);
            continue;
        }
        if rest.starts_with('}') {
            depth -= 1;
        }
        at += rest.chars().next().map_or(1, char::len_utf8);
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The value of a reference without its braces.
fn value(reference: &str, location: &Location, lookup: Lookup) -> Result<String> {
    let (name, default) = reference.split_once(":-").map_or((reference, None), |(name, rest)| (name, Some(rest)));
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(input_error!(
            "{location}: `${{{reference}}}` names no variable of the environment; write the value itself. A recipe takes \
             `${{VAR}}` and `${{VAR:-default}}`, and `$${{` for the text `${{`; a YAML anchor (`&name`, `*name`) repeats a value"
        ));
    }
    let advice = format!(
        "a run saves its recipe, so secrets have no place in it; let the program that needs {name} read the variable itself"
    );
    if secret::is_name(name) {
        return Err(input_error!("{location}: the variable {name} has the name of a secret, and {advice}"));
    }
    match (lookup(name).filter(|value| default.is_none() || !value.is_empty()), default) {
        (Some(value), _) if secret::is_value(&value) => {
            Err(input_error!("{location}: the variable {name} holds a password or a key, and {advice}"))
        }
        (Some(value), _) => Ok(value),
        (None, Some(default)) => expand(default, location, lookup),
        (None, None) => Err(input_error!(
            "{location}: the variable {name} is not set; export it, or give a default: `${{{name}:-value}}`"
        )),
    }
}
