//! Conditions of PDDL over variables in slots, and their evaluation.

use std::sync::Arc;

use super::facts::{Arguments, Facts, Object};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// The variable in this slot.
    Slot(usize),
    Object(Object),
}

impl Term {
    /// Returns the term's object.
    pub fn value(self, slots: &[Object]) -> Object {
        match self {
            Term::Slot(slot) => slots[slot],
            Term::Object(object) => object,
        }
    }
}

/// A predicate applied to terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Atom {
    /// Number of the predicate.
    pub predicate: usize,
    pub terms: Vec<Term>,
}

impl Atom {
    /// Returns the arguments with every variable's object in place.
    pub fn ground(&self, slots: &[Object]) -> Arguments {
        let mut arguments = Arguments::default();
        for (argument, term) in arguments.iter_mut().zip(&self.terms) {
            *argument = term.value(slots);
        }
        arguments
    }
}

/// The remaining work before a game is refused as too large to be meant seriously.
#[derive(Debug)]
pub struct Work(pub usize);

impl Work {
    /// Takes one unit off; false once none is left.
    pub fn spend(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// A condition.
#[derive(Debug, Clone)]
pub enum Formula {
    /// All hold; true if empty.
    And(Vec<Formula>),
    /// One holds.
    Or(Vec<Formula>),
    Not(Box<Formula>),
    /// One of these objects (in order) in this slot makes it hold.
    Exists(usize, Arc<[Object]>, Box<Formula>),
    /// It is a fact.
    Fact(Atom),
    /// Both are the same object.
    Same(Term, Term),
}

impl Formula {
    /// Evaluates the condition; the slots of its free variables must be filled. It overwrites the slots of its
    /// quantifiers. Joins work on the facts instead; this serves the remaining conditions, whose variables are bound.
    /// False when the work is spent.
    pub fn holds(&self, facts: &Facts, slots: &mut [Object], work: &mut Work) -> bool {
        if !work.spend() {
            return false;
        }
        match self {
            Formula::And(all) => all.iter().all(|f| f.holds(facts, slots, work)),
            Formula::Or(any) => any.iter().any(|f| f.holds(facts, slots, work)),
            Formula::Not(f) => !f.holds(facts, slots, work),
            Formula::Fact(atom) => facts.contains(atom.predicate, &atom.ground(slots)),
            Formula::Same(a, b) => a.value(slots) == b.value(slots),
            Formula::Exists(slot, objects, body) => objects.iter().any(|&object| {
                slots[*slot] = object;
                body.holds(facts, slots, work)
            }),
        }
    }

    /// Returns true if the slot of every free variable is filled.
    pub fn is_bound(&self, bound: &[bool]) -> bool {
        let term = |t: &Term| !matches!(t, Term::Slot(slot) if !bound[*slot]);
        match self {
            Formula::And(all) | Formula::Or(all) => all.iter().all(|f| f.is_bound(bound)),
            Formula::Not(f) => f.is_bound(bound),
            Formula::Fact(atom) => atom.terms.iter().all(term),
            Formula::Same(a, b) => term(a) && term(b),
            Formula::Exists(slot, _, body) => {
                let mut inside = bound.to_vec();
                inside[*slot] = true;
                body.is_bound(&inside)
            }
        }
    }
}
