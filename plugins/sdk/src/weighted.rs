//! The form of most estimators: an advantage that is a weighted sum of parts.

use anyhow::Result;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::anchor::Anchor;
use crate::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores};

/// An estimator that is its own config and gives every token of a row the weighted sum of the row's first parts. A type with
/// this trait is an [`Estimator`] with [`Parts`] and [`Columns`]: name those that it has in [`export!`](crate::export).
pub trait WeightedParts: DeserializeOwned + JsonSchema + Send + 'static {
    /// The name that recipes use: lower case letters, digits, underscores.
    const ID: &'static str;
    /// A description in one line.
    const DOC: &'static str;
    /// Names of the parts, those with a weight first ([`Parts::NAMES`]).
    const PARTS: &'static [&'static str];

    /// Checks the config. Errors are reported as the user's mistakes.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the definition of a state, if states are compared: the run then gives anchors, and the columns that the
    /// definition reads.
    fn anchor(&self) -> Option<Anchor> {
        None
    }
    /// Returns the columns beyond those of the anchor.
    fn asked(&self) -> Vec<Asked> {
        vec![]
    }
    /// Returns one weight for each of the first parts. Parts after these explain only.
    fn weights(&self) -> Vec<f64>;
    /// Computes the parts, `[B]` each; NaN if a row lacks one without a weight.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>>;
    /// Adds metrics of its own, beside the shares of the parts ([`Scores::weighted_sum`]).
    fn metrics(&self, _parts: &[Vec<f64>], _out: &mut Scores<'_>) {}
}

impl<E: WeightedParts> Estimator for E {
    const ID: &'static str = <E as WeightedParts>::ID;
    const DOC: &'static str = <E as WeightedParts>::DOC;
    type Config = E;

    fn open(config: E) -> Result<E> {
        config.check()?;
        Ok(config)
    }

    fn needs(&self) -> Needs {
        Needs { anchors: self.anchor().is_some(), ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let parts = WeightedParts::parts(self, rows)?;
        self.metrics(&parts, out);
        out.weighted_sum::<E>(rows, &parts, &self.weights())
    }
}

impl<E: WeightedParts> Parts for E {
    const NAMES: &'static [&'static str] = E::PARTS;

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        WeightedParts::parts(self, rows)
    }
}

impl<E: WeightedParts> Columns for E {
    fn columns(&self) -> Vec<Asked> {
        let mut columns = self.asked();
        let of_anchor = self.anchor().map_or_else(Vec::new, Anchor::columns);
        columns.extend(of_anchor.into_iter().filter(|column| !self.asked().contains(column)));
        columns
    }
}
