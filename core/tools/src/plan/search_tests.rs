use super::workload::{AskedPasses, Means, planned_work};
use super::*;
use crate::error::InputError;
use crate::recipe::VisionTrain;

/// Recipes of all kinds.
const RECIPES: [&[&str]; 5] = [
    &[],
    &["rollout.history.mode=transcript", "rollout.max_sequence_tokens=8192"],
    &["critic={lr: 1.0e-5}"],
    &["rollout.slots=500", "rollout.cache_tokens=4096", "sharding=grad_op", "dtype=float32"],
    &["rollout.slots=3", "dtype=float16", "warm_start={steps: 5, batch: 300, lr: 1.0e-4}"],
];

fn planner(shape: &str, sets: &[&str], gpu: Gpu) -> Planner {
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    let args = PlanArgs { sets, ..super::tests::args("", 1, Some(shape)) };
    let recipe = recipe::load(&args.recipe, &args.sets).expect("a recipe");
    let config = Config::shape(shape).expect("a shape").with_image_limits(&recipe.model).expect("limits");
    let passes = AskedPasses { policy: false, reference: recipe.update.kl.is_some() };
    Planner {
        frozen: Vec::new(),
        hardware: Hardware::of(gpu, kind(recipe.dtype)),
        per_node: 8,
        workload: planned_work(&recipe, &config, &Means::of(&args, None), passes).expect("work"),
        config,
        plugins: 0,
        recipe,
    }
}

fn with_memory(planner: &Planner, memory: u64) -> Planner {
    Planner { hardware: Hardware { memory, ..planner.hardware }, ..planner.clone() }
}

/// From the least memory that holds a run to more than it can use: the settings fit, leave at most a quarter that they could
/// use, and become no slower with more memory.
#[test]
fn settings_fit_and_waste_little() {
    for (number, kind) in RECIPES.into_iter().enumerate() {
        for (shape, gpu, ranks) in [
            ("0.5b", Gpu::Cpu, 1),
            ("0.5b", Gpu::Cpu, 2),
            ("1.5b", Gpu::H100, 1),
            ("7b", Gpu::H200, 4),
            ("qwen3-0.6b", Gpu::H100, 16),
            ("qwen2.5-vl-3b", Gpu::H100, 2),
        ] {
            let planner = planner(shape, kind, gpu);
            let most = with_memory(&planner, 1 << 50).search(ranks).expect("endless memory");
            assert!(most.more_memory_would_not_help, "{most:?}");
            // A rank's memory; ranks on one CPU share the machine's.
            let needed = planner.need(ranks).peak_bytes;
            let mut slowest = f64::INFINITY;
            for step in 0..6 {
                let growth = (most.after.peak_bytes as f64 / needed as f64).powf(f64::from(step) / 4.0);
                let memory = (needed as f64 * growth) as u64 + 1;
                let fitted = with_memory(&planner, memory * planner.sharing(ranks)).search(ranks).expect("a fit");
                let (after, what) =
                    (fitted.after, format!("recipe {number}, {shape} on {ranks}, {memory}: {fitted:?}"));
                assert!(after.fits && after.peak_bytes <= memory, "{what}");
                assert!(fitted.more_memory_would_not_help || after.peak_bytes * 4 >= memory * 3, "waste: {what}");
                assert!(after.seconds <= slowest * 1.0001, "slower than with less memory: {what}");
                slowest = after.seconds;
            }
            let refused = with_memory(&planner, needed / 10 * 9 * planner.sharing(ranks)).search(ranks);
            let error = refused.expect_err("too little memory");
            assert!(error.is::<InputError>() && error.to_string().contains("it would fit with"), "{error}");
        }
    }
}

#[test]
fn only_keys_that_keep_the_results_change() {
    let planner = planner("0.5b", RECIPES[0], Gpu::H100);
    let fitted = with_memory(&planner, 24_000_000_000).search(1).expect("a fit");
    let keys: Vec<&str> = fitted.sets.iter().filter_map(|set| Some(set.split_once('=')?.0)).collect();
    let free = ["update.micro_batch_tokens", "rollout.slots", "rollout.cache_tokens", "update.recompute"];
    assert!(!keys.is_empty() && keys.iter().all(|key| free.contains(key)), "{keys:?}");
    // The recipe with the settings is the one that was planned, and has nothing left to choose.
    let file = super::tests::args("", 1, None).recipe;
    let recipe = recipe::load(&file, &fitted.sets).expect("the settings are keys of a recipe");
    assert_eq!(Knobs::of(&recipe), fitted.knobs);
    let again = Planner { recipe, ..with_memory(&planner, 24_000_000_000) }.search(1).expect("a fit");
    assert!(again.sets.is_empty(), "{:?}", again.sets);
}

#[test]
fn a_refusal_names_what_would_fit() {
    let planner = planner("7b", RECIPES[0], Gpu::H100);
    let error = planner.search(1).expect_err("7.6 G parameters of AdamW are 122 GB").to_string();
    let ranks = error.split_once("--gpus ").and_then(|(_, rest)| rest.split(')').next()?.parse().ok()).expect("ranks");
    assert!(planner.search(ranks).is_ok() && planner.search(ranks - 1).is_err(), "{ranks}");
    for words in ["--set 'model.lora={rank: 64, alpha: 64}'", "GB of memory"] {
        assert!(error.contains(words), "{error}");
    }
    let seeing = self::planner("qwen2.5-vl-3b", &["model.vision={train: all}"], Gpu::H100);
    let least = |train| {
        let mut other = seeing.clone();
        other.recipe.model.vision.get_or_insert_default().train = Some(train);
        other.need(1).peak_bytes
    };
    let between = (least(VisionTrain::None) + least(VisionTrain::All)) / 2;
    let error = with_memory(&seeing, between).search(1).expect_err("the tower alone takes more").to_string();
    let adapters = "(--set 'model.lora={rank: 64, alpha: 64}' --set model.vision.train=none)";
    assert!(
        error.contains("a frozen vision tower (--set model.vision.train=none)") && error.contains(adapters),
        "{error}"
    );
    // A context that is too long for one sequence can be shortened to what fits.
    let sets = ["rollout.max_response_tokens=60000", "update.micro_batch_tokens=62048"];
    let long = self::planner("0.5b", &sets, Gpu::H100);
    let small = with_memory(&long, long.need(1).peak_bytes - 40_000_000);
    let error = small.search(1).expect_err("too long").to_string();
    let tokens = error.split_once("rollout.max_prompt_tokens=").expect("a shorter context").1;
    let tokens: usize = tokens.split(')').next().and_then(|n| n.parse().ok()).expect("a number");
    let mut shorter = small;
    shorter.recipe.rollout.max_prompt_tokens = tokens;
    assert!(shorter.search(1).is_ok());
}

#[test]
fn a_whole_run_counts_its_evaluations_and_warm_start() {
    let sets = ["iterations=10", "eval.every=5", "warm_start={steps: 7, batch: 256, lr: 1.0e-4}"];
    let planner = planner("0.5b", &sets, Gpu::H100);
    let plan = planner.plan(&Knobs::of(&planner.recipe), 2, None);
    let whole = plan.whole;
    // Before, after iteration 5, and after the last one.
    assert_eq!((whole.iterations, whole.evaluations), (10, 3));
    assert!((whole.training - 10.0 * plan.iteration.seconds()).abs() < 1e-6);
    let sum = whole.training + whole.warm_start + whole.evaluation.expect("4 tasks");
    assert!(whole.warm_start > 0.0 && (whole.seconds - sum).abs() < 1e-6, "{whole:?}");
    assert!((whole.device_hours - 2.0 * sum / 3600.0).abs() < 1e-9, "{whole:?}");
}
