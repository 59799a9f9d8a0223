//! Finds every assignment of variables that makes a condition hold, by joins over the facts: nothing is grounded ahead.
//!
//! A plan is made once a game. It orders the conditions so that each is either a test of variables that are bound
//! already or a walk over the facts of one predicate that binds more. The condition expected to give the fewest facts
//! is next.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::facts::{Arguments, Facts, MOST_ARGUMENTS, Object};
use super::formula::{Atom, Formula, Term, Work};

/// Most facts and conditions examined for one plan; real games stay under 10,000.
const MOST_WORK: usize = 500_000;
/// Branches of one plan; ALFWorld's actions have 2.
const MOST_BRANCHES: usize = 200;

/// The steps of a search.
#[derive(Debug, Clone)]
pub struct Plan(Vec<Step>);

#[derive(Debug, Clone)]
enum Step {
    /// Continues for every fact of the predicate that agrees with the bound variables.
    Walk { predicate: usize, arguments: Vec<Argument> },
    /// Continues only if it holds.
    Test(Formula),
    /// Continues for each of these objects.
    Each(usize, Arc<[Object]>),
    /// Continues with every one of the plans; nothing follows.
    Branch(Vec<Plan>),
}

#[derive(Debug, Clone)]
enum Argument {
    /// Must equal the term's object.
    Is(Term),
    /// Fills the slot, if it is one of these objects.
    Fills(usize, Arc<[Object]>),
}

/// The planner's knowledge of variables and facts.
pub struct Planner<'a> {
    /// The objects that each slot may hold, in order.
    pub admitted: &'a [Arc<[Object]>],
    /// Facts per predicate at the start, to compare orders by.
    pub counts: &'a [usize],
}

impl Planner<'_> {
    /// Makes a plan that fills the first `wanted` slots.
    ///
    /// # Errors
    /// A condition with too many alternatives.
    pub fn plan(&self, condition: &Formula, wanted: usize) -> Result<Plan> {
        let mut bound = vec![false; self.admitted.len()];
        let mut branches = Work(MOST_BRANCHES);
        let plan = Plan(self.order(vec![condition.clone()], &mut bound, wanted, &mut branches));
        ensure!(branches.0 > 0, "a condition has more than {MOST_BRANCHES} alternatives");
        Ok(plan)
    }

    fn order(&self, mut open: Vec<Formula>, bound: &mut [bool], wanted: usize, branches: &mut Work) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            // Conjunctions and quantifiers dissolve: a quantifier's slot is its own, so it is just one more variable.
            while let Some(at) = open.iter().position(|f| matches!(f, Formula::And(_) | Formula::Exists(..))) {
                match open.swap_remove(at) {
                    Formula::And(all) => open.extend(all),
                    Formula::Exists(_, _, body) => open.push(*body),
                    _ => {}
                }
            }
            if let Some(at) = open.iter().position(|f| f.is_bound(bound)) {
                steps.push(Step::Test(open.swap_remove(at)));
            } else if let Some(at) = self.cheapest(&open, bound) {
                let Formula::Fact(atom) = open.swap_remove(at) else { continue };
                steps.push(self.walk(&atom, bound));
            } else if let Some(at) = open.iter().position(|f| matches!(f, Formula::Or(_))) {
                let Formula::Or(any) = open.swap_remove(at) else { continue };
                let mut plans = Vec::new();
                for one in any {
                    if !branches.spend() {
                        break;
                    }
                    let mut rest = open.clone();
                    rest.push(one);
                    plans.push(Plan(self.order(rest, &mut bound.to_vec(), wanted, branches)));
                }
                steps.push(Step::Branch(plans));
                return steps;
            } else {
                // The remaining conditions (a negation, an equality, a parameter that nothing mentions) need their
                // variables tried.
                let used = |slot: usize| {
                    let mut others = vec![true; bound.len()];
                    others[slot] = false;
                    open.iter().any(|f| !f.is_bound(&others))
                };
                let Some(slot) = (0..bound.len()).find(|&s| !bound[s] && (s < wanted || used(s))) else { return steps };
                bound[slot] = true;
                steps.push(Step::Each(slot, self.admitted[slot].clone()));
            }
        }
    }

    /// Returns the fact whose walk is expected to give the fewest: the predicate's facts, fewer for every bound
    /// argument.
    fn cheapest(&self, open: &[Formula], bound: &[bool]) -> Option<usize> {
        let cost = |formula: &Formula| match formula {
            Formula::Fact(atom) => {
                let free = |t: &&Term| matches!(t, Term::Slot(slot) if !bound[*slot]);
                let known = atom.terms.len() - atom.terms.iter().filter(free).count();
                Some(self.counts[atom.predicate] >> (4 * known))
            }
            _ => None,
        };
        let costs = open.iter().enumerate().filter_map(|(at, formula)| Some((cost(formula)?, at)));
        costs.min().map(|(_, at)| at)
    }

    fn walk(&self, atom: &Atom, bound: &mut [bool]) -> Step {
        let argument = |term: &Term| match *term {
            Term::Slot(slot) if !bound[slot] => {
                bound[slot] = true;
                Argument::Fills(slot, self.admitted[slot].clone())
            }
            term => Argument::Is(term),
        };
        Step::Walk { predicate: atom.predicate, arguments: atom.terms.iter().map(argument).collect() }
    }
}

/// A search in progress.
struct Search<'a, F> {
    facts: &'a Facts,
    work: Work,
    /// Receives the slots of every find and returns true to continue.
    found: F,
}

impl Plan {
    /// Calls `found` with the slots of every assignment, which may repeat; it returns true to continue.
    ///
    /// # Errors
    /// The search is too large for a game that is meant to be played.
    pub fn search(&self, facts: &Facts, slots: &mut [Object], found: impl FnMut(&[Object]) -> bool) -> Result<()> {
        let mut search = Search { facts, work: Work(MOST_WORK), found };
        search.run(&self.0, slots);
        ensure!(search.work.0 > 0, "its conditions require more than {MOST_WORK} facts to be examined");
        Ok(())
    }
}

impl<F: FnMut(&[Object]) -> bool> Search<'_, F> {
    /// Returns true to continue.
    fn run(&mut self, steps: &[Step], slots: &mut [Object]) -> bool {
        let Some((step, rest)) = steps.split_first() else { return (self.found)(slots) };
        match step {
            Step::Test(formula) => {
                let holds = formula.holds(self.facts, slots, &mut self.work);
                self.work.spend() && (!holds || self.run(rest, slots))
            }
            Step::Each(slot, objects) => objects.iter().all(|&object| {
                slots[*slot] = object;
                self.work.spend() && self.run(rest, slots)
            }),
            Step::Branch(plans) => plans.iter().all(|plan| self.run(&plan.0, slots)),
            Step::Walk { predicate, arguments } => {
                let relation = self.facts.relation(*predicate, true);
                let rows = match arguments.first() {
                    Some(Argument::Is(term)) => relation.with_first(term.value(slots)),
                    _ => relation.all(),
                };
                rows.iter().all(|row| self.work.spend() && (!agrees(row, arguments, slots) || self.run(rest, slots)))
            }
        }
    }
}

/// Fills the slots from a fact; false if the fact disagrees with a bound variable.
fn agrees(row: &Arguments, arguments: &[Argument], slots: &mut [Object]) -> bool {
    debug_assert!(arguments.len() <= MOST_ARGUMENTS);
    arguments.iter().zip(row).all(|(argument, &object)| match argument {
        Argument::Is(term) => term.value(slots) == object,
        Argument::Fills(slot, objects) => {
            slots[*slot] = object;
            objects.binary_search(&object).is_ok()
        }
    })
}
