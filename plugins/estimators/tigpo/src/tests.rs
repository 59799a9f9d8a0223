//! Compares with results that were derived for `tests/fixtures/estimator_family.json`: no code of the authors is public.

use nestor_plugin::recorded::{Columns, Recorded, cases};
use nestor_plugin::{Parts, State};
use serde_json::{Value, json};

use super::Tigpo;

const FILE: &str = include_str!("../../../../tests/fixtures/estimator_family.json");

/// The rows of each iteration of a run, whose groups are the tasks.
fn iterations(recorded: &Recorded, run: &Value) -> Vec<Columns> {
    let of_iteration = |iteration: &Value| {
        let numbers: Vec<usize> = serde_json::from_value(iteration["rows"].clone()).unwrap();
        let mut rows: Vec<_> = numbers.into_iter().map(|row| recorded.rows[row].clone()).collect();
        rows.iter_mut().for_each(|row| row.named.task = Some(row.group.into()));
        Recorded { rows, ..recorded.clone() }.columns().unwrap()
    };
    run["iterations"].as_array().unwrap().iter().map(of_iteration).collect()
}

#[test]
fn tigpo_equals_the_derived_results() {
    for (recorded, result) in cases::load(FILE).family("tigpo_derived") {
        for run in result["runs"].as_array().unwrap() {
            let params = &run["params"];
            assert!(params["C"] == 10.0 && params["mode"] == "mean_std_norm", "{params}");
            // The derived results are the step part alone. Success is a return above 0, as in GraphGPO's code.
            let config = json!({ "gamma": params["gamma"], "episode_weight": 0.0, "success": {"return_above": 0.0} });
            let mut estimator: Tigpo = cases::open(&config);
            for (columns, iteration) in iterations(&recorded, run).iter().zip(run["iterations"].as_array().unwrap()) {
                let want = iteration["adv_f64"].as_array().unwrap();
                let got = cases::score_with(&mut estimator, columns);
                cases::compare_rows(&got, want, &format!("{} {params}", result["case"]));
            }
        }
    }
}

#[test]
fn tigpo_loads_what_it_saved() {
    let mut remembered = false;
    for (recorded, result) in cases::load(FILE).family("tigpo_derived") {
        let iterations = iterations(&recorded, &result["runs"][0]);
        let mut whole: Tigpo = cases::open(&json!({}));
        let mut state = whole.save().unwrap();
        for columns in &iterations {
            let mut resumed: Tigpo = cases::open(&json!({}));
            resumed.load(&state).unwrap();
            let advantages = cases::score_with(&mut whole, columns);
            assert_eq!(advantages, cases::score_with(&mut resumed, columns));
            let parts = whole.parts(&columns.view()).unwrap();
            let sum = |row: usize| (parts[0][row] + parts[1][row]) as f32;
            assert_eq!(advantages, (0..advantages.len()).map(sum).collect::<Vec<_>>(), "parts of another memory");
            remembered |= advantages != cases::score::<Tigpo>(columns, &json!({}));
            state = whole.save().unwrap();
            assert_eq!(state, resumed.save().unwrap());
        }
    }
    assert!(remembered, "the state changes nothing");
}
