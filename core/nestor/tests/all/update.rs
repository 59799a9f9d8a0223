//! The update apart from its losses: skipped steps, mini-batches and micro-batches, clipping and AdamW.

#![allow(clippy::unwrap_used)] // a panic fails the test

use std::rc::Rc;

use nestor::policy::Network;
use nestor::policy::batching::{ScoringPasses, all_mini_batches};
use nestor::policy::logprobs::ragged_logprobs;
use nestor::policy::update::{UpdateReport, UpdateSettings, gradients, update as update_policy};
use nestor_model::data::{Batch, Rows, Sequence};
use nestor_model::model::{Config, Model, new};
use nestor_model::shard::{Layout, Optimizer, Ranks, Stepping, UpdateRule, update_rule};
use nestor_recipe::{Lora, Update};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::support::small;

fn model_in(kind: Kind) -> Model {
    let Model { config, units, .. } = model();
    Model::new(config, units.held().iter().map(|flat| flat.to_kind(kind)).collect())
}

fn model() -> Model {
    let config = Config { max_position_embeddings: 128, rope_theta: 10_000.0, ..small("tiny") };
    new::random(&config, 3, Kind::Float, Device::Cpu).unwrap()
}

/// One row for each response length; prompts of two to four tokens.
fn batch(responses: &[usize]) -> Batch {
    let mut batch = Batch { rows: Rows { token_offsets: vec![0], ..Rows::default() }, ..Batch::default() };
    for (i, &response) in responses.iter().enumerate() {
        let prompt = 2 + i % 3;
        let rows = &mut batch.rows;
        rows.span_start.push(prompt as u32);
        rows.token_offsets.push(rows.token_offsets[i] + response as u64);
        rows.logprobs.extend((0..response).map(|t| -4.0 - 0.1 * (t % 5) as f32));
        rows.ref_logprobs.get_or_insert_default().extend((0..response).map(|t| -4.2 + 0.1 * (t % 3) as f32));
        rows.advantages.extend(vec![0.5 - i as f32 % 3.0; response]);
        let tokens = (0..prompt + response).map(|t| ((i * 17 + t * 7) % 61) as u32).collect();
        batch.sequences.push(Sequence { tokens, rows: vec![i as u32], ..Sequence::default() });
    }
    batch
}

/// An update section with these keys.
fn section(keys: Value) -> Update {
    let mut all = json!({ "mini_batch": 4, "lr": 1e-3, "kl": { "coef": 0.01 } });
    all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn settings(update: &Update) -> UpdateSettings<'_> {
    UpdateSettings { update, loss: None, lr: update.lr, temperature: 1.0, max_response_tokens: 16, seed: 5 }
}

fn train(policy: &mut Network, batch: &Batch, update: &Update) -> anyhow::Result<UpdateReport> {
    update_policy(policy, batch, &settings(update))
}

fn numbers(tensors: &[Tensor]) -> Vec<f32> {
    tensors.iter().flat_map(|t| Vec::<f32>::try_from(t).unwrap()).collect()
}

/// AdamW with the defaults of a recipe.
fn adamw() -> Rc<dyn UpdateRule> {
    update_rule(&nestor_recipe::Optimizer::default())
}

/// One rank on the CPU.
fn solo() -> Ranks {
    Ranks::solo(Device::Cpu)
}

/// The gradient sums of the whole batch, which is one mini-batch.
fn gradient(batch: &Batch, update: &Update) -> Vec<f32> {
    let mut policy = Network::new(model(), adamw(), &solo()).unwrap();
    let whole = Update { mini_batch: 1 << 20, ..update.clone() };
    gradients(&mut policy, batch, &all_mini_batches(batch, &whole, 5)[0], &settings(update)).unwrap();
    numbers(&policy.optimizer.grads)
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_ten_in_a_row_are_an_error() {
    let update = section(json!({}));
    let mut policy = Network::new(model(), adamw(), &solo()).unwrap();
    let good = batch(&[3, 5, 4]);
    assert_eq!(train(&mut policy, &good, &update).unwrap().steps(), 1);
    let state = |policy: &Network| {
        let o = &policy.optimizer;
        let state = o.state.iter().map(|state| &state.shards[..]);
        let tensors = [policy.model.units.held(), &o.master_weights].into_iter().chain(state);
        let bits: Vec<u32> = tensors.flat_map(numbers).map(f32::to_bits).collect();
        (bits, o.steps)
    };
    let before = state(&policy);
    for in_a_row in 1..10 {
        let mut bad = good.clone();
        bad.rows.advantages[in_a_row] = if in_a_row % 2 == 0 { f32::NAN } else { f32::INFINITY };
        let report = train(&mut policy, &bad, &update).unwrap();
        assert_eq!((report.steps(), report.skipped(), policy.skipped_in_a_row), (0, 1, in_a_row as u32));
        assert!(state(&policy) == before, "a skipped step left a trace");
    }
    let mut bad = good.clone();
    bad.rows.advantages.fill(f32::NAN);
    let error = train(&mut policy, &bad, &update).unwrap_err().to_string();
    assert!(error.contains("updating the policy"), "{error}");
    let again = policy.check_skipped(10).unwrap_err().to_string();
    assert!(
        again.contains("10 optimizer steps in a row were skipped") && again.contains("update.max_skipped"),
        "{again}"
    );
    assert!(policy.check_skipped(11).is_ok() && policy.is_finite());
    assert!(state(&policy) == before, "a skipped step left a trace");
    // A good step resets the count.
    train(&mut policy, &good, &update).unwrap();
    assert_eq!((policy.skipped_in_a_row, policy.optimizer.steps), (0, 2));
}

/// An optimizer step writes them itself, and nothing refreshes them afterwards.
#[test]
fn compute_weights_are_the_new_master_weights_in_their_type() {
    let mut policy = Network::new(model_in(Kind::BFloat16), adamw(), &solo()).unwrap();
    let before: Vec<Tensor> = policy.model.units.held().iter().map(Tensor::copy).collect();
    train(&mut policy, &batch(&[3, 5, 4]), &section(json!({ "lr": 0.1 }))).unwrap();
    let after = policy.model.units.held();
    let rounded: Vec<Tensor> = policy.optimizer.master_weights.iter().map(|t| t.to_kind(Kind::BFloat16)).collect();
    assert!(after == rounded && after != before);
}

/// Wherever the optimizer's tensors rest, steps are the same to the last bit, also those of a critic and of adapters.
#[test]
fn tensors_that_rest_on_the_host_take_the_same_steps() {
    let batch = batch(&[3, 5, 4, 2, 6]);
    let stepped = |kind: Kind, keys: Value, adapters: Option<&Lora>| {
        let update = section(keys);
        let (model, stepping) = (model_in(kind), Stepping::of(&update));
        let mut policy = match adapters {
            Some(lora) => Network::with_lora(model, stepping, (lora, 1), &solo()).unwrap(),
            None => Network::new(model, stepping, &solo()).unwrap(),
        };
        train(&mut policy, &batch, &update).unwrap();
        let mut critic = Network::critic_of(&policy).unwrap();
        for network in [&mut policy, &mut critic] {
            network.optimizer.grads.iter_mut().for_each(|grad| drop(grad.fill_(0.01)));
            network.step(0.01, 1.0).unwrap();
        }
        let of = |network: &Network| {
            let Optimizer { master_weights, state, .. } = &network.optimizer;
            let tensors =
                state.iter().map(|state| &state.shards[..]).chain([&master_weights[..], network.model.units.held()]);
            tensors.flat_map(numbers).map(f32::to_bits).collect::<Vec<_>>()
        };
        [of(&policy), of(&critic)]
    };
    let lora = Lora::of_all(4, 8.0);
    for (name, adapters) in [("adamw", None), ("muon", None), ("adamw", Some(&lora))] {
        for (kind, offload) in [(Kind::Float, "moments"), (Kind::BFloat16, "moments"), (Kind::BFloat16, "all")] {
            let keys = |offload| json!({ "epochs": 2, "optimizer": { "name": name }, "offload": offload });
            let (offloaded, staying) = (stepped(kind, keys(offload), adapters), stepped(kind, keys("none"), adapters));
            assert!(offloaded == staying, "{name} {kind:?} {offload} {}", adapters.is_some());
        }
    }
}

#[test]
fn adapters_start_as_the_base_and_train_only_projections() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let (base, batch) = (model_in(kind), batch(&[3, 5, 4]));
        let mut policy = Network::with_lora(model_in(kind), adamw(), (&Lora::of_all(4, 8.0), 1), &solo()).unwrap();
        policy.refresh().unwrap();
        let passes = ScoringPasses::new(policy.micro_batching(20), &batch);
        let logprobs = |model: &Model| ragged_logprobs(&solo(), model, &batch, &passes, 1.0).unwrap();
        assert_eq!(logprobs(&policy.model), logprobs(&base));
        train(&mut policy, &batch, &section(json!({ "epochs": 3 }))).unwrap();
        assert_ne!(logprobs(&policy.model), logprobs(&base));
        let merged = Model::new(base.config.clone(), policy.weights());
        let all = [&policy.model, &merged, &base].map(|model| model.named_parameters().unwrap());
        for (((name, frozen), (_, merged)), (_, before)) in all[0].iter().zip(&all[1]).zip(&all[2]) {
            assert_eq!(frozen, before, "{name} in {kind:?}");
            assert_eq!(*merged != before.to_kind(Kind::Float), name.ends_with("_proj.weight"), "{name} in {kind:?}");
        }
    }
}

/// Under any aggregation, micro-batches and sequences with several responses do not change the gradient.
#[test]
fn every_loss_adds_up_over_micro_batches() {
    let batch = batch(&[3, 5, 4, 9, 1, 6]);
    let losses = [
        json!({ "aggregation": "seq-mean-token-sum" }),
        json!({ "aggregation": "seq-mean-token-mean" }),
        json!({ "aggregation": "seq-mean-token-sum-norm" }),
        json!({ "aggregation": "token-sum-norm", "regularizer_aggregation": "seq-mean-token-mean" }),
        json!({ "aggregation": "seq-mean-token-mean", "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4 }),
        json!({ "importance_cap": 1.5 }),
    ];
    for mut keys in losses {
        let mut with_budget = |budget: usize| {
            keys["micro_batch_tokens"] = budget.into();
            gradient(&batch, &section(keys.clone()))
        };
        let (whole, micro) = (with_budget(1000), with_budget(12));
        let largest = whole.iter().fold(0f32, |max, g| max.max(g.abs()));
        let off = micro.iter().zip(&whole).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(largest > 1e-3 && off <= 1e-6 * largest.max(1.0), "{keys}: {off} of {largest}");
    }
}

#[test]
fn a_short_mini_batch_counts_less_where_the_reference_has_it_so() {
    let batch = batch(&[3, 5, 4]);
    let mean = gradient(&batch, &section(json!({ "mini_batch": 8 })));
    let reference = gradient(&batch, &section(json!({ "mini_batch": 8, "short_mini_batch": "reference" })));
    assert!(mean.iter().any(|g| g.abs() > 1e-3));
    let largest = mean.iter().fold(0f32, |max, g| max.max(g.abs()));
    for (mean, reference) in mean.iter().zip(&reference) {
        assert!((reference - mean * 3.0 / 8.0).abs() <= 1e-6 * largest, "{reference} {mean}");
    }
}

#[test]
fn mini_batches_are_cut_from_one_order() {
    let batch = batch(&[2; 10]);
    let plain = section(json!({}));
    assert_eq!(all_mini_batches(&batch, &plain, 1), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    let report =
        train(&mut Network::new(model(), adamw(), &solo()).unwrap(), &batch, &section(json!({ "epochs": 2 }))).unwrap();
    assert_eq!(report.steps(), 6);

    let shuffle = section(json!({ "shuffle": true }));
    let order = |seed| {
        let cut = all_mini_batches(&batch, &shuffle, seed);
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        cut.concat()
    };
    let mut sorted = order(1);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    assert_eq!(order(1), order(1));
    assert!(order(1) != order(2) && order(1) != sorted);
}

#[test]
fn a_policy_that_moved_too_far_ends_its_update_before_the_next_epoch() {
    let batch = batch(&[2; 10]);
    let steps = |target_kl: f64| {
        let update = section(json!({ "epochs": 3, "target_kl": target_kl }));
        train(&mut Network::new(model(), adamw(), &solo()).unwrap(), &batch, &update).unwrap().steps()
    };
    // The batch's log-probs are about -4, those of a random model about -6.
    assert_eq!([steps(1e-3), steps(100.0)], [3, 9]);
}

#[test]
fn responses_that_are_left_out_have_no_part_in_the_gradient() {
    let (whole, update) = (batch(&[3, 5, 4]), section(json!({ "mini_batch": 8, "kl": null, "entropy": 0.0 })));
    let mut others = whole.clone();
    others.sequences.remove(1);
    assert_eq!(gradient(&whole.without(|row| row == 1), &update), gradient(&others, &update));

    // A transcript keeps the tokens: a loss whose advantages are 0 there has the same gradient, but for its mean.
    let mut transcript = whole.clone();
    let second = transcript.sequences.remove(1);
    transcript.rows.span_start[1] += transcript.sequences[0].tokens.len() as u32;
    transcript.sequences[0].tokens.extend(second.tokens);
    transcript.sequences[0].rows.push(1);
    transcript.rows.sequence = vec![0, 0, 1];
    let start = transcript.rows.span_start[1] as usize;
    assert_eq!(transcript.response(1), &transcript.sequences[0].tokens[start..]);
    let mut without_gain = transcript.clone();
    without_gain.rows.advantages[3..8].fill(0.0);
    let (left_out, zero) = (gradient(&transcript.without(|row| row == 1), &update), gradient(&without_gain, &update));
    let largest = left_out.iter().fold(0f32, |max, g| max.max(g.abs()));
    assert!(largest > 1e-3);
    for (left_out, zero) in left_out.iter().zip(&zero) {
        assert!((left_out * 7.0 / 12.0 - zero).abs() <= 1e-6 * largest, "{left_out} {zero}");
    }
}

#[test]
fn a_step_that_a_resample_draws_twice_counts_twice() {
    let (batch, plain) = (batch(&[3, 5, 4]), section(json!({ "mini_batch": 8 })));
    let rewards = |rewards: [f64; 3]| {
        let mut rewarded = batch.clone();
        rewarded.rows.token_rewards = vec![0.0; batch.response_tokens()];
        for (row, reward) in rewards.into_iter().enumerate() {
            let first = rewarded.rows.response(row as u32).start;
            rewarded.rows.token_rewards[first] = reward;
        }
        rewarded
    };
    // Only the second step has a weight, so it is drawn three times: the gradient is that of the step alone.
    let section = section(json!({ "mini_batch": 8, "reweight": { "method": "pow" } }));
    let drawn = gradient(&rewards([0.0, 1.0, 0.0]), &section);
    let mut alone = batch.clone();
    alone.sequences = vec![batch.sequences[1].clone()];
    let alone = gradient(&alone, &plain);
    let largest = alone.iter().fold(0f32, |max, g| max.max(g.abs()));
    assert!(largest > 1e-3);
    for (drawn, alone) in drawn.iter().zip(&alone) {
        assert!((drawn - alone).abs() <= 1e-5 * largest, "{drawn} {alone}");
    }
}

#[test]
fn micro_batches_do_not_change_the_gradient() {
    let batch = batch(&[3, 5, 4, 9, 1, 6]);
    let whole = gradient(&batch, &section(json!({ "micro_batch_tokens": 1000 })));
    let largest = whole.iter().fold(0f32, |max, g| max.max(g.abs()));
    for budget in [1, 12, 20] {
        let micro = gradient(&batch, &section(json!({ "micro_batch_tokens": budget })));
        let off = micro.iter().zip(&whole).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(off <= 1e-6 * largest.max(1.0), "budget {budget}: {off} of {largest}");
    }
}

/// Recomputation in the backward pass changes no bit, nor do the contents of a sum before its mini-batch.
#[test]
fn recomputing_changes_no_bit() {
    let batch = batch(&[3, 5, 4, 9, 1, 6]);
    for kind in [Kind::Float, Kind::BFloat16] {
        let gradient = |recompute: Value, before: f64| {
            let update = section(json!({ "micro_batch_tokens": 12, "recompute": recompute }));
            let mut policy = Network::new(model_in(kind), adamw(), &solo()).unwrap();
            policy.optimizer.grads.iter_mut().for_each(|grad| drop(grad.fill_(before)));
            gradients(&mut policy, &batch, &[0, 1, 2, 3, 4, 5], &settings(&update)).unwrap();
            numbers(&policy.optimizer.grads)
        };
        let none = gradient(json!("none"), 0.0);
        assert!(none.iter().any(|g| g.abs() > 1e-3));
        for recompute in [json!("auto"), json!("all"), json!(1)] {
            assert!(gradient(recompute.clone(), 7.0) == none, "{recompute} in {kind:?}");
        }
    }
}

/// The numbers are those of PyTorch 2.11 on a CPU:
///
/// ```python
/// a, b = (torch.nn.Parameter(torch.tensor(x)) for x in ([0.5, -1.0, 2.0], [0.25, -0.75]))
/// optimizer = torch.optim.AdamW([a, b], lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.02)
/// for a_grad, b_grad in GRADS:
///     a.grad, b.grad = torch.tensor(a_grad), torch.tensor(b_grad)
///     norm = torch.nn.utils.clip_grad_norm_([a, b], 1.0)
///     optimizer.step()
///     print(norm.item(), a.tolist(), b.tolist())
/// for p in (a, b):
///     print(optimizer.state[p]["exp_avg"].tolist(), optimizer.state[p]["exp_avg_sq"].tolist())
/// ```
#[test]
fn clipping_and_adamw_equal_pytorch() {
    let steps: [([f32; 5], f64, [f32; 5]); 3] = [
        ([3.0, -4.0, 0.5, 1.0, 2.0], 5.5, [0.399, -0.898, 1.896, 0.149_500_01, -0.848_5]),
        (
            [0.1, 0.2, -0.3, 0.0, 0.05],
            0.377_491_7,
            [0.317_920_77, -0.850_846_5, 1.943_470_5, 0.081_336_26, -0.924_268_96],
        ),
        (
            [-2.0, 1.0, 0.0, 0.5, -6.0],
            6.422_616_5,
            [0.294_852, -0.827_646_8, 1.979_721_9, 0.007_120_400_7, -0.885_256_8],
        ),
    ];
    let split = |values: [f32; 5]| [Tensor::from_slice(&values[..3]), Tensor::from_slice(&values[3..])];
    let close = |what: &str, got: &[Tensor], want: [f32; 5]| {
        let got = numbers(got);
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{what}: {got:?}, not {want:?}");
    };
    let units = [3, 2].map(|n| Layout::new("unit", vec![("weight".into(), vec![n])]));
    let rule = nestor_recipe::Optimizer { betas: [0.9, 0.95], weight_decay: 0.02, ..Default::default() };
    let weights = split([0.5, -1.0, 2.0, 0.25, -0.75]);
    let mut optimizer = Optimizer::new(update_rule(&rule).into(), &units, &weights, &solo(), None).unwrap();
    for (grads, norm, weights) in steps {
        optimizer.grads = split(grads).into();
        let report = optimizer.step(&units, (0.1, 1.0), &solo(), None).unwrap();
        assert!((report.grad_norm - norm).abs() < 1e-5 && !report.skipped, "{report:?}");
        close("weights", &optimizer.master_weights, weights);
    }
    let first = [0.022_041_861, -0.025_339_106, -0.019_636_365, 0.022_512_259, -0.059_465_315];
    let second = [0.018_749_101, 0.026_979_882, 0.004_647_934, 0.001_794_765_4, 0.049_722_04];
    let [exp_avg, exp_avg_sq] = &optimizer.state[..] else { panic!("two moments") };
    close(exp_avg.name, &exp_avg.shards, first);
    close(exp_avg_sq.name, &exp_avg_sq.shards, second);
}
