//! The evaluation of one model, as a row of the report.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{Evaluation, SuccessRate};
use crate::checkpoint::Moment;
use crate::data::Episode;
use crate::tokenizer::Ends;

/// The evaluation of one model.
#[derive(Debug, Clone)]
pub struct EvaluatedModel {
    /// The folder of the model.
    pub model: PathBuf,
    /// Finished iterations of a checkpoint.
    pub iteration: Option<u64>,
    pub evaluation: Evaluation,
    /// The file of episodes, inside the folder of the report.
    pub episodes: Option<PathBuf>,
}

impl EvaluatedModel {
    /// Evaluates the episodes that a model played.
    pub fn new(model: &Path, episodes: &[Episode], ends: &Ends) -> Self {
        let iteration = Moment::of_folder(model).and_then(|moment| moment.finished());
        Self { model: model.into(), iteration, evaluation: Evaluation::of(episodes, ends), episodes: None }
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Map<String, Value> {
        let Self { model, iteration, evaluation, episodes } = self;
        let Evaluation { success, failed, by_type, mean_return, mean_length, environment, .. } = evaluation;
        let mut row = object(json!({ "model": model, "iteration": iteration }));
        row.extend(rate_json(success));
        row.extend(object(json!({
            "failed": failed,
            "return": mean_return,
            "length": mean_length,
            "valid_action_ratio": evaluation.valid_actions,
            "repeated_ratio": evaluation.repeated_actions,
            "clipped_ratio": evaluation.cut_responses,
            "response_length": evaluation.mean_response,
            "env": environment,
            "return_of": evaluation.return_of,
            "by_type": by_type.iter().map(|(kind, rate)| (kind.clone(), rate_json(rate).into())).collect::<Map<_, _>>(),
            "episodes_file": episodes,
        })));
        row
    }

    /// Several lines, for a report of one model.
    pub fn text(&self) -> String {
        let Evaluation { success, failed, by_type, mean_return, mean_length, environment, .. } = &self.evaluation;
        let Evaluation { valid_actions, repeated_actions, cut_responses, mean_response, .. } = self.evaluation;
        let mut text = format!("success {}", rate_text(success));
        if *failed > 0 {
            text += &format!("; the environment failed in {failed} of them, which count as not won");
        }
        for (kind, rate) in by_type {
            text += &format!("\n  {kind} {}", rate_text(rate));
        }
        text += &format!(
            "\nvalid actions {valid_actions:.3} | repeated {repeated_actions:.3} | cut responses {cut_responses:.3} | tokens per \
             response {mean_response:.1}"
        );
        text += &format!("\nreturn {mean_return:.3} | length {mean_length:.1} | ");
        for (name, value) in environment {
            text += &format!("{name} {value:.3} | ");
        }
        text + &format!("model {}", self.model.display())
    }
}

/// The members of a JSON object.
pub fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(object) = value { object } else { Map::new() }
}

fn rate_json(rate: &SuccessRate) -> Map<String, Value> {
    let SuccessRate { count, rate, tasks, interval, pass_at } = rate;
    object(json!({
        "success": rate,
        "interval": interval,
        "won": count.won,
        "episodes": count.played,
        "tasks": tasks,
        "pass_at": pass_at.iter().map(|(k, share)| (k.to_string(), json!(share))).collect::<Map<_, _>>(),
    }))
}

fn rate_text(rate: &SuccessRate) -> String {
    let SuccessRate { count, rate: success, tasks, interval: [low, high], pass_at } = rate;
    let of_tasks = if count.played > *tasks { format!(" on {tasks} tasks") } else { String::new() };
    let (won, played) = (count.won, count.played);
    let mut text = format!("{success:.3} (95 % interval {low:.3} to {high:.3}, {won} of {played} episodes{of_tasks})");
    for (k, share) in pass_at.iter().skip(1) {
        text += &format!(" | pass@{k} {share:.3}");
    }
    text
}
