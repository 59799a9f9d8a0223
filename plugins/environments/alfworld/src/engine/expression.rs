//! The small expressions between braces: `o.indefinite + ' ' + o.name`, `r.name or r.id`, `o`.

use anyhow::{Result, bail, ensure};

/// An expression of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    /// Text in quotes.
    Text(String),
    /// An attribute of a variable's object; a variable alone is its name.
    Of(String, Attribute),
    /// The concatenation.
    Sum(Vec<Expression>),
    /// The first that is not empty, else the last.
    Or(Vec<Expression>),
}

/// An attribute of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attribute {
    /// The name that texts use.
    Name,
    /// Its name in the game file.
    Id,
    Type,
    /// Its definite article, always `the`.
    Definite,
    /// Its indefinite article, always `a`.
    Indefinite,
}

impl Expression {
    pub fn parse(text: &str) -> Result<Expression> {
        let tokens = tokens(text)?;
        let mut rest = tokens.as_slice();
        let expression = either(&mut rest)?;
        ensure!(rest.is_empty(), "`{}` is not expected", rest[0]);
        Ok(expression)
    }
}

/// Splits into words, signs, and texts with their opening quote.
fn tokens(text: &str) -> Result<Vec<String>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '\'' | '"' => match rest[1..].find(first) {
                Some(at) => {
                    tokens.push(rest[..=at].to_owned());
                    at + 2
                }
                None => bail!("{first} is never closed"),
            },
            '+' | '.' => {
                tokens.push(first.to_string());
                1
            }
            c if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                tokens.push(rest[..end].to_owned());
                end
            }
            other => bail!("`{other}` is not expected"),
        };
        rest = rest[end..].trim_start();
    }
    Ok(tokens)
}

fn takes(rest: &mut &[String], token: &str) -> bool {
    let found = rest.first().is_some_and(|t| t == token);
    if found {
        *rest = &rest[1..];
    }
    found
}

fn either(rest: &mut &[String]) -> Result<Expression> {
    let mut choices = vec![sum(rest)?];
    while takes(rest, "or") {
        choices.push(sum(rest)?);
    }
    Ok(if choices.len() == 1 { choices.remove(0) } else { Expression::Or(choices) })
}

fn sum(rest: &mut &[String]) -> Result<Expression> {
    let mut parts = vec![part(rest)?];
    while takes(rest, "+") {
        parts.push(part(rest)?);
    }
    Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Sum(parts) })
}

fn part(rest: &mut &[String]) -> Result<Expression> {
    let Some((first, after)) = rest.split_first() else { bail!("it ends too early") };
    *rest = after;
    if let Some(text) = first.strip_prefix(['\'', '"']) {
        return Ok(Expression::Text(text.to_owned()));
    }
    ensure!(first.starts_with(|c: char| c.is_alphabetic() || c == '_'), "`{first}` is not expected");
    if !takes(rest, ".") {
        return Ok(Expression::Of(first.clone(), Attribute::Name));
    }
    let Some((attribute, after)) = rest.split_first() else { bail!("it ends too early") };
    *rest = after;
    let attribute = match attribute.as_str() {
        "name" => Attribute::Name,
        "id" => Attribute::Id,
        "type" => Attribute::Type,
        "definite" => Attribute::Definite,
        "indefinite" => Attribute::Indefinite,
        other => bail!("an object has no `{other}`: it has name, id, type, definite, indefinite"),
    };
    Ok(Expression::Of(first.clone(), attribute))
}
