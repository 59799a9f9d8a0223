//! Losses of plugins against their equations, which autograd of libtorch differentiates, and against the built-in loss of the same
//! name. `core/host/tests/kit_bundled.rs` has the rules of the border.

use nestor::policy::losses::{LossInputs, LossMetrics, PluginLoss, TokenWeights, policy_loss};
use nestor_host::{Loss, Plugins};
use nestor_recipe::{PluginChoice, Update};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::support;

/// Lengths of the responses.
const LENGTHS: [usize; 5] = [1, 7, 3, 12, 5];
const TOKENS: i64 = 28;

/// Columns of one mini-batch.
struct Case {
    logprobs: Tensor,
    entropy: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    responses: Tensor,
}

impl Case {
    fn new(seed: i64, spread: f64) -> Self {
        support::seed(seed);
        let uniform = || Tensor::rand([TOKENS], (Kind::Float, tch::Device::Cpu));
        let old = uniform() * -3.0 - 0.05;
        let logprobs = (&old + (uniform() * 2.0 - 1.0) * spread).clamp_max(-0.01);
        let numbers = LENGTHS.iter().enumerate().flat_map(|(i, &length)| std::iter::repeat_n(i as i64, length));
        let responses = Tensor::from_slice(&numbers.collect::<Vec<_>>());
        let by_response = Tensor::from_slice(&[1.3f32, -0.7, 0.0, -1.9, 0.4]);
        let advantages = by_response.index_select(0, &responses);
        let reference = &old + uniform() - 0.5;
        Self { logprobs, entropy: uniform() * 2.0, old, reference, advantages, responses }
    }

    /// Value, metrics and gradients by log-prob and entropy of the policy loss.
    fn under(&self, update: &Update, plugin: Option<PluginLoss>) -> (f64, LossMetrics, Tensor) {
        let logprobs = self.logprobs.detach().set_requires_grad(true);
        let weights = TokenWeights::new(update, LENGTHS.into_iter(), 16);
        let of_lengths = |number: &dyn Fn(usize) -> f64| {
            let numbers = LENGTHS.iter().flat_map(|&length| std::iter::repeat_n(number(length) as f32, length));
            Tensor::from_slice(&numbers.collect::<Vec<_>>())
        };
        let inputs = LossInputs {
            logprobs: &logprobs,
            entropy: &self.entropy,
            old_logprobs: &self.old,
            behaviour: &self.old,
            advantages: &self.advantages,
            ref_logprobs: Some(&self.reference),
            responses: &self.responses,
            weights: &of_lengths(&|length| weights.of(length)),
            regularizer_weights: &of_lengths(&|length| weights.of_regularizer(length)),
            token_weights: weights,
        };
        let outputs = policy_loss(&inputs, update, plugin).expect("a loss");
        outputs.loss.backward();
        (outputs.loss.double_value(&[]), LossMetrics::read(&[outputs.metrics]), logprobs.grad())
    }

    /// Value and gradient of a mean over responses of the mean over their tokens of token losses.
    fn equation(&self, loss: impl Fn(&Tensor) -> Tensor) -> (f64, Tensor) {
        let logprobs = self.logprobs.detach().set_requires_grad(true);
        let total = self.mean_of_responses(&loss(&logprobs)).mean(Kind::Float);
        total.backward();
        (total.double_value(&[]), logprobs.grad())
    }

    /// The mean over each response's tokens (B).
    fn mean_of_responses(&self, x: &Tensor) -> Tensor {
        let sum = |x: &Tensor| {
            Tensor::zeros([LENGTHS.len() as i64], (Kind::Float, tch::Device::Cpu)).index_add(0, &self.responses, x)
        };
        sum(x) / sum(&x.ones_like())
    }
}

fn update(keys: Value) -> Update {
    let mut all = json!({ "mini_batch": 5, "lr": 1.0, "entropy": 0.0, "aggregation": "seq-mean-token-mean" });
    all.as_object_mut().expect("map").extend(keys.as_object().expect("map").clone());
    serde_json::from_value(all).expect("update section")
}

fn open(id: &str, config: Value) -> Loss {
    let plugins = Plugins::in_dir(support::build(&[])).expect("plugins");
    plugins.loss(&PluginChoice::new(id, config)).expect("a loss")
}

fn assert_near(what: &str, got: &Tensor, want: &Tensor) {
    let off = ((got - want).abs() / (want.abs() + 1.0)).max().double_value(&[]);
    assert!(off <= 1e-5, "{what}: {off}: got {got:?}, want {want:?}");
}

#[test]
fn losses_of_papers_equal_their_equations() {
    let cases = [(1, 0.1), (2, 0.5), (3, 2.0)].map(|(seed, spread)| Case::new(seed, spread));
    let check = |name: &str, plugin: PluginLoss, equation: &dyn Fn(&Case, &Tensor) -> Tensor| {
        for (number, case) in cases.iter().enumerate() {
            let (value, _, gradient) = case.under(&update(json!({})), Some(plugin));
            let (want, by_autograd) = case.equation(|x| equation(case, x));
            let what = format!("{name}, case {number}");
            assert!((value - want).abs() <= 1e-5 * (1.0 + want.abs()), "{what}: got {value}, want {want}");
            assert_near(&what, &gradient, &by_autograd);
        }
    };
    // Iteration 3 of 5 is half of the way from p to p_end.
    for (p, p_end, now) in [(2.0, 2.0, 2.0), (3.0, -1.0, 1.0), (1.0, -1.0, 0.0), (-1.0, -4.0, -2.5)] {
        let loss = open("holder", json!({ "p": p, "p_end": p_end, "clip_low": 0.1, "clip_high": 0.3 }));
        let plugin = PluginLoss { loss: &loss, iteration: 3, iterations: 5 };
        check(&format!("holder, p {now}"), plugin, &|case, x| {
            let ratio = (x - &case.old).exp();
            let mean = match now == 0.0 {
                true => case.mean_of_responses(&(x - &case.old)).exp(),
                false => case.mean_of_responses(&ratio.pow_tensor_scalar(now)).pow_tensor_scalar(1.0 / now),
            };
            let mean = mean.index_select(0, &case.responses);
            (-&case.advantages * &mean).maximum(&(-&case.advantages * mean.clamp(0.9, 1.3)))
        });
    }
    let loss = open("sapo", json!({ "temperature_positive": 1.5, "temperature_negative": 2.5 }));
    check("sapo", PluginLoss { loss: &loss, iteration: 1, iterations: 5 }, &|case, x| {
        let (positive, ratio) = (case.advantages.gt(0.0), (x - &case.old).exp());
        let gate = |t: f64| ((&ratio - 1.0) * t).sigmoid() * (4.0 / t);
        -&case.advantages * gate(1.5).where_self(&positive, &gate(2.5))
    });
    let loss = open("cispo", json!({ "clip_low": 0.3, "clip_high": 0.1 }));
    check("cispo", PluginLoss { loss: &loss, iteration: 1, iterations: 5 }, &|case, x| {
        -&case.advantages * (x - &case.old).exp().clamp(0.7, 1.1).detach() * x
    });
}

/// The same loss in core and as a plugin, under each aggregation and with the recipe's other terms.
#[test]
fn a_built_in_loss_as_a_plugin_gives_the_same_numbers() {
    let loss = open("cispo", json!({}));
    let plugin = PluginLoss { loss: &loss, iteration: 1, iterations: 1 };
    for aggregation in ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum-norm"] {
        let case = Case::new(4, 0.5);
        let keys = json!({ "loss": "cispo", "aggregation": aggregation, "entropy": 0.01, "kl": { "coef": 0.1 } });
        let (of_core, in_core, by_core) = case.under(&update(keys.clone()), None);
        let (of_plugin, in_plugin, by_plugin) = case.under(&update(keys), Some(plugin));
        assert!(
            (of_core - of_plugin).abs() <= 1e-6 * (1.0 + of_core.abs()),
            "{aggregation}: {of_core} and {of_plugin}"
        );
        assert_near(aggregation, &by_plugin, &by_core);
        let (own, of_plugin) = (in_core.get("policy/clip_fraction"), in_plugin.get("loss/clip_fraction"));
        let near = own.zip(of_plugin).is_some_and(|(a, b)| a > 0.0 && (a - b).abs() < 1e-6);
        assert!(near, "{aggregation}: {own:?} and {of_plugin:?}");
    }
}
