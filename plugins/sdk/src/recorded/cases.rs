//! Compares estimators with the reference implementation's results on recorded steps. For tests: every fault panics.

use serde_json::Value;

use super::{Columns, Recorded};
use crate::{Estimator, Scores, parse_config};

/// A file in the form of `tests/fixtures/advantage_cases.json`.
pub struct Cases {
    /// The parsed file.
    pub value: Value,
}

/// Parses the text of a file.
pub fn load(text: &str) -> Cases {
    Cases { value: serde_json::from_str(text).unwrap_or_else(|e| panic!("cases are not JSON: {e}")) }
}

impl Cases {
    /// Returns the worked example and the random trajectories: objects with the steps under `case` and results by
    /// estimator.
    pub fn scored(&self) -> Vec<&Value> {
        let random = self.value["random_trajectory_cases"].as_array().into_iter().flatten();
        std::iter::once(&self.value["worked_example"]).chain(random).collect()
    }
}

/// Scores recorded steps and returns the advantage of each row. All tokens of a row must have the same.
pub fn score<E: Estimator>(columns: &Columns, config: &Value) -> Vec<f32> {
    let tokens = columns.token_rewards.len();
    let (mut advantages, mut returns) = (vec![f32::NAN; tokens], vec![f32::NAN; tokens]);
    let asked = columns.asked();
    let rows = columns.view_with(&asked);
    parse_config(&config.to_string())
        .and_then(E::open)
        .and_then(|mut e| e.score(&rows, &mut Scores::new(&mut advantages, &mut returns)))
        .unwrap_or_else(|e| panic!("{config}: {e:#}"));
    let one_value = |row: usize| {
        let tokens = &advantages[rows.tokens(row)];
        assert!(tokens.iter().all(|a| *a == tokens[0]), "row {row} has {tokens:?}");
        tokens[0]
    };
    (0..rows.len()).map(one_value).collect()
}

/// Compares an estimator with every run of its method in a file in the form of `tests/fixtures/estimator_family.json`, to
/// 1e-6 of 1 + |x|: that reference works in float64. `config` turns a run's parameters into the estimator's. Returns the
/// number of rows compared.
pub fn compare_family<E: Estimator>(file: &Cases, method: &str, config: impl Fn(&Value) -> Value) -> usize {
    let list = |value: &Value| value.as_array().unwrap_or_else(|| panic!("{method}: no list")).clone();
    let mut compared = 0;
    for result in list(&file.value["methods"][method]) {
        let cases = list(&file.value["cases"]);
        let case = cases.iter().find(|case| case["id"] == result["case"]).unwrap_or_else(|| panic!("{result}"));
        let recorded: Recorded = serde_json::from_value(case.clone()).unwrap_or_else(|e| panic!("{e}"));
        let columns = recorded.columns().unwrap_or_else(|e| panic!("{e:#}"));
        for run in list(&result["runs"]) {
            let got = score::<E>(&columns, &config(&run["params"]));
            let want: Vec<f64> = list(&run["adv_f64"]).iter().filter_map(Value::as_f64).collect();
            assert_eq!(got.len(), want.len(), "rows");
            for (row, (&got, &want)) in got.iter().zip(&want).enumerate() {
                let close = (f64::from(got) - want).abs() <= 1e-6 * (1.0 + want.abs());
                assert!(close, "{} {}, row {row}: {got}, the reference has {want}", case["id"], run["params"]);
            }
            compared += got.len();
        }
    }
    compared
}

/// Compares an estimator with `expected["adv"]`, one number per row, to 1e-4 of 1 + |x|: the reference works in
/// float32. Returns the number of rows compared.
pub fn compare<E: Estimator>(case: &Value, config: &Value, expected: &Value) -> usize {
    let recorded: Recorded = serde_json::from_value(case.clone()).unwrap_or_else(|e| panic!("{e}"));
    let got = score::<E>(&recorded.columns().unwrap_or_else(|e| panic!("{e:#}")), config);
    let want: Vec<f64> = expected["adv"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    assert_eq!(got.len(), want.len(), "rows");
    for (row, (&got, &want)) in got.iter().zip(&want).enumerate() {
        let close = (f64::from(got) - want).abs() <= 1e-4 * (1.0 + want.abs());
        assert!(close, "{config}, row {row}: {got}, the reference has {want}");
    }
    got.len()
}
