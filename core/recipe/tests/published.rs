//! The recipes in recipes/alfworld, recipes/webshop and recipes/search have the settings of verl-agent's scripts (commit
//! 796ed310). One row for each script; recipes of settings that no script has are rows of their own.

use std::path::Path;

use nestor_recipe::{Aggregation, Critic, DynamicSampling, EvalTasks, PolicyLoss, Recipe, Truncation, load};

/// A recipe's name and the settings that differ between scripts.
struct Row {
    name: &'static str,
    estimator: &'static str,
    /// GiGPO's mode: true for `mean_std_norm`, false for `mean_norm`. GRPO always divides by the standard deviation.
    std: Option<bool>,
    groups: [u32; 2],
    iterations: u64,
    clip: [f64; 2],
    kl: Option<f64>,
    lora: bool,
    lr: f64,
    dynamic: bool,
    /// Goals to evaluate on, of WebShop.
    goals: u32,
}

const BASE: Row = Row {
    name: "",
    estimator: "gigpo",
    std: None,
    groups: [16, 8],
    iterations: 150,
    clip: [0.2, 0.2],
    kl: Some(0.01),
    lora: false,
    lr: 1e-6,
    dynamic: false,
    goals: 128,
};
const LORA: Row = Row { kl: None, lora: true, lr: 3e-6, ..BASE };
const GRPO: Row = Row { estimator: "grpo", std: Some(true), ..BASE };
const PPO: Row = Row { estimator: "ppo", groups: [128, 1], ..BASE };
const GSPO: Row = Row { clip: [3e-4, 4e-4], ..GRPO };

const ALFWORLD: [Row; 8] = [
    Row { name: "gigpo_qwen2.5_1.5b", std: Some(true), ..BASE },
    Row { name: "gigpo_qwen2.5_7b", std: Some(true), ..LORA },
    Row { name: "gigpo_dynamic_qwen2.5_1.5b", std: Some(true), clip: [0.2, 0.28], dynamic: true, ..BASE },
    Row { name: "grpo_qwen2.5_1.5b", ..GRPO },
    Row { name: "dapo_qwen2.5_1.5b", clip: [0.2, 0.28], dynamic: true, ..GRPO },
    Row { name: "gspo_qwen2.5_1.5b", iterations: 200, ..GSPO },
    Row { name: "rloo_qwen2.5_1.5b", estimator: "rloo", ..BASE },
    Row { name: "ppo_qwen2.5_1.5b", ..PPO },
];
const WEBSHOP: [Row; 13] = [
    Row { name: "gigpo_qwen2.5_1.5b", std: Some(false), goals: 256, ..BASE },
    Row { name: "gigpo_std_qwen2.5_1.5b", std: Some(true), goals: 256, ..BASE },
    Row { name: "gigpo_qwen2.5_7b", std: Some(false), goals: 256, ..LORA },
    Row { name: "gigpo_std_qwen2.5_7b", std: Some(true), goals: 256, ..LORA },
    Row { name: "gigpo_dynamic_qwen2.5_1.5b", std: Some(false), clip: [0.2, 0.28], dynamic: true, ..BASE },
    Row { name: "grpo_qwen2.5_1.5b", ..GRPO },
    Row { name: "grpo_qwen2.5_7b", ..GRPO },
    Row { name: "dapo_qwen2.5_1.5b", clip: [0.2, 0.28], dynamic: true, ..GRPO },
    Row { name: "gspo_qwen2.5_1.5b", ..GSPO },
    Row { name: "rloo_qwen2.5_1.5b", estimator: "rloo", ..BASE },
    Row { name: "rloo_qwen2.5_7b", estimator: "rloo", ..BASE },
    Row { name: "ppo_qwen2.5_1.5b", ..PPO },
    Row { name: "ppo_qwen2.5_7b", ..PPO },
];

/// Loads every recipe of a folder that has a row, and checks that each recipe for Qwen has one.
fn recipes(folder: &str, rows: &[Row]) -> Vec<Recipe> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(folder);
    let names = std::fs::read_dir(&folder)
        .expect("recipes")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<_> = names.filter(|name| name.contains("_qwen")).collect();
    let mut listed: Vec<_> = rows.iter().map(|row| format!("{}.yaml", row.name)).collect();
    names.sort();
    listed.sort();
    assert_eq!(names, listed);
    rows.iter().map(|row| load(&folder.join(format!("{}.yaml", row.name)), &[]).expect("a recipe")).collect()
}

fn check(recipe: &Recipe, row: &Row) {
    let (name, rollout, update) = (row.name, &recipe.rollout, &recipe.update);
    assert_eq!(
        (recipe.estimator.plugin.as_str(), recipe.iterations, recipe.seed),
        (row.estimator, row.iterations, 0),
        "{name}"
    );
    let config = &recipe.estimator.config;
    let norm = row.std.map(|std| if std { "std" } else { "none" });
    assert_eq!(config.get("norm").and_then(|norm| norm.as_str()), norm, "{name}");
    if row.estimator == "gigpo" {
        assert_eq!((config["gamma"].as_f64(), config["step_weight"].as_f64()), (Some(0.95), Some(1.0)), "{name}");
    }
    let size = if name.ends_with("7b") { "7B" } else { "1.5B" };
    assert!(
        recipe.model.path.as_ref().is_some_and(|path| path.ends_with(&format!("Qwen2.5-{size}-Instruct"))),
        "{name}"
    );
    let lora = recipe.model.lora.as_ref().map(|lora| (lora.rank, lora.alpha));
    assert_eq!(lora, row.lora.then_some((64, 64.0)), "{name}");

    assert_eq!(([rollout.tasks, rollout.group_size], rollout.max_response_tokens), (row.groups, 512), "{name}");
    assert_eq!(
        (rollout.temperature, rollout.top_k, rollout.top_p, rollout.history.length),
        (1.0, 0, 1.0, Some(2)),
        "{name}"
    );
    assert_eq!((rollout.invalid_action_penalty, &rollout.template), (0.1, &None), "{name}");
    assert_eq!(rollout.dynamic_sampling, row.dynamic.then_some(DynamicSampling { rounds: 10 }), "{name}");

    assert_eq!(([update.clip_low, update.clip_high], update.dual_clip, update.lr), (row.clip, 3.0, row.lr), "{name}");
    assert_eq!(update.kl.as_ref().map(|kl| kl.coef), row.kl, "{name}");
    assert_eq!(
        (update.entropy, update.grad_clip, update.optimizer.weight_decay, update.epochs),
        (0.001, 1.0, 0.01, 1),
        "{name}"
    );
    assert_eq!(update.loss == PolicyLoss::Gspo, name.starts_with("gspo"), "{name}");
    // verl-agent aggregates GSPO's term by response, whatever the settings, and KL and entropy over tokens.
    let gspo = update.loss == PolicyLoss::Gspo;
    let policy = if gspo { Aggregation::SeqMeanTokenMean } else { Aggregation::TokenMean };
    let aggregations = (update.aggregation, update.regularizer_aggregation());
    assert_eq!(aggregations, (policy, Aggregation::TokenMean), "{name}");
    let critic = Critic { lr: 1e-5, clip: 0.5, grad_clip: 1.0, warmup: 0 };
    assert_eq!(recipe.critic, (row.estimator == "ppo").then_some(critic), "{name}");
    assert_eq!((recipe.eval.every, recipe.eval.temperature), (5, 0.4), "{name}");
}

#[test]
fn alfworld_has_the_published_settings() {
    for (recipe, row) in recipes("alfworld", &ALFWORLD).iter().zip(&ALFWORLD) {
        check(recipe, row);
        let limits = (recipe.rollout.max_prompt_tokens, recipe.rollout.max_steps, recipe.update.mini_batch);
        assert_eq!((limits, recipe.eval.tasks), ((2048, 50, 256), EvalTasks::All), "{}", row.name);
    }
}

#[test]
fn webshop_has_the_published_settings() {
    for (recipe, row) in recipes("webshop", &WEBSHOP).iter().zip(&WEBSHOP) {
        check(recipe, row);
        let limits = (recipe.rollout.max_prompt_tokens, recipe.rollout.max_steps, recipe.update.mini_batch);
        assert_eq!((limits, recipe.eval.tasks), ((4096, 15, 64), EvalTasks::Panel(row.goals)), "{}", row.name);
    }
}

/// The script of search differs from the others in most settings. The paper names its number of iterations.
#[test]
fn search_has_the_published_settings() {
    let row = |name, estimator| Row { name, estimator, std: Some(true), groups: [256, 5], iterations: 200, ..BASE };
    let rows = [
        row("gigpo_qwen2.5_7b", "gigpo"),
        row("gigpo_qwen2.5_3b", "gigpo"),
        row("grpo_qwen2.5_7b", "grpo"),
        row("grpo_qwen2.5_3b", "grpo"),
    ];
    for (recipe, row) in recipes("search", &rows).iter().zip(&rows) {
        let (name, rollout, update, config) = (row.name, &recipe.rollout, &recipe.update, &recipe.estimator.config);
        let size = if name.ends_with("7b") { "7B" } else { "3B" };
        assert_eq!(recipe.model.path.as_deref(), Some(format!("Qwen/Qwen2.5-{size}-Instruct").as_str()), "{name}");
        let estimator = (recipe.estimator.plugin.as_str(), config["norm"].as_str(), recipe.iterations, recipe.seed);
        assert_eq!(estimator, (row.estimator, Some("std"), 200, 0), "{name}");
        if row.estimator == "gigpo" {
            let numbers = ["gamma", "step_weight", "similarity"].map(|key| config[key].as_f64());
            assert_eq!(numbers, [Some(0.95), Some(1.0), Some(0.9)], "{name}");
        }
        let limits = (rollout.max_prompt_tokens, rollout.max_response_tokens, rollout.max_steps, update.mini_batch);
        assert_eq!(([rollout.tasks, rollout.group_size], limits), (row.groups, (4096, 512, 4, 512)), "{name}");
        assert_eq!((rollout.truncation, rollout.history.length), (Truncation::Left, Some(4)), "{name}");
        let sampling = (rollout.temperature, rollout.top_k, rollout.top_p, rollout.invalid_action_penalty);
        assert_eq!(sampling, (1.0, 0, 1.0, 0.01), "{name}");
        assert_eq!(
            ([update.clip_low, update.clip_high], update.dual_clip, update.lr),
            (row.clip, 3.0, row.lr),
            "{name}"
        );
        assert_eq!(
            (update.kl.as_ref().map(|kl| kl.coef), update.entropy, update.warmup),
            (Some(0.001), 0.0, 20),
            "{name}"
        );
        assert_eq!((recipe.eval.every, recipe.eval.temperature, recipe.checkpoint.every), (50, 0.0, 50), "{name}");
        assert_eq!(recipe.eval.tasks, EvalTasks::All, "{name}");
        let play = ["topk", "max_steps"].map(|key| recipe.env.all()[0].config[key].as_u64());
        assert_eq!(play, [Some(3), Some(4)], "{name}");
    }
}
