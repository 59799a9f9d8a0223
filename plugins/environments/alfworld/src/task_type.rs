//! The six kinds of task.

use anyhow::Result;
use nestor_plugin::suggest;

/// The kind of goal. The order is that of ALFWorld's numbers, 1 to 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskType {
    /// Put an object somewhere.
    PickAndPlace,
    /// Look at an object under a lamp.
    LookAtObjInLight,
    /// Clean an object and put it somewhere.
    PickClean,
    /// Heat an object and put it somewhere.
    PickHeat,
    /// Cool an object and put it somewhere.
    PickCool,
    /// Put two objects of a class into one receptacle.
    PickTwo,
}

impl TaskType {
    pub const ALL: [TaskType; 6] = [
        TaskType::PickAndPlace,
        TaskType::LookAtObjInLight,
        TaskType::PickClean,
        TaskType::PickHeat,
        TaskType::PickCool,
        TaskType::PickTwo,
    ];

    /// Returns its name in `traj_data.json`, in folder names, and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            TaskType::PickAndPlace => "pick_and_place_simple",
            TaskType::LookAtObjInLight => "look_at_obj_in_light",
            TaskType::PickClean => "pick_clean_then_place_in_recep",
            TaskType::PickHeat => "pick_heat_then_place_in_recep",
            TaskType::PickCool => "pick_cool_then_place_in_recep",
            TaskType::PickTwo => "pick_two_obj_and_place",
        }
    }

    /// Parses the name of a task type.
    ///
    /// # Errors
    /// An unknown name; the message has the nearest known one.
    pub fn from_name(name: &str) -> Result<TaskType> {
        let found = TaskType::ALL.into_iter().find(|t| t.name() == name);
        let names = TaskType::ALL.map(TaskType::name);
        found.ok_or_else(|| anyhow::anyhow!("task type `{name}` is unknown{}", suggest(name, &names)))
    }
}
