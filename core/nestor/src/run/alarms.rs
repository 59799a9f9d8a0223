//! Warnings of an iteration that diverges or from which the policy learned nothing, and a check of an estimator's input.
//!
//! A cause is judged by an iteration's own numbers, never by the recipe alone: PPO and REINFORCE++ do not compare inside
//! groups, and GRPO and RLOO have advantages in some groups of one.

use std::collections::BTreeMap;

use anyhow::Result;

use super::divergence::{Divergence, Sign, Updated};
use crate::data::Rows;
use crate::error::Diverged;
use crate::input_error;

/// Iterations after a warning in which its cause is not reported again.
const QUIET: u64 = 10;

/// Mean entropy per token, in nats, below which samples of one state hardly ever differ.
const COLLAPSED: f64 = 1e-3;

/// Success rate from which certainty is no failure, and episodes of a group return the same since all are won.
const SOLVED: f64 = 0.9;

/// Share of the groups with advantages from which penalties that alone count are an alarm.
const MOSTLY: f64 = 0.75;

/// Values and rewards beyond this cannot be squared in float32.
const LARGEST: f64 = 1e18;

/// A cause for which an iteration taught nothing, or spoilt the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Its title in W&B.
    pub cause: &'static str,
    pub message: String,
}

/// The alarms of a run.
#[derive(Debug, Default)]
pub struct Alarms {
    /// The last iteration at which a cause was reported.
    reported: BTreeMap<&'static str, u64>,
    divergence: Divergence,
    /// The last iteration with a sign of divergence.
    pub diverged: Option<u64>,
    /// The recipe keys to change, of the last sign of divergence.
    pub remedy: Option<String>,
}

impl Alarms {
    /// Continues a run whose last sign of divergence was in this iteration.
    pub fn resumed(diverged: Option<u64>) -> Self {
        Self { diverged, ..Self::default() }
    }

    /// The alarms of an iteration whose cause was not reported in the iterations before.
    pub fn of(&mut self, iteration: u64, updated: Updated) -> Vec<Alarm> {
        let signs = self.divergence.signs(updated);
        if let Some(first) = signs.iter().find(|sign| sign.diverges) {
            (self.diverged, self.remedy) = (Some(iteration), Some(first.remedy.clone()));
        }
        let mut alarms: Vec<Alarm> = signs
            .iter()
            .map(|Sign { cause, fact, remedy, .. }| Alarm {
                cause,
                message: format!("iteration {iteration}: {fact}: {remedy}"),
            })
            .collect();
        // The prompt is not to blame for the responses of a policy that has diverged.
        alarms.extend(
            causes(iteration, updated)
                .into_iter()
                .filter(|alarm| !(OF_RESPONSES.contains(&alarm.cause) && self.is_diverging(iteration))),
        );
        alarms.retain(|alarm| self.reported.get(alarm.cause).is_none_or(|last| iteration >= last + QUIET));
        self.reported.extend(alarms.iter().map(|alarm| (alarm.cause, iteration)));
        alarms
    }

    /// True if this iteration or one shortly before had a sign of divergence.
    pub fn is_diverging(&self, iteration: u64) -> bool {
        self.diverged.is_some_and(|last| iteration < last + QUIET)
    }
}

/// Causes that an update which diverges brings about too.
const OF_RESPONSES: [&str; 5] =
    ["every response cut", "nothing readable", "all advantages zero", "groups of one", "penalties outweigh rewards"];

fn causes(iteration: u64, updated: Updated) -> Vec<Alarm> {
    let Updated { metrics, rows, recipe, .. } = updated;
    let is = |name: &str, value: f64| metrics.get(name) == Some(value);
    let mut alarms = Vec::new();
    let mut alarm = |cause, message: String| {
        alarms.push(Alarm { cause, message: format!("iteration {iteration}: {message}") });
    };
    if rows.is_empty() {
        let message = match metrics.get("episode/failed") {
            Some(failed) if failed > 0.0 => format!(
                "the environment failed in all episodes ({failed}), so the update was skipped and the policy learned nothing; \
                 the warnings above name the failures, and rollouts/ has the episodes"
            ),
            _ => "no episode had a step, so there was nothing to learn from".into(),
        };
        alarm("no step", message);
        return alarms;
    }
    let rollout = &recipe.rollout;
    let solved = metrics.get("episode/success").is_some_and(|success| success >= SOLVED);
    if is("response/clipped_ratio", 1.0) {
        let tokens = rollout.max_response_tokens;
        let message = format!(
            "every response was cut at rollout.max_response_tokens ({tokens}); raise it, or check that the \
             prompt asks for a short answer and that the model knows its end token"
        );
        alarm("every response cut", message);
    }
    if is("episode/valid_action_ratio", 0.0) {
        let message = "the environment could read none of the responses; compare the form that the prompt asks for with what \
                       the model writes (rollouts/, or `nestor view`), or begin with a warm start";
        alarm("nothing readable", message.into());
    }
    if is("advantage/zero_ratio", 1.0) {
        let why = match (rollout.group_size, returns_differ(rows)) {
            (1, true) => {
                "rollout.group_size is 1, so that this estimator has nothing to compare an episode with; raise it"
            }
            _ if solved => "the policy solves its tasks; take harder ones, or end the run",
            _ => "episodes returned the same; take easier or more varied tasks, larger groups, or a warm start",
        };
        let message = format!("every advantage was 0, so the policy learned nothing from rewards: {why}");
        alarm("all advantages zero", message);
    } else if rollout.group_size == 1 && returns_differ(rows) && only_penalties_count(rows) {
        let message = "only penalties had an advantage: rollout.group_size is 1, and this estimator compares the episodes \
                       of a group; raise it";
        alarm("groups of one", message.into());
    } else if let (penalised, all) = groups_of_penalties(rows)
        && rollout.group_size > 1
        && !solved
        && recipe.update.kl_in_reward.is_none()
        && penalised as f64 > MOSTLY * all as f64
    {
        let penalty = rollout.invalid_action_penalty;
        let message = format!(
            "in {penalised} of the {all} groups with advantages all episodes returned the same, so they come from \
             rollout.invalid_action_penalty ({penalty}) alone: the policy learns to answer validly, whether it helps or not; lower the \
             penalty, or take easier tasks, larger groups or a warm start"
        );
        alarm("penalties outweigh rewards", message);
    }
    let entropy = metrics.get("policy/entropy");
    if entropy.is_some_and(|entropy| entropy < COLLAPSED) && !solved {
        let message = format!(
            "the policy's entropy is {:.1e} nats per token: it answers alike each time, and groups hardly \
             differ; raise update.entropy or rollout.temperature, or lower update.lr",
            entropy.unwrap_or_default()
        );
        alarm("entropy collapse", message);
    }
    alarms
}

/// True if episodes returned different rewards.
fn returns_differ(rows: &Rows) -> bool {
    let mut returns = BTreeMap::<u32, f64>::new();
    for (&episode, &reward) in rows.episode.iter().zip(&rows.reward) {
        *returns.entry(episode).or_default() += reward;
    }
    let mut returns = returns.into_values();
    let first = returns.next();
    returns.any(|other| Some(other) != first)
}

/// True if every step without a penalty has no advantage.
fn only_penalties_count(rows: &Rows) -> bool {
    let unpenalised = (0..rows.len()).filter(|&row| rows.penalty[row] == 0.0);
    let advantages = |row: usize| &rows.advantages[rows.response(row as u32)];
    unpenalised.flat_map(advantages).all(|&advantage| advantage == 0.0)
}

/// A group's returns by episode, whether it has a penalty, and its smallest and its largest advantage.
#[derive(Default)]
struct GroupSpread {
    returns: BTreeMap<u32, f64>,
    penalised: bool,
    advantages: [f32; 2],
}

/// The groups with advantages that come from penalties alone, and all groups with advantages. In such a group all episodes returned
/// the same, and advantages have both signs: an estimator that compares beyond groups gives nearly all of them one sign. Values of a
/// critic differ without penalties, so a run with a critic has none.
fn groups_of_penalties(rows: &Rows) -> (usize, usize) {
    let mut groups = BTreeMap::<u32, GroupSpread>::new();
    for row in 0..rows.len() {
        let group = groups.entry(rows.group[row]).or_default();
        *group.returns.entry(rows.episode[row]).or_default() += rows.reward[row];
        group.penalised |= rows.penalty[row] != 0.0;
        for &advantage in &rows.advantages[rows.response(row as u32)] {
            let [least, most] = group.advantages;
            group.advantages = [least.min(advantage), most.max(advantage)];
        }
    }
    let counting: Vec<GroupSpread> = groups.into_values().filter(|group| group.advantages != [0.0; 2]).collect();
    let of_penalties = counting.iter().filter(|GroupSpread { returns, penalised, advantages: [least, most] }| {
        let mut values = returns.values();
        let first = values.next();
        *penalised && *least < 0.0 && *most > 0.0 && rows.values.is_none() && values.all(|other| Some(other) == first)
    });
    (of_penalties.count(), counting.len())
}

/// Refuses to give an estimator values or rewards that no estimator can use, since its advantages would not be finite and
/// the plugin would be blamed.
pub fn check_rows(rows: &Rows) -> Result<()> {
    let usable = |value: f64| value.abs() <= LARGEST; // false for NaN
    if let Some(bad) = rows.values.iter().flatten().find(|&&value| !usable(f64::from(value))) {
        let message = format!("the critic gave the value {bad:e}: it has diverged");
        return Err(Diverged { critic: true, message }.into());
    }
    let at = |token: usize| rows.token_offsets.partition_point(|&offset| offset <= token as u64) - 1;
    if let Some(token) = rows.token_rewards.iter().position(|&reward| !usable(reward)) {
        let row = at(token);
        return Err(input_error!(
            "step {} of episode {} has the reward {:e} (return {:e}, penalty {:e}): returns overflow; scale the environment's \
             rewards down, or lower rollout.invalid_action_penalty or update.kl_in_reward",
            rows.step[row],
            rows.episode[row],
            rows.token_rewards[token],
            rows.token_rewards[token] + rows.penalty[row],
            rows.penalty[row]
        ));
    }
    if let Some(row) = rows.reward.iter().position(|&reward| !usable(reward)) {
        return Err(input_error!(
            "step {} of episode {} has the reward {:e}: returns overflow; scale the environment's rewards down",
            rows.step[row],
            rows.episode[row],
            rows.reward[row]
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::recipe::Recipe;
    use crate::run::UpdateReports;
    use crate::track::Metrics;

    fn recipe(group_size: u32) -> Recipe {
        let recipe = json!({
            "iterations": 100, "model": {"path": "model"}, "env": {"plugin": "e"}, "estimator": {"plugin": "x"},
            "rollout": {"tasks": 2, "group_size": group_size, "max_steps": 2, "max_prompt_tokens": 8, "max_response_tokens": 8},
            "update": {"mini_batch": 2, "lr": 1e-3}, "eval": {"tasks": 1},
        });
        serde_json::from_value(recipe).expect("a recipe")
    }

    fn metrics(values: &[(&str, f64)]) -> Metrics {
        let mut metrics = Metrics::new();
        let usual = [
            ("response/clipped_ratio", 0.1),
            ("episode/valid_action_ratio", 0.9),
            ("advantage/zero_ratio", 0.5),
            ("policy/entropy", 0.3),
            ("episode/success", 0.2),
        ];
        usual.iter().chain(values).for_each(|(name, value)| metrics.set(*name, *value));
        metrics
    }

    /// One row per (reward, penalty, advantage), each an episode of one token.
    fn rows(steps: &[(f64, f64, f32)]) -> Rows {
        let number: Vec<u32> = (0..steps.len() as u32).collect();
        Rows {
            group: number.clone(),
            episode: number.clone(),
            step: vec![0; steps.len()],
            reward: steps.iter().map(|step| step.0).collect(),
            penalty: steps.iter().map(|step| step.1).collect(),
            token_offsets: (0..=steps.len() as u64).collect(),
            token_rewards: steps.iter().map(|step| step.0 - step.1).collect(),
            advantages: steps.iter().map(|step| step.2).collect(),
            ..Rows::default()
        }
    }

    fn found(values: &[(&str, f64)], group_size: u32, steps: &[(f64, f64, f32)]) -> Vec<&'static str> {
        let (metrics, rows, recipe, reports) =
            (metrics(values), rows(steps), recipe(group_size), UpdateReports::default());
        let updated = Updated { recipe: &recipe, metrics: &metrics, rows: &rows, reports: &reports };
        let alarms = Alarms::default().of(1, updated);
        alarms.into_iter().map(|alarm| alarm.cause).collect()
    }

    #[test]
    fn each_cause_has_its_alarm_and_a_usual_iteration_none() {
        let usual = [(1.0, 0.0, 1.0), (0.0, 0.1, -1.0)];
        assert!(found(&[], 2, &usual).is_empty());
        assert_eq!(found(&[("response/clipped_ratio", 1.0)], 2, &usual), ["every response cut"]);
        assert_eq!(found(&[("episode/valid_action_ratio", 0.0)], 2, &usual), ["nothing readable"]);
        assert_eq!(found(&[("advantage/zero_ratio", 1.0)], 2, &usual), ["all advantages zero"]);
        assert_eq!(found(&[("policy/entropy", 1e-4)], 2, &usual), ["entropy collapse"]);
        // A policy that wins nearly always may be certain.
        assert!(found(&[("policy/entropy", 1e-4), ("episode/success", 0.95)], 2, &usual).is_empty());
        assert_eq!(found(&[], 2, &[]), ["no step"]);
    }

    #[test]
    fn groups_of_one_are_judged_by_their_advantages() {
        // GRPO and GiGPO: an episode alone in its group has no advantage but for its penalties.
        assert_eq!(found(&[], 1, &[(1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.1, -2.0)]), ["groups of one"]);
        // GRPO's episodes of one step, RLOO, PPO and REINFORCE++: returns count.
        assert!(found(&[], 1, &[(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.1, -2.0)]).is_empty());
        // Equal returns would not differ in larger groups either.
        assert!(found(&[], 1, &[(0.0, 0.0, 0.0), (0.0, 0.1, -2.0)]).is_empty());
    }

    #[test]
    fn penalties_that_alone_differ_are_an_alarm() {
        // Groups of two episodes of one step.
        let of = |steps: &[(f64, f64, f32)]| {
            let mut rows = rows(steps);
            rows.group = rows.episode.iter().map(|episode| episode / 2).collect();
            rows
        };
        let at = |success: f64, steps: &[(f64, f64, f32)]| {
            let (metrics, rows) = (metrics(&[("episode/success", success)]), of(steps));
            let (recipe, reports) = (recipe(2), UpdateReports::default());
            let updated = Updated { recipe: &recipe, metrics: &metrics, rows: &rows, reports: &reports };
            Alarms::default().of(1, updated).into_iter().map(|alarm| alarm.cause).collect::<Vec<_>>()
        };
        let found = |steps: &[(f64, f64, f32)]| at(0.1, steps);
        let (alike, won) = ([(0.0, 0.1, -1.0), (0.0, 0.0, 1.0)], [(1.0, 0.1, 1.0), (0.0, 0.0, -1.0)]);
        let silent = [(0.0, 0.1, 0.0), (0.0, 0.1, 0.0)];
        assert_eq!(found(&[alike, alike, silent].concat()), ["penalties outweigh rewards"]);
        // All episodes of a group returned the same since all are won.
        assert!(at(0.95, &[alike, alike].concat()).is_empty());
        assert!(found(&[alike, won].concat()).is_empty());
        assert!(found(&[silent, won].concat()).is_empty());
        // An estimator that compares beyond groups, such as REINFORCE++: a lost group is worse than the mean in any case.
        assert!(found(&[[(0.0, 0.1, -1.5), (0.0, 0.0, -1.0)], [(1.0, 0.0, 1.0), (1.0, 0.0, 1.0)]].concat()).is_empty());
        // Other differences than penalties, such as values of a critic.
        assert!(found(&[(0.0, 0.0, -1.0), (0.0, 0.0, 1.0)]).is_empty());
    }

    #[test]
    fn a_cause_is_reported_once_in_ten_iterations() {
        let (mut alarms, recipe, rows) = (Alarms::default(), recipe(2), rows(&[(1.0, 0.0, 1.0)]));
        let (cut, reports) = (metrics(&[("response/clipped_ratio", 1.0)]), UpdateReports::default());
        let updated = Updated { recipe: &recipe, metrics: &cut, rows: &rows, reports: &reports };
        let reported: Vec<u64> = (1..=25).filter(|&iteration| !alarms.of(iteration, updated).is_empty()).collect();
        assert_eq!(reported, [1, 11, 21]);
    }

    #[test]
    fn the_critic_and_the_rewards_are_named_instead_of_the_estimator() {
        let good = rows(&[(1.0, 0.0, 1.0), (0.0, 0.5, 1.0)]);
        assert!(check_rows(&good).is_ok());
        for value in [f32::NAN, f32::INFINITY, -1e30] {
            let message = check_rows(&Rows { values: Some(vec![0.0, value]), ..good.clone() }).expect_err("diverged");
            assert!(message.is::<Diverged>() && message.to_string().contains("critic"), "{message}");
        }
        for (reward, penalty, word) in [(f64::INFINITY, 0.0, "scale"), (0.0, 1e308, "invalid_action_penalty")] {
            let message = check_rows(&rows(&[(0.0, 0.0, 0.0), (reward, penalty, 0.0)])).expect_err("overflows");
            assert!(message.to_string().contains(word) && message.to_string().contains("episode 1"), "{message}");
        }
    }
}
