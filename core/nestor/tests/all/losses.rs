//! Policy and value losses, KL and schedules against `tests/fixtures/loss_cases.json`: outputs of the reference implementation's
//! functions (verl-agent, upstream commit 796ed310) in float32 on a CPU; gradients are autograd's.

use nestor::policy::kl_reward::{KlCoefficient, subtract_kl};
use nestor::policy::losses::{
    LossInputs, LossMetrics, LossOutputs, MicroBatchMetrics, TokenWeights, ValueInputs, kl, policy_loss, value_loss,
};
use nestor::policy::update::learning_rate;
use nestor_model::data::{Batch, Rows};
use nestor_recipe::{KlInReward, KlKind, Update};
use serde_json::Value;
use tch::{Kind, Tensor};

fn cases() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/loss_cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("fixture")).expect("json")
}

fn update(keys: Value) -> Update {
    let mut all = serde_json::json!({ "mini_batch": 1, "lr": 1.0, "entropy": 0.0 });
    all.as_object_mut().expect("map").extend(keys.as_object().expect("map").clone());
    serde_json::from_value(all).expect("update section")
}

/// The entries of a padded (B, T) array where the mask is 1.
fn masked(rows: &Value, mask: &Value) -> Tensor {
    let pairs = rows.as_array().expect("rows").iter().zip(mask.as_array().expect("mask"));
    let values: Vec<f32> = pairs
        .flat_map(|(row, mask)| row.as_array().expect("row").iter().zip(mask.as_array().expect("row")))
        .filter(|(_, m)| m.as_f64() == Some(1.0))
        .map(|(v, _)| v.as_f64().expect("number") as f32)
        .collect();
    Tensor::from_slice(&values)
}

fn assert_close(what: &str, got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{what}: got {got}, want {want}");
}

fn assert_all_close(what: &str, got: &Tensor, want: &Tensor) {
    let got = Vec::<f32>::try_from(got).expect("floats");
    let want = Vec::<f32>::try_from(want).expect("floats");
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(&want) {
        assert_close(what, f64::from(*got), f64::from(*want));
    }
}

/// Lengths of the responses: the ones of each row of a mask.
fn lengths(mask: &Value) -> Vec<usize> {
    let rows = mask.as_array().expect("mask").iter();
    rows.map(|row| row.as_array().expect("row").iter().filter(|m| m.as_f64() == Some(1.0)).count()).collect()
}

/// One number per response, repeated for each of its tokens.
fn repeated<T: tch::kind::Element + Copy>(lengths: &[usize], number: impl Fn(usize) -> T) -> Tensor {
    let numbers = lengths.iter().enumerate().flat_map(|(i, &length)| std::iter::repeat_n(number(i), length));
    Tensor::from_slice(&numbers.collect::<Vec<T>>())
}

/// The policy loss of one case and its gradient, under some keys of the update section.
fn policy_case(case: &Value, keys: Value) -> (LossOutputs, Tensor) {
    let mask = &case["response_mask"];
    let pick = |key: &str| masked(&case[key], mask);
    let logprobs = pick("log_prob").set_requires_grad(true);
    let options = update(keys);
    let zeros = logprobs.detach().zeros_like();
    let lengths = lengths(mask);
    // In the reference R is the padded length.
    let token_weights = TokenWeights::new(&options, lengths.iter().copied(), mask[0].as_array().expect("row").len());
    let old = pick("old_log_prob");
    let outputs = policy_loss(
        &LossInputs {
            logprobs: &logprobs,
            entropy: &zeros,
            old_logprobs: &old,
            behaviour: &old,
            advantages: &pick("advantages"),
            ref_logprobs: None,
            responses: &repeated(&lengths, |i| i as i64),
            weights: &repeated(&lengths, |i| token_weights.of(lengths[i]) as f32),
            regularizer_weights: &repeated(&lengths, |i| token_weights.of_regularizer(lengths[i]) as f32),
            token_weights,
        },
        &options,
        None,
    )
    .expect("a built-in loss");
    outputs.loss.backward();
    let gradient = logprobs.grad();
    (outputs, gradient)
}

#[test]
fn policy_losses_and_their_gradients_equal_the_reference() {
    let cases = cases();
    let cases = cases["policy_loss"].as_array().expect("cases");
    assert_eq!(cases.len(), 10);
    for case in cases {
        let all = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "gspo"];
        for name in all {
            let want = &case["out"][name];
            let gspo = name == "gspo";
            let aggregation = match name {
                "gspo" => "seq-mean-token-mean",
                // The reference's function leaves out the division by the number of responses, which its name promises.
                "seq-mean-token-sum-norm" => "token-sum-norm",
                name => name,
            };
            let clip = if gspo { want } else { case };
            let (outputs, gradient) = policy_case(
                case,
                serde_json::json!({
                    "loss": if gspo { "gspo" } else { "clip" },
                    "aggregation": aggregation,
                    "clip_low": clip["clip_ratio_low"],
                    "clip_high": clip["clip_ratio_high"],
                    "dual_clip": case["clip_ratio_c"],
                }),
            );
            let number = |key: &str| want[key].as_f64();
            let close = |key: &str, got| assert_close(&format!("{name} {key}"), got, number(key).expect("number"));
            let metrics = LossMetrics::read(&[outputs.metrics]);
            let own = |name: &str| metrics.get(name).unwrap_or_else(|| panic!("no {name} in {metrics:?}"));
            close("pg_loss", own("loss/policy"));
            close("pg_clipfrac", own("policy/clip_fraction"));
            close("ppo_kl", own("policy/approx_kl"));
            // GSPO has no dual clip.
            let dual_clipped = if gspo { 0.0 } else { own("policy/dual_clip_fraction") };
            assert_close("pg_clipfrac_lower", dual_clipped, number("pg_clipfrac_lower").unwrap_or(0.0));
            assert_all_close("dloss_dlogprob", &gradient, &masked(&want["dloss_dlogprob"], &case["response_mask"]));
        }
    }
}

#[test]
fn metrics_add_up_by_name_over_micro_batches_and_ranks() {
    let micro_batch = |x: f64| {
        MicroBatchMetrics::new(&[("loss/kl".into(), Tensor::from(x)), ("policy/entropy".into(), Tensor::from(-x))])
    };
    let own = LossMetrics::read(&[micro_batch(1.0), micro_batch(2.0)]);
    let other = LossMetrics::read(&[micro_batch(5.0)]);
    // The first rank had nothing to do.
    let all = LossMetrics::sum([LossMetrics::read(&[]), own, other].iter());
    assert_eq!(all.iter().collect::<Vec<_>>(), [("loss/kl", 8.0), ("policy/entropy", -8.0)]);
    assert_eq!((all.get("policy/entropy"), all.get("loss/total")), (Some(-8.0), None));
}

/// Checks the equations: min(p / q, C) with the engine's q, as a factor of the clipped loss if old log-probs are recomputed,
/// and in place of the clip if they are the engine's.
#[test]
fn importance_weights_are_truncated() {
    let (x, o, q) = ([-1.0f32, -2.0, -0.5], [-1.2f32, -1.5, -0.5], [-2.0f32, -1.4, -0.6]);
    let advantages = [0.5f32, -1.0, 2.0];
    let (cap, third) = (2.0f32, 1.0 / 3.0);
    for old in ["rollout", "recompute"] {
        let options = update(serde_json::json!({ "importance_cap": cap, "old_logprobs": old }));
        let logprobs = Tensor::from_slice(&x).set_requires_grad(true);
        let old_logprobs = Tensor::from_slice(if old == "rollout" { &q } else { &o });
        let outputs = policy_loss(
            &LossInputs {
                logprobs: &logprobs,
                entropy: &Tensor::zeros([3], (Kind::Float, tch::Device::Cpu)),
                old_logprobs: &old_logprobs,
                behaviour: &Tensor::from_slice(&q),
                advantages: &Tensor::from_slice(&advantages),
                ref_logprobs: None,
                responses: &Tensor::from_slice(&[0i64, 0, 1]),
                weights: &Tensor::full([3], third, (Kind::Float, tch::Device::Cpu)),
                regularizer_weights: &Tensor::full([3], third, (Kind::Float, tch::Device::Cpu)),
                token_weights: TokenWeights::new(&options, [2, 1].into_iter(), 2),
            },
            &options,
            None,
        )
        .expect("a built-in loss");
        outputs.loss.backward();
        let gradient = Vec::<f32>::try_from(logprobs.grad()).expect("floats");
        for i in 0..3 {
            let a = advantages[i];
            let want = if old == "rollout" {
                -a * (x[i] - q[i]).exp().min(cap)
            } else {
                let ratio = (x[i] - o[i]).exp();
                // The clip stops the gradient where a better ratio would exceed it.
                let held = (a > 0.0 && ratio > 1.2) || (a < 0.0 && ratio < 0.8);
                if held { 0.0 } else { -a * ratio * (o[i] - q[i]).exp().min(cap) }
            };
            assert_close(old, f64::from(gradient[i]), f64::from(want) * third);
        }
    }
}

#[test]
fn value_losses_and_their_gradients_equal_the_reference() {
    let cases = cases();
    for case in cases["value_loss"].as_array().expect("cases") {
        let mask = &case["response_mask"];
        let lengths = lengths(mask);
        for name in ["token-mean", "seq-mean-token-mean"] {
            let want = &case["out"][name];
            let token_weights =
                TokenWeights::new(&update(serde_json::json!({ "aggregation": name })), lengths.iter().copied(), 1);
            let values = masked(&case["vpreds"], mask).set_requires_grad(true);
            let inputs = ValueInputs {
                values: &values,
                old_values: &masked(&case["values"], mask),
                returns: &masked(&case["returns"], mask),
                weights: &repeated(&lengths, |i| token_weights.of(lengths[i]) as f32),
            };
            let (loss, clipped) = value_loss(&inputs, case["cliprange_value"].as_f64().expect("number"));
            assert_close("vf_loss", loss.double_value(&[]), want["vf_loss"].as_f64().expect("number"));
            let share = clipped.to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
            assert_close("vf_clipfrac", share, want["vf_clipfrac"].as_f64().expect("number"));
            loss.backward();
            assert_all_close("dloss_dvpred", &values.grad(), &masked(&want["dloss_dvpred"], mask));
        }
    }
}

#[test]
fn kl_estimates_and_their_gradients_equal_the_reference() {
    let cases = cases();
    for case in cases["kl_penalty"].as_array().expect("cases") {
        let all = |v: &Value| masked(v, &Value::Array(v.as_array().expect("rows").iter().map(ones).collect()));
        for (kind, name) in [(KlKind::K1, "kl"), (KlKind::Abs, "abs"), (KlKind::K2, "mse"), (KlKind::K3, "low_var_kl")]
        {
            let logprobs = all(&case["logprob"]).set_requires_grad(true);
            let got = kl(kind, &logprobs, &all(&case["ref_logprob"]));
            let want = &case[name];
            assert_all_close(name, &got.detach(), &all(&want["kld"]));
            got.sum(Kind::Float).backward();
            assert_all_close(name, &logprobs.grad(), &all(&want["dsum_dlogprob"]));
        }
    }
}

/// The estimates are the fixture's; their subtraction from the rewards, and their mean, are computed here.
#[test]
fn kl_is_subtracted_from_the_rewards() {
    let cases = cases();
    for case in cases["kl_penalty"].as_array().expect("cases") {
        for name in ["kl", "abs", "mse", "low_var_kl"] {
            let kind = [("kl", "k1"), ("abs", "abs"), ("mse", "k2"), ("low_var_kl", "k3")];
            let kind = kind.iter().find(|(known, _)| *known == name).expect("known").1;
            let section: KlInReward = serde_json::from_value(serde_json::json!({ "kind": kind })).expect("section");
            let flat = |v: &Value| -> Vec<f64> {
                let rows = v.as_array().expect("rows").iter().flat_map(|row| row.as_array().expect("row"));
                rows.map(|x| x.as_f64().expect("number")).collect()
            };
            let float = |v: &Value| -> Vec<f32> { flat(v).into_iter().map(|x| x as f32).collect() };
            let rows = case["logprob"].as_array().expect("rows").len();
            let length = case["logprob"][0].as_array().expect("row").len();
            let mut batch = Batch {
                rows: Rows {
                    group: vec![0; rows],
                    token_offsets: (0..=rows).map(|row| (row * length) as u64).collect(),
                    token_rewards: vec![0.5; rows * length],
                    logprobs: vec![0.0; rows * length],
                    ref_logprobs: Some(float(&case["ref_logprob"])),
                    ..Rows::default()
                },
                recomputed: Some(float(&case["logprob"])),
                ..Batch::default()
            };
            let mean = subtract_kl(&mut batch, &section, KlCoefficient(0.1));
            let want = flat(&case[name]["kld"]);
            for (reward, kl) in batch.rows.token_rewards.iter().zip(&want) {
                assert_close(name, *reward, 0.5 - 0.1 * kl);
            }
            assert_close("mean", mean, want.iter().sum::<f64>() / want.len() as f64);
        }
    }
}

#[test]
fn the_adaptive_coefficient_equals_the_reference() {
    let cases = cases();
    let (name, steps) = cases
        .as_object()
        .expect("map")
        .iter()
        .find(|(name, _)| name.starts_with("adaptive_kl (init .001,target .1,horizon 10000)"))
        .expect("adaptive_kl");
    let section: KlInReward = serde_json::from_value(serde_json::json!({ "adaptive": {} })).expect("section");
    let mut coefficient = KlCoefficient(section.coef);
    for step in steps.as_array().expect(name) {
        let number = |i: usize| step[i].as_f64().expect("number");
        coefficient.update(&section, number(0), number(1) as usize);
        assert!((coefficient.0 - number(2)).abs() < 1e-12, "{} {step}", coefficient.0);
    }
}

fn ones(row: &Value) -> Value {
    row.as_array().expect("row").iter().map(|_| Value::from(1.0)).collect()
}

#[test]
fn learning_rates_equal_the_reference() {
    let cases = cases();
    let schedules = [
        ("constant_warmup0", serde_json::json!({})),
        ("constant_warmup5", serde_json::json!({ "warmup": 5 })),
        ("cosine_warmup3_total12", serde_json::json!({ "warmup": 3, "schedule": "cosine", "min_lr_ratio": 0.1 })),
    ];
    for (name, keys) in schedules {
        let want = cases["lr_schedules"][name].as_array().expect("schedule");
        for (i, want) in want.iter().enumerate() {
            assert_close(name, learning_rate(&update(keys.clone()), i as u64, 12), want.as_f64().expect("number"));
        }
    }
    // transformers.get_linear_schedule_with_warmup of 3 and 12 steps.
    let linear = update(serde_json::json!({ "warmup": 3, "schedule": "linear" }));
    let ninths = [0, 3, 6, 9, 8, 7, 6, 5, 4, 3, 2, 1];
    for (i, ninth) in ninths.into_iter().enumerate() {
        assert_close("linear", learning_rate(&linear, i as u64, 12), f64::from(ninth) / 9.0);
    }
}
