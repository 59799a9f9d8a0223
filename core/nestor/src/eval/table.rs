//! The text table of an evaluation of several models.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::evaluated::EvaluatedModel;
use super::{Evaluation, SuccessRate};

/// Spaces between two columns.
const GAP: usize = 2;

/// A column: its header and one cell per model.
#[derive(Debug)]
struct Column {
    header: String,
    cells: Vec<String>,
}

/// Columns, the most important first.
#[derive(Debug)]
pub struct Table {
    /// The folder that all models are in.
    folder: PathBuf,
    columns: Vec<Column>,
}

impl Table {
    /// A row per model, and a star before the one with number `best`.
    pub fn of(models: &[EvaluatedModel], best: usize) -> Self {
        let folder = common_folder(models);
        let column = |header: &str, cell: &dyn Fn(&EvaluatedModel) -> Option<String>| Column {
            header: header.into(),
            cells: models.iter().map(|model| cell(model).unwrap_or_else(|| "-".into())).collect(),
        };
        let number = |header: &str, digits: usize, value: &dyn Fn(&Evaluation) -> Option<f64>| {
            column(header, &|model| value(&model.evaluation).map(|value| format!("{value:.digits$}")))
        };
        let mut names = column("model", &|model| Some(format!("  {}", inside(&model.model, &folder).display())));
        names.cells[best].replace_range(..1, "*");
        let mut columns = vec![
            names,
            column("iteration", &|model| model.iteration.map(|iteration| iteration.to_string())),
            number("success", 3, &|e| Some(e.success.rate())),
            column("95 % interval", &|model| {
                let [low, high] = model.evaluation.success.interval;
                Some(format!("{low:.3} to {high:.3}"))
            }),
        ];
        let ks = models.first().map_or(&[][..], |model| &model.evaluation.success.pass_at);
        for (index, (k, _)) in ks.iter().enumerate().skip(1) {
            columns.push(number(&format!("pass@{k}"), 3, &|e| Some(e.success.pass_at.get(index)?.1)));
        }
        columns.push(number("return", 3, &|e| Some(e.mean_return)));
        columns.push(number("length", 1, &|e| Some(e.mean_length)));
        columns.push(number("valid", 3, &|e| Some(e.valid_actions)));
        columns.push(number("cut", 3, &|e| Some(e.cut_responses)));
        columns.push(number("tokens", 1, &|e| Some(e.mean_response)));
        columns.push(number("repeated", 3, &|e| Some(e.repeated_actions)));
        for kind in names_of(models, |e| e.by_type.keys()) {
            columns.push(number(&kind, 3, &|e| e.by_type.get(&kind).map(SuccessRate::rate)));
        }
        for name in names_of(models, |e| e.environment.keys()) {
            columns.push(number(&name, 3, &|e| e.environment.get(&name).copied()));
        }
        Self { folder, columns }
    }

    /// The header and the rows, with as many columns as fit into `width`.
    pub fn text(&self, width: Option<usize>) -> String {
        let mut lines = vec![String::new(); self.columns.first().map_or(0, |column| column.cells.len()) + 1];
        for (number, Column { header, cells }) in self.columns.iter().enumerate() {
            let widest = cells.iter().chain([header]).map(|text| text.chars().count()).max().unwrap_or(0);
            let taken = lines[0].chars().count();
            if number > 0 && width.is_some_and(|width| taken + GAP + widest > width) {
                break;
            }
            for (line, cell) in lines.iter_mut().zip([header].into_iter().chain(cells)) {
                *line += &match number {
                    0 => format!("{cell:<widest$}"),
                    _ => format!("{:GAP$}{cell:>widest$}", ""),
                };
            }
        }
        if !self.folder.as_os_str().is_empty() {
            lines.insert(0, format!("models in {}:", self.folder.display()));
        }
        lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
    }
}

/// The names that any model's evaluation has.
fn names_of<'a, K>(models: &'a [EvaluatedModel], keys: impl Fn(&'a Evaluation) -> K) -> BTreeSet<String>
where
    K: Iterator<Item = &'a String>,
{
    models.iter().flat_map(|model| keys(&model.evaluation)).cloned().collect()
}

/// The longest folder that holds all models.
fn common_folder(models: &[EvaluatedModel]) -> PathBuf {
    let first = models.first().and_then(|model| model.model.parent()).unwrap_or(Path::new(""));
    let holds_all =
        |folder: &&Path| models.iter().all(|model| model.model.parent().is_some_and(|p| p.starts_with(folder)));
    first.ancestors().find(holds_all).unwrap_or(Path::new("")).into()
}

fn inside<'a>(model: &'a Path, folder: &Path) -> &'a Path {
    model.strip_prefix(folder).unwrap_or(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Episode, Step};

    fn models() -> Vec<EvaluatedModel> {
        let steps = vec![Step { reward: 1.0, valid: true, response: vec![5, 7], ..Step::default() }];
        let episode = |(group, won)| {
            let (steps, task_type) = (steps.clone(), Some("coin".to_string()));
            Episode { group, won, steps, task_type, ..Episode::default() }
        };
        let played = |won: [bool; 4]| (0..).map(|i| i / 2).zip(won).map(episode).collect::<Vec<_>>();
        let model = |name: &str, iteration, won| EvaluatedModel {
            iteration,
            ..EvaluatedModel::new(Path::new(name), &played(won), &vec![7].into())
        };
        vec![
            model("runs/a/checkpoints/iteration-000001", Some(1), [false, false, true, false]),
            model("runs/b/model", None, [true, false, true, true]),
        ]
    }

    #[test]
    fn a_row_per_model_and_a_star_for_the_best() {
        let models = models();
        let expected = "\
models in runs:
model                             iteration  success   95 % interval  pass@2  return  length  valid    cut  tokens  repeated   coin
  a/checkpoints/iteration-000001          1    0.250  0.037 to 0.744   0.500   1.000     1.0  1.000  0.000     2.0     0.000  0.250
* b/model                                 -    0.750  0.256 to 0.963   1.000   1.000     1.0  1.000  0.000     2.0     0.000  0.750";
        assert_eq!(Table::of(&models, 1).text(None), expected);
        // A terminal of 80 columns has no room for the last ones.
        let narrow: Vec<&str> = expected.lines().map(|line| line[..line.len().min(77)].trim_end()).collect();
        assert_eq!(Table::of(&models, 1).text(Some(80)), narrow.join("\n"));
        assert_eq!(common_folder(&models[..1]), Path::new("runs/a/checkpoints"));
    }
}
