//! The fused CPU operations compared with the same arithmetic in libtorch's own operations: values and gradients, float32
//! and bfloat16.

use nestor_torch::fused;
use nestor_torch::packed::PackedSequence;
use tch::{Device, Kind, Tensor};

use crate::support::seed;

const KINDS: [Kind; 2] = [Kind::Float, Kind::BFloat16];

fn random(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind).set_requires_grad(true)
}

/// Checks that two ways to compute the same agree in values and gradients: largest difference over largest value, within
/// float32 rounding or two units of bfloat16's last place.
fn assert_same(what: &str, kind: Kind, inputs: &[&Tensor], fused: &[Tensor], composite: &[Tensor]) {
    let bound = if kind == Kind::Float { 3e-6 } else { 1.6e-2 };
    let close = |part: &str, got: &Tensor, want: &Tensor| {
        assert_eq!(got.size(), want.size(), "{what} {part}");
        assert_eq!(got.kind(), want.kind(), "{what} {part}");
        let (got, want) = (got.to_kind(Kind::Double), want.to_kind(Kind::Double));
        let off = (&got - &want).abs().max().double_value(&[]) / want.abs().max().double_value(&[]);
        assert!(off <= bound, "{what} in {kind:?}: {part} is off by {off}");
    };
    for (i, (got, want)) in fused.iter().zip(composite).enumerate() {
        close(&format!("value {i}"), got, want);
    }
    if inputs.is_empty() {
        return;
    }
    let gradients = |outputs: &[Tensor]| {
        let parts = outputs.iter().enumerate().map(|(i, y)| (y * y.detach().cos() * (i + 1) as f64).sum(Kind::Float));
        Tensor::run_backward(&[parts.sum::<Tensor>()], inputs, false, false)
    };
    for (i, (got, want)) in gradients(fused).iter().zip(gradients(composite)).enumerate() {
        close(&format!("gradient {i}"), got, &want);
    }
}

fn rms_norm(x: &Tensor, weight: &Tensor) -> Tensor {
    let wide = x.to_kind(Kind::Float);
    let scale = (wide.square().mean_dim(&[-1i64][..], true, Kind::Float) + 1e-6).rsqrt();
    weight * (wide * scale).to_kind(x.kind())
}

#[test]
fn rms_norm_of_rows_and_of_heads() {
    seed(1);
    for kind in KINDS {
        let (x, weight) = (random(&[37, 61], kind), random(&[61], kind));
        let same = |x: &Tensor, weight: &Tensor, inputs: &[&Tensor]| {
            let fused = fused::rms_norm(x, weight, 1e-6);
            assert_same("rms_norm", kind, inputs, &[fused], &[rms_norm(x, weight)]);
        };
        same(&x, &weight, &[&x, &weight]);
        // Some of the heads, each with a weight of its own.
        let (x, weight) = (random(&[700, 5, 24], kind), random(&[3, 24], kind));
        same(&x.narrow(1, 1, 3), &weight, &[&x, &weight]);
    }
}

#[test]
fn rotary_embedding() {
    seed(2);
    for kind in KINDS {
        let (tokens, heads, kv_heads, dim) = (300, 4, 2, 22);
        let angles = Tensor::randn([tokens, 1, dim], (Kind::Float, Device::Cpu));
        let (cos, sin) = (angles.cos().to_kind(kind), angles.sin().to_kind(kind));
        let x = random(&[tokens, heads + 2 * kv_heads, dim], kind);
        let composite = || {
            let qk = x.narrow(1, 0, heads + kv_heads);
            let (first, second) = (qk.narrow(2, 0, dim / 2), qk.narrow(2, dim / 2, dim / 2));
            let rotated = &qk * &cos + Tensor::cat(&[-second, first], 2) * &sin;
            [rotated.narrow(1, 0, heads), rotated.narrow(1, heads, kv_heads)]
        };
        let [q, k] = composite();
        let with_values = [q, k, x.narrow(1, heads + kv_heads, kv_heads)];
        assert_same("rotate", kind, &[&x], &fused::rotate_qkv(&x, [&cos, &sin], heads), &with_values);
        let qk = x.narrow(1, 0, heads + kv_heads);
        assert_same("rotate", kind, &[&x], &fused::rotate(&qk, [&cos, &sin], heads), &composite());
    }
}

#[test]
fn silu_of_the_gate_times_up() {
    seed(3);
    for kind in KINDS {
        let x = random(&[211, 2 * 53], kind);
        let (gate, up) = (&x.narrow(1, 0, 53) * 6.0, x.narrow(1, 53, 53));
        let joint = Tensor::cat(&[&gate, &up], 1);
        assert_same("silu_mul", kind, &[&x], &[fused::silu_mul(&joint)], &[gate.silu() * up]);
    }
}

#[test]
fn attention_over_sequences_end_to_end() {
    seed(4);
    let (lengths, heads, kv_heads, dim) = ([1, 150, 33, 260, 2], 6, 2, 16);
    let tokens = lengths.iter().sum();
    for kind in KINDS {
        let (q, k, v) = (
            random(&[tokens, heads, dim], kind),
            random(&[tokens, kv_heads, dim], kind),
            random(&[tokens, kv_heads, dim], kind),
        );
        let mut start = 0;
        let parts = lengths.map(|length| {
            let part = |x: &Tensor| {
                let sharing = heads / x.size()[1];
                x.narrow(0, start, length).repeat_interleave_self_int(sharing, 1, None).transpose(0, 1)
            };
            let (q, k, v) = (part(&q), part(&k), part(&v));
            start += length;
            let scores = q.matmul(&k.transpose(1, 2)) / (dim as f64).sqrt();
            let hidden = Tensor::ones([length, length], (Kind::Bool, Device::Cpu)).triu(1);
            scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, kind).matmul(&v).transpose(0, 1)
        });
        let composite = Tensor::cat(&parts, 0);
        assert_same(
            "attention",
            kind,
            &[&q, &k, &v],
            &[fused::attend(&q, &k, &v, &lengths.map(PackedSequence::whole))],
            &[composite],
        );
    }
}

#[test]
fn log_probs_and_entropies() {
    seed(5);
    for kind in KINDS {
        let logits = random(&[19, 331], kind);
        let targets = Tensor::arange(19, (Kind::Int64, Device::Cpu)) * 17;
        let (by_logprob, by_entropy) = (random(&[19], Kind::Float).detach(), random(&[19], Kind::Float).detach());
        for entropy in [None, Some(&by_entropy)] {
            let all = (logits.to_kind(Kind::Float) / 0.7).log_softmax(-1, Kind::Float);
            let logprobs = all.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
            let entropies = -(all.exp() * &all).sum_dim_intlist(&[-1i64][..], false, Kind::Float);
            let mut objective = (&logprobs * &by_logprob).sum(Kind::Float);
            if let Some(by_entropy) = entropy {
                objective += (&entropies * by_entropy).sum(Kind::Float);
            }
            let want = Tensor::run_backward(&[objective], &[&logits], false, false).remove(0);
            let softmax = fused::FusedSoftmax::new(&logits.detach(), &targets, 0.7);
            let mut got = logits.detach().copy();
            softmax.backward(&mut got, &by_logprob, entropy);
            assert_same("log-probs", Kind::Float, &[], &[softmax.logprobs.shallow_clone()], &[logprobs.detach()]);
            assert_same("entropies", Kind::Float, &[], &[softmax.entropy()], &[entropies.detach()]);
            assert_same("logits' gradient", kind, &[], &[got], &[want]);
        }
    }
}
