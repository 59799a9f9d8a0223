//! The kit finds every planted fault by the check that is named for it, and by no other.

#![allow(clippy::unwrap_used)] // a test may fail so

mod support;

use std::path::Path;

use nestor_host::kit::{Budget, Kit, Report, Status};
use serde_json::{Value, json};

/// Faults of the environment `planted` of plugins/sdk/examples/faulty.rs, the check that finds each, and a part of its message.
const ENVIRONMENT: [(&str, &str, &str); 27] = [
    ("exit_in_spawn", "startup", "ended with code"),
    ("wrong_type_accepted", "config_errors", "`max_steps` of a wrong type was accepted"),
    ("unknown_split_accepted", "unknown_split", "has a number"),
    ("last_task_missing", "task_declaration_accuracy", "task 11, the last of the 12"),
    ("bad_metric_name", "observation_schema", "Distance/m"),
    ("nan_reward", "reward_well_formed", "NaN"),
    ("unknown_variable", "prompt_template", "undefined value"),
    ("empty_prompt", "prompt_template", "the prompt of step 3 is empty"),
    ("reset_at_random", "episode_determinism", "the observation is"),
    ("image_at_random", "episode_determinism", "the list of images is"),
    ("process_in_image", "replayability", "the list of images is"),
    ("process_in_text", "replayability", "in process"),
    ("shared_position", "episode_isolation", "in turn with others"),
    ("not_thread_safe", "many_threads", "while 8 threads play"),
    ("splits_overlap", "splits_disjoint", "begins like task"),
    ("hang_after_done", "step_after_done", "`step` did not return within"),
    ("crash_on_empty", "empty_response", "SIGABRT"),
    ("panic_on_long", "long_response", "too long"),
    ("panic_on_nul", "nul_response", "a NUL"),
    ("admissible_refused", "admissible_accepted", "rest"),
    ("expert_loses", "oracle_max", "the expert lost"),
    ("won_by_nothing", "floor_gap", "empty responses win 100 %"),
    ("anchors_unstable", "anchors_stable", "the anchor is"),
    ("anchors_all_different", "anchors_shared", "never with the same anchor"),
    ("snapshot_forgets", "snapshot", "from a copy"),
    ("leak_in_reset", "many_episodes", "memory grew"),
    ("leak_in_spawn", "open_close", "open descriptors grew"),
];

/// The same of the estimator.
const ESTIMATOR: [(&str, &str, &str); 12] = [
    ("writes_past", "writes_inside", "behind the end of the returns"),
    ("unwritten", "finite_and_written", "unwritten"),
    ("nan_equal_rewards", "equal_rewards", "gave NaN as the advantage"),
    ("nan_single_episode", "single_episode_groups", "of one episode"),
    ("panic_on_empty_row", "empty_rows", "a row without tokens"),
    ("counts_calls", "repeatable", "different numbers"),
    ("needs_row_order", "row_order", "another order"),
    ("copies_get_nothing", "copies", "in its copy"),
    ("optional_column_required", "optional_columns", "no entropies"),
    ("infinite_part", "parts", "it must be finite"),
    ("state_forgets", "state_round_trip", "after a save and a load"),
    ("leak_in_score", "many_scores", "memory grew"),
];

/// The same of the loss.
const LOSS: [(&str, &str, &str); 12] = [
    ("nan_on_large_ratio", "finite_and_written", "gave NaN as the loss"),
    ("unwritten", "finite_and_written", "left the loss of token 0"),
    ("writes_past", "finite_and_written", "behind the end of an array"),
    ("names_change", "finite_and_written", "every call must have the same"),
    ("counts_calls", "repeatable", "other numbers in a later call"),
    ("wrong_sign", "derivatives", "the derivative by the log-prob"),
    ("forgets_entropy", "derivatives", "the derivative by the entropy"),
    ("own_token_only", "derivatives", "differences of the losses give"),
    ("number_of_response", "response_order", "with the responses in another order"),
    ("share_of_call", "halves", "in a part of the mini-batch"),
    ("metric_is_mean", "metrics", "must be a sum over tokens"),
    ("leak_in_compute", "many_losses", "memory grew"),
];

fn check(file: &Path, component: &str, config: Value) -> Report {
    let kit = Kit { config, component: Some(component.into()), budget: Budget::small(), ..Kit::default() };
    kit.check(file).unwrap()
}

// One test: a fork of a process whose other threads do nothing is safe.
#[test]
fn every_planted_fault_is_found_by_its_check_and_by_no_other() {
    let file = support::build().join("examples/libfaulty.so");
    let components =
        [("planted", &ENVIRONMENT[..]), ("planted_estimator", &ESTIMATOR[..]), ("planted_loss", &LOSS[..])];
    for (component, faults) in components {
        let sound = check(&file, component, json!({}));
        let open: Vec<_> = sound.sections[0].lines.iter().filter(|line| line.status != Status::Passed).collect();
        assert!(open.is_empty(), "{sound}");
        for (fault, name, part) in faults {
            let report = check(&file, component, json!({ "fault": fault }));
            let found: Vec<_> = report.failures().map(|(_, line)| (line.name, line.note.as_str())).collect();
            assert!(
                matches!(found[..], [(found, note)] if found == *name && note.contains(part)),
                "{fault}, to be found by {name} with {part:?}: {report}"
            );
        }
        // All checks but those that a plugin of the SDK cannot fail have a fault.
        let unproven: Vec<_> = sound.sections[0].lines.iter().map(|line| line.name).collect();
        let unproven: Vec<_> = unproven.into_iter().filter(|name| faults.iter().all(|(_, by, _)| by != name)).collect();
        let allowed: &[&str] = if component == "planted" {
            &["invalid_utf8_response"]
        } else {
            &["startup", "config_errors", "open_close"]
        };
        assert_eq!(unproven, allowed);
    }
}
