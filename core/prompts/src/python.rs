//! Reads the string constants of a Python file (`NAME = """…"""`) without running it.
//!
//! A constant is an unindented assignment whose value consists of string literals alone, in parentheses or not. All other
//! statements are skipped.

use anyhow::Result;
use nestor_recipe::input_error;

/// A string constant: its name and its value.
pub type Constant = (String, String);

/// The string constants of a file, in order; a name assigned twice keeps its last value. Errors name `file` and the line.
pub fn constants(file: &str, source: &str) -> Result<Vec<Constant>> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source).replace("\r\n", "\n").replace('\r', "\n");
    let mut lexer = Lexer { file, rest: &source, line: 1, depth: 0, indented: false };
    let mut found: Vec<Constant> = Vec::new();
    while !lexer.rest.is_empty() {
        let indented = lexer.indented;
        let tokens = lexer.statement()?;
        if let Some((name, value)) = constant(&tokens).filter(|_| !indented) {
            found.retain(|(other, _)| *other != name);
            found.push((name, value));
        }
    }
    Ok(found)
}

#[derive(Debug, PartialEq)]
enum Token {
    /// A string literal's value.
    Text(String),
    /// A name, a number, or a literal that is no plain text (f"…", b"…").
    Word(String),
    Sign(char),
}

/// The constant that a statement assigns: `NAME = "…"` or `NAME: type = "…"`.
fn constant(tokens: &[Token]) -> Option<Constant> {
    let (Token::Word(name), rest) = tokens.split_first()? else { return None };
    let rest = match rest {
        [Token::Sign(':'), Token::Word(_), rest @ ..] => rest,
        rest => rest,
    };
    let mut value = rest.strip_prefix(&[Token::Sign('=')])?;
    while let [Token::Sign('('), inner @ .., Token::Sign(')')] = value {
        value = inner;
    }
    let texts = value.iter().map(|token| match token {
        Token::Text(text) => Some(text.as_str()),
        _ => None,
    });
    Some((name.clone(), texts.collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty())?.concat()))
}

struct Lexer<'a> {
    file: &'a str,
    rest: &'a str,
    line: usize,
    /// Open brackets; a line ends a statement only outside of them.
    depth: usize,
    /// True in a line that begins with a space.
    indented: bool,
}

impl<'a> Lexer<'a> {
    /// The tokens up to the end of a statement.
    fn statement(&mut self) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        while let Some(c) = self.rest.chars().next() {
            match c {
                ';' if self.depth == 0 => {
                    self.take(1);
                    break;
                }
                '\n' if self.depth == 0 => {
                    self.take(1);
                    self.indented = self.rest.starts_with([' ', '\t']);
                    break;
                }
                '#' => drop(self.take(self.rest.find('\n').unwrap_or(self.rest.len()))),
                '\\' if self.rest.starts_with("\\\n") => drop(self.take(2)),
                _ if c.is_whitespace() => drop(self.take(c.len_utf8())),
                '"' | '\'' => tokens.push(self.literal("")?),
                _ if c.is_alphanumeric() || c == '_' => {
                    let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
                    let word = self.take(end);
                    let prefix = word.to_ascii_lowercase();
                    let prefixed = ["r", "u", "b", "f", "rb", "br", "rf", "fr"].contains(&prefix.as_str());
                    tokens.push(match self.rest.starts_with(['"', '\'']) && prefixed {
                        true => self.literal(&prefix)?,
                        false => Token::Word(word.into()),
                    });
                }
                _ => {
                    match c {
                        '(' | '[' | '{' => self.depth += 1,
                        ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
                        _ => {}
                    }
                    self.take(c.len_utf8());
                    tokens.push(Token::Sign(c));
                }
            }
        }
        Ok(tokens)
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    /// A literal, whose prefix is read already.
    fn literal(&mut self, prefix: &str) -> Result<Token> {
        let line = self.line;
        let quote = if ["\"\"\"", "'''"].iter().any(|q| self.rest.starts_with(q)) { 3 } else { 1 };
        let quote = self.take(quote);
        let open = || input_error!("{}:{line}: this string is not closed", self.file);
        let mut end = 0;
        loop {
            let rest = &self.rest[end..];
            if rest.starts_with(quote) {
                break;
            }
            let mut chars = rest.chars();
            end += match chars.next() {
                Some('\\') => 1 + chars.next().ok_or_else(open)?.len_utf8(),
                Some('\n') if quote.len() == 1 => return Err(open()),
                Some(c) => c.len_utf8(),
                None => return Err(open()),
            };
        }
        let body = self.take(end);
        self.take(quote.len());
        Ok(match prefix {
            "" | "u" => Token::Text(
                unescape(body).map_err(|problem| input_error!("{}:{line}: in this string, {problem}", self.file))?,
            ),
            "r" => Token::Text(body.into()),
            _ => Token::Word(body.into()),
        })
    }
}

/// The value of a literal's body, by the rules of Python's `str` literals.
fn unescape(body: &str) -> Result<String, String> {
    let mut value = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        value.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        let Some(c) = chars.next() else { break };
        rest = chars.as_str();
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => value.push(c),
            'a' => value.push('\u{7}'),
            'b' => value.push('\u{8}'),
            'f' => value.push('\u{c}'),
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            'v' => value.push('\u{b}'),
            '0'..='7' => {
                let digits = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                value.push(character(&format!("{c}{}", &rest[..digits]), 8)?);
                rest = &rest[digits..];
            }
            'x' | 'u' | 'U' => {
                let length = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits = rest.get(..length).ok_or_else(|| format!("the escape \\{c} needs {length} digits"))?;
                value.push(character(digits, 16)?);
                rest = &rest[length..];
            }
            'N' => return Err("the escape \\N{…} is not supported: write the character itself".into()),
            other => value.extend(['\\', other]), // as Python does, with a warning
        }
    }
    value.push_str(rest);
    Ok(value)
}

fn character(digits: &str, radix: u32) -> Result<char, String> {
    let code = u32::from_str_radix(digits, radix).ok().filter(|_| digits.bytes().all(|b| b.is_ascii_alphanumeric()));
    code.and_then(char::from_u32).ok_or_else(|| format!("an escape with the digits `{digits}` names no character"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those that CPython prints for this file.
    #[test]
    fn constants_are_those_that_python_reads() {
        let source = r##"# A = "no"
"""Doc with X = "no" in it."""
import os
A = """
two "quoted" {x}\
 joined\n"""   # a comment
B: str = ('one' "two"
     r'\three' u"\x41\u00e9\U0001F600\101\q\'")  ; C = '''it's'''
D = f"{A}"
E = b"bytes"
F = ["list"]
G = "a" + "b"
def f():
    H = "indented"
    return {"I": "=", "J": (1,
K = 2)}
L = "first"; L = "last"
M = "a\
b"
N == "no"
"##;
        let found = constants("x.py", source).unwrap();
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("A", "\ntwo \"quoted\" {x} joined\n"),
            ("B", "onetwo\\threeAé😀A\\q'"),
            ("C", "it's"),
            ("L", "last"),
            ("M", "ab"),
        ];
        assert_eq!(found, expected);
        assert_eq!(constants("x.py", "\u{feff}A = '''x\r\ny'''\r\n").unwrap(), [("A".into(), "x\ny".into())]);
    }

    #[test]
    fn a_bad_string_is_named_with_its_line() {
        for (source, part) in [
            ("\nA = 'x\n'", "x.py:2: this string is not closed"),
            ("A = '''x", "x.py:1: this string is not closed"),
            ("A = 'x\\", "not closed"),
            ("A = '\\N{BULLET}'", "\\N{…} is not supported"),
            ("A = '\\ud800'", "`d800` names no character"),
            ("A = '\\x4'", "needs 2 digits"),
            ("A = '\\x+1'", "`+1` names no character"),
            ("A = '\\u12é'", "`12é` names no character"),
        ] {
            let error = constants("x.py", source).unwrap_err().to_string();
            assert!(error.contains(part), "{source:?}: {error}");
        }
    }
}
