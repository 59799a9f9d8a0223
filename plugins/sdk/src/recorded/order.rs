//! Recorded columns with their rows in another order.

use std::collections::HashMap;

use super::Columns;
use crate::{Bytes, Column, Values};

impl Columns {
    /// Returns the same rows in another order: the row `order[i]` comes at place `i`.
    pub fn in_order(&self, order: &[usize]) -> Self {
        fn take<T: Copy>(column: &[T], order: &[usize]) -> Vec<T> {
            order.iter().map(|&row| column[row]).collect()
        }
        let place: HashMap<i64, i64> = order.iter().zip(0..).map(|(&row, at)| (row as i64, at)).collect();
        let rows = self.view();
        let tokens: Vec<usize> = order.iter().flat_map(|&row| rows.tokens(row)).collect();
        let values: Option<Vec<f32>> = (self.values.is_some())
            .then(|| order.iter().flat_map(|&row| rows.values_of(row).unwrap_or_default()).copied().collect());
        let bytes = |column: Bytes<'_>| Values::bytes(order.iter().map(|&row| column.of(row)));
        let (anchor_data, anchor_offsets) = match rows.anchors.map(bytes) {
            Some(Values::Bytes { data, offsets }) => (data, offsets),
            _ => Default::default(),
        };
        let named = |(column, values): &(Column, Values)| {
            let moved = match values {
                // The split and the iteration are one entry for all rows.
                _ if matches!(column, Column::Split | Column::Iteration) => values.clone(),
                Values::Bytes { data, offsets } => bytes(Bytes { data, offsets }),
                Values::U8(data) => Values::U8(take(data, order)),
                Values::U32(data) => Values::U32(take(data, &tokens)),
                Values::U64(data) => Values::U64(take(data, order)),
                Values::F32(data) if matches!(column, Column::Hidden { .. }) => {
                    let size = data.len() / order.len().max(1);
                    Values::F32(order.iter().flat_map(|&row| &data[row * size..(row + 1) * size]).copied().collect())
                }
                Values::F32(data) => Values::F32(take(data, &tokens)),
                Values::F64(data) => Values::F64(take(data, order)),
            };
            (column.clone(), moved)
        };
        let offsets = order.iter().scan(0, |end, &row| {
            *end += rows.tokens(row).len() as u64;
            Some(*end)
        });
        Self {
            group: take(&self.group, order),
            episode: take(&self.episode, order),
            step: take(&self.step, order),
            sequence: take(&self.sequence, order),
            span_start: take(&self.span_start, order),
            span_length: take(&self.span_length, order),
            reward: take(&self.reward, order),
            penalty: take(&self.penalty, order),
            valid: take(&self.valid, order),
            terminated: take(&self.terminated, order),
            truncated: take(&self.truncated, order),
            anchor_data,
            anchor_offsets,
            duplicate_of: order.iter().map(|&row| place.get(&self.duplicate_of[row]).copied().unwrap_or(-1)).collect(),
            token_offsets: std::iter::once(0).chain(offsets).collect(),
            token_rewards: take(&self.token_rewards, &tokens),
            values,
            logprobs: self.logprobs.as_ref().map(|column| take(column, &tokens)),
            ref_logprobs: self.ref_logprobs.as_ref().map(|column| take(column, &tokens)),
            named: self.named.iter().map(named).collect(),
        }
    }
}
