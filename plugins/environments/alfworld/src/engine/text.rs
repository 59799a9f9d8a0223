//! Texts derived from the grammar's rules.
//!
//! A rule's right side consists of literal text, `#name#` (another rule), `{expression}` or `{expression | query}` or
//! `{#name# | query}` (once for each find), and `[{… | query}]` (the finds as a list, with the grammar's own
//! separators). The first alternative whose condition holds is used.
//!
//! Two habits of the original parser show in texts. It eats white space at the beginning of a right side (and a line
//! that begins with `//`). At the first character that it cannot parse it silently drops the rest.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::expression::{Attribute, Expression};
use super::facts::Facts;
use super::grammar::Source;
use super::pddl::{Action, Rules};
use super::query::{Binding, Query, Variable};

/// Deepest nesting of rules; the real grammar has 5.
const DEEPEST: usize = 50;
/// Most symbols of one text, a long one has some 200, …
const MOST_SYMBOLS: usize = 20_000;
/// … and its most bytes.
const LONGEST: usize = 1 << 20;

#[derive(Debug)]
enum Symbol {
    Text(String),
    Rule(String),
    Expression(Expression),
    /// Once for each find of the query, or once if there is none.
    Each(Box<Symbol>, Option<Query>),
    /// The same, as a list.
    List(Box<Symbol>, Option<Query>),
    /// Unreadable text, with the reason. As in the original, it is an error only when it is derived.
    Broken(String),
}

#[derive(Debug)]
struct Alternative {
    condition: Option<Query>,
    symbols: Vec<Symbol>,
}

/// A text to derive.
#[derive(Debug)]
pub struct Template(Vec<Symbol>);

/// Command and feedback of an action, and the variables of its parameters.
#[derive(Debug)]
pub struct ActionTexts {
    /// The player's command.
    pub command: Template,
    /// The response to the command.
    pub feedback: Template,
    /// Variables of the parameters, in order.
    pub variables: Vec<usize>,
}

/// The grammar, ready to derive texts.
#[derive(Debug)]
pub struct Texts {
    rules: HashMap<String, Vec<Alternative>>,
    variables: Vec<Variable>,
    /// Name of each object in texts.
    names: Vec<Option<String>>,
    /// By action.
    pub actions: Vec<ActionTexts>,
    /// The first text.
    pub intro: Template,
}

impl Texts {
    /// # Errors
    /// A query that cannot be read, or an action without texts.
    pub fn new(source: &Source, game: &Rules, names: Vec<Option<String>>) -> Result<Texts> {
        let mut variables = Vec::new();
        let mut rules = HashMap::new();
        for (name, alternatives) in &source.rules {
            let mut read = Vec::new();
            for alternative in alternatives {
                let about = || format!("rule `{name}`");
                let condition = match alternative.condition.as_str() {
                    "" => None,
                    text => Some(Query::parse(text, game, &mut variables).with_context(about)?),
                };
                let symbols = symbols(&alternative.rhs, game, &mut variables).with_context(about)?;
                read.push(Alternative { condition, symbols });
            }
            rules.insert(name.clone(), read);
        }
        let mut actions = Vec::new();
        for action in &game.actions {
            actions.push(action_texts(action, source, game, &mut variables)?);
        }
        ensure!(rules.contains_key("intro"), "no rule `intro`");
        Ok(Texts { rules, variables, names, actions, intro: Template(vec![Symbol::Rule("intro".into())]) })
    }

    /// Derives a text.
    ///
    /// # Errors
    /// A rule that is missing, has no alternative that holds, or calls itself without end.
    pub fn derive(&self, template: &Template, binding: &Binding, facts: &Facts, game: &Rules) -> Result<String> {
        let mut derivation = Derivation { texts: self, facts, game, out: String::new(), left: MOST_SYMBOLS };
        derivation.symbols(&template.0, binding, 0)?;
        Ok(derivation.out)
    }
}

fn action_texts(action: &Action, source: &Source, game: &Rules, variables: &mut Vec<Variable>) -> Result<ActionTexts> {
    let Some(text) = source.actions.get(&action.name) else {
        bail!("action `{}` of the domain has no texts in the grammar", action.name)
    };
    let about = || format!("action `{}`", action.name);
    let command = Template(symbols(&text.template, game, variables).with_context(about)?);
    let feedback = Template(symbols(&text.feedback, game, variables).with_context(about)?);
    let number = |(name, kind): &(String, usize)| {
        let variable = (name.clone(), game.types[*kind].clone());
        variables.iter().position(|v| *v == variable).unwrap_or_else(|| {
            variables.push(variable);
            variables.len() - 1
        })
    };
    let numbers = action.parameters.iter().map(number).collect();
    Ok(ActionTexts { command, feedback, variables: numbers })
}

/// A text that is being derived.
struct Derivation<'a> {
    texts: &'a Texts,
    facts: &'a Facts,
    game: &'a Rules,
    out: String,
    /// Symbols that may still be derived.
    left: usize,
}

impl Derivation<'_> {
    fn symbols(&mut self, symbols: &[Symbol], binding: &Binding, depth: usize) -> Result<()> {
        symbols.iter().try_for_each(|symbol| self.symbol(symbol, binding, depth))
    }

    fn symbol(&mut self, symbol: &Symbol, binding: &Binding, depth: usize) -> Result<()> {
        ensure!(self.left > 0 && self.out.len() < LONGEST, "the grammar's text grows without end");
        self.left -= 1;
        match symbol {
            Symbol::Text(text) => self.out.push_str(text),
            Symbol::Broken(why) => bail!("the grammar has {why}"),
            Symbol::Rule(name) => self.rule(name, binding, depth)?,
            Symbol::Expression(expression) => {
                let text = self.value(expression, binding)?;
                self.out.push_str(&text);
            }
            Symbol::Each(inner, query) => {
                for found in self.find(query.as_ref(), binding)? {
                    self.symbol(inner, &found, depth)?;
                }
            }
            Symbol::List(inner, query) => {
                let all = self.find(query.as_ref(), binding)?;
                if all.is_empty() {
                    self.rule("list_empty", binding, depth)?;
                }
                for (index, found) in all.iter().enumerate() {
                    if index > 0 {
                        let last = index + 1 == all.len();
                        self.rule(if last { "list_last_separator" } else { "list_separator" }, binding, depth)?;
                    }
                    self.symbol(inner, found, depth)?;
                }
            }
        }
        Ok(())
    }

    fn find(&self, query: Option<&Query>, binding: &Binding) -> Result<Vec<Binding>> {
        match query {
            Some(query) => query.find(self.facts, self.game, binding, usize::MAX),
            None => Ok(vec![binding.clone()]),
        }
    }

    fn rule(&mut self, name: &str, binding: &Binding, depth: usize) -> Result<()> {
        ensure!(depth < DEEPEST, "the grammar's rule `{name}` calls itself without end");
        let texts = self.texts;
        let alternatives = texts.rules.get(name).with_context(|| format!("the grammar has no rule `{name}`"))?;
        for alternative in alternatives {
            let holds = match &alternative.condition {
                Some(query) => !query.find(self.facts, self.game, binding, 1)?.is_empty(),
                None => true,
            };
            if holds {
                return self.symbols(&alternative.symbols, binding, depth + 1);
            }
        }
        bail!("no alternative of the grammar's rule `{name}` holds")
    }

    fn value(&self, expression: &Expression, binding: &Binding) -> Result<String> {
        match expression {
            Expression::Text(text) => Ok(text.clone()),
            Expression::Sum(parts) => parts.iter().map(|part| self.value(part, binding)).collect(),
            Expression::Or(choices) => {
                let mut value = String::new();
                for choice in choices {
                    value = self.value(choice, binding)?;
                    if !value.is_empty() {
                        break;
                    }
                }
                Ok(value)
            }
            Expression::Of(name, attribute) => {
                let bound = binding.iter().rev().find(|(variable, _)| self.texts.variables[*variable].0 == *name);
                let (_, object) = bound.with_context(|| format!("the grammar uses `{name}`, which nothing binds"))?;
                let id = &self.game.objects[*object as usize];
                Ok(match attribute {
                    Attribute::Name => self.texts.names[*object as usize].as_ref().unwrap_or(id).clone(),
                    Attribute::Id => id.clone(),
                    Attribute::Type => self.game.types[self.game.type_of[*object as usize]].clone(),
                    Attribute::Definite => "the".to_owned(),
                    Attribute::Indefinite => "a".to_owned(),
                })
            }
        }
    }
}

/// Parses a right side.
fn symbols(text: &str, game: &Rules, variables: &mut Vec<Variable>) -> Result<Vec<Symbol>> {
    let mut rest = text.trim_start();
    while rest.starts_with("//") {
        rest = rest.split_once('\n').map_or("", |(_, after)| after).trim_start();
    }
    let mut symbols = Vec::new();
    loop {
        rest = rest.trim_start_matches('\t');
        match rest.chars().next() {
            Some('[' | '{' | '#') => {
                let Some((symbol, after)) = bracketed(rest, game, variables)? else { break };
                symbols.push(symbol);
                rest = after;
            }
            Some('"') => {
                let Some((literal, after)) = rest[1..].split_once('"') else { break };
                if literal.contains(NOT_LITERAL) {
                    break;
                }
                symbols.push(Symbol::Text(literal.to_owned()));
                rest = after;
            }
            _ => {
                let end = rest.find(NOT_LITERAL).unwrap_or(rest.len());
                if end == 0 {
                    break;
                }
                symbols.push(Symbol::Text(rest[..end].to_owned()));
                rest = &rest[end..];
            }
        }
    }
    Ok(symbols)
}

/// The characters that literal text cannot contain.
const NOT_LITERAL: [char; 10] = [';', '|', '"', '<', '>', '[', ']', '#', '{', '}'];

/// Parses `[{…}]`, `{…}` or `#…#` and returns the rest; `None` if the text starts with none of them.
fn bracketed<'a>(text: &'a str, game: &Rules, variables: &mut Vec<Variable>) -> Result<Option<(Symbol, &'a str)>> {
    if let Some(inside) = text.strip_prefix('[') {
        let inside = inside.trim_start_matches('\t');
        if !inside.starts_with('{') {
            return Ok(None);
        }
        let Some((symbol, after)) = bracketed(inside, game, variables)? else { return Ok(None) };
        let Some(after) = after.trim_start_matches('\t').strip_prefix(']') else { return Ok(None) };
        let Symbol::Each(inner, query) = symbol else { return Ok(None) };
        return Ok(Some((Symbol::List(inner, query), after)));
    }
    if let Some(inside) = text.strip_prefix('#') {
        let in_name = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_()/!<>-,.".contains(c);
        let end = inside.find(|c| !in_name(c)).unwrap_or(inside.len());
        let closed = end > 0 && inside[end..].starts_with('#');
        return Ok(closed.then(|| (Symbol::Rule(inside[..end].to_owned()), &inside[end + 1..])));
    }
    let Some(inside) = text.strip_prefix('{') else { return Ok(None) };
    let inside = inside.trim_start_matches('\t');
    let (inner, rest) = if inside.starts_with('#') {
        let Some(found) = bracketed(inside, game, variables)? else { return Ok(None) };
        found
    } else {
        let end = inside.find(['|', '[', ']', '{', '}', '\n', '<', '>']).unwrap_or(inside.len());
        let symbol = match Expression::parse(&inside[..end]) {
            Ok(expression) => Symbol::Expression(expression),
            Err(error) => Symbol::Broken(format!("`{}`: {error}", &inside[..end])),
        };
        (symbol, &inside[end..])
    };
    let (query, rest) = match rest.trim_start().strip_prefix('|') {
        Some(given) => {
            let given = given.trim_start();
            let end = given.find([';', '|', '{', '}', '\n', '[', ']', '#']).unwrap_or(given.len());
            (Some(Query::parse(&given[..end], game, variables)?), &given[end..])
        }
        None => (None, rest),
    };
    let after = rest.trim_start_matches('\t').strip_prefix('}');
    Ok(after.map(|after| (Symbol::Each(Box::new(inner), query), after)))
}
