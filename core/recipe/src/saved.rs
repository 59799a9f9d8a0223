//! Recipes that a run saved with an older version: keys that have moved since are moved, so that the run resumes.

use super::tree::{Map, MapEntry, Node};

/// Begins the recipe that a run saves.
pub const SAVED: &str = "# From iteration ";

/// Keys of `update` that are in `update.optimizer` now.
const OF_THE_OPTIMIZER: [&str; 2] = ["betas", "weight_decay"];

/// Moves keys of a saved recipe to their present places.
pub(super) fn update_keys(recipe: &mut Map) {
    let update = recipe.iter_mut().find(|entry| entry.key == "update");
    let Some(MapEntry { location, node: Node::Map(update), .. }) = update else { return };
    let is_moved = |entry: &MapEntry| OF_THE_OPTIMIZER.contains(&entry.key.as_str());
    let (moved, rest): (Map, Map) = std::mem::take(update).into_iter().partition(is_moved);
    *update = rest;
    if !moved.is_empty() {
        update.push(MapEntry { key: "optimizer".into(), location: location.clone(), node: Node::Map(moved) });
    }
}
