//! Rows as a rollout makes them, from a seed, with all columns that an estimator asks for.

use nestor_plugin::{Column, Values};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{Estimator, Rows};

/// Numbers of a hidden state.
const HIDDEN: usize = 8;
/// States that the steps of a group visit.
const STATES: u64 = 4;

/// The rows to make.
#[derive(Debug, Clone)]
pub struct Plan {
    pub groups: u32,
    pub episodes: u32,
    pub most_steps: u64,
    /// All episodes win, with the same return, and no response is invalid.
    pub equal: bool,
    /// Optional columns are there.
    pub optional: bool,
    pub iteration: u64,
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { groups: 4, episodes: 4, most_steps: 6, equal: false, optional: true, iteration: 1, seed: 1 }
    }
}

/// One step, with all that a row can hold.
#[derive(Debug, Clone)]
pub struct Row {
    group: u32,
    episode: u32,
    step: u32,
    task: u64,
    reward: f64,
    penalty: f64,
    won: bool,
    is_last: bool,
    terminated: bool,
    anchor: Vec<u8>,
    next_anchor: Vec<u8>,
    action: String,
    /// The row that this one copies.
    source: Option<usize>,
    /// One per token.
    pub tokens: Vec<Token>,
    last_value: f32,
    info: f64,
    hidden: [f32; HIDDEN],
}

impl Row {
    /// A copy, as one of the row with this number.
    pub fn copy_of(&self, source: usize) -> Self {
        Self { source: Some(source), ..self.clone() }
    }
}

/// One response token.
#[derive(Debug, Clone)]
pub struct Token {
    id: u32,
    reward: f64,
    value: f32,
    logprob: f32,
    ref_logprob: f32,
    entropy: f32,
}

/// Random numbers.
struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    /// Between 0 and 1.
    fn part(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }
}

impl Plan {
    /// The rows, with the columns that the estimator asks for.
    pub fn rows(&self, estimator: &Estimator) -> Rows {
        pack(&self.steps(), self, estimator)
    }

    /// The steps, episode by episode.
    pub fn steps(&self) -> Vec<Row> {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(self.seed));
        let mut all = Vec::new();
        for group in 0..self.groups {
            // Few tasks, so that later iterations come back to them.
            let task = u64::from(group) * 2 + dice.below(2);
            for number in 0..self.episodes {
                // The first episode of a group wins and the second loses, so that a group is never of one kind by chance.
                let won = self.equal || number == 0 || (number > 1 && dice.below(2) == 0);
                self.episode(&mut dice, (group, group * self.episodes + number, task, won), &mut all);
            }
        }
        all
    }

    fn episode(&self, dice: &mut Dice, (group, episode, task, won): (u32, u32, u64, bool), all: &mut Vec<Row>) {
        let steps = 1 + dice.below(self.most_steps);
        let states: Vec<u64> = (0..=steps).map(|_| dice.below(STATES)).collect();
        let anchor = |at: usize| format!("task {task} state {}", states[at]).into_bytes();
        let first = all.len();
        for step in 0..steps as usize {
            let is_last = step + 1 == steps as usize;
            let small = if self.equal { 0.0 } else { (dice.part() * 4.0).floor() / 10.0 };
            let penalty = if !self.equal && dice.below(5) == 0 { 0.1 } else { 0.0 };
            let tokens = (0..1 + dice.below(9)).map(|_| Token {
                id: dice.below(1000) as u32,
                reward: 0.0,
                value: dice.part() as f32,
                logprob: -3.0 * dice.part() as f32,
                ref_logprob: -3.0 * dice.part() as f32,
                entropy: 2.0 * dice.part() as f32,
            });
            let tokens = tokens.collect();
            all.push(Row {
                group,
                episode,
                step: step as u32,
                task,
                reward: if is_last && won { 1.0 + small } else { small },
                penalty,
                won,
                is_last,
                terminated: is_last && won,
                anchor: anchor(step),
                next_anchor: anchor(step + 1),
                action: format!("go {}", dice.below(3)),
                source: None,
                tokens,
                last_value: dice.part() as f32,
                info: dice.part(),
                hidden: std::array::from_fn(|_| dice.part() as f32 - 0.5),
            });
        }
        let episode_return: f64 = all[first..].iter().map(|row| row.reward).sum();
        for row in &mut all[first..] {
            if let Some(last) = row.tokens.last_mut() {
                last.reward = episode_return - row.penalty;
            }
        }
    }
}

/// Joins rows to columns.
pub fn pack(all: &[Row], plan: &Plan, estimator: &Estimator) -> Rows {
    let (needs, mut rows) = (estimator.needs(), Rows { token_offsets: vec![0], ..Rows::default() });
    let (mut values, mut reference) = (Vec::new(), Vec::new());
    for (at, row) in all.iter().enumerate() {
        rows.group.push(row.group);
        rows.episode.push(row.episode);
        rows.step.push(row.step);
        rows.sequence.push(at as u32);
        rows.span_start.push(5);
        rows.reward.push(row.reward);
        rows.penalty.push(row.penalty);
        rows.valid.push(row.penalty == 0.0);
        rows.terminated.push(row.terminated);
        rows.truncated.push(row.is_last && !row.terminated);
        rows.anchor.push(row.anchor.clone());
        rows.duplicate_of.push(row.source.map_or(-1, |source| source as i64));
        rows.token_rewards.extend(row.tokens.iter().map(|token| token.reward));
        rows.logprobs.extend(row.tokens.iter().map(|token| token.logprob));
        reference.extend(row.tokens.iter().map(|token| token.ref_logprob));
        values.extend(row.tokens.iter().map(|token| token.value).chain([row.last_value]));
        rows.token_offsets.push(rows.token_rewards.len() as u64);
    }
    rows.values = needs.values.then_some(values);
    rows.ref_logprobs = needs.reference.then_some(reference);
    let asked = estimator.asked().iter().filter(|asked| plan.optional || !asked.optional);
    rows.columns = asked.map(|asked| (asked.column.to_string(), column(&asked.column, all, plan))).collect();
    rows
}

fn column(column: &Column, all: &[Row], plan: &Plan) -> Values {
    let of_tokens = |of: fn(&Token) -> f32| Values::F32(all.iter().flat_map(|row| &row.tokens).map(of).collect());
    match column {
        Column::NextAnchor => Values::bytes(all.iter().map(|row| &row.next_anchor)),
        Column::Success => Values::U8(all.iter().map(|row| u8::from(row.won)).collect()),
        Column::Action => Values::bytes(all.iter().map(|row| &row.action)),
        Column::Task => Values::U64(all.iter().map(|row| row.task).collect()),
        Column::Seed => Values::U64(all.iter().map(|row| u64::from(row.group)).collect()),
        Column::Split => Values::bytes(["train"]),
        Column::TaskType => Values::bytes(all.iter().map(|row| if row.task % 2 == 0 { "even" } else { "odd" })),
        Column::Iteration => Values::U64(vec![plan.iteration]),
        Column::Token => Values::U32(all.iter().flat_map(|row| &row.tokens).map(|token| token.id).collect()),
        Column::Entropy => of_tokens(|token| token.entropy),
        Column::TeacherLogprobs => of_tokens(|token| token.ref_logprob),
        Column::Observation => Values::bytes(all.iter().map(|row| &row.anchor)),
        Column::Admissible => Values::bytes(all.iter().map(|_| "go 0\ngo 1\ngo 2")),
        Column::Info(_) | Column::GreedyReturn => Values::F64(all.iter().map(|row| row.info).collect()),
        Column::Hidden { .. } => Values::F32(all.iter().flat_map(|row| row.hidden).collect()),
    }
}
