//! The goals of a run: an exported list, or the catalogue's own in their order.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::catalogue::{Catalogue, load};
use crate::goal::{Goal, own};

/// Goals that the reference implementation keeps for its evaluation: the first ones.
const HELD_OUT: u64 = 500;

/// A list of goals.
pub enum Goals {
    /// Those of a file.
    Listed(Vec<Goal>),
    /// Those of the catalogue.
    Own {
        /// Those that people wrote, instead of synthetic ones.
        human: bool,
    },
}

impl Goals {
    /// Reads an exported list, such as the original engine's `goals`. Each goal must name a product of the catalogue.
    pub fn read(path: &Path, catalogue: &Catalogue) -> Result<Goals> {
        let goals: Vec<Goal> = load::whole(path)?;
        ensure!(!goals.is_empty(), "{}: the list of goals is empty", path.display());
        for (number, goal) in goals.iter().enumerate() {
            check(goal, catalogue).with_context(|| format!("{}: goal {number}", path.display()))?;
        }
        Ok(Goals::Listed(goals))
    }

    /// Number of goals.
    pub fn len(&self, catalogue: &Catalogue) -> u64 {
        match self {
            Goals::Listed(goals) => goals.len() as u64,
            Goals::Own { human } => catalogue.store.goals(*human),
        }
    }

    /// A goal by its place in the list.
    pub fn get(&self, catalogue: &Catalogue, index: u64) -> Result<Goal> {
        match self {
            Goals::Listed(goals) => {
                let goal = usize::try_from(index).ok().and_then(|index| goals.get(index));
                goal.cloned()
                    .with_context(|| format!("the list has {} goals, so there is no goal {index}", goals.len()))
            }
            Goals::Own { human } => {
                let id = catalogue.store.goal(*human, index)?;
                let product = catalogue.store.product(id.product)?;
                let price = catalogue.price(&product);
                if *human {
                    own::human(&product, id.which, price)
                } else {
                    let count = own::synthetic_count(&product)?;
                    ensure!(id.which < count, "the catalogue's index is damaged: build it again");
                    Ok(own::synthetic(&product, id.which, price))
                }
            }
        }
    }
}

/// Number of goals at the start of a list that are for evaluation: 500, or half of a list with fewer than 1,000.
pub fn held_out(goals: u64) -> u64 {
    HELD_OUT.min(goals / 2)
}

fn check(goal: &Goal, catalogue: &Catalogue) -> Result<()> {
    let product = catalogue.store.find(&goal.asin)?;
    ensure!(product.is_some(), "the catalogue has no product `{}`", goal.asin);
    ensure!(!goal.attributes.is_empty(), "the goal has no attributes");
    ensure!(goal.price_upper > 0.0, "price_upper is {}, and must be above 0", goal.price_upper);
    ensure!(!goal.instruction_text.trim().is_empty(), "instruction_text is empty");
    Ok(())
}
