//! Facts: which objects stand in which relation.

/// Number of an object. Objects are numbered in the order of their names, so sorting numbers sorts names.
pub type Object = u16;

/// Most arguments a predicate may have.
pub const MOST_ARGUMENTS: usize = 4;

/// Arguments of one fact; those past the predicate's count are 0.
pub type Arguments = [Object; MOST_ARGUMENTS];

/// The facts of one predicate, sorted.
#[derive(Debug, Clone, Default)]
pub struct Relation(Vec<Arguments>);

impl Relation {
    /// Every fact, in the order of the arguments' names.
    pub fn all(&self) -> &[Arguments] {
        &self.0
    }

    /// The facts whose first argument is this object.
    pub fn with_first(&self, first: Object) -> &[Arguments] {
        let begin = self.0.partition_point(|row| row[0] < first);
        let count = self.0[begin..].partition_point(|row| row[0] == first);
        &self.0[begin..begin + count]
    }

    fn contains(&self, row: &Arguments) -> bool {
        self.0.binary_search(row).is_ok()
    }

    fn insert(&mut self, row: Arguments) {
        if let Err(at) = self.0.binary_search(&row) {
            self.0.insert(at, row);
        }
    }

    fn remove(&mut self, row: &Arguments) {
        if let Ok(at) = self.0.binary_search(row) {
            self.0.remove(at);
        }
    }
}

/// What holds, and what an effect made false. A state that no effect touched says nothing about what is false: the
/// texts' `not_p` means only the latter, preconditions go by the former alone.
#[derive(Debug, Clone)]
pub struct Facts {
    holds: Vec<Relation>,
    made_false: Vec<Relation>,
}

impl Facts {
    /// No facts about this many predicates.
    pub fn new(predicates: usize) -> Facts {
        Facts { holds: vec![Relation::default(); predicates], made_false: vec![Relation::default(); predicates] }
    }

    /// The facts of a predicate, or those that were made false.
    pub fn relation(&self, predicate: usize, holds: bool) -> &Relation {
        if holds { &self.holds[predicate] } else { &self.made_false[predicate] }
    }

    /// Whether it holds.
    pub fn contains(&self, predicate: usize, arguments: &Arguments) -> bool {
        self.holds[predicate].contains(arguments)
    }

    /// States what holds at the start.
    pub fn state(&mut self, predicate: usize, arguments: Arguments) {
        self.holds[predicate].insert(arguments);
    }

    /// An effect makes it true or false.
    pub fn set(&mut self, predicate: usize, arguments: Arguments, holds: bool) {
        if holds {
            self.made_false[predicate].remove(&arguments);
            self.holds[predicate].insert(arguments);
        } else {
            self.holds[predicate].remove(&arguments);
            self.made_false[predicate].insert(arguments);
        }
    }

    /// Every object that occurs in what holds.
    pub fn objects(&self, arity: &[usize]) -> Vec<Object> {
        let rows = self.holds.iter().zip(arity).flat_map(|(r, &n)| r.0.iter().map(move |row| row[..n].to_vec()));
        let mut objects: Vec<Object> = rows.flatten().collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }
}
