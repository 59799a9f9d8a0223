//! Checks of the columns that an estimator asks for, and of the teacher.

use anyhow::{Context, Result};

use super::model::check_frozen;
use super::{Conditions, Findings};
use crate::input_error;
use crate::model::Config;
use crate::plugin::{Column, Estimator};
use crate::policy::columns::HiddenMean;
use crate::recipe::Recipe;

/// Refuses a column that the run cannot give and the estimator cannot do without, and a teacher that does not fit. Keeps the
/// teacher's configuration.
pub fn check(recipe: &Recipe, conditions: &Conditions, findings: &mut Findings) {
    if let Some(estimator) = &findings.estimator {
        let found = check_teacher_key(recipe, estimator);
        let layers = findings.config.as_ref().map_or(Ok(()), |config| check_layers(estimator, config));
        findings.take(found);
        findings.take(layers);
    }
    if let Some(teacher) = &recipe.estimator.teacher {
        let checked = check_frozen(recipe, (&teacher.path, "teacher"), findings.tokenizer.as_ref());
        let checked = checked.context("recipe key `estimator.teacher.path`");
        findings.teacher = findings.take_here(checked, conditions.elsewhere.is_none());
    }
}

/// Refuses a teacher that the estimator does not use, and its absence where the estimator asks for one.
fn check_teacher_key(recipe: &Recipe, estimator: &Estimator) -> Result<()> {
    let (id, column) = (estimator.id(), Column::TeacherLogprobs);
    let asked = estimator.asked().iter().find(|one| one.column == column);
    match (asked, &recipe.estimator.teacher) {
        (Some(one), None) if !one.optional => Err(input_error!(
            "recipe key `estimator.teacher`: estimator `{id}` asks for the column {column}, and the recipe has no teacher; \
             name a model folder by `estimator.teacher: {{path: FOLDER}}` (or --set estimator.teacher.path=FOLDER)"
        )),
        (None, Some(_)) => Err(input_error!(
            "recipe key `estimator.teacher`: estimator `{id}` does not ask for the column {column}, so the teacher would be \
             loaded for nothing; remove the section (or --set estimator.teacher=null)"
        )),
        _ => Ok(()),
    }
}

/// Refuses a hidden state of a layer that the model does not have.
fn check_layers(estimator: &Estimator, config: &Config) -> Result<()> {
    let layers = config.num_hidden_layers;
    let is_missing =
        |column: &Column| matches!(column, Column::Hidden { .. }) && HiddenMean::of(column, layers as usize).is_none();
    match estimator.asked().iter().find(|one| !one.optional && is_missing(&one.column)) {
        None => Ok(()),
        Some(one) => Err(input_error!(
            "recipe key `estimator`: plugin `{}` asks for the column {one}, and the model has the layers 0 to {}; choose one of \
             them in estimator.config, or another model",
            estimator.id(),
            layers - 1
        )),
    }
}
