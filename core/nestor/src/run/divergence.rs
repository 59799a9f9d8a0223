//! Signs of an update that diverges, each with the recipe key to change.
//!
//! The usual cause is a learning rate that is too high. A loss term that outweighs the rewards is named in its place.

use super::UpdateReports;
use crate::data::Rows;
use crate::policy::critic::{CriticReport, CriticStep};
use crate::policy::update::{OptimizerStep, UpdateReport};
use crate::recipe::{self, Critic, Dtype, Recipe, Update, WarmStart};
use crate::track::Metrics;
use crate::warm_start::ImitationStep;

/// KL in nats per token that one iteration's update may move the policy by. Usual updates stay below 0.1.
const MOST_MOVED: f64 = 1.0;
/// KL in nats per token between the policy and its reference.
const MOST_KL: f64 = 2.0;
/// A gradient norm this many times the median of those before has exploded.
const EXPLODED: f64 = 100.0;
/// Number of gradient norms that a median needs, and the most that it is taken of.
const NORMS: (usize, usize) = (10, 200);
/// A term of the loss this many times the others outweighs them.
const OUTWEIGHS: f64 = 10.0;

/// A sign of divergence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// Its title in W&B.
    pub cause: &'static str,
    /// The fact with its numbers.
    pub fact: String,
    /// The recipe keys to change.
    pub remedy: String,
    /// The weights may be spoilt already.
    pub diverges: bool,
}

/// One iteration's update.
#[derive(Debug, Clone, Copy)]
pub struct Updated<'a> {
    pub recipe: &'a Recipe,
    pub metrics: &'a Metrics,
    pub rows: &'a Rows,
    pub reports: &'a UpdateReports,
}

/// The gradient norms of earlier iterations.
#[derive(Debug, Default)]
pub struct Divergence {
    policy: Vec<f64>,
    critic: Vec<f64>,
}

impl Divergence {
    /// The signs of divergence in an iteration's update.
    pub fn signs(&mut self, updated: Updated) -> Vec<Sign> {
        let Updated { recipe, metrics, rows, reports } = updated;
        let mut signs = Vec::new();
        if let Some(report) = &reports.policy {
            let remedy = culprit(recipe, metrics, report);
            signs.extend(skipped_steps(&recipe.update, report, &remedy));
            signs.extend(wrong_loss(report, &remedy));
            signs.extend(moved(recipe, metrics, report, &remedy));
            signs.extend(outweighed(&recipe.update, metrics, report));
            // Without an advantage there are only the small gradients of the regularizers, which would lower the median.
            if metrics.get("advantage/zero_ratio").is_none_or(|share| share < 1.0) {
                let made = report.each.iter().filter(|step| !step.skipped).map(|step| step.grad_norm);
                let clip = recipe.update.grad_clip;
                let fact = exploded(&mut self.policy, made, clip).map(|fact| format!("the policy's {fact}"));
                let remedy = format!("{remedy}, or update.grad_clip ({clip:e})");
                signs.extend(fact.map(|fact| Sign { cause: "gradient explodes", fact, remedy, diverges: true }));
            }
        }
        if let (Some(report), Some(section)) = (&reports.critic, &recipe.critic) {
            let made = report.each.iter().filter(|step| !step.skipped).map(|step| step.grad_norm);
            let explosion = exploded(&mut self.critic, made, section.grad_clip);
            signs.extend(critic(report, section, recipe.dtype, rows, explosion));
        }
        signs
    }
}

/// A number of a step's loss; 0 where the loss does not have it.
fn loss(step: &OptimizerStep, name: &str) -> f64 {
    step.losses.get(name).unwrap_or(0.0)
}

fn is_hopeless(step: &OptimizerStep) -> bool {
    // In float16 a first skip only lowers the loss scale.
    step.skipped && step.loss_scale.is_none_or(|scale| scale <= 1.0)
}

fn skipped_steps(update: &Update, report: &UpdateReport, remedy: &str) -> Option<Sign> {
    let (skipped, all) = (report.each.iter().filter(|step| is_hopeless(step)).count(), report.each.len());
    let fact = format!(
        "{skipped} of {all} optimizer steps were skipped, because their gradients were not finite; the run ends after {} in \
         a row (update.max_skipped)",
        update.max_skipped
    );
    (skipped > 0).then(|| Sign { cause: "optimizer steps skipped", fact, remedy: remedy.into(), diverges: true })
}

fn wrong_loss(report: &UpdateReport, remedy: &str) -> Option<Sign> {
    let wrong = report.each.iter().filter(|step| !loss(step, "loss/total").is_finite());
    let overflows = |step: &&OptimizerStep| is_hopeless(step) || !step.skipped;
    let (wrong, all) = (wrong.filter(overflows).count(), report.each.len());
    let fact = format!("the loss of {wrong} of {all} mini-batches was not finite");
    (wrong > 0).then(|| Sign { cause: "loss not finite", fact, remedy: remedy.into(), diverges: true })
}

/// The policy moved far in one update, or is far from its reference.
fn moved(recipe: &Recipe, metrics: &Metrics, report: &UpdateReport, remedy: &str) -> Vec<Sign> {
    let update = &recipe.update;
    let sign = |fact: String, remedy: String| Sign { cause: "KL explodes", fact, remedy, diverges: true };
    let far = |kl: f64, most: f64| kl.abs() > most; // false for NaN, which the loss tells
    let steps = report.each.iter().map(|step| loss(step, "policy/approx_kl").abs());
    let largest = steps.fold(0.0, f64::max);
    if far(largest, MOST_MOVED) {
        let epochs = if update.epochs > 1 { format!(", or update.epochs ({})", update.epochs) } else { String::new() };
        let fact = format!("the update moved the policy by {largest:.1} nats per token (policy/approx_kl)");
        return vec![sign(fact, format!("{remedy}{epochs}"))];
    }
    let mut signs = Vec::new();
    // Where the coefficient itself is too large, a larger one is no remedy.
    let or_raise = |key: &str, coef: f64| match remedy.contains(key) {
        true => remedy.to_string(),
        false => format!("{remedy}, or raise {key} ({coef:e})"),
    };
    if let (Some(section), Some(kl)) = (&update.kl, metrics.get("loss/kl").filter(|&kl| far(kl, MOST_KL))) {
        let fact = format!("the policy is {kl:.1} nats per token from its reference (loss/kl)");
        signs.push(sign(fact, or_raise("update.kl.coef", section.coef)));
    } else if let (Some(section), Some(kl)) =
        (&update.kl_in_reward, metrics.get("reward/kl").filter(|&kl| far(kl, MOST_KL)))
    {
        let fact = format!("the policy is {kl:.1} nats per token from its reference (reward/kl)");
        signs.push(sign(fact, or_raise("update.kl_in_reward.coef", section.coef)));
    }
    signs
}

/// A regularizer that is much larger than the term of the advantages.
fn outweighed(update: &Update, metrics: &Metrics, report: &UpdateReport) -> Option<Sign> {
    let (term, key, coefficient) = heaviest(update, metrics, report)?;
    let fact = format!("the loss's term of {key} is {term:.1e}, which outweighs that of the rewards");
    let remedy = format!("lower {key} ({coefficient:e})");
    Some(Sign { cause: "regularizer outweighs rewards", fact, remedy, diverges: false })
}

/// The regularizer that outweighs the term of the advantages: its size, key and coefficient.
fn heaviest(update: &Update, metrics: &Metrics, report: &UpdateReport) -> Option<(f64, &'static str, f64)> {
    let size = |name| {
        let finite = report.each.iter().map(|step| loss(step, name).abs()).filter(|size| size.is_finite());
        finite.fold(0.0, f64::max)
    };
    let rewards = size("loss/policy").max(metrics.get("advantage/max").unwrap_or(0.0)).max(1.0);
    let entropy = update.entropy * size("policy/entropy");
    let kl = update.kl.as_ref().map_or(0.0, |section| section.coef * size("loss/kl"));
    let coefficient = update.kl.as_ref().map_or(0.0, |section| section.coef);
    let terms = [(entropy, "update.entropy", update.entropy), (kl, "update.kl.coef", coefficient)];
    let heaviest = terms.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    heaviest.filter(|(term, ..)| *term > OUTWEIGHS * rewards)
}

/// The recipe keys to change, from the settings and numbers of an update.
fn culprit(recipe: &Recipe, metrics: &Metrics, report: &UpdateReport) -> String {
    let update = &recipe.update;
    if let Some((_, key, coefficient)) = heaviest(update, metrics, report) {
        return format!("lower {key} ({coefficient:e})");
    }
    let penalty = metrics.get("reward/kl").zip(metrics.get("reward/kl_coef")).map(|(kl, coef)| (kl * coef).abs());
    if let (Some(section), true) = (&update.kl_in_reward, penalty > Some(1e3)) {
        return format!("lower update.kl_in_reward.coef ({:e}) or update.lr ({:e})", section.coef, update.lr);
    }
    if metrics.get("advantage/max") > Some(1e6) {
        return format!(
            "scale the rewards or advantages down (the largest advantage is {:.1e}), or lower update.lr ({:e})",
            metrics.get("advantage/max").unwrap_or_default(),
            update.lr
        );
    }
    rates(recipe, ("update.lr", update.lr))
}

/// The settings of the optimizer to change, given the learning rate and its key.
pub fn rates(recipe: &Recipe, (key, lr): (&str, f64)) -> String {
    let recipe::Optimizer { betas: [beta1, beta2], weight_decay, .. } = recipe.update.optimizer;
    let mut keys = vec![format!("lower {key} ({lr:e})")];
    // A step multiplies the weights by 1 - lr * weight_decay.
    if weight_decay > 1.0 && lr * weight_decay > 1.0 {
        keys.push(format!("lower update.optimizer.weight_decay ({weight_decay:e})"));
    }
    // Adam's condition of convergence (arXiv:1412.6980, section 4).
    if beta1 * beta1 >= beta2.sqrt() && beta1 > 0.0 {
        keys.push(format!("raise the second of update.optimizer.betas ({beta1}, {beta2})"));
    }
    if let Some(lora) = recipe.model.lora.as_ref().filter(|lora| lora.alpha / lora.rank as f64 > 1e3) {
        keys.push(format!("lower model.lora.alpha ({:e})", lora.alpha));
    }
    keys.join(", or ")
}

/// The sign of a warm start that diverges.
pub fn of_warm_start(recipe: &Recipe, settings: &WarmStart, step: &ImitationStep, vocabulary: i64) -> Option<Sign> {
    let ImitationStep { step: number, loss, skipped, .. } = *step;
    let even = (vocabulary as f64).ln(); // the loss of a guess among all tokens
    let (cause, fact) = if skipped {
        ("optimizer steps skipped", "the optimizer step was skipped, because its gradient was not finite".into())
    } else if !loss.is_finite() {
        ("loss not finite", "the loss was not finite".into())
    } else if number > 1 && loss > 2.0 * even {
        let fact =
            format!("the loss rose to {loss:.1} nats per token, and an even guess among all tokens has {even:.1}");
        ("warm start diverges", fact)
    } else {
        return None;
    };
    Some(Sign { cause, fact, remedy: rates(recipe, ("warm_start.lr", settings.lr)), diverges: true })
}

/// A gradient norm far above those before, which it is added to.
fn exploded(norms: &mut Vec<f64>, new: impl Iterator<Item = f64>, clip: f64) -> Option<String> {
    let (least, most) = NORMS;
    let mut found: Option<(f64, f64)> = None;
    for norm in new {
        let mut sorted = norms.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= least);
        // A norm below the clip is used as it is, and such steps are small.
        let is_new = found.is_none_or(|(largest, _)| norm > largest);
        if let Some(median) = median.filter(|&median| norm > EXPLODED * median && norm > clip && is_new) {
            found = Some((norm, median));
        }
        norms.push(norm);
        norms.drain(..norms.len().saturating_sub(most));
    }
    let (norm, median) = found?;
    Some(format!(
        "gradient norm rose to {norm:.1e}, {:.0} times the median of the steps before ({median:.1e})",
        norm / median
    ))
}

/// The first sign of a critic that diverges.
fn critic(
    report: &CriticReport,
    section: &Critic,
    dtype: Dtype,
    rows: &Rows,
    explosion: Option<String>,
) -> Option<Sign> {
    let counted = |holds: fn(&CriticStep) -> bool| report.each.iter().filter(|step| holds(step)).count();
    let all = report.each.len();
    let (skipped, wrong) = (counted(|step| step.skipped), counted(|step| !step.loss.is_finite()));
    let largest = rows.returns.iter().map(|&r| f64::from(r).abs()).fold(1.0, f64::max);
    let error = report.mean(|step| step.loss).sqrt();
    let fact = if skipped > 0 && dtype != Dtype::Float16 {
        format!(
            "{skipped} of {all} optimizer steps of the critic were skipped, because their gradients were not finite"
        )
    } else if wrong > 0 && dtype != Dtype::Float16 {
        format!("the critic's loss of {wrong} of {all} mini-batches was not finite")
    } else if error > OUTWEIGHS * largest {
        format!("the critic's values are wrong by {error:.1e}, and the largest return is {largest:.1e}")
    } else {
        format!("the critic's {}", explosion?)
    };
    let Critic { lr, grad_clip, .. } = section;
    let remedy = format!("lower critic.lr ({lr:e}) or critic.grad_clip ({grad_clip:e})");
    Some(Sign { cause: "critic diverges", fact, remedy, diverges: true })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::losses::LossMetrics;

    fn recipe(update: serde_json::Value) -> Recipe {
        let mut recipe = json!({
            "iterations": 100, "model": {"path": "model"}, "env": {"plugin": "e"}, "estimator": {"plugin": "x"},
            "rollout": {"tasks": 2, "group_size": 2, "max_steps": 2, "max_prompt_tokens": 8, "max_response_tokens": 8},
            "update": {"mini_batch": 2, "lr": 0.5, "kl": {"coef": 0.01}}, "critic": {"lr": 0.1}, "eval": {"tasks": 1},
        });
        recipe["update"].as_object_mut().expect("a map").extend(update.as_object().expect("a map").clone());
        serde_json::from_value(recipe).expect("a recipe")
    }

    /// A usual optimizer step.
    fn usual() -> OptimizerStep {
        OptimizerStep { losses: losses([]), grad_norm: 0.5, skipped: false, loss_scale: None }
    }

    /// The usual losses, but for these.
    fn losses<const N: usize>(others: [(&'static str, f64); N]) -> LossMetrics {
        let usual = [
            ("loss/total", 0.1),
            ("loss/policy", 0.1),
            ("loss/kl", 0.01),
            ("policy/entropy", 0.5),
            ("policy/approx_kl", 0.01),
        ];
        let other = |name| others.iter().find(|other| other.0 == name).map(|other| other.1);
        LossMetrics::from(usual.map(|(name, value)| (name, other(name).unwrap_or(value))))
    }

    fn signs(divergence: &mut Divergence, recipe: &Recipe, each: &[OptimizerStep]) -> Vec<(&'static str, String)> {
        let policy = UpdateReport { each: each.into(), ..UpdateReport::default() };
        let reports = UpdateReports { policy: Some(policy), critic: None };
        let (mut metrics, rows) = (Metrics::new(), Rows::default());
        let kl = each.iter().map(|step| loss(step, "loss/kl")).sum::<f64>() / each.len() as f64;
        for (name, value) in [("advantage/max", 2.0), ("advantage/zero_ratio", 0.5), ("loss/kl", kl)] {
            metrics.set(name, value);
        }
        let signs = divergence.signs(Updated { recipe, metrics: &metrics, rows: &rows, reports: &reports });
        signs.into_iter().map(|sign| (sign.cause, sign.remedy)).collect()
    }

    fn named(update: serde_json::Value, change: impl FnOnce(&mut OptimizerStep)) -> Vec<(&'static str, String)> {
        let mut step = usual();
        change(&mut step);
        signs(&mut Divergence::default(), &recipe(update), &[usual(), step])
    }

    #[test]
    fn each_sign_names_the_key_to_change() {
        assert_eq!(named(json!({}), |_| {}), []);
        let lr = "lower update.lr (5e-1)".to_string();
        let skip = ("optimizer steps skipped", lr.clone());
        assert_eq!(named(json!({}), |step| step.skipped = true), std::slice::from_ref(&skip));
        let nan = ("loss not finite", lr.clone());
        assert_eq!(
            named(json!({}), |step| (step.skipped, step.losses) = (true, losses([("loss/total", f64::NAN)]))),
            [skip, nan]
        );
        // A first skip in float16 only lowers the loss scale.
        let scaled = |scale: f64| named(json!({}), |step| (step.skipped, step.loss_scale) = (true, Some(scale))).len();
        assert_eq!((scaled(1024.0), scaled(1.0)), (0, 1));
        assert_eq!(
            named(json!({}), |step| step.losses = losses([("policy/approx_kl", -3.0)])),
            [("KL explodes", lr.clone())]
        );
        let raise = format!("{lr}, or raise update.kl.coef (1e-2)");
        let far = |step: &mut OptimizerStep| step.losses = losses([("loss/kl", 5.0)]);
        assert_eq!(named(json!({}), far), [("KL explodes", raise)]);
        let heavy = named(json!({"kl": {"coef": 1e6}}), far);
        assert_eq!(heavy[0], ("KL explodes", "lower update.kl.coef (1e6)".to_string()), "no remedy contradicts itself");
        let outweighs = |key: &str| [("regularizer outweighs rewards", format!("lower {key} (1e6)"))];
        assert_eq!(named(json!({"entropy": 1e6}), |_| {}), outweighs("update.entropy"));
        assert_eq!(named(json!({"kl": {"coef": 1e6}}), |_| {}), outweighs("update.kl.coef"));
        let overflow = named(json!({"entropy": 1e38}), |step| step.skipped = true);
        assert_eq!(overflow[0], ("optimizer steps skipped", "lower update.entropy (1e38)".into()));
    }

    #[test]
    fn a_gradient_norm_is_compared_with_the_median_of_those_before() {
        let (mut divergence, recipe) = (Divergence::default(), recipe(json!({})));
        let high = OptimizerStep { grad_norm: 60.0, ..usual() };
        // Too few norms for a median.
        assert_eq!(signs(&mut divergence, &recipe, std::slice::from_ref(&high)), []);
        assert_eq!(signs(&mut divergence, &recipe, &vec![usual(); 12]), []);
        let [(cause, remedy)] = &signs(&mut divergence, &recipe, &[usual(), high])[..] else { panic!("one sign") };
        assert_eq!((*cause, remedy.ends_with("or update.grad_clip (1e0)")), ("gradient explodes", true));
    }

    #[test]
    fn a_critic_is_judged_by_the_size_of_the_returns() {
        let step = CriticStep { loss: 4.0, clip_fraction: 0.0, grad_norm: 1.0, skipped: false };
        let rows = Rows { returns: vec![5.0, -1.0], ..Rows::default() };
        let recipe = recipe(json!({}));
        let of = |step: CriticStep, dtype| {
            let report = CriticReport { each: vec![step] };
            critic(&report, recipe.critic.as_ref().expect("a critic"), dtype, &rows, None)
        };
        assert_eq!(of(step, Dtype::Float32), None);
        for wrong in [
            CriticStep { loss: 1e5, ..step },
            CriticStep { skipped: true, ..step },
            CriticStep { loss: f64::NAN, ..step },
        ] {
            let sign = of(wrong, Dtype::Float32).expect("a sign");
            assert!(sign.remedy.contains("critic.lr (1e-1)"), "{sign:?}");
        }
        assert_eq!(of(CriticStep { skipped: true, ..step }, Dtype::Float16), None);
    }
}
