//! Queries of the grammar: `atlocation(a:agent, l:location) & not_inreceptacle(o:object, r:receptacle)`.
//!
//! The conditions are joined from left to right, each over its facts in the order of their ids, which gives the order
//! of lists. `not_p` finds only facts that an effect made false. A variable is its name and its type together; two
//! variables are never the same object.

use anyhow::{Context, Result, bail, ensure};

use super::facts::{Facts, Object};
use super::pddl::Rules;

/// A variable of the grammar: name and type.
pub type Variable = (String, String);

/// The objects of variables, in the order in which they were bound.
pub type Binding = Vec<(usize, Object)>;

#[derive(Debug, Clone)]
pub struct Query(Vec<Condition>);

#[derive(Debug, Clone)]
struct Condition {
    /// `None` if the game has no such facts: then nothing is found.
    predicate: Option<usize>,
    holds: bool,
    /// Number of the variable and of its type.
    arguments: Vec<(usize, usize)>,
}

/// Most facts that one query examines; real games stay under 10,000.
const MOST_WORK: usize = 100_000;

impl Query {
    /// Parses a query and adds its new variables.
    pub fn parse(text: &str, rules: &Rules, variables: &mut Vec<Variable>) -> Result<Query> {
        let one = |part: &str| Condition::parse(part.trim(), rules, variables);
        Ok(Query(text.split('&').map(one).collect::<Result<_>>().with_context(|| format!("query `{text}`"))?))
    }

    /// Returns every binding that makes the query hold, in order; each begins with `bound`. At most `limit`.
    pub fn find(&self, facts: &Facts, rules: &Rules, bound: &Binding, limit: usize) -> Result<Vec<Binding>> {
        let mut found = Vec::new();
        let mut work = 0;
        join(
            &self.0,
            facts,
            rules,
            &mut bound.clone(),
            &mut |binding| {
                found.push(binding.clone());
                found.len() < limit
            },
            &mut work,
        );
        ensure!(work <= MOST_WORK, "a query of the grammar requires more than {MOST_WORK} facts to be examined");
        Ok(found)
    }
}

impl Condition {
    fn parse(text: &str, rules: &Rules, variables: &mut Vec<Variable>) -> Result<Condition> {
        let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '\'' | '-');
        let Some((name, list)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) else {
            bail!("`{text}` is not of the form `predicate(variable:type, …)`")
        };
        let name = name.trim();
        ensure!(!name.is_empty() && name.chars().all(word), "`{name}` is not a name");
        let mut arguments = Vec::new();
        for argument in list.split(',').map(str::trim).filter(|a| !a.is_empty()) {
            let (variable, kind) = match argument.split_once(':') {
                Some((variable, kind)) => (variable.trim(), kind.trim()),
                // Without a type, the name less its digits is the type.
                None => (argument, argument.trim_end_matches(|c: char| c.is_ascii_digit() || c == '\'')),
            };
            ensure!(
                variable.chars().all(word) && kind.chars().all(word),
                "`{argument}` is not of the form `name:type`"
            );
            let known = variables.iter().position(|(v, k)| v == variable && k == kind);
            let number = known.unwrap_or_else(|| {
                variables.push((variable.to_owned(), kind.to_owned()));
                variables.len() - 1
            });
            // A type that the game does not have holds nothing; its number is past the last.
            let kind = rules.types.iter().position(|t| t == kind).unwrap_or(rules.types.len());
            arguments.push((number, kind));
        }
        let named = |name: &str| rules.predicates.get(name).copied().filter(|&p| rules.arity[p] == arguments.len());
        let (predicate, holds) = match (rules.predicates.contains_key(name), name.strip_prefix("not_")) {
            (false, Some(positive)) => (named(positive), false),
            _ => (named(name), true),
        };
        Ok(Condition { predicate, holds, arguments })
    }
}

/// Returns true to continue.
fn join(
    conditions: &[Condition],
    facts: &Facts,
    rules: &Rules,
    binding: &mut Binding,
    found: &mut impl FnMut(&Binding) -> bool,
    work: &mut usize,
) -> bool {
    let Some((condition, rest)) = conditions.split_first() else { return found(binding) };
    let Some(predicate) = condition.predicate else { return true };
    let value = |binding: &Binding, variable: usize| binding.iter().find(|(v, _)| *v == variable).map(|(_, o)| *o);
    let relation = facts.relation(predicate, condition.holds);
    let rows = match condition.arguments.first().and_then(|(variable, _)| value(binding, *variable)) {
        Some(first) => relation.with_first(first),
        None => relation.all(),
    };
    let before = binding.len();
    for row in rows {
        *work += 1;
        if *work > MOST_WORK {
            return false;
        }
        let agrees = condition.arguments.iter().zip(row).all(|(&(variable, kind), &object)| {
            let of_kind = rules.members.get(kind).is_some_and(|m| m.binary_search(&object).is_ok());
            of_kind
                && match value(binding, variable) {
                    Some(same) => same == object,
                    None if binding.iter().any(|(_, other)| *other == object) => false,
                    None => {
                        binding.push((variable, object));
                        true
                    }
                }
        });
        let go_on = !agrees || join(rest, facts, rules, binding, found, work);
        binding.truncate(before);
        if !go_on {
            return false;
        }
    }
    true
}
