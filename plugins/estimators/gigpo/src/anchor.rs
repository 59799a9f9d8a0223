//! Groups the rows of a group by the state in which they were taken.

use std::collections::HashMap;

use anyhow::{Context, Result};
use nestor_plugin::Bytes;
use nestor_plugin::stats::group_by;

use nestor_plugin::difflib::Text;

/// Returns the rows of a group by state, in order of first appearance. With a threshold, a row joins the first state
/// whose first row is similar enough (so the order of rows matters), else it starts a new one. Without a threshold,
/// anchors must be equal.
pub fn states(anchors: &Bytes<'_>, group: &[usize], threshold: Option<f64>) -> Result<Vec<Vec<usize>>> {
    let equal: Vec<Vec<usize>> = group_by(group.iter().map(|&row| anchors.of(row)))
        .into_iter()
        .map(|m| m.iter().map(|&i| group[i]).collect())
        .collect();
    let Some(threshold) = threshold else { return Ok(equal) };

    // Equal anchors always end in the same state, so each distinct one is compared once.
    let mut states: Vec<(Text, Vec<usize>)> = Vec::new();
    let mut state_of: HashMap<&[u8], usize> = HashMap::new();
    for rows in &equal {
        let anchor = anchors.of(rows[0]);
        let text = std::str::from_utf8(anchor)
            .ok()
            .with_context(|| format!("`similarity` compares texts, and the anchor of row {} is not UTF-8", rows[0]))?;
        let text = Text::new(text);
        let near = states.iter().position(|(first, _)| text.similar(first, threshold));
        let state = near.unwrap_or_else(|| {
            states.push((text, Vec::new()));
            states.len() - 1
        });
        state_of.insert(anchor, state);
    }
    for &row in group {
        states[state_of[anchors.of(row)]].1.push(row);
    }
    Ok(states.into_iter().map(|(_, rows)| rows).collect())
}
