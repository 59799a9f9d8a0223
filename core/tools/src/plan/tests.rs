use std::sync::LazyLock;

use super::hardware::Cluster;
use super::memory::Frozen;
use super::time::TimeSetup;
use super::*;
use crate::error::InputError;

use nestor_args::Gpu;
use tch::{Kind, Tensor};

use crate::recipe::{Lora, Offload, Optimizer, OptimizerName, Recompute, VisionTrain};
use crate::shard::{Ranks, Stepping};

/// AdamW with the defaults of a recipe.
static ADAMW: LazyLock<Optimizer> = LazyLock::new(Optimizer::default);
const MODES: [Sharding; 2] = [Sharding::Full, Sharding::GradOp];

fn update(config: &Config, ranks: u64, sharding: Sharding) -> UpdateSetup<'_> {
    UpdateSetup {
        config,
        kind: Kind::BFloat16,
        cpu: false,
        ranks,
        sharding,
        lora: None,
        optimizer: &ADAMW,
        offload: Offload::None,
        micro_batch_tokens: 8192,
        response_tokens: 1024,
        image_tokens: 0,
        images: Images::NONE,
        recompute: Recompute::All,
        memory: 80_000_000_000,
        process: 0,
    }
}

fn iteration(update: UpdateSetup) -> IterationSetup {
    IterationSetup {
        update,
        reference: true,
        frozen: &[],
        critic: false,
        slots: 32,
        longest: 2048,
        cache_tokens: 65_536,
        batch: 0,
        plugins: 0,
        fragments: 0,
        background: false,
    }
}

fn bytes(memory: &Memory, name: &str) -> u64 {
    memory.item(name).unwrap_or_else(|| panic!("no {name}"))[0]
}

fn recipe(more: &str) -> std::path::PathBuf {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("nestor-plan-{}-{number}.yaml", std::process::id()));
    let text = "iterations: 1\nmodel: {path: no/such/folder}\nenv: {plugin: maze}\nestimator: {plugin: stars}\n\
                rollout: {tasks: 16, group_size: 8, max_steps: 50, max_prompt_tokens: 2048, max_response_tokens: 512}\n\
                update: {mini_batch: 256, lr: 1.0e-6, kl: {coef: 0.01}}\neval: {tasks: 4}\n";
    std::fs::write(&path, format!("{text}{more}")).expect("a recipe");
    path
}

pub fn args(more: &str, gpus: u64, shape: Option<&str>) -> PlanArgs {
    PlanArgs {
        recipe: recipe(more),
        sets: Vec::new(),
        gpus: Some(gpus),
        gpus_per_node: 8,
        gpu: Some(Gpu::H100),
        memory: None,
        fit: false,
        shape: shape.map(str::to_string),
        steps: None,
        prompt: None,
        response: None,
        json: false,
    }
}

/// Derived by hand from the needs of sharded AdamW: 16 bytes a parameter over the ranks for weights, gradients and optimizer,
/// 2 for a whole bfloat16 copy, and 2 over the ranks for the reference. Qwen2.5-7B has 7.616 G parameters and 14B has
/// 14.770 G. (Ours is 18 over the ranks: bfloat16 weights, and float32 master weights, gradients and two moments.)
#[test]
fn seven_and_fourteen_billion_agree_with_the_derivation_by_hand() {
    for (shape, parameters, ranks, [state, copy, reference]) in [
        ("7b", 7.616e9, 4, [30.5e9, 15.2e9, 3.8e9]),
        ("7b", 7.616e9, 8, [15.2e9, 15.2e9, 1.9e9]),
        ("14b", 14.770e9, 4, [59.1e9, 29.5e9, 7.4e9]),
        ("14b", 14.770e9, 8, [29.5e9, 29.5e9, 3.7e9]),
    ] {
        let close = |what: &str, got: u64, wanted: f64, by: f64| {
            assert!((got as f64 / wanted - 1.0).abs() < by, "{shape} on {ranks}: {what} {got}, not {wanted}");
        };
        let config = Config::shape(shape).expect(shape);
        close("parameters", UnitSizes::new(&config, 1).all(), parameters, 1e-3);
        let memory = iteration_memory(&iteration(update(&config, ranks, Sharding::Full)));
        let optimizer =
            ["master weights", "gradient sums", "moments of AdamW"].map(|name| bytes(&memory, name)).iter().sum();
        let [weights, whole] = ["weights", "whole copy for rollout"].map(|name| bytes(&memory, name));
        let frozen = bytes(&memory, "reference");
        close("optimizer", optimizer, state, 0.01);
        close("whole copy", whole, copy, 0.01);
        close("reference", frozen, reference, 0.02);
        close("all of it", optimizer + weights + whole + frozen, state + copy + reference, 0.1);
    }
}

/// A block's matrices are its parameters but norms and biases of Qwen2: 2 E + Q + 2 KV of them.
#[test]
fn muon_keeps_four_bytes_for_each_entry_of_a_hidden_matrix() {
    let muon = Optimizer { name: OptimizerName::Muon, ..Optimizer::default() };
    let config = Config::shape("0.5b").expect("a shape");
    let sizes = UnitSizes::new(&config, 1);
    let matrices = 24 * (sizes.block() - (2 * 896 + 896 + 2 * 128));
    for ranks in [1, 8] {
        let memory = update_memory(&UpdateSetup { optimizer: &muon, ..update(&config, ranks, Sharding::Full) });
        let state = bytes(&memory, "momentum of Muon, moments of AdamW");
        let wanted = (8 * sizes.all() - 4 * matrices) / ranks;
        assert!((wanted..wanted + 1_000).contains(&state), "{state}, not {wanted}");
    }
}

/// The tensors of a plan are those that an optimizer makes.
#[test]
fn the_tensors_that_rest_on_the_host_are_counted() {
    let config = Config { num_hidden_layers: 3, ..Config::shape("tiny").expect("a shape") };
    let layouts = crate::model::unit_weights::layouts(&config);
    for name in [OptimizerName::Adamw, OptimizerName::Muon] {
        for offload in [Offload::Moments, Offload::All] {
            let optimizer = Optimizer { name, ..Optimizer::default() };
            let rule = crate::shard::update_rule(&optimizer);
            let (stepping, ranks) = (Stepping { rule, offload }, Ranks::solo(tch::Device::Cpu));
            let weights: Vec<Tensor> =
                layouts.iter().map(|unit| Tensor::zeros([unit.numel()], (Kind::BFloat16, tch::Device::Cpu))).collect();
            let made = crate::shard::Optimizer::new(stepping, &layouts, &weights, &ranks, None).expect("made");
            let sum = |tensors: &[Tensor]| 4 * tensors.iter().map(Tensor::numel).sum::<usize>() as u64;
            let setup = UpdateSetup { optimizer: &optimizer, offload, ..update(&config, 1, Sharding::Full) };
            let offloaded = setup.offloaded(&config, None);
            assert_eq!(offloaded.state, made.state.iter().map(|state| sum(&state.shards)).sum::<u64>());
            assert_eq!(offloaded.master_weights, if offload == Offload::All { sum(&made.master_weights) } else { 0 });
            let all = offloaded.master_weights + offloaded.state;
            assert!((all..2 * all).contains(&offloaded.host), "{offloaded:?}");
        }
    }
}

/// 12 of the 18 bytes that a rank holds for each of its parameters.
#[test]
fn two_gpus_train_all_weights_of_seven_billion_with_tensors_on_the_host() {
    let planned = |offload: &str| {
        let sets = ["update.micro_batch_tokens=4096".to_string(), format!("update.offload={offload}")];
        plan(&PlanArgs { sets: sets.into(), ..args("", 2, Some("7b")) }).expect("a plan")
    };
    let [none, moments, all] = ["none", "moments", "all"].map(planned);
    assert!(!none.here.fits && all.here.fits);
    assert!(none.here.peak_bytes > moments.here.peak_bytes && moments.here.peak_bytes > all.here.peak_bytes);
    let of_parameters = |plan: &Plan| {
        let bytes = plan.offloaded.master_weights + plan.offloaded.state;
        (bytes as f64 * 2.0 / plan.model.parameters as f64).round()
    };
    assert_eq!([&none, &moments, &all].map(of_parameters), [0.0, 8.0, 12.0]);
    let copies = |plan: &Plan| plan.iteration.phase("update").expect("an update").communication;
    assert!(copies(&all) > copies(&moments) && copies(&moments) > copies(&none));
    let text = all.to_string();
    assert!(text.contains("update.offload keeps") && text.contains("to the device and back"), "{text}");
    let warning = host_warning(&all.offloaded, 2, 100_000_000_000).expect("too much");
    assert!(warning.starts_with("update.offload keeps 116 GB in the host's memory, and 100 GB are free"), "{warning}");
    assert_eq!(host_warning(&all.offloaded, 2, 200_000_000_000), None);
}

/// VmHWM of `nestor bench update --model 0.5b --batch 4 --prompt 256 --new 64 --dtype bfloat16` on one thread, as
/// measured: 9.578 GB with `--recompute all`, 10.687 GB with `none`.
#[test]
fn one_rank_takes_what_was_measured() {
    let config = Config::shape("0.5b").expect("shape");
    for (recompute, measured) in [(Recompute::All, 9.578e9), (Recompute::None, 10.687e9)] {
        let setup = UpdateSetup {
            cpu: true,
            micro_batch_tokens: 1280,
            response_tokens: 256,
            recompute,
            process: Hardware::of(Gpu::Cpu, Kind::BFloat16).process,
            ..update(&config, 1, Sharding::Full)
        };
        let (_, peak) = update_memory(&setup).peak();
        assert!((peak as f64 / measured - 1.0).abs() < 0.05, "{recompute:?}: {peak}, not {measured}");
    }
}

#[test]
fn totals_are_sums_and_fall_with_the_ranks() {
    for shape in ["0.5b", "7b", "qwen3-0.6b"] {
        let config = Config::shape(shape).expect(shape);
        for mode in MODES {
            let peaks = [1, 2, 3, 4, 8, 64, 1024].map(|ranks| {
                let memory = iteration_memory(&iteration(update(&config, ranks, mode)));
                let by_item = memory.items.iter().flat_map(|item| &item.bytes).sum::<u64>();
                assert_eq!(memory.totals().iter().sum::<u64>(), by_item);
                assert_eq!(memory.peak().1, *memory.totals().iter().max().expect("a moment"));
                ["master weights", "gradient sums", "moments of AdamW"]
                    .map(|name| bytes(&memory, name))
                    .iter()
                    .sum::<u64>()
            });
            assert!(peaks.is_sorted_by(|a, b| a > b), "{shape} {mode:?}: {peaks:?}");
            // From two ranks on, which have buffers for all-gather and reduction.
            let updates = [2, 4, 8, 64].map(|ranks| update_memory(&update(&config, ranks, mode)).peak().1);
            assert!(updates.is_sorted_by(|a, b| a > b), "{shape} {mode:?}: {updates:?}");
        }
    }
}

#[test]
fn full_takes_no_more_than_grad_op_in_the_update() {
    for shape in ["0.5b", "1.5b", "7b", "14b"] {
        let config = Config::shape(shape).expect(shape);
        for ranks in [1, 2, 4, 8, 128] {
            let [full, grad_op] = MODES.map(|mode| update_memory(&update(&config, ranks, mode)).totals());
            assert!(
                full.iter().zip(&grad_op).all(|(full, kept)| full <= kept),
                "{shape} on {ranks}: {full:?} {grad_op:?}"
            );
        }
    }
}

#[test]
fn adapters_have_small_optimizers_and_share_their_base() {
    let config = Config::shape("7b").expect("shape");
    let lora = Lora::of_all(64, 64.0);
    let with = update_memory(&UpdateSetup { lora: Some(&lora), ..update(&config, 1, Sharding::Full) });
    // In and out of q, k, v, o, gate, up and down: 90,112 rows and columns a block.
    let columns = 7168 + 2 * 4096 + 7168 + 3 * 22_528;
    assert_eq!(bytes(&with, "moments of AdamW"), 8 * 28 * 64 * columns);
    assert_eq!(bytes(&with, "frozen base of the adapters"), 2 * UnitSizes::new(&config, 1).all());
    let reference = |lora| {
        let update = UpdateSetup { lora, ..update(&config, 1, Sharding::Full) };
        bytes(&iteration_memory(&IterationSetup { reference: true, ..iteration(update) }), "reference")
    };
    assert_eq!(reference(Some(&lora)), 4 * 28 * 64 * columns);
    assert_eq!(reference(None), bytes(&with, "frozen base of the adapters"));
    // A teacher shares nothing, and is frozen as a whole reference is.
    let frozen = [Frozen { name: "teacher", config: config.clone() }];
    let teacher = IterationSetup { frozen: &frozen, ..iteration(update(&config, 4, Sharding::Full)) };
    assert_eq!(bytes(&iteration_memory(&teacher), "teacher"), bytes(&iteration_memory(&teacher), "reference"));
}

#[test]
fn a_save_in_the_background_copies_master_weights_and_moments() {
    let config = Config::shape("7b").expect("shape");
    let units = UnitSizes::new(&config, 8);
    let setup = |background, critic| {
        let update = UpdateSetup { cpu: true, ..update(&config, 8, Sharding::Full) };
        IterationSetup { background, critic, ..iteration(update) }
    };
    assert_eq!(setup(false, false).checkpoint_copy(), 0);
    assert_eq!(bytes(&iteration_memory(&setup(true, false)), "copy for a checkpoint"), 12 * units.shard());
    // A critic has a head of one output in place of the vocabulary's.
    assert!((24 * units.shard()).abs_diff(setup(true, true).checkpoint_copy()) < 12 * units.outer());
}

/// Parameters of Qwen2.5-VL-3B and 7B: those of transformers' `Qwen2_5_VLForConditionalGeneration` with the published sizes, of
/// the vision tower and of its merger among them.
const SEEING: [(&str, [u64; 3]); 2] = [
    ("qwen2.5-vl-3b", [3_754_622_976, 668_684_288, 36_708_608]),
    ("qwen2.5-vl-7b", [8_292_166_656, 676_550_144, 44_574_464]),
];

/// Images of 100 tokens, of which half of a micro-batch is.
fn seeing(config: &Config, train: VisionTrain) -> UpdateSetup<'_> {
    let images = Images { train, tokens: 100.0, largest: 1024, cache_tokens: 1 << 17, least: true };
    UpdateSetup { image_tokens: 4096, images, ..update(config, 1, Sharding::Full) }
}

#[test]
fn frozen_parts_of_a_tower_have_weights_alone() {
    for (shape, [all, tower, merger]) in SEEING {
        let config = Config::shape(shape).expect(shape);
        for (train, frozen) in
            [(VisionTrain::All, 0), (VisionTrain::Merger, tower - merger), (VisionTrain::None, tower)]
        {
            let memory = iteration_memory(&iteration(seeing(&config, train)));
            let items = ["weights", "master weights", "gradient sums", "moments of AdamW", "reference"];
            let trained = all - frozen;
            assert_eq!(
                items.map(|name| bytes(&memory, name)),
                [2 * all, 4 * trained, 4 * trained, 8 * trained, 2 * trained],
                "{shape} {train:?}"
            );
            // In float32 the master weights are the weights, and the frozen ones have no others.
            let float = UpdateSetup { kind: Kind::Float, ..seeing(&config, train) };
            let weights = iteration_memory(&iteration(float)).item("weights").map_or(0, |bytes| bytes[0]);
            assert_eq!(weights, 4 * frozen, "{shape} {train:?}");
        }
        let lora = Lora::of_all(64, 64.0);
        let adapted = UpdateSetup { lora: Some(&lora), ..seeing(&config, VisionTrain::None) };
        assert_eq!(bytes(&update_memory(&adapted), "frozen base of the adapters"), 2 * all);
    }
}

/// By hand for the 3B model's tower of width 1280 and 32 blocks in bfloat16, with 4096 tokens of images, 16,384 patches.
#[test]
fn an_update_keeps_what_the_towers_backward_pass_needs() {
    let config = Config::shape("qwen2.5-vl-3b").expect("shape");
    let (tokens, patches) = (4096, 16_384);
    let kept = |setup| update_memory(&setup).item("vision tower's activations").map_or(0, |bytes| bytes[1]);
    let embeddings = 2 * tokens * 2048;
    assert_eq!(kept(seeing(&config, VisionTrain::None)), embeddings);
    // States, their norm, the first product and its GELU; a scale for each patch.
    let merger = patches * (2 * 4 * 1280 + 4);
    assert_eq!(kept(seeing(&config, VisionTrain::Merger)), embeddings + merger);
    let inputs = 32 * patches * 2 * 1280;
    let patch = 2 * (3 * 2 * 14 * 14 + 2 * 80);
    let all = seeing(&config, VisionTrain::All);
    assert_eq!(kept(all), embeddings + merger + inputs + patches * patch);
    assert!(kept(UpdateSetup { recompute: Recompute::None, ..all }) > 10 * inputs, "graphs of all blocks");
    assert_eq!(kept(update(&Config::shape("3b").expect("shape"), 1, Sharding::Full)), 0);
}

#[test]
fn every_network_keeps_embeddings() {
    let config = Config::shape("qwen2.5-vl-3b").expect("shape");
    let kept = |train, reference, critic| {
        let setup = IterationSetup { reference, critic, ..iteration(seeing(&config, train)) };
        bytes(&iteration_memory(&setup), "kept embeddings of images")
    };
    let (tokens, states) = (2 * (1 << 17) * 2048, 2 * (1 << 17) * 1280);
    assert_eq!(kept(VisionTrain::None, false, false), tokens);
    assert_eq!(kept(VisionTrain::None, true, true), 3 * tokens);
    assert_eq!(kept(VisionTrain::Merger, true, true), 3 * tokens + 2 * states);
}

/// A 3B model that sees images of 256 x 256 pixels, 100 tokens each.
#[test]
fn a_plan_of_images_says_what_it_assumes() {
    let more = |sets: &[&str]| PlanArgs {
        sets: sets.iter().map(ToString::to_string).collect(),
        ..args("", 1, Some("qwen2.5-vl-3b"))
    };
    let planned = |sets: &[&str]| plan(&more(sets)).expect("a plan");
    let all = planned(&["model.vision={min_pixels: 65536}"]);
    assert_eq!((all.workload.images.tokens, all.workload.images.largest, all.model.tower), (100.0, 2048, 668_684_288));
    let text = all.to_string();
    assert!(text.contains("one image a step, of 100 tokens (the least that model.vision.min_pixels allows)"), "{text}");
    assert!(text.contains("668.7 million parameters in its vision tower"), "{text}");

    // Without it: the largest image in a quarter of 2048 tokens.
    let largest = planned(&[]);
    assert_eq!(largest.workload.images.tokens, 512.0);
    assert!(largest.to_string().contains("of 512 tokens (the largest that a mean prompt and max_pixels allow)"));
    assert_eq!(planned(&["model.vision={max_pixels: 65536}"]).workload.images.tokens, 83.0);
    let seconds = |plan: &Plan, phase| plan.iteration.phase(phase).expect("a phase").seconds();
    let [frozen, merger] =
        ["none", "merger"].map(|part| planned(&[&format!("model.vision={{min_pixels: 65536, train: {part}}}")]));
    for phase in ["rollout", "log-probs"] {
        assert!(seconds(&all, phase) < seconds(&largest, phase), "{phase}: larger images take longer");
    }
    let updates = [&frozen, &merger, &all].map(|plan| seconds(plan, "update"));
    assert!(updates.is_sorted_by(|a, b| a < b), "{updates:?}");

    let blind = plan(&args("", 1, Some("3b"))).expect("a plan");
    assert!(!blind.to_string().contains("image") && !blind.to_json().expect("JSON").to_string().contains("image"));
    let error = plan(&PlanArgs { shape: Some("3b".into()), ..more(&["model.vision={min_pixels: 65536}"]) });
    assert!(error.expect_err("no tower").to_string().contains("has no vision tower"));
}

/// By hand: 60 tokens in common of 100. Eight siblings own 8 x 40 and share 60, and 1,000 tokens are 2.6 such groups: 21 sequences.
#[test]
fn a_micro_batch_has_as_many_sequences_as_its_distinct_tokens_allow() {
    let work =
        PlannedWork { micro_batch_tokens: 1000, common: 60.0, siblings: 8.0, prompt: 90.0, response: 10.0, ..work() };
    assert_eq!(work.distinct_tokens(8.0), 380.0);
    assert_eq!(work.tree_factor(8.0), 800.0 / 380.0);
    assert_eq!(work.micro_batches(42.0, 1), (2.0, 21.0));
    assert_eq!(work.micro_batches(43.0, 1).0, 3.0);
    // One group alone, larger than its micro-batch: 60 + 23 x 40 tokens.
    assert_eq!(PlannedWork { siblings: 100.0, ..work }.micro_batches(46.0, 1), (2.0, 23.0));
    // Nothing in common.
    assert_eq!(PlannedWork { common: 0.0, ..work }.micro_batches(20.0, 1), (2.0, 10.0));
    assert_eq!(PlannedWork { common: 0.0, ..work }.tree_factor(10.0), 1.0);
}

/// A small workload, to be changed.
fn work() -> PlannedWork {
    PlannedWork {
        tasks: 16,
        group_size: 8,
        steps: 33.0,
        prompt: 20.0,
        response: 1.0,
        transcript: false,
        common: 0.0,
        siblings: 1.0,
        mini_batch: 256,
        epochs: 1,
        micro_batch_tokens: 16_384,
        slots: 64,
        cache_tokens: u64::MAX,
        longest_response: 1.0,
        logprob_passes: 1,
        reference: true,
        critic: false,
        images: Images::NONE,
    }
}

/// Two peers over links of 450 GB/s hide the gathers of a block from F (W - 1) / W / 450e9 tokens a micro-batch on,
/// whatever the model: 1,009 of 8 ranks at 65 % of 798 TFLOP/s. Latency comes on top.
#[test]
fn communication_hides_where_the_rates_say() {
    let config = Config::shape("7b").expect("shape");
    let workload = work();
    let on = |ranks, latency| {
        let hardware = Hardware { latency, ..Hardware::of(Gpu::H100, Kind::BFloat16) };
        let update = update(&config, ranks, Sharding::Full);
        let cluster = Cluster { ranks, per_node: 8 };
        TimeSetup { update, frozen: &[], recomputed: 28, workload, hardware, cluster }.iteration()
    };
    assert!((on(8, [0.0; 3]).hidden_from / 1009.0 - 1.0).abs() < 0.01, "{}", on(8, [0.0; 3]).hidden_from);
    let slower = on(8, [8.4e-6, 3.4e-6, 14e-6]);
    assert!(slower.hidden_from > 1009.0);
    assert_eq!(slower.hidden_from_without_latency, on(8, [0.0; 3]).hidden_from);
    for point in [slower, on(1024, [8.4e-6, 3.4e-6, 14e-6])] {
        assert!(
            point.phases.iter().all(|phase| phase.exposed <= phase.communication * 1.000_001),
            "{:?}",
            point.phases
        );
    }
    assert_eq!(on(1, [1.0; 3]).hidden_from, 0.0);
    assert!(on(1, [1.0; 3]).collectives.is_empty());
    // 7 / 8 of every gather comes from others: 28 blocks twice, first unit twice, in 17 mini-batches of 1 micro-batch.
    let units = UnitSizes::new(&config, 8);
    let gathered = on(8, [0.0; 3]).collectives.into_iter().find(|c| c.what == "units in the update").expect("gathers");
    assert_eq!(gathered.bytes, 17 * (2 * (2 * units.outer() + 56 * units.block()) * 7 / 8));
}

#[test]
fn a_plan_finds_the_smallest_cluster_and_the_end_of_hiding() {
    let plan = plan(&args("", 1024, Some("7b"))).expect("a plan");
    let smallest = plan.smallest.expect("some cluster fits");
    assert!(plan.clusters.iter().all(|fit| fit.fits == (fit.ranks >= smallest)), "{smallest}");
    assert!(smallest > 1 && smallest <= 8, "{smallest}");
    let exposed = plan.exposed_from.expect("256 steps do not feed 1024 ranks");
    assert!(plan.scaling.iter().all(|point| point.ranks >= exposed || point.hidden()));
    assert_eq!(plan.iteration.playing, 16);
    assert!(plan.warnings.iter().any(|line| line.contains("rollout.tasks is 16")), "{:?}", plan.warnings);
    let text = plan.to_string();
    assert!(text.contains("Communication stops being hidden at") && text.contains("smallest cluster"), "{text}");
}

#[test]
fn wrong_input_is_the_users_error() {
    let refused = |args: &PlanArgs| {
        let error = super::plan(args).expect_err("refused");
        assert!(error.is::<InputError>(), "{error:#}");
        error.to_string()
    };
    assert!(refused(&args("sharding: none\n", 2, Some("7b"))).contains("grad_op"));
    assert!(super::plan(&args("sharding: none\n", 1, Some("7b"))).is_ok());
    assert!(refused(&args("", 2, None)).contains("--shape"));
    assert!(refused(&PlanArgs { prompt: Some(1e6), ..args("", 2, Some("7b")) }).contains("--prompt"));
}
