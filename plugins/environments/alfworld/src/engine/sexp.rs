//! S-expressions, parsed as Fast Downward parses PDDL: lower case, `;` begins a comment, and words end at white space,
//! parentheses and before `?`. A comma is part of a word: `(?l - location, ?r - receptacle)` gives `?l` the type
//! `location,`, which no object has. ALFWorld's domain has such a list, and its game plays accordingly.

use anyhow::{Result, bail, ensure};

/// Deepest nesting; real files stay under 20.
const DEEPEST: usize = 100;

/// A word or a list, with its line (from 1).
#[derive(Debug, Clone)]
pub enum Sexp<'a> {
    Word(&'a str, usize),
    List(Vec<Sexp<'a>>, usize),
}

impl<'a> Sexp<'a> {
    /// Returns the line where it starts.
    pub fn line(&self) -> usize {
        match self {
            Sexp::Word(_, line) | Sexp::List(_, line) => *line,
        }
    }

    /// Returns the word, or an error for a list.
    pub fn word(&self) -> Result<&'a str> {
        match self {
            Sexp::Word(word, _) => Ok(word),
            Sexp::List(_, line) => bail!("line {line}: a list where a word is expected"),
        }
    }

    /// Returns the items, or an error for a word.
    pub fn items(&self) -> Result<&[Sexp<'a>]> {
        match self {
            Sexp::List(items, _) => Ok(items),
            Sexp::Word(word, line) => bail!("line {line}: `{word}` where a list is expected"),
        }
    }

    /// Returns the first word of a list and the items after it.
    pub fn head(&self) -> Result<(&'a str, &[Sexp<'a>])> {
        match self.items()? {
            [first, rest @ ..] => Ok((first.word()?, rest)),
            [] => bail!("line {}: an empty list", self.line()),
        }
    }
}

/// Parses one list. `text` must be in lower case already.
///
/// # Errors
/// A syntax error, with its line.
pub fn read(text: &str) -> Result<Sexp<'_>> {
    let mut open: Vec<(Vec<Sexp>, usize)> = Vec::new();
    let mut whole = None;
    for (index, line) in text.split('\n').enumerate() {
        let number = index + 1;
        let line = line.split(';').next().unwrap_or_default();
        ensure!(line.is_ascii(), "line {number}: a character that is not ASCII outside a comment");
        let mut rest = line;
        loop {
            rest = rest.trim_start();
            let Some(first) = rest.chars().next() else { break };
            ensure!(whole.is_none(), "line {number}: text after the end of the definition");
            match first {
                '(' => {
                    ensure!(open.len() < DEEPEST, "line {number}: lists nested deeper than {DEEPEST}");
                    open.push((Vec::new(), number));
                    rest = &rest[1..];
                }
                ')' => {
                    let Some((items, line)) = open.pop() else { bail!("line {number}: `)` without `(`") };
                    let list = Sexp::List(items, line);
                    match open.last_mut() {
                        Some((outer, _)) => outer.push(list),
                        None => whole = Some(list),
                    }
                    rest = &rest[1..];
                }
                _ => {
                    let ends = |c: char| c.is_whitespace() || matches!(c, '(' | ')' | '?');
                    // The first character belongs to the word even if it is `?`.
                    let end = rest[1..].find(ends).map_or(rest.len(), |at| at + 1);
                    let Some((items, _)) = open.last_mut() else {
                        bail!("line {number}: `{}` where `(` is expected", &rest[..end])
                    };
                    items.push(Sexp::Word(&rest[..end], number));
                    rest = &rest[end..];
                }
            }
        }
    }
    if let Some((_, line)) = open.last() {
        bail!("line {line}: `(` is never closed");
    }
    whole.ok_or_else(|| anyhow::anyhow!("nothing is defined"))
}
