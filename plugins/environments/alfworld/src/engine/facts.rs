//! Facts: the predicates that hold of objects.

/// Number of an object. Objects are numbered in the order of their names, so sorting numbers sorts names.
pub type Object = u16;

/// Most arguments that a predicate may have.
pub const MOST_ARGUMENTS: usize = 4;

/// Arguments of one fact; those past the predicate's count are 0.
pub type Arguments = [Object; MOST_ARGUMENTS];

/// The facts of one predicate, sorted.
#[derive(Debug, Clone, Default)]
pub struct Relation(Vec<Arguments>);

impl Relation {
    /// Returns every fact, in the order of the arguments' names.
    pub fn all(&self) -> &[Arguments] {
        &self.0
    }

    /// Returns the facts whose first argument is this object.
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

/// The facts that hold, and those that an effect made false. Before an effect touches a fact, its absence is not
/// recorded as false: the texts' `not_p` finds only facts in `made_false`, preconditions look only at `holds`.
#[derive(Debug, Clone)]
pub struct Facts {
    holds: Vec<Relation>,
    made_false: Vec<Relation>,
}

impl Facts {
    /// Makes an empty state for this many predicates.
    pub fn new(predicates: usize) -> Facts {
        Facts { holds: vec![Relation::default(); predicates], made_false: vec![Relation::default(); predicates] }
    }

    /// Returns the facts of a predicate that hold, or those that were made false.
    pub fn relation(&self, predicate: usize, holds: bool) -> &Relation {
        if holds { &self.holds[predicate] } else { &self.made_false[predicate] }
    }

    /// Returns true if the fact holds.
    pub fn contains(&self, predicate: usize, arguments: &Arguments) -> bool {
        self.holds[predicate].contains(arguments)
    }

    /// Adds a fact of the start.
    pub fn state(&mut self, predicate: usize, arguments: Arguments) {
        self.holds[predicate].insert(arguments);
    }

    /// Applies an effect, which makes the fact true or false.
    pub fn set(&mut self, predicate: usize, arguments: Arguments, holds: bool) {
        if holds {
            self.made_false[predicate].remove(&arguments);
            self.holds[predicate].insert(arguments);
        } else {
            self.holds[predicate].remove(&arguments);
            self.made_false[predicate].insert(arguments);
        }
    }

    /// Lists every object that occurs in a fact that holds.
    pub fn objects(&self, arity: &[usize]) -> Vec<Object> {
        let rows = self.holds.iter().zip(arity).flat_map(|(r, &n)| r.0.iter().map(move |row| row[..n].to_vec()));
        let mut objects: Vec<Object> = rows.flatten().collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }
}
