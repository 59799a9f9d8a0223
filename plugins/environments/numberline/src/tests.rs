//! Compares with recorded games of gym_cards (tests/fixtures).

use crate::{NumberLine, Play};
use nestor_plugin::{Environment, Expert, Instance, Observation, Start};
use serde_json::{Value, json};
use std::collections::HashSet;

fn open(config: Value) -> anyhow::Result<NumberLine> {
    NumberLine::open(nestor_plugin::parse_config(&config.to_string())?)
}

fn reset(world: &NumberLine, split: &str, task: u64) -> (Play, Observation) {
    let mut play = world.spawn().unwrap();
    let first = play.reset(world, Start { split, task, seed: 0 }).unwrap();
    (play, first)
}

/// Returns every start of a split as (target, current).
fn starts(world: &NumberLine, split: &str) -> Vec<(u64, u64)> {
    let number = |seen: &Observation, key: &str| seen.info[key].as_u64().unwrap();
    (0..world.tasks(split).unwrap())
        .map(|task| reset(world, split, task).1)
        .map(|seen| (number(&seen, "target"), number(&seen, "current")))
        .collect()
}

#[test]
fn splits_share_no_pair_and_hold_them_all() {
    let world = open(json!({ "max": 20, "held_out": 100 })).unwrap();
    let (eval, train) = (starts(&world, "eval"), starts(&world, "train"));
    assert_eq!((eval.len(), train.len()), (100, 320));
    let all: HashSet<_> = eval.iter().chain(&train).collect();
    assert_eq!(all.len(), 21 * 20);
    assert!(all.iter().all(|(target, start)| target != start && *target <= 20 && *start <= 20));
    // Must never change: recipes' results depend on it. Holding out fewer keeps the same ones.
    assert_eq!(eval[..4], starts(&open(json!({ "max": 20, "held_out": 4 })).unwrap(), "eval"));
    assert_eq!(eval[..3], FIRST_HELD_OUT);
    assert_eq!(open(json!({})).unwrap().tasks("eval").unwrap(), 6);
    assert!(world.tasks("test").unwrap_err().to_string().contains("eval"));
}

/// The first held-out pairs of 0..=20, as made by the first version of this program.
const FIRST_HELD_OUT: [(u64, u64); 3] = [(13, 2), (18, 20), (2, 12)];

/// The recorded games have random actions; -1 is one that was not understood.
#[test]
fn replays_recorded_games() {
    let path = format!("{}/../../../tests/fixtures/gym_cards/traces.json", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let world = open(json!({})).unwrap();
    let task = |split, pair| starts(&world, split).iter().position(|start| *start == pair).map(|task| (split, task));
    let text = |info: &Value| format!("target: {}\ncurrent: {}", info["Target"], info["Current"]);
    for trace in file["numberline"].as_array().unwrap() {
        let pair = ["Target", "Current"].map(|key| trace["info"][key].as_u64().unwrap());
        let (split, task) = task("train", pair.into()).or_else(|| task("eval", pair.into())).unwrap();
        let (mut play, first) = reset(&world, split, task as u64);
        assert_eq!(first.text, text(&trace["info"]));
        for step in trace["steps"].as_array().unwrap() {
            let action = step["action"].as_i64().unwrap();
            let response = ["what?", "{\"action\": \"-\"}", "{\"action\": \"+\"}"][(action + 1) as usize];
            let seen = play.step(&world, response).unwrap();
            assert_eq!((seen.valid, &seen.text), (action >= 0, &text(&step["info"])), "{step}");
            assert_eq!(seen.reward, step["reward"].as_f64().unwrap(), "{step}");
            assert_eq!(
                (seen.terminated, seen.truncated),
                (step["terminated"] == true, step["truncated"] == true),
                "{step}"
            );
            assert_eq!(seen.info["won"], step["info"]["won"], "{step}");
            if seen.terminated || seen.truncated {
                assert!(play.step(&world, "{\"action\": \"+\"}").is_err());
            }
        }
    }
}

#[test]
fn the_upper_end_holds_and_reaching_the_target_wins() {
    let world = open(json!({ "max": 1, "held_out": 0, "raw_commands": true })).unwrap();
    let task = starts(&world, "train").iter().position(|s| *s == (0, 1)).unwrap();
    let (mut play, _) = reset(&world, "train", task as u64);
    let seen = play.step(&world, "+").unwrap();
    assert_eq!((seen.reward, seen.text.as_str(), seen.action.as_str()), (-1.0, "target: 0\ncurrent: 1", "+"));
    let seen = play.step(&world, " - ").unwrap();
    assert_eq!((seen.reward, seen.terminated, seen.truncated, &seen.info["won"]), (1.0, true, false, &true.into()));
}

#[test]
fn the_expert_wins_every_task() {
    let world = open(json!({ "max": 12, "held_out": 30 })).unwrap();
    for split in ["train", "eval"] {
        for (task, (target, start)) in starts(&world, split).into_iter().enumerate() {
            let (mut play, _) = reset(&world, split, task as u64);
            for left in (0..target.abs_diff(start)).rev() {
                let action = play.next_action(&world).unwrap();
                let seen = play.step(&world, &play.response(&world, &action).unwrap()).unwrap();
                assert!(seen.valid && seen.terminated == (left == 0));
            }
        }
    }
}

#[test]
fn a_wrong_config_is_an_error() {
    for (config, word) in [
        (json!({ "max": 0 }), "max"),
        (json!({ "max_steps": 0 }), "max_steps"),
        (json!({ "max": 2, "held_out": 6 }), "held_out"),
        (json!({ "maximum": 6 }), "max"),
    ] {
        let error = format!("{:#}", open(config).err().unwrap());
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn the_default_prompt_shows_the_numbers_and_the_last_steps() {
    let world = open(json!({ "max": 7 })).unwrap();
    let past = minijinja::context! { step => 1, observation => "THEN", action => "+" };
    let render = |history: &[minijinja::Value], follow_up: bool| {
        let values = minijinja::context! {
            observation => "NOW", task => "TASK", admissible => ["-", "+"], history, step => 2, steps_taken => 1, follow_up,
        };
        minijinja::Environment::new().render_str(&world.template(), values).unwrap()
    };
    let prompt = render(&[past], false);
    assert!(prompt.contains("from 0 to 7.\n\nTask: TASK\n"), "{prompt}");
    assert!(prompt.contains("Step 1:\nTHEN\nAction: +\n\nStep 2. The numbers now:\nNOW\n"), "{prompt}");
    assert!(prompt.contains("\"thoughts\""), "{prompt}");
    let next = render(&[], true);
    assert!(next.starts_with("Step 2. The numbers now:\nNOW\n") && next.contains("\"thoughts\""), "{next}");
}

#[test]
fn the_actions_are_words_where_the_config_says_so() {
    let world = open(json!({ "words": true, "raw_commands": true })).unwrap();
    assert!(world.template().contains("(\"up\")") && world.template().contains("(\"down\")"));
    let (mut play, first) = reset(&world, "train", 0);
    assert_eq!(first.admissible, ["down", "up"]);
    let action = play.next_action(&world).unwrap();
    let better = if first.info["target"].as_u64() > first.info["current"].as_u64() { "up" } else { "down" };
    assert_eq!(action, better);
    let seen = play.step(&world, " Up\n").unwrap();
    assert_eq!((seen.valid, &seen.action[..]), (true, "up"));
    assert!(!play.step(&world, "+").unwrap().valid);
}
