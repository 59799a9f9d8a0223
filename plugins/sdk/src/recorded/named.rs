//! The columns of recorded rows that estimators ask for by name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Recorded, RecordedRow};
use crate::{Column, Values};

/// A row's cells of the columns that estimators ask for by name. A file has a column if all its rows have the cell.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NamedCells {
    /// Anchor of the state after the step.
    pub next_anchor: Option<String>,
    /// The episode was won.
    pub success: Option<bool>,
    /// The action that the environment read in the response.
    pub action: Option<String>,
    /// Number of the task in its split.
    pub task: Option<u64>,
    /// Seed of the episode's reset.
    pub seed: Option<u64>,
    /// The environment's kind of task.
    pub task_type: Option<String>,
    /// Ids of the response tokens.
    pub token: Option<Vec<u32>>,
    /// Entropies of the policy that sampled, one for each response token.
    pub entropy: Option<Vec<f32>>,
    /// Return of one greedy episode from the start of the row's group.
    pub greedy_return: Option<f64>,
    /// Log-probs under the teacher, one for each response token.
    pub teacher_logprobs: Option<Vec<f32>>,
    /// The observation that the prompt was made of.
    pub observation: Option<String>,
    /// The admissible actions.
    pub admissible: Option<Vec<String>>,
    /// The environment's info after the step: its numbers and bools are columns `info.NAME`.
    #[serde(default)]
    pub info: Map<String, Value>,
    /// Hidden states by layer, or by layer and number of tokens: `{"-1": [...], "3.16": [...]}`.
    #[serde(default)]
    pub hidden: BTreeMap<String, Vec<f32>>,
}

/// The columns that a file has.
pub fn columns(file: &Recorded) -> Result<Vec<(Column, Values)>> {
    let rows = &file.rows;
    let texts = |cell: fn(&NamedCells) -> Option<&String>| Ok(cells(rows, cell)?.map(Values::bytes));
    let admissible = |row: &NamedCells| row.admissible.as_ref().map(|all| all.join("\n"));
    let numbers = |cell: fn(&NamedCells) -> Option<u64>| Ok(cells(rows, cell)?.map(Values::U64));
    let floats = |cell: fn(&NamedCells) -> Option<&Vec<f32>>| Ok(per_token(rows, cell)?.map(Values::F32));
    let named: [(Column, Result<Option<Values>>); 14] = [
        (Column::NextAnchor, texts(|row| row.next_anchor.as_ref())),
        (Column::Success, cells(rows, |row| row.success.map(u8::from)).map(|cells| cells.map(Values::U8))),
        (Column::Action, texts(|row| row.action.as_ref())),
        (Column::Task, numbers(|row| row.task)),
        (Column::Seed, numbers(|row| row.seed)),
        (Column::Split, Ok(file.split.as_ref().map(|split| Values::bytes([split])))),
        (Column::TaskType, texts(|row| row.task_type.as_ref())),
        (Column::Iteration, Ok(file.iteration.map(|iteration| Values::U64(vec![iteration])))),
        (Column::Token, per_token(rows, |row| row.token.as_ref()).map(|ids| ids.map(Values::U32))),
        (Column::Entropy, floats(|row| row.entropy.as_ref())),
        (Column::Observation, texts(|row| row.observation.as_ref())),
        (Column::Admissible, cells(rows, admissible).map(|cells| cells.map(Values::bytes))),
        (Column::GreedyReturn, cells(rows, |row| row.greedy_return).map(|cells| cells.map(Values::F64))),
        (Column::TeacherLogprobs, floats(|row| row.teacher_logprobs.as_ref())),
    ];
    let mut all = Vec::new();
    for (column, values) in named {
        let values = values.with_context(|| format!("column {column}"))?;
        all.extend(values.map(|values| (column, values)));
    }
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.named.info.keys()).collect();
    all.extend(names.into_iter().map(|name| (Column::Info(name.clone()), info(rows, name))));
    let layers: BTreeSet<&String> = rows.iter().flat_map(|row| row.named.hidden.keys()).collect();
    for name in layers {
        let column: Column = format!("hidden.{name}").parse()?;
        let states = cells(rows, |row| row.hidden.get(name))?.unwrap_or_default();
        let size = states.first().map_or(0, |state| state.len());
        ensure!(states.iter().all(|state| state.len() == size), "{column} must have {size} numbers in every row");
        all.push((column, Values::F32(states.into_iter().flatten().copied().collect())));
    }
    Ok(all)
}

/// The cells of a column, if the rows have it.
fn cells<'a, T>(rows: &'a [RecordedRow], cell: impl Fn(&'a NamedCells) -> Option<T>) -> Result<Option<Vec<T>>> {
    let found: Vec<Option<T>> = rows.iter().map(|row| cell(&row.named)).collect();
    let missing = found.iter().position(Option::is_none);
    ensure!(
        missing.is_none() || found.iter().all(Option::is_none),
        "row {} lacks the key, which other rows have; an optional key must be given in all rows or in none",
        missing.unwrap_or_default()
    );
    Ok(found.into_iter().collect())
}

/// The cells of a column with one entry for each response token, joined.
fn per_token<'a, T: Copy + 'a>(
    rows: &'a [RecordedRow],
    cell: impl Fn(&'a NamedCells) -> Option<&'a Vec<T>>,
) -> Result<Option<Vec<T>>> {
    let Some(cells) = cells(rows, cell)? else { return Ok(None) };
    for (number, (entries, row)) in cells.iter().zip(rows).enumerate() {
        ensure!(
            entries.len() == row.resp_len as usize,
            "row {number} has {} entries for {} response tokens",
            entries.len(),
            row.resp_len
        );
    }
    Ok(Some(cells.into_iter().flatten().copied().collect()))
}

/// The numbers and bools of the info under a name; NaN where a row has none.
fn info(rows: &[RecordedRow], name: &str) -> Values {
    let number = |row: &RecordedRow| {
        let value = row.named.info.get(name);
        value.and_then(|value| value.as_f64().or(value.as_bool().map(f64::from))).unwrap_or(f64::NAN)
    };
    Values::F64(rows.iter().map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_columns_that_all_its_rows_have() {
        let row = |more: &str| {
            format!(r#"{{"group":0,"traj":"a","anchor":"s","reward":1,"valid":true,"resp_len":2,"task":7{more}}}"#)
        };
        let read = |rows: [String; 2]| {
            let text = format!(r#"{{"rows":[{}],"split":"train"}}"#, rows.join(","));
            serde_json::from_str::<Recorded>(&text).unwrap().columns()
        };
        let first = r#","entropy":[0.5,1],"success":true,"hidden":{"-1.4":[1,2,3]},"info":{"keys":3}"#;
        let second = r#","entropy":[2,3],"success":false,"hidden":{"-1.4":[4,5,6]}"#;
        let columns = read([row(first), row(second)]).unwrap();
        let asked = columns.asked();
        let rows = columns.view_with(&asked);
        assert_eq!((rows.task().unwrap(), rows.success().unwrap()), (&[7, 7][..], &[1, 0][..]));
        assert_eq!(rows.entropy().unwrap(), [0.5, 1.0, 2.0, 3.0]);
        assert_eq!(rows.hidden(-1, 4).unwrap().of(1), [4.0, 5.0, 6.0]);
        assert_eq!(rows.split().unwrap(), "train");
        assert!(rows.info("keys").unwrap()[0] == 3.0 && rows.info("keys").unwrap()[1].is_nan());
        assert!(rows.action().is_err() && rows.iteration().is_err());
        // Without `episode_reward`, an episode's is the sum of its rows'.
        assert_eq!(rows.token_rewards, [0.0, 2.0, 0.0, 2.0]);
        let refused = |second: &str| read([row(first), row(second)]).unwrap_err();
        assert!(format!("{:#}", refused("")).contains("column success: row 1 lacks the key"));
        let short = refused(r#","entropy":[2],"success":true,"hidden":{"-1.4":[4,5,6]}"#);
        assert!(
            format!("{short:#}").contains("column entropy: row 1 has 1 entries for 2 response tokens"),
            "{short:#}"
        );
    }
}
