//! The twl2 grammar of a game: the text of every action, and the rules that texts are derived from.
//!
//! The file consists of `grammar :: """{JSON}""";` and `action Name { template :: "…"; feedback :: "…"; grammar ::
//! """{JSON}"""; }`. All JSON objects make one table, rule name to alternatives; a repeated name replaces the earlier
//! one. `text.rs` parses the content of an alternative.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// One alternative of a rule: used if it is the first whose condition holds.
#[derive(Debug, Clone, Deserialize)]
pub struct Alternative {
    /// A query; an empty one always holds.
    #[serde(default)]
    pub condition: String,
    /// The text that it becomes.
    pub rhs: String,
}

/// The texts of one action.
#[derive(Debug, Clone, Default)]
pub struct ActionText {
    /// The command.
    pub template: String,
    /// The response to the command.
    pub feedback: String,
}

/// A parsed grammar file.
#[derive(Debug, Default)]
pub struct Source {
    /// By the action's name in lower case.
    pub actions: HashMap<String, ActionText>,
    /// By the rule's name.
    pub rules: HashMap<String, Vec<Alternative>>,
}

/// # Errors
/// A syntax error, with its line.
pub fn parse(text: &str) -> Result<Source> {
    let mut reader = Reader { text, at: 0 };
    let mut source = Source::default();
    while let Some(word) = reader.word_or_end()? {
        match word {
            "grammar" => {
                let (block, line) = reader.block()?;
                source.rules.extend(rules(block, line)?);
            }
            "action" => {
                let name = reader.word()?.to_lowercase();
                let mut action = ActionText::default();
                reader.expect("{")?;
                while !reader.takes("}")? {
                    match reader.word()? {
                        "template" => action.template = reader.string()?.to_owned(),
                        "feedback" => action.feedback = reader.string()?.to_owned(),
                        "grammar" => {
                            let (block, line) = reader.block()?;
                            // Comments are blanked but their lines stay, so that errors count lines correctly.
                            let keep = |l: &'_ str| if l.trim_start().starts_with('#') { "" } else { l }.to_owned();
                            let json: Vec<String> = block.split('\n').map(keep).collect();
                            source.rules.extend(rules(&json.join("\n"), line)?);
                        }
                        "pddl" => {
                            reader.block()?;
                        }
                        other => bail!("line {}: `{other}` in action `{name}`", reader.line()),
                    }
                }
                source.actions.insert(name, action);
            }
            other => bail!("line {}: `{other}` where `grammar` or `action` is expected", reader.line()),
        }
    }
    ensure!(!source.rules.is_empty(), "no rules");
    Ok(source)
}

fn rules(json: &str, line: usize) -> Result<HashMap<String, Vec<Alternative>>> {
    serde_json::from_str(json).map_err(|e| {
        // The error's position is relative to the block, and its message ends with it; without this the line would be
        // wrong.
        let what = e.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        anyhow::anyhow!("line {}: {what}", line + e.line().saturating_sub(1))
    })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn line(&self) -> usize {
        self.text[..self.at].matches('\n').count() + 1
    }

    /// Skips white space and comments.
    fn rest(&mut self) -> &'a str {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return trimmed;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn takes(&mut self, token: &str) -> Result<bool> {
        let rest = self.rest();
        ensure!(!rest.is_empty(), "line {}: it ends where `{token}` is expected", self.line());
        let found = rest.starts_with(token);
        self.at += if found { token.len() } else { 0 };
        Ok(found)
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        ensure!(self.takes(token)?, "line {}: `{token}` is expected", self.line());
        Ok(())
    }

    fn word_or_end(&mut self) -> Result<Option<&'a str>> {
        let rest = self.rest();
        if rest.is_empty() {
            return Ok(None);
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '/' | '-'))).unwrap_or(rest.len());
        ensure!(end > 0, "line {}: a name is expected", self.line());
        self.at += end;
        Ok(Some(&rest[..end]))
    }

    fn word(&mut self) -> Result<&'a str> {
        self.word_or_end()?.with_context(|| format!("line {}: it ends where a name is expected", self.line()))
    }

    /// Parses `:: OPEN…CLOSE;` and returns the line where the text begins.
    fn quoted(&mut self, quote: &str) -> Result<(&'a str, usize)> {
        self.expect("::")?;
        self.expect(quote)?;
        let line = self.line();
        let rest = &self.text[self.at..];
        let end = rest.find(quote).with_context(|| format!("line {line}: `{quote}` is never closed"))?;
        self.at += end + quote.len();
        self.expect(";")?;
        Ok((&rest[..end], line))
    }

    fn string(&mut self) -> Result<&'a str> {
        Ok(self.quoted("\"")?.0)
    }

    fn block(&mut self) -> Result<(&'a str, usize)> {
        self.quoted("\"\"\"")
    }
}
