//! Random valid games: a household, a task in it, and the two files that ALFWorld's own loader reads.
//!
//! Every game can be won from the start with what is in the room, and none is won at the start. It has the oddities of
//! the real data: receptacles at one location, objects in two receptacles at once, objects inside movable receptacles,
//! scenery, and a bare object per class.

mod dice;
mod house;
mod package;
mod problem;
mod tables;
#[cfg(test)]
mod tests;

pub use package::Package;

use crate::engine::GameFile;
use crate::task_type::TaskType;
use anyhow::{Context, Result};
use clap::ValueEnum;
use dice::Dice;
use house::House;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tables::{Room, has};

/// Size of a household.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// 10 to 12 receptacles, 8 to 10 objects to take.
    Small,
    /// As in the real data: 27 to 31 receptacles, 40 to 60 objects to take.
    Real,
}

/// A game, without the domain and the grammar.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Name of its folder, in the real data's form: `pick_and_place_simple-Mug-None-Shelf-301`. Many games share one.
    pub name: String,
    /// Name of the folder in that folder, different for every size and seed: `trial_T000007_small`.
    pub trial: String,
    pub task_type: TaskType,
    /// The task in words: `put a mug in shelf`.
    pub sentence: String,
    pub problem: String,
    /// Content of `traj_data.json`.
    pub traj_data: Value,
}

/// The goal of a game.
struct Goal {
    task: TaskType,
    object: &'static str,
    /// Class of its target receptacle; for [`TaskType::LookAtObjInLight`], of the lamp.
    target: &'static str,
}

/// Generates the game of a task, a size and a seed: always the same.
pub fn generate(task: TaskType, size: Size, seed: u64) -> Generated {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    (key[8], key[9]) = (task as u8, size as u8);
    let mut dice = Dice::new(key);

    let rooms = tables::rooms(task);
    let room = &rooms[dice.below(rooms.len())];
    let scene = room.first_scene + dice.below(30);
    let mut house = House::furnish(room, size, &mut dice);
    let goal = Goal::choose(task, room, &house, &mut dice);
    house.fill(room, &goal, size, &mut dice);

    let Goal { object, target, .. } = goal;
    let sentence = problem::sentence(&goal, &mut dice);
    let trial = match size {
        Size::Small => format!("trial_T{seed:06}_small"),
        Size::Real => format!("trial_T{seed:06}_real"),
    };
    let (parent, lamp) = if task == TaskType::LookAtObjInLight { ("", target) } else { (target, "") };
    let traj_data = json!({
        "task_type": task.name(),
        "task_id": trial,
        "pddl_params": {
            "object_target": object,
            "parent_target": parent,
            "toggle_target": lamp,
            "mrecep_target": "",
            "object_sliced": false,
        },
        "turk_annotations": { "anns": [{ "task_desc": sentence }] },
    });
    Generated {
        name: format!("{}-{object}-None-{target}-{scene}", task.name()),
        problem: problem::problem(&trial, &house, &goal),
        task_type: task,
        trial,
        sentence,
        traj_data,
    }
}

impl Goal {
    /// Draws a goal that this house allows: an object that also fits somewhere else than in the target.
    fn choose(task: TaskType, room: &Room, house: &House, dice: &mut Dice) -> Goal {
        let wanted = match task {
            TaskType::PickClean => tables::CLEANABLE,
            TaskType::PickHeat => tables::HEATABLE,
            TaskType::PickCool => tables::COOLABLE,
            _ => room.things,
        };
        let homes_needed = if task == TaskType::LookAtObjInLight { 1 } else { 2 };
        let mut choices = Vec::new();
        for object in room.things.split(' ').filter(|object| has(wanted, object)) {
            let homes = house.homes(object);
            if homes.len() >= homes_needed {
                // Movable receptacles would be a third of all goals.
                let weight = if has(tables::MOVABLE, object) { 1 } else { 2 };
                choices.extend(std::iter::repeat_n((object, homes), weight));
            }
        }
        let (object, homes) = &choices[dice.below(choices.len())];
        let target = if task == TaskType::LookAtObjInLight { "DeskLamp" } else { dice.pick(homes) };
        Goal { task, object, target }
    }

    /// Returns true if an object of this class in a receptacle of that class is the goal, states aside.
    fn is_met_by(&self, object: &str, receptacle: &str) -> bool {
        self.object == object && self.target == receptacle
    }
}

impl Generated {
    /// Returns the game as the reader of its file would.
    pub fn content(&self, package: &Package) -> GameFile {
        GameFile {
            pddl_domain: package.domain.clone(),
            grammar: package.grammar.replace(package::TASK_PLACE, &self.sentence),
            pddl_problem: self.problem.clone(),
            walkthrough: None,
            solvable: Some(true),
        }
    }

    /// Returns the content of `game.tw-pddl`. The walkthrough is a list of commands that wins, if known.
    pub fn game_file(&self, package: &Package, walkthrough: Option<Vec<String>>) -> Value {
        json!({
            "pddl_domain": package.domain,
            "grammar": package.grammar.replace(package::TASK_PLACE, &self.sentence),
            "pddl_problem": self.problem,
            "walkthrough": walkthrough,
            // By construction. AlfredTWEnv leaves out a game whose field is null.
            "solvable": true,
        })
    }

    /// Writes `FOLDER/<name>/<trial>/{game.tw-pddl,traj_data.json}` and returns the path of the game.
    ///
    /// # Errors
    /// A folder or file cannot be written.
    pub fn write(&self, folder: &Path, package: &Package, walkthrough: Option<Vec<String>>) -> Result<PathBuf> {
        let folder = folder.join(&self.name).join(&self.trial);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let put = |name: &str, content: &Value| {
            let path = folder.join(name);
            fs::write(&path, content.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(path)
        };
        put("traj_data.json", &self.traj_data)?;
        put("game.tw-pddl", &self.game_file(package, walkthrough))
    }
}
