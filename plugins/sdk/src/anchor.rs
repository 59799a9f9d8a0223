//! Definitions of a state, apart from the estimators: a recipe chooses one of them for any estimator.

use std::borrow::Cow;
use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::difflib::Text;
use crate::returns::Order;
use crate::{Asked, Bytes, Column, Rows};

/// Defines the key of a state. Rows of one group with equal keys were taken in one state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Anchor {
    /// The environment's own anchor.
    #[default]
    Observation,
    /// The environment's anchor and the sorted admissible actions.
    ObservationCommands,
    /// G2PO's rule: the environment's anchor and the admissible actions. After "Nothing happens" a step keeps the previous
    /// key. After "You heat", "You cool", "You clean" and "You turn on" the key is the last two anchors joined.
    G2po,
    /// RewardFlow's rule without its texts for single environments: the environment's anchor. A step keeps the previous key
    /// after "Nothing happens" and after the actions `inventory`, `look` and `examine`.
    Rewardflow,
}

/// Beginning of an anchor after an action without effect.
const WITHOUT_EFFECT: &[u8] = b"Nothing happens";
/// Beginnings of anchors after which G2PO joins two.
const CHANGES: [&[u8]; 4] = [b"You heat", b"You cool", b"You clean", b"You turn on"];

impl Anchor {
    /// Returns the columns that [`Anchor::read`] needs beside the environment's anchors.
    pub fn columns(self) -> Vec<Asked> {
        match self {
            Self::Observation => vec![],
            Self::ObservationCommands | Self::G2po => vec![Column::Admissible.into()],
            Self::Rewardflow => vec![Column::Action.into()],
        }
    }

    /// Reads the keys of the states of some rows.
    pub fn read<'a>(self, rows: &Rows<'a>) -> Result<Keys<'a>> {
        let own = rows.anchors.context("the host gave no anchors")?;
        let order = Order::of(rows)?;
        let commands = matches!(self, Self::ObservationCommands | Self::G2po).then(|| rows.admissible()).transpose()?;
        let actions = (self == Self::Rewardflow).then(|| rows.action()).transpose()?;
        let mut before = vec![Cow::Borrowed(&[][..]); rows.len()];
        // The state after the last step of an episode has no admissible actions: nobody chose one there.
        let mut last: HashMap<usize, Cow<'a, [u8]>> = HashMap::new();
        let after = rows.next_anchor().ok();
        for steps in &order.episodes {
            let mut past: Option<Past<'_, 'a>> = None;
            for &row in steps {
                let listed = commands.map(|commands| sorted(commands.of(row)));
                before[row] = self.key(own.of(row), listed, past.as_ref());
                past = Some(Past { anchor: own.of(row), key: before[row].clone(), action: action(actions, row) });
            }
            if let (Some(&row), Some(after)) = (steps.last(), after) {
                last.insert(row, self.key(after.of(row), None, past.as_ref()));
            }
        }
        order.fill_copies(&mut before);
        Ok(Keys { before, last, next: order.next(), order })
    }

    fn key<'a>(self, anchor: &'a [u8], commands: Option<Vec<u8>>, past: Option<&Past<'_, 'a>>) -> Cow<'a, [u8]> {
        let listed = || match &commands {
            Some(commands) => Cow::Owned([anchor, b"\n", commands].concat()),
            None => Cow::Borrowed(anchor),
        };
        let starts = |with: &[u8]| anchor.starts_with(with);
        match (self, past) {
            (Self::Observation, _) => Cow::Borrowed(anchor),
            (Self::G2po, Some(past)) if starts(WITHOUT_EFFECT) => past.key.clone(),
            (Self::G2po, Some(past)) if CHANGES.iter().any(|with| starts(with)) => {
                Cow::Owned([past.anchor, b"\n", anchor].concat())
            }
            (Self::Rewardflow, Some(past)) if starts(WITHOUT_EFFECT) || past.only_looks() => past.key.clone(),
            (Self::Rewardflow, _) => Cow::Borrowed(anchor),
            (Self::ObservationCommands | Self::G2po, _) => listed(),
        }
    }
}

/// Returns the numbers of states as the part `anchor_group` ([`Parts`](crate::Parts)).
pub fn anchor_group(states: &[usize]) -> Vec<f64> {
    states.iter().map(|&state| state as f64).collect()
}

/// The step before.
struct Past<'b, 'a> {
    anchor: &'a [u8],
    key: Cow<'a, [u8]>,
    action: Option<&'b [u8]>,
}

impl Past<'_, '_> {
    fn only_looks(&self) -> bool {
        self.action.is_some_and(|it| it == b"look" || it == b"inventory" || it.starts_with(b"examine "))
    }
}

fn action<'a>(actions: Option<Bytes<'a>>, row: usize) -> Option<&'a [u8]> {
    actions.map(|actions| actions.of(row))
}

/// The lines in sorted order.
fn sorted(lines: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = lines.split(|&byte| byte == b'\n').collect();
    lines.sort_unstable();
    lines.join(&b'\n')
}

/// The keys of the states before and after every step.
#[derive(Debug, Clone)]
pub struct Keys<'a> {
    before: Vec<Cow<'a, [u8]>>,
    /// After the last step of each episode, where the rows have the column `next_anchor`.
    last: HashMap<usize, Cow<'a, [u8]>>,
    next: Vec<Option<usize>>,
    /// The order of the steps.
    pub order: Order,
}

impl Keys<'_> {
    /// Returns the key of the state in which a step was taken.
    pub fn before(&self, row: usize) -> &[u8] {
        &self.before[row]
    }

    /// Returns the next row of the same episode; none for its last step.
    pub fn next(&self, row: usize) -> Option<usize> {
        self.next[row]
    }

    /// Returns the key of the state after a step; after an episode's last step it needs the column `next_anchor`.
    pub fn after(&self, row: usize) -> Result<&[u8]> {
        match self.next[row] {
            Some(next) => Ok(&self.before[next]),
            None => self.last.get(&self.order.source(row)).map(|key| &key[..]).context("no column `next_anchor`"),
        }
    }

    /// `[B]` Returns the number of the state in which each step was taken; the states of different groups differ. With
    /// `similarity`, a key joins the first state of its group whose first key is similar enough, so the order of rows matters.
    pub fn states(&self, rows: &Rows<'_>, similarity: Option<f64>) -> Result<Vec<usize>> {
        let (mut states, mut count) = (vec![0; rows.len()], 0);
        for group in crate::stats::group_by(rows.group) {
            let numbers = number(group.iter().map(|&row| self.before(row)), similarity)?;
            let first = count;
            for (&row, number) in group.iter().zip(numbers) {
                states[row] = first + number;
                count = count.max(first + number + 1);
            }
        }
        Ok(states)
    }
}

/// Numbers keys from 0 in the order met; equal keys share a number. With `similarity`, a key shares the number of the first
/// one met whose difflib ratio reaches it: `ratio(key, first)`.
pub fn number<'a>(keys: impl IntoIterator<Item = &'a [u8]>, similarity: Option<f64>) -> Result<Vec<usize>> {
    let (mut numbers, mut firsts): (HashMap<&[u8], usize>, Vec<Text>) = (HashMap::new(), Vec::new());
    let mut all = Vec::new();
    for key in keys {
        let next = numbers.len();
        if let (Some(threshold), false) = (similarity, numbers.contains_key(key)) {
            let text =
                std::str::from_utf8(key).ok().context("`similarity` compares texts, and an anchor is not UTF-8")?;
            let text = Text::new(text);
            let near = firsts.iter().position(|first| text.similar(first, threshold));
            numbers.insert(key, near.unwrap_or(firsts.len()));
            firsts.extend(near.is_none().then_some(text));
        }
        all.push(*numbers.entry(key).or_insert(next));
    }
    Ok(all)
}

/// Checks the config key `similarity`.
pub fn check_similarity(similarity: Option<f64>) -> Result<()> {
    ensure!(
        similarity.is_none_or(|s| s > 0.0 && s < 1.0),
        "config key `similarity` must be strictly between 0 and 1, not {}; for equal anchors only, set it to null",
        similarity.unwrap_or_default()
    );
    Ok(())
}
