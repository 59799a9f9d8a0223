//! RMS norm by own kernels in the emulator, against public operations in float32.

use nestor_torch::generic::{self, Normed};
use nestor_torch::kernels;
use tch::{Device, Kind, Tensor};

use super::random::setting;

const KINDS: [(Kind, &str, f64); 3] =
    [(Kind::Float, "f32", 1e-5), (Kind::Half, "f16", 1.1e-3), (Kind::BFloat16, "bf16", 8.5e-3)];

/// Fails unless each element is within one rounding of its type, or of the sums that it came from.
fn assert_close(got: &Tensor, want: &Tensor, rounding: f64, case: &str) {
    let want = want.to_kind(Kind::Float);
    let off = (got.to_kind(Kind::Float) - &want).abs();
    let allowed = (want.abs() + 0.1 * want.square().mean(Kind::Float).sqrt()) * rounding + 1e-12;
    let fits = off.le_tensor(&allowed).all();
    assert!(bool::try_from(fits).expect("a flag"), "{case}: off by {}", off.max().double_value(&[]));
}

/// The norm in float32 by public operations.
fn reference(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let x = x.to_kind(Kind::Float);
    let mean = (&x * &x).mean_dim(-1, true, Kind::Float);
    &x * (mean + eps).rsqrt() * weight.to_kind(Kind::Float)
}

#[test]
fn norms_and_gradients_equal_public_operations() {
    super::emulator::put_in_place();
    for (_, suffix, _) in KINDS {
        for operation in ["rms_norm", "add_norm", "rms_norm_grad"] {
            assert!(kernels::has(&format!("{operation}_{suffix}"), Device::Cpu), "{operation}_{suffix}");
        }
    }
    assert_eq!(kernels::self_test(Device::Cpu, |_| ()).expect("tests"), []);
    for seed in 0..setting("NESTOR_KERNEL_CASES", 40) {
        tch::manual_seed(seed as i64);
        // Less than `n`.
        let draw = |n: i64| Tensor::randint(n, [1], (Kind::Int64, Device::Cpu)).int64_value(&[0]);
        let (kind, _, rounding) = KINDS[draw(3) as usize];
        let vector = 16 / kind.elt_size_in_bytes() as i64;
        let heads = draw(2) == 1;
        // 300 are more than a backward pass has blocks, so that a block reduces several rows.
        let tokens = [1, 2, 7, 33, 300][draw(5) as usize];
        let width = vector * if heads { 1 + draw(20) } else { [1, 31, 63, 64, 65, 112, 200, 600][draw(8) as usize] };
        let scale = [1e-3, 1.0, 100.0][draw(3) as usize];
        let (shape, by) =
            if heads { (vec![tokens, 6, width], vec![4, width]) } else { (vec![tokens, width], vec![width]) };
        let case = format!("seed {seed}: {kind:?} {shape:?} times {scale}");
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
        let leaf = |x: Tensor| x.detach().set_requires_grad(true);
        let all = random(&shape) * scale;
        // Heads are a part of a wider tensor, whose tokens are apart.
        let x = leaf(if heads { all.narrow(1, 1, 4) } else { all });
        let weight = leaf(random(&by));
        let eps = 1e-6;

        let plain = tch::no_grad(|| generic::norm(&x, None, &weight, eps));
        assert_close(&plain.norm, &reference(&x, &weight, eps), rounding, &format!("{case}, forward"));
        // The residual, alone or with a layer's output.
        let y = (!heads && draw(2) == 1).then(|| leaf(random(&shape) * scale));
        let Normed { sum, norm, weight: parts } = generic::norm(&x, y.as_ref(), &weight, eps);
        assert!(sum.equal(&y.as_ref().map_or_else(|| x.detach(), |y| &x + y)), "{case}: sum");
        assert_close(&norm, &reference(&sum, &weight, eps), rounding, &format!("{case}, norm of the sum"));
        let no_grad = tch::no_grad(|| generic::norm(&x, y.as_ref(), &weight, eps));
        assert!(no_grad.sum.equal(&sum), "{case}: sum without gradients");

        let wide = |t: &Tensor| leaf(t.detach().to_kind(Kind::Float));
        let (wide_sum, wide_weight) = (wide(&sum), wide(&weight));
        let grads = [random(&x.size()), random(&x.size())];
        // Nobody may read the sum.
        let sum_too = draw(3) > 0;
        let loss = |norm: &Tensor, sum: &Tensor| {
            let of_norm = (norm * &grads[0]).sum(Kind::Float);
            if sum_too { of_norm + (sum * &grads[1]).sum(Kind::Float) } else { of_norm }
        };
        let want_loss = loss(&reference(&wide_sum, &wide_weight, eps), &wide_sum);
        let want = Tensor::run_backward(&[want_loss], &[&wide_sum, &wide_weight], false, false);
        let inputs: Vec<&Tensor> = [&x, &weight, &parts].into_iter().chain(&y).collect();
        let got = Tensor::run_backward(&[loss(&norm, &sum)], &inputs, false, false);
        assert!(got[3..].iter().all(|of_y| of_y.equal(&got[0])), "{case}: both summands have one gradient");
        assert!(parts.size()[1..] == weight.size() && got[2].kind() == Kind::Float, "{case}: parts of the weight's");
        let of_parts = got[2].sum_dim_intlist([0i64].as_slice(), false, Kind::Float).to_kind(kind);
        for (name, got, want) in
            [("x", &got[0], &want[0]), ("weight", &got[1], &want[1]), ("parts", &of_parts, &want[1])]
        {
            // Gradients of elements are products of the row's largest.
            assert_close(got, want, 4.0 * rounding, &format!("{case}, gradient of {name}"));
        }
    }
    // A width that is no multiple of 16 bytes goes to public operations.
    let x = Tensor::randn([3, 10], (Kind::Half, Device::Cpu));
    let weight = Tensor::randn([10], (Kind::Half, Device::Cpu));
    assert_close(&generic::norm(&x, None, &weight, 1e-6).norm, &reference(&x, &weight, 1e-6), 2e-3, "an odd width");
}
