//! Policy loss, KL and schedules against `tests/fixtures/loss_cases.json`: outputs of the reference implementation's
//! functions (verl-agent, upstream commit 796ed310) in float32 on a CPU; gradients are autograd's.

use nestor::policy::loss::{LossInputs, kl, policy_loss};
use nestor::policy::schedule::learning_rate;
use nestor::recipe::{KlKind, Update};
use serde_json::Value;
use tch::{Kind, Tensor};

fn cases() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/loss_cases.json");
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

#[test]
fn policy_loss_and_its_gradient_equal_the_reference() {
    let cases = cases();
    let cases = cases["policy_loss"].as_array().expect("cases");
    assert_eq!(cases.len(), 10);
    for case in cases {
        let mask = &case["response_mask"];
        let pick = |key: &str| masked(&case[key], mask);
        let logprobs = pick("log_prob").set_requires_grad(true);
        let options = update(serde_json::json!({
            "clip_low": case["clip_ratio_low"], "clip_high": case["clip_ratio_high"], "dual_clip": case["clip_ratio_c"]
        }));
        let zeros = logprobs.detach().zeros_like();
        let weights = logprobs.detach().ones_like() / logprobs.numel() as f64;
        let outputs = policy_loss(
            &LossInputs {
                logprobs: &logprobs,
                entropy: &zeros,
                old_logprobs: &pick("old_log_prob"),
                advantages: &pick("advantages"),
                ref_logprobs: None,
                weights: &weights,
            },
            &options,
        );
        let want = &case["out"]["token-mean"];
        let number = |key: &str| want[key].as_f64().expect("number");
        assert_close("pg_loss", outputs.loss.double_value(&[]), number("pg_loss"));
        assert_close("pg_clipfrac", outputs.sums.clip_fraction, number("pg_clipfrac"));
        assert_close("pg_clipfrac_lower", outputs.sums.dual_clip_fraction, number("pg_clipfrac_lower"));
        assert_close("ppo_kl", outputs.sums.approx_kl, number("ppo_kl"));
        outputs.loss.backward();
        assert_all_close("dloss_dlogprob", &logprobs.grad(), &masked(&want["dloss_dlogprob"], mask));
    }
}

#[test]
fn kl_estimates_and_their_gradients_equal_the_reference() {
    let cases = cases();
    for case in cases["kl_penalty"].as_array().expect("cases") {
        let all = |v: &Value| masked(v, &Value::Array(v.as_array().expect("rows").iter().map(ones).collect()));
        for (kind, name) in [(KlKind::K1, "kl"), (KlKind::K2, "mse"), (KlKind::K3, "low_var_kl")] {
            let logprobs = all(&case["logprob"]).set_requires_grad(true);
            let got = kl(kind, &logprobs, &all(&case["ref_logprob"]));
            let want = &case[name];
            assert_all_close(name, &got.detach(), &all(&want["kld"]));
            got.sum(Kind::Float).backward();
            assert_all_close(name, &logprobs.grad(), &all(&want["dsum_dlogprob"]));
        }
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
}
