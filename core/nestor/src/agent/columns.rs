//! The columns of rows that episodes know themselves, for estimators that ask for them.

use std::collections::BTreeMap;

use crate::data::{Episode, Step};
use crate::plugin::{Asked, Column, Values};

/// The run's part of the columns.
#[derive(Debug, Clone, Copy)]
pub struct RunColumns<'a> {
    /// The split of the tasks.
    pub split: &'a str,
    /// Number of the iteration, from 1.
    pub iteration: u64,
}

/// The asked columns that need no network, by name. Rows are those of [`pack`](super::pack), in its order.
pub fn episode_columns(asked: &[Asked], episodes: &[Episode], run: RunColumns) -> BTreeMap<String, Values> {
    let values = asked.iter().filter_map(|one| Some((one.column.to_string(), values(&one.column, episodes, run)?)));
    values.collect()
}

/// The entries of a column; none for one that a network computes.
fn values(column: &Column, episodes: &[Episode], run: RunColumns) -> Option<Values> {
    let episodes = || episodes.iter().filter(|episode| !episode.failed());
    let rows = || episodes().flat_map(|episode| episode.steps.iter().map(move |step| (episode, step)));
    let steps = || rows().map(|(_, step)| step);
    Some(match column {
        Column::NextAnchor => Values::bytes(episodes().flat_map(Episode::next_anchors)),
        Column::Success => Values::U8(rows().map(|(episode, _)| episode.won.into()).collect()),
        Column::Action => Values::bytes(steps().map(|step| &step.action)),
        Column::Task => Values::U64(rows().map(|(episode, _)| episode.task).collect()),
        Column::Seed => Values::U64(rows().map(|(episode, _)| episode.seed).collect()),
        Column::Split => Values::bytes([run.split]),
        Column::TaskType => Values::bytes(rows().map(|(episode, _)| episode.task_type.as_deref().unwrap_or_default())),
        Column::Iteration => Values::U64(vec![run.iteration]),
        Column::Token => Values::U32(steps().flat_map(|step| &step.response).copied().collect()),
        Column::Observation => Values::bytes(steps().map(|step| &step.observation)),
        Column::Admissible => Values::bytes(steps().map(|step| step.admissible.join("\n"))),
        Column::GreedyReturn => {
            Values::F64(rows().map(|(episode, _)| episode.greedy_return.unwrap_or(f64::NAN)).collect())
        }
        Column::Info(name) => Values::F64(steps().map(|step| number(step, name)).collect()),
        Column::Entropy | Column::TeacherLogprobs | Column::Hidden { .. } => return None,
    })
}

/// A number or bool of a step's info; NaN where there is none.
fn number(step: &Step, name: &str) -> f64 {
    let value = step.info.get(name);
    value.and_then(|value| value.as_f64().or(value.as_bool().map(|flag| flag.into()))).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::pack;
    use crate::agent::pack::tests::rollout;

    fn episodes() -> Vec<Episode> {
        let step = |anchor: &str, info: serde_json::Value| Step {
            anchor: anchor.into(),
            response: vec![7, 8],
            action: format!("from {anchor}"),
            admissible: vec!["left".into(), "right".into()],
            info: info.as_object().expect("a map").clone(),
            ..Step::default()
        };
        let steps = vec![step("a", serde_json::json!({"score": 2})), step("b", serde_json::json!({"score": true}))];
        let won = Episode { steps, won: true, task: 5, last_anchor: b"end".into(), ..Episode::default() };
        let lost = Episode { steps: vec![step("a", serde_json::json!({}))], task: 6, ..Episode::default() };
        vec![won, lost]
    }

    #[test]
    fn columns_have_one_entry_for_each_row_or_token() {
        let asked = "next_anchor success action task seed split task_type iteration token observation admissible info.score greedy_return \
                     entropy teacher_logprobs? hidden.-1";
        let asked: Vec<Asked> = asked.split_whitespace().map(|name| name.parse().expect("a column")).collect();
        let episodes = episodes();
        let columns = episode_columns(&asked, &episodes, RunColumns { split: "train", iteration: 3 });
        assert_eq!(columns.len(), 13, "those of the episodes alone");
        let rows = pack(&episodes, &rollout(0.0)).rows;
        for one in &asked[..13] {
            let view = columns[&one.column.to_string()].view();
            view.check(&one.column, rows.len(), rows.token_rewards.len()).expect("the shape of its name");
        }
        assert_eq!(columns["next_anchor"], Values::bytes(["b", "end", ""]));
        assert_eq!(columns["success"], Values::U8(vec![1, 1, 0]));
        assert_eq!(columns["task"], Values::U64(vec![5, 5, 6]));
        assert_eq!(columns["iteration"], Values::U64(vec![3]));
        assert_eq!(columns["action"], Values::bytes(["from a", "from b", "from a"]));
        assert_eq!(columns["admissible"], Values::bytes(["left\nright"; 3]));
        let Values::F64(scores) = &columns["info.score"] else { panic!("numbers") };
        assert_eq!(scores[..2], [2.0, 1.0]);
        assert!(scores[2].is_nan());
        // An estimator that asks for nothing costs nothing.
        assert!(episode_columns(&[], &episodes, RunColumns { split: "train", iteration: 3 }).is_empty());
    }
}
