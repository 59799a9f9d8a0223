//! The inputs of a recorded pass. A recorded pass reads the same places of memory every time, so its inputs are lists of a
//! fixed length for each number of rows. The lists of a pass are one upload. Those that belong to a request (the
//! uniform numbers of its next tokens and its sampling) are uploaded once for many passes.

use std::collections::HashMap;
use std::ops::Range;

use super::pages::{PAGE, PageId};
use super::scheduler::RequestId;
use super::{NoiseKey, Sampling};

/// Uniform numbers of a request that are uploaded at once.
const UNIFORMS: usize = 64;
/// Numbers of a request's line in the table of slots: its uniform numbers, and the settings of its draws.
pub const SLOT_NUMBERS: usize = UNIFORMS + 5;
/// Place of the inverse temperature in a line.
pub const INVERSE_TEMPERATURE: usize = UNIFORMS;
/// Place of the greedy flag in a line: 1 where the request is greedy.
pub const GREEDY: usize = UNIFORMS + 1;
/// Place of top-k in a line.
pub const TOP_K: usize = UNIFORMS + 2;
/// Place of top-p in a line.
pub const TOP_P: usize = UNIFORMS + 3;
/// Place of the logarithm of min-p in a line.
pub const LOG_MIN_P: usize = UNIFORMS + 4;

/// Rows of the recorded pass that takes this many: 1, 2, 4, 8, 16, 32, then multiples of 32.
pub fn bucket(rows: usize) -> usize {
    if rows > 32 { rows.next_multiple_of(32) } else { rows.next_power_of_two() }
}

/// A list of a recorded pass's input, one number a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The row's token, where the host knows it.
    Token,
    /// Place of the row's token among those that the pass before drew; -1 where the host knows it.
    Source,
    /// The rotary position.
    Position,
    /// Place of the row's keys and values in the cache.
    Place,
    /// Tokens that the row sees, itself included.
    Length,
    /// Line of the request in the table of slots.
    Slot,
    /// Place of the row's uniform number in that line.
    Uniform,
}

const COLUMNS: usize = 7;

/// The sizes of a recorded pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows, a bucket.
    pub rows: usize,
    /// Pages of a line of the page table, a power of two or those of the longest request that may come.
    pub pages: usize,
    /// Some row truncates its distribution, so that the pass takes one kernel more.
    pub truncates: bool,
}

impl Shape {
    /// Numbers of the whole input.
    pub fn numel(&self) -> usize {
        self.rows * (COLUMNS + self.pages)
    }

    /// The places of a list.
    pub fn column(&self, column: Column) -> Range<usize> {
        let start = column as usize * self.rows;
        start..start + self.rows
    }

    /// The places of the page table, (rows, pages).
    pub fn page_table(&self) -> Range<usize> {
        COLUMNS * self.rows..self.numel()
    }
}

/// A decoding row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub token: RowToken,
    pub position: usize,
    /// The rotary position: another one behind images.
    pub rotary: usize,
    /// The request's pages.
    pub pages: &'a [PageId],
    pub uniform: UniformPlace,
}

/// The token that a row computes.
#[derive(Debug, Clone, Copy)]
pub enum RowToken {
    Known(u32),
    /// The token that the pass before drew at this place.
    Drawn(usize),
}

/// The input of a pass of these rows; the other rows are filling, which sees nothing and writes to page 0.
pub fn pack(shape: Shape, rows: &[Row]) -> Vec<i64> {
    let mut input = vec![0; shape.numel()];
    input[shape.column(Column::Source)].fill(-1);
    let mut set = |column, row, number: usize| input[shape.column(column)][row] = number as i64;
    for (index, row) in rows.iter().enumerate() {
        match row.token {
            RowToken::Known(token) => set(Column::Token, index, token as usize),
            RowToken::Drawn(source) => set(Column::Source, index, source),
        }
        set(Column::Position, index, row.rotary);
        let page = row.pages[row.position / PAGE] as usize + 1;
        set(Column::Place, index, page * PAGE + row.position % PAGE);
        set(Column::Length, index, row.position + 1);
        set(Column::Slot, index, row.uniform.slot);
        set(Column::Uniform, index, row.uniform.at);
    }
    let table = &mut input[shape.page_table()];
    for (line, row) in table.chunks_exact_mut(shape.pages).zip(rows) {
        // Page 0 is for filling.
        line.iter_mut().zip(row.pages).for_each(|(place, &page)| *place = i64::from(page) + 1);
    }
    input
}

/// A request's next draw.
#[derive(Debug, Clone, Copy)]
pub struct NextDraw {
    pub id: RequestId,
    pub key: NoiseKey,
    /// Number of the token in its response.
    pub number: usize,
    pub sampling: Sampling,
}

/// Place of a uniform number in the table of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniformPlace {
    /// The line.
    pub slot: usize,
    /// The place in it.
    pub at: usize,
}

/// The host's side of the table of slots, (slots, [`SLOT_NUMBERS`]): one line for each request that decodes.
#[derive(Debug)]
pub struct SlotTable {
    seed: u64,
    /// Line of each request, and the number of the token that its first uniform number is for.
    lines: HashMap<RequestId, (usize, usize)>,
    free: Vec<usize>,
    numbers: Vec<f32>,
}

impl SlotTable {
    /// An empty table for draws of this seed.
    pub fn new(slots: usize, seed: u64) -> Self {
        let numbers = vec![0.0; slots * SLOT_NUMBERS];
        Self { seed, lines: HashMap::new(), free: (0..slots).collect(), numbers }
    }

    /// The table's numbers, line by line.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// Frees the lines of requests that have left.
    pub fn retain(&mut self, runs: impl Fn(RequestId) -> bool) {
        let free = &mut self.free;
        self.lines.retain(|&id, &mut (slot, _)| {
            let stays = runs(id);
            free.extend((!stays).then_some(slot));
            stays
        });
    }

    /// The places of these draws' uniform numbers. True if the table has changed: some request was new, or had used up its
    /// numbers. Only such lines are drawn: one joins in nearly every pass of an agent's rollout.
    ///
    /// # Panics
    /// When more requests decode than there are slots.
    pub fn places(&mut self, draws: &[NextDraw]) -> (Vec<UniformPlace>, bool) {
        let mut changed = false;
        for draw in draws {
            let slot = match self.lines.get(&draw.id) {
                Some(&(_, first)) if draw.number < first + UNIFORMS => continue,
                Some(&(slot, _)) => slot,
                None => self.free.pop().expect("as many slots as requests that run"),
            };
            changed = true;
            self.lines.insert(draw.id, (slot, draw.number));
            let line = &mut self.numbers[slot * SLOT_NUMBERS..(slot + 1) * SLOT_NUMBERS];
            for (place, number) in line[..UNIFORMS].iter_mut().zip(draw.number..) {
                *place = draw.key.uniform(self.seed, number as u32);
            }
            line[INVERSE_TEMPERATURE] = draw.sampling.inverse_temperature();
            line[GREEDY] = f32::from(u8::from(draw.sampling.is_greedy()));
            line[TOP_K] = draw.sampling.kept_tokens() as f32;
            line[TOP_P] = draw.sampling.top_p as f32;
            line[LOG_MIN_P] = draw.sampling.log_min_p();
        }
        let place = |draw: &NextDraw| {
            let (slot, first) = self.lines[&draw.id];
            UniformPlace { slot, at: draw.number - first }
        };
        (draws.iter().map(place).collect(), changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_joins_leaves_the_lines_of_others() {
        let mut table = SlotTable::new(2, 1);
        let draw = |id: u64, number: usize| {
            let key = NoiseKey { episode: id as u32, ..NoiseKey::default() };
            NextDraw { id, key, number, sampling: Sampling::default() }
        };
        let at = |table: &mut SlotTable, draws: &[NextDraw]| {
            let (places, changed) = table.places(draws);
            for (place, draw) in places.iter().zip(draws) {
                let own = table.numbers()[place.slot * SLOT_NUMBERS + place.at];
                assert_eq!(own, draw.key.uniform(1, draw.number as u32));
            }
            (places.iter().map(|place| place.at).collect::<Vec<_>>(), changed)
        };
        assert_eq!(at(&mut table, &[draw(0, 0)]), (vec![0], true));
        assert_eq!(at(&mut table, &[draw(0, 5), draw(1, 0)]), (vec![5, 0], true), "the first line stays");
        assert_eq!(at(&mut table, &[draw(0, 6), draw(1, 1)]), (vec![6, 1], false));
        assert_eq!(at(&mut table, &[draw(0, UNIFORMS), draw(1, 2)]), (vec![0, 2], true), "the first is used up");
    }
}
