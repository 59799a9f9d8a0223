//! The checks of an environment.

mod anchors;
mod episode;
mod expert;
mod load;
mod player;
mod repeat;
mod responses;
mod rules;
mod snapshot;
mod splits;
mod start;
mod template;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Check, Subject};
use crate::SharedEnv;
use crate::library::{self, EnvironmentTables, Functions, Kind, PluginFile};

/// An episode to start.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Start {
    split: String,
    task: u64,
    seed: u64,
}

impl std::fmt::Display for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {} of split {}, seed {}", self.task, self.split, self.seed)
    }
}

/// The environment, loaded into this process.
struct Loaded<'a> {
    subject: &'a Subject<'a>,
    id: &'static str,
    file: PluginFile,
    tables: EnvironmentTables,
}

impl<'a> Loaded<'a> {
    fn new(subject: &'a Subject<'a>) -> Result<Self> {
        let all = library::load(&subject.found.path)?;
        let is_it = |c: &library::Component| c.kind() == Kind::Environment && c.id == subject.found.id;
        let component = all.into_iter().find(is_it).context("the file changed while it was checked")?;
        match component.functions {
            Functions::Environment(tables) => Ok(Self {
                subject,
                id: component.id,
                file: PluginFile::read(component.id, &subject.found.path, None)?.with_border(component.border),
                tables,
            }),
            Functions::Estimator(_) | Functions::Loss(_) => unreachable!("looked up by its kind"),
        }
    }

    fn open(&self) -> Result<SharedEnv> {
        self.open_with(&self.subject.config)
    }

    fn open_with(&self, config: &Value) -> Result<SharedEnv> {
        SharedEnv::open((self.id, self.file.clone()), self.tables, config, &self.subject.limits())
    }

    /// Tasks of all splits, spread evenly, at most `most` of each. The starts have different seeds.
    fn starts(&self, shared: &SharedEnv, most: u64) -> Result<Vec<Start>> {
        let mut starts = Vec::new();
        for split in &self.subject.kit.splits {
            let count = shared.tasks(split)?;
            let sampled = count.min(most);
            starts.extend((0..sampled).map(|at| Start {
                split: split.clone(),
                task: (u128::from(at) * u128::from(count) / u128::from(sampled)) as u64,
                seed: 7 * at + 1,
            }));
        }
        Ok(starts)
    }

    /// As many tasks as the budget samples.
    fn sampled(&self, shared: &SharedEnv) -> Result<Vec<Start>> {
        self.starts(shared, self.subject.kit.budget.tasks)
    }
}

const RULES: &[&str] = &["observation_schema", "reward_well_formed"];
const REPEATABLE: &[&str] = &["episode_determinism"];

/// The checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check {
        name: "startup",
        needs: &[],
        remedy: "open must give a world of its own every time, and keep no state in the library",
        body: start::startup,
    },
    Check {
        name: "config_errors",
        needs: &["startup"],
        remedy: "refuse it in open with a message that names the key (C: NESTOR_INPUT; Rust: deny_unknown_fields)",
        body: start::config_errors,
    },
    Check {
        name: "unknown_split",
        needs: &["startup"],
        remedy: "refuse it in tasks with a message that names all splits (C: NESTOR_INPUT; Rust: unknown_split; Python: raise an error)",
        body: splits::unknown_split,
    },
    Check {
        name: "task_declaration_accuracy",
        needs: &["startup"],
        remedy: "every split needs tasks, and every task below its number a reset; name the splits by --splits",
        body: splits::task_declaration_accuracy,
    },
    Check {
        name: "observation_schema",
        needs: &["task_declaration_accuracy"],
        remedy: "put what nestor_plugin.h asks for in reset and step",
        body: rules::observation_schema,
    },
    Check {
        name: "reward_well_formed",
        needs: &["task_declaration_accuracy"],
        remedy: "rewards are finite and flags 0 or 1; after reset the reward is 0, valid is 1 and the episode is not over",
        body: rules::reward_well_formed,
    },
    Check {
        name: "prompt_template",
        needs: RULES,
        remedy: "docs/environment.md lists what a template may use; a recipe may replace it by rollout.template",
        body: template::prompt_template,
    },
    Check {
        name: "episode_determinism",
        needs: RULES,
        remedy: "take all randomness from the seed of reset, and start every episode from nothing",
        body: repeat::episode_determinism,
    },
    Check {
        name: "replayability",
        needs: REPEATABLE,
        remedy: "an episode must not depend on the process: no clock, process id, address or order of a hash map",
        body: repeat::replayability,
    },
    Check {
        name: "episode_isolation",
        needs: REPEATABLE,
        remedy: "keep the state of an episode in the env, not in the world or in the library",
        body: repeat::episode_isolation,
    },
    Check {
        name: "many_threads",
        needs: &["episode_isolation"],
        remedy: "many threads use one world at once: guard what they change there",
        body: repeat::many_threads,
    },
    Check {
        name: "splits_disjoint",
        needs: REPEATABLE,
        remedy: "give every split tasks of its own, so that an evaluation measures what was not trained on",
        body: splits::splits_disjoint,
    },
    Check {
        name: "step_after_done",
        needs: REPEATABLE,
        remedy: "return an error from a step after the last one, or change nothing; reset must work afterwards",
        body: responses::step_after_done,
    },
    Check {
        name: "empty_response",
        needs: REPEATABLE,
        remedy: "a policy may write nothing: play it as an invalid response (valid = 0; in Python `parse` returns None)",
        body: responses::empty,
    },
    Check {
        name: "long_response",
        needs: REPEATABLE,
        remedy: "expect a response of any length",
        body: responses::long,
    },
    Check {
        name: "nul_response",
        needs: REPEATABLE,
        remedy: "text may hold NUL and does not end there: use its length",
        body: responses::nul,
    },
    Check {
        name: "invalid_utf8_response",
        needs: REPEATABLE,
        remedy: "check the text, and return an error where it is not UTF-8",
        body: responses::invalid_utf8,
    },
    Check {
        name: "admissible_accepted",
        needs: REPEATABLE,
        remedy: "list only actions that a step accepts (valid = 1; in Python `parse` does not return None)",
        body: expert::admissible_accepted,
    },
    Check {
        name: "oracle_max",
        needs: REPEATABLE,
        remedy: "the expert must win every task (`won` in the info of the last step), each of its responses being valid",
        body: expert::oracle_max,
    },
    Check {
        name: "floor_gap",
        needs: &["episode_determinism", "empty_response"],
        remedy: "an episode must not be won without work",
        body: expert::floor_gap,
    },
    Check {
        name: "anchors_stable",
        needs: REPEATABLE,
        remedy: "make the anchor from the state alone: no counter, address or order of a hash map",
        body: anchors::stable,
    },
    Check {
        name: "anchors_shared",
        needs: &["anchors_stable"],
        remedy: "the anchor names the state, not the way there: leave out step counts and history",
        body: anchors::shared,
    },
    Check {
        name: "snapshot",
        needs: &["episode_isolation", "anchors_stable"],
        remedy: "save all that later steps depend on, and refuse other bytes with an error",
        body: snapshot::snapshot,
    },
    Check {
        name: "many_episodes",
        needs: RULES,
        remedy: "free at reset what the last episode took",
        body: load::many_episodes,
    },
    Check {
        name: "open_close",
        needs: &["many_episodes"],
        remedy: "free in close and close_world all that open and spawn took",
        body: load::open_close,
    },
];
