//! Parses a PDDL domain and problem together into numbers: objects, predicates, actions, start and goal.
//!
//! It accepts the part of Fast Downward's language that ALFWorld uses: typed lists, `and`, `or`, `not`, `exists`, `=`,
//! `()` as the empty condition, `when` and `(increase …)` in effects. Types are not checked, as there: ALFWorld's
//! effects state `checked` of locations, and its conditions name constants that only problems declare. Anything else
//! (`forall`, derived predicates, …) is refused with its line.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use super::facts::{Arguments, Facts, MOST_ARGUMENTS, Object};
use super::formula::{Atom, Formula, Term};
use super::join::{Plan, Planner};
use super::sexp::{Sexp, read};

/// The root of all types.
const ROOT: &str = "object";
/// Most objects of a game; real ones have some 300.
const MOST_OBJECTS: usize = 5_000;
/// Most types; the real domain has 6.
const MOST_TYPES: usize = 200;
/// Most variables of an action, those of its quantifiers included; real ones have 6.
const MOST_VARIABLES: usize = 32;

/// The constant data of a game.
#[derive(Debug)]
pub struct Rules {
    /// Names of the objects, sorted; then those of undeclared constants, of which no fact holds.
    pub objects: Vec<String>,
    /// The type of each object, as a number in `types`.
    pub type_of: Vec<usize>,
    pub types: Vec<String>,
    /// The objects of each type, sorted.
    pub members: Vec<Arc<[Object]>>,
    /// Numbers of the predicates by name.
    pub predicates: HashMap<String, usize>,
    /// Number of arguments of each predicate.
    pub arity: Vec<usize>,
    pub actions: Vec<Action>,
    pub goal: Goal,
}

/// An action schema.
#[derive(Debug)]
pub struct Action {
    /// Its name in lower case.
    pub name: String,
    /// Names (without `?`) and types of its parameters, which fill the first slots.
    pub parameters: Vec<(String, usize)>,
    /// Number of slots.
    pub slots: usize,
    /// Finds the arguments for which the action is applicable.
    pub plan: Plan,
    /// Facts that its condition requires outright, or (false) forbids.
    pub demands: Vec<(Atom, bool)>,
    pub effects: Vec<Effect>,
}

#[derive(Debug)]
pub struct Effect {
    /// Its condition; it always happens if there is none.
    pub when: Option<Formula>,
    /// The fact that it changes.
    pub atom: Atom,
    /// It makes the fact true; else false.
    pub holds: bool,
}

#[derive(Debug)]
pub struct Goal {
    /// The condition to reach.
    pub formula: Formula,
    /// Checks the condition.
    pub plan: Plan,
    /// Number of slots.
    pub slots: usize,
}

/// Parses both texts.
///
/// # Errors
/// A fault in `pddl_domain` or `pddl_problem`, with the line.
pub fn parse(domain: &str, problem: &str) -> Result<(Rules, Facts)> {
    let (domain, problem) = (domain.to_lowercase(), problem.to_lowercase());
    let domain = Sections::read(&domain, "domain").context("pddl_domain")?;
    let problem = Sections::read(&problem, "problem").context("pddl_problem")?;

    let mut reader = Reader::default();
    reader.types(&domain).context("pddl_domain")?;
    let mut declared = typed(domain.get(":constants")).context("pddl_domain")?;
    declared.extend(typed(problem.get(":objects")).context("pddl_problem")?);
    reader.objects(declared)?;

    let start = reader.init(problem.need(":init").context("pddl_problem")?).context("pddl_problem")?;
    let mut schemas = Vec::new();
    for (_, body) in domain.0.iter().filter(|(name, _)| *name == ":action") {
        schemas.push(reader.action(body).context("pddl_domain")?);
    }
    ensure!(!schemas.is_empty(), "pddl_domain: no actions");
    let goal = problem.need(":goal").context("pddl_problem")?;
    let [goal] = goal else { bail!("pddl_problem: `:goal` must have one condition") };
    let goal = reader.goal(goal).context("pddl_problem")?;
    reader.finish(schemas, goal, start)
}

/// The parts of `(define (domain …) (:part …) …)`.
struct Sections<'a>(Vec<(&'a str, Vec<Sexp<'a>>)>);

impl<'a> Sections<'a> {
    fn read(text: &'a str, kind: &str) -> Result<Self> {
        let whole = read(text)?;
        let ("define", [title, parts @ ..]) = whole.head()? else { bail!("it does not begin with `(define (`") };
        ensure!(title.head()?.0 == kind, "line {}: not a {kind}", title.line());
        let mut sections = Vec::new();
        for part in parts {
            let (name, rest) = part.head()?;
            match name {
                ":requirements" | ":types" | ":constants" | ":predicates" | ":functions" | ":action" | ":domain"
                | ":objects" | ":init" | ":goal" | ":metric" => sections.push((name, rest.to_vec())),
                _ => bail!("line {}: `{name}` is not supported", part.line()),
            }
        }
        Ok(Self(sections))
    }

    /// Returns the content of a part; empty if it is missing.
    fn get(&self, name: &str) -> &[Sexp<'a>] {
        self.0.iter().find(|(n, _)| *n == name).map_or(&[], |(_, content)| content.as_slice())
    }

    fn need(&self, name: &str) -> Result<&[Sexp<'a>]> {
        let found = self.0.iter().find(|(n, _)| *n == name);
        Ok(found.with_context(|| format!("`({name} …)` is missing"))?.1.as_slice())
    }
}

/// Parses a typed list: `a b - t c`, where an item without a type is of the root type.
fn typed<'a>(items: &[Sexp<'a>]) -> Result<Vec<(&'a str, &'a str)>> {
    let mut list = Vec::new();
    let mut untyped = 0;
    let mut items = items.iter();
    while let Some(item) = items.next() {
        match item.word()? {
            "-" => {
                let Some(kind) = items.next() else { bail!("line {}: no type after `-`", item.line()) };
                let kind = kind.word()?;
                list[untyped..].iter_mut().for_each(|(_, t)| *t = kind);
                untyped = list.len();
            }
            name => list.push((name, ROOT)),
        }
    }
    Ok(list)
}

/// A condition before its plan is made, and the objects that its slots may hold.
struct Condition {
    formula: Formula,
    admitted: Vec<Arc<[Object]>>,
}

/// An action before its plan is made.
struct Schema {
    name: String,
    parameters: Vec<(String, usize)>,
    condition: Condition,
    effects: Vec<Effect>,
}

/// Variables in scope, innermost last, and the objects that every slot may hold.
#[derive(Default)]
struct Scope<'a> {
    names: Vec<(&'a str, usize)>,
    admitted: Vec<Arc<[Object]>>,
}

#[derive(Default)]
struct Reader {
    objects: Vec<String>,
    numbers: HashMap<String, Object>,
    type_of: Vec<usize>,
    types: Vec<String>,
    parents: Vec<Option<usize>>,
    /// The objects of each type.
    members: Vec<Arc<[Object]>>,
    predicates: HashMap<String, usize>,
    arity: Vec<usize>,
}

impl Reader {
    fn type_number(&mut self, name: &str) -> usize {
        if let Some(at) = self.types.iter().position(|t| t == name) {
            return at;
        }
        self.types.push(name.to_owned());
        self.parents.push(None);
        self.types.len() - 1
    }

    fn types(&mut self, domain: &Sections) -> Result<()> {
        for (name, parent) in typed(domain.get(":types"))? {
            let (lower, upper) = (self.type_number(name), self.type_number(parent));
            self.parents[lower] = (lower != upper).then_some(upper);
        }
        Ok(())
    }

    fn objects(&mut self, mut declared: Vec<(&str, &str)>) -> Result<()> {
        declared.sort_unstable();
        declared.dedup();
        ensure!(declared.len() <= MOST_OBJECTS, "{} objects: at most {MOST_OBJECTS}", declared.len());
        for pair in declared.windows(2) {
            ensure!(pair[0].0 != pair[1].0, "object `{}` is declared with two types", pair[0].0);
        }
        for (name, kind) in declared {
            let kind = self.type_number(kind);
            self.numbers.insert(name.to_owned(), self.objects.len() as Object);
            self.objects.push(name.to_owned());
            self.type_of.push(kind);
        }
        ensure!(self.types.len() <= MOST_TYPES, "{} types: at most {MOST_TYPES}", self.types.len());
        for kind in 0..self.types.len() {
            let members = (0..self.objects.len()).filter(|&o| self.is_member(o, kind)).map(|o| o as Object).collect();
            self.members.push(members);
        }
        Ok(())
    }

    fn is_member(&self, object: usize, kind: usize) -> bool {
        let mut at = Some(self.type_of[object]);
        for _ in 0..=self.types.len() {
            match at {
                Some(found) if found == kind => return true,
                Some(found) => at = self.parents[found],
                None => break,
            }
        }
        self.types[kind] == ROOT
    }

    /// Returns the objects of a type; empty if no object can be of it.
    fn members_of(&self, kind: &str) -> Arc<[Object]> {
        match self.types.iter().position(|t| t == kind).and_then(|at| self.members.get(at)) {
            Some(members) => members.clone(),
            None => Arc::from([]),
        }
    }

    fn predicate(&mut self, name: &str, arguments: usize, line: usize) -> Result<usize> {
        ensure!(arguments <= MOST_ARGUMENTS, "line {line}: `{name}` has more than {MOST_ARGUMENTS} arguments");
        if let Some(&number) = self.predicates.get(name) {
            let known = self.arity[number];
            ensure!(known == arguments, "line {line}: `{name}` with {arguments} arguments, elsewhere with {known}");
            return Ok(number);
        }
        self.predicates.insert(name.to_owned(), self.arity.len());
        self.arity.push(arguments);
        Ok(self.arity.len() - 1)
    }

    fn init(&mut self, items: &[Sexp]) -> Result<Vec<(usize, Arguments)>> {
        let mut rows = Vec::new();
        for item in items {
            let (name, arguments) = item.head()?;
            // Costs and distances play no part in a game.
            if name == "=" {
                continue;
            }
            let predicate = self.predicate(name, arguments.len(), item.line())?;
            let mut row = Arguments::default();
            for (place, argument) in row.iter_mut().zip(arguments) {
                let word = argument.word()?;
                *place = *self
                    .numbers
                    .get(word)
                    .with_context(|| format!("line {}: object `{word}` is not declared", argument.line()))?;
            }
            rows.push((predicate, row));
        }
        Ok(rows)
    }

    fn action<'a>(&mut self, body: &[Sexp<'a>]) -> Result<Schema> {
        let Some((name, rest)) = body.split_first() else { bail!("an action without a name") };
        let (line, name) = (name.line(), name.word()?);
        let (mut scope, mut parameters) = (Scope::default(), Vec::new());
        let (mut condition, mut effects) = (Formula::And(Vec::new()), Vec::new());
        for pair in rest.chunks(2) {
            let [key, value] = pair else { bail!("line {line}: action `{name}` ends with a key without a value") };
            match key.word()? {
                ":parameters" => {
                    for (variable, kind) in typed(value.items()?)? {
                        self.declare(&mut scope, variable, kind, value.line())?;
                        let kind = self.type_number(kind);
                        parameters.push((variable.trim_start_matches('?').to_owned(), kind));
                    }
                }
                ":precondition" => condition = self.formula(value, &mut scope)?,
                ":effect" => self.effects(value, &mut scope, None, &mut effects)?,
                other => bail!("line {}: `{other}` is not supported in an action", key.line()),
            }
        }
        let condition = Condition { formula: condition, admitted: scope.admitted };
        Ok(Schema { name: name.to_owned(), parameters, condition, effects })
    }

    fn goal(&mut self, goal: &Sexp) -> Result<Condition> {
        let mut scope = Scope::default();
        let formula = self.formula(goal, &mut scope)?;
        Ok(Condition { formula, admitted: scope.admitted })
    }

    fn declare<'a>(&self, scope: &mut Scope<'a>, variable: &'a str, kind: &str, line: usize) -> Result<usize> {
        ensure!(variable.starts_with('?'), "line {line}: `{variable}` where a variable (`?…`) is expected");
        ensure!(scope.admitted.len() < MOST_VARIABLES, "line {line}: more than {MOST_VARIABLES} variables");
        scope.admitted.push(self.members_of(kind));
        scope.names.push((variable, scope.admitted.len() - 1));
        Ok(scope.admitted.len() - 1)
    }

    fn term(&mut self, word: &Sexp, scope: &Scope) -> Result<Term> {
        let (line, word) = (word.line(), word.word()?);
        if word.starts_with('?') {
            let found = scope.names.iter().rev().find(|(name, _)| *name == word);
            let (_, slot) = found.with_context(|| format!("line {line}: variable `{word}` is not declared"))?;
            return Ok(Term::Slot(*slot));
        }
        if let Some(&object) = self.numbers.get(word) {
            return Ok(Term::Object(object));
        }
        // A constant that this problem does not have: it is an object of which no fact holds.
        let number = self.objects.len();
        ensure!(number < 2 * MOST_OBJECTS, "line {line}: too many constants");
        self.numbers.insert(word.to_owned(), number as Object);
        self.objects.push(word.to_owned());
        let root = self.type_number(ROOT);
        self.type_of.push(root);
        Ok(Term::Object(number as Object))
    }

    fn atom(&mut self, at: &Sexp, scope: &Scope) -> Result<Atom> {
        let (name, arguments) = at.head()?;
        let predicate = self.predicate(name, arguments.len(), at.line())?;
        let terms = arguments.iter().map(|a| self.term(a, scope)).collect::<Result<_>>()?;
        Ok(Atom { predicate, terms })
    }

    fn formula<'a>(&mut self, at: &Sexp<'a>, scope: &mut Scope<'a>) -> Result<Formula> {
        if at.items()?.is_empty() {
            return Ok(Formula::And(Vec::new()));
        }
        let (name, rest) = at.head()?;
        match (name, rest) {
            ("and", all) => Ok(Formula::And(self.formulas(all, scope)?)),
            ("or", any) => Ok(Formula::Or(self.formulas(any, scope)?)),
            ("not", [one]) => Ok(Formula::Not(Box::new(self.formula(one, scope)?))),
            ("=", [a, b]) => Ok(Formula::Same(self.term(a, scope)?, self.term(b, scope)?)),
            ("exists", [variables, body]) => {
                let before = scope.names.len();
                let mut slots = Vec::new();
                for (variable, kind) in typed(variables.items()?)? {
                    slots.push(self.declare(scope, variable, kind, variables.line())?);
                }
                let body = self.formula(body, scope)?;
                scope.names.truncate(before);
                let wrap = |body, slot: usize| Formula::Exists(slot, scope.admitted[slot].clone(), Box::new(body));
                Ok(slots.into_iter().rev().fold(body, wrap))
            }
            ("not" | "=" | "exists", _) => bail!("line {}: `{name}` with {} parts", at.line(), rest.len()),
            ("forall" | "imply" | "when" | "increase" | "either", _) => {
                bail!("line {}: `{name}` is not supported in a condition", at.line())
            }
            _ => Ok(Formula::Fact(self.atom(at, scope)?)),
        }
    }

    fn formulas<'a>(&mut self, all: &[Sexp<'a>], scope: &mut Scope<'a>) -> Result<Vec<Formula>> {
        all.iter().map(|one| self.formula(one, scope)).collect()
    }

    fn effects<'a>(
        &mut self,
        at: &Sexp<'a>,
        scope: &mut Scope<'a>,
        when: Option<&Formula>,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        if at.items()?.is_empty() {
            return Ok(());
        }
        let (name, rest) = at.head()?;
        match (name, rest) {
            ("and", all) => all.iter().try_for_each(|one| self.effects(one, scope, when, effects))?,
            ("not", [one]) => effects.push(Effect { when: when.cloned(), atom: self.atom(one, scope)?, holds: false }),
            ("increase", _) => {}
            ("when", [condition, effect]) if when.is_none() => {
                let condition = self.formula(condition, scope)?;
                self.effects(effect, scope, Some(&condition), effects)?;
            }
            ("not" | "when" | "forall" | "decrease" | "assign" | "or" | "exists", _) => {
                bail!("line {}: `{name}` is not supported here in an effect", at.line())
            }
            _ => effects.push(Effect { when: when.cloned(), atom: self.atom(at, scope)?, holds: true }),
        }
        Ok(())
    }

    fn finish(self, schemas: Vec<Schema>, goal: Condition, start: Vec<(usize, Arguments)>) -> Result<(Rules, Facts)> {
        let mut facts = Facts::new(self.arity.len());
        for (predicate, row) in start {
            facts.state(predicate, row);
        }
        let counts: Vec<usize> = (0..self.arity.len()).map(|p| facts.relation(p, true).all().len()).collect();
        let plan = |condition: &Condition, wanted| {
            Planner { admitted: &condition.admitted, counts: &counts }.plan(&condition.formula, wanted)
        };
        let action = |schema: Schema| {
            let plan = plan(&schema.condition, schema.parameters.len());
            Ok(Action {
                plan: plan.with_context(|| format!("pddl_domain: action `{}`", schema.name))?,
                demands: demands(&schema.condition.formula),
                slots: schema.condition.admitted.len(),
                name: schema.name,
                parameters: schema.parameters,
                effects: schema.effects,
            })
        };
        let actions = schemas.into_iter().map(action).collect::<Result<_>>()?;
        let plan = plan(&goal, 0).context("pddl_problem: the goal")?;
        let goal = Goal { plan, slots: goal.admitted.len(), formula: goal.formula };
        let Reader { objects, type_of, types, members, predicates, arity, .. } = self;
        Ok((Rules { objects, type_of, types, members, predicates, arity, actions, goal }, facts))
    }
}

/// Collects the facts that a condition requires or forbids outright.
fn demands(condition: &Formula) -> Vec<(Atom, bool)> {
    match condition {
        Formula::Fact(atom) => vec![(atom.clone(), true)],
        Formula::Not(inner) => match inner.as_ref() {
            Formula::Fact(atom) => vec![(atom.clone(), false)],
            _ => Vec::new(),
        },
        Formula::And(all) => all.iter().flat_map(demands).collect(),
        _ => Vec::new(),
    }
}
