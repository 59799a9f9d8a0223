//! The update's kernels in the emulator of a block, against the same operation in float64.
//!
//! A result may differ by half a unit in the last place of its type, the rounding, and by some units of float32's last place of
//! the terms that it is made of. Each comparison says how many. `NESTOR_KERNEL_CASES` is the number of random shapes for each
//! type, and `NESTOR_KERNEL_SEED` the first seed.

use nestor_torch::autograd::{GradientEdge, gradients};
use nestor_torch::generic::RotatedQkv;
use nestor_torch::head::HeadStatistics;
use nestor_torch::packed::{Keys, PackedSequence, PackedSequences};
use nestor_torch::{AdamW, AdamWState, adamw, generic, kernels};
use tch::{Device, Kind, Tensor};

use super::random::{Random, setting};

const KINDS: [Kind; 3] = [Kind::Float, Kind::Half, Kind::BFloat16];

/// Runs a test on random cases of each type.
fn cases(name: &str, kinds: &[Kind], test: impl Fn(&mut Random, Kind)) {
    super::emulator::put_in_place();
    let first = setting("NESTOR_KERNEL_SEED", 1);
    for &kind in kinds {
        for seed in first..first + setting("NESTOR_KERNEL_CASES", 40) {
            println!("{name} {kind:?}, seed {seed}");
            test(&mut Random::new(seed), kind);
        }
    }
}

/// The unit of the last place of x in a type, float64.
fn unit(x: &Tensor, kind: Kind) -> Tensor {
    let (digits, least) = match kind {
        Kind::Float => (23, -126),
        Kind::Half => (10, -14),
        _ => (7, -126),
    };
    let exponent = x.abs().clamp_min(f64::from(least).exp2()).log2().floor() - f64::from(digits);
    exponent.exp2()
}

/// Fails unless each result is the exact one up to half a unit of its last place and `units` of float32's last place of
/// `terms`.
fn assert_rounded(name: &str, got: &Tensor, exact: &Tensor, terms: &Tensor, units: f64) {
    let kind = got.kind();
    // Overflow to infinity is the rounding of what is too large.
    let rounded = exact.to_kind(kind).to_kind(Kind::Double);
    let off = (got.to_kind(Kind::Double) - exact).abs();
    let allowed = unit(exact, kind) * 0.5 + terms.abs() * (units * 2f64.powi(-24)) + 1e-42;
    let right = off.le_tensor(&allowed).logical_or(&got.to_kind(Kind::Double).eq_tensor(&rounded));
    if right.all().int64_value(&[]) == 1 {
        return;
    }
    let at = right.logical_not().flatten(0, -1).nonzero().int64_value(&[0, 0]);
    let of = |x: &Tensor| x.expand_as(exact).flatten(0, -1).double_value(&[at]);
    panic!("{name} at {at}: {} is not {} within {}", of(&got.to_kind(Kind::Double)), of(exact), of(&allowed));
}

/// A number that is about the largest of a type, or large enough.
fn most_of(kind: Kind) -> f64 {
    if kind == Kind::Half { 6e4 } else { 1e30 }
}

fn f64_of(x: &Tensor) -> Tensor {
    x.to_kind(Kind::Double)
}

/// Cos and sin (T, 1, D) with equal halves.
fn tables(noise: &mut Random, tokens: i64, dim: i64, kind: Kind) -> [Tensor; 2] {
    let angles = noise.scaled(&[tokens, 1, dim / 2], 3.0, Kind::Double);
    let angles = Tensor::cat(&[&angles, &angles], 2);
    [angles.cos(), angles.sin()].map(|table| {
        // A table begins anywhere.
        let skip = noise.below(2);
        let flat =
            Tensor::cat(&[Tensor::zeros([skip], (Kind::Double, Device::Cpu)), table.flatten(0, -1)], 0).to_kind(kind);
        flat.narrow(0, skip, tokens * dim).view([tokens, 1, dim])
    })
}

/// Queries, keys and perhaps values of one tensor after their rotation, and the leaf that stands for a bias.
fn rotated(x: Tensor, tables: [&Tensor; 2], heads: i64, values: bool) -> (Vec<Tensor>, Option<Tensor>) {
    if !values {
        return (generic::rotate(x, tables, heads).into(), None);
    }
    let RotatedQkv { q, k, v, bias } = generic::rotate_qkv(x, tables, heads, None);
    (vec![q, k, v], bias)
}

#[test]
fn rotation_in_place_is_rounded_once() {
    cases("rotate", &KINDS, |noise, kind| {
        let (tokens, heads, kv_heads) = (1 + noise.below(4), 1 + noise.below(4), 1 + noise.below(2));
        let (values, dim) = (noise.one_in(2), 2 * noise.width(&[1, 4, 8, 16, 32, 64], 70));
        let all = heads + kv_heads * if values { 2 } else { 1 };
        let [cos, sin] = tables(noise, tokens, dim, kind);
        let whole = noise.scaled(&[tokens, all + 2, dim + 1], 2.0, kind);
        // With neighbours, which stay as they are, or alone.
        let x = match noise.below(3) {
            0 => whole.narrow(1, 1, all).narrow(2, 0, dim),
            1 => whole.narrow(2, 0, dim).contiguous().narrow(1, 1, all),
            _ => whole.narrow(1, 0, all).narrow(2, 0, dim).contiguous(),
        };
        let (exact, sizes) = (f64_of(&x), [f64_of(&x).abs(), f64_of(&cos).abs(), f64_of(&sin).abs()]);
        let turned = |x: Tensor, cos: &Tensor, sin: &Tensor| rotated(x, [cos, sin], heads, values).0;
        let joined = |x: Tensor, cos: &Tensor, sin: &Tensor| Tensor::cat(&turned(x, cos, sin), 1);
        let want = joined(exact, &f64_of(&cos), &f64_of(&sin));
        // |a cos| + |b sin| of each element.
        let first = joined(sizes[0].copy(), &sizes[1], &sizes[2]).abs();
        let second = joined(sizes[0].copy(), &sizes[1], &sizes[2].neg()).abs();
        let terms = first.maximum(&second);
        let (place, before) = (x.data_ptr(), whole.copy());
        let got = turned(x, &cos, &sin);
        assert_eq!(got[0].data_ptr(), place, "in place");
        assert_rounded("rotate", &Tensor::cat(&got, 1), &want, &terms, 2.0);
        let same = whole.eq_tensor(&before).sum(Kind::Int64).int64_value(&[]);
        let changed = tokens * (heads + kv_heads) * dim;
        assert!(same >= whole.numel() as i64 - changed, "an element outside was written");
    });
}

/// Gradients of queries, keys and values wherever autograd left them, and the bias's, of more tokens than there are blocks.
#[test]
fn the_gradient_of_a_rotation_is_rounded_once() {
    cases("rotate's gradient", &KINDS, |noise, kind| {
        let tokens = [1, 3, 515][noise.below(3) as usize];
        let (heads, kv_heads, values) = (1 + noise.below(4), 1 + noise.below(2), noise.one_in(2));
        let dim = 2 * noise.width(&[4, 8, 16, 32, 64], 20);
        let [cos, sin] = tables(noise, tokens, dim, kind);
        let all = heads + kv_heads * if values { 2 } else { 1 };
        let x = noise.scaled(&[tokens, all, dim], 1.0, kind).set_requires_grad(true);
        let (parts, bias) = rotated(&x * 1.0, [&cos, &sin], heads, values);
        // Its backward pass hands out views of one gradient, which has more in its rows.
        let more = |size: &[i64]| Tensor::zeros(size, (kind, Device::Cpu));
        let wide = noise.below(3);
        let out = match wide {
            0 => Tensor::cat(&parts, 1),
            1 => Tensor::cat(&[Tensor::cat(&parts, 1), more(&[tokens, all, 1])], 2),
            _ => Tensor::cat(&[more(&[tokens, 1, dim]), Tensor::cat(&parts, 1)], 1),
        };
        let given = noise.scaled(&out.size(), 1.0, kind);
        let before = given.copy();
        let edges: Vec<_> = [&x].into_iter().chain(&bias).map(GradientEdge::of).collect();
        let got = gradients(&out, &given, &edges);
        assert_eq!(given, before, "the given gradient stays as it is");
        let given = f64_of(&given.narrow(1, i64::from(wide == 2), all).narrow(2, 0, dim));
        let (back, _) = rotated(given.copy(), [&f64_of(&cos), &f64_of(&sin).neg()], heads, values);
        let want = Tensor::cat(&back, 1);
        let terms = given.abs().amax([2i64].as_slice(), true).expand_as(&want) * 2.0;
        assert_rounded("gradient", &got[0], &want, &terms, 2.0);
        if let Some(parts) = got.get(1) {
            let over_tokens = |x: &Tensor| x.sum_dim_intlist([0i64].as_slice(), false, Kind::Double).flatten(0, -1);
            assert_rounded("bias", &over_tokens(&f64_of(parts)), &over_tokens(&want), &over_tokens(&terms), 4.0);
        }
    });
}

/// Keys and values of sequences that begin alike, and the sums of their gradients, beside rotated tokens that are gathered in
/// float64. Values are in the same tensor or in another.
#[test]
fn rows_of_rotated_keys_are_rounded_once() {
    cases("rotate_gather", &KINDS, |noise, kind| {
        let (heads, kv_heads, apart) = (1 + noise.below(4), 1 + noise.below(2), noise.one_in(2));
        let dim = 16 * (1 + noise.below(8));
        let mut each = vec![PackedSequence::whole(1 + noise.below(9))];
        let mut tokens = each[0].own;
        for _ in 0..noise.below(4) {
            let (common, own) = (noise.below(each[0].own + 1), noise.below(5));
            each.push(PackedSequence { prefix: std::iter::repeat_n(0..common, (common > 0).into()).collect(), own });
            tokens += own;
        }
        let keys = PackedSequences::new(each, Device::Cpu).keys;
        let [cos, sin] = tables(noise, tokens, dim, kind).map(|table| table.copy());
        let inside = heads + kv_heads * if apart { 1 } else { 2 };
        let leaf = |noise: &mut Random, n| noise.scaled(&[tokens, n, dim], 1.0, kind).set_requires_grad(true);
        let (x, v) = (leaf(noise, inside), leaf(noise, kv_heads));
        let rotate = |x: &Tensor, v: &Tensor, cos: &Tensor, sin: &Tensor, keys: Option<&Keys>| {
            let RotatedQkv { q, k, v, .. } = match apart {
                true => generic::rotate_qk(x * 1.0, &(v * 1.0), [cos, sin], heads, keys),
                false => generic::rotate_qkv(x * 1.0, [cos, sin], heads, keys),
            };
            [q, k, v]
        };
        let got = rotate(&x, &v, &cos, &sin, keys.as_ref());
        let wide = |x: &Tensor| f64_of(&x.detach()).set_requires_grad(true);
        let (wide_x, wide_v) = (wide(&x), wide(&v));
        let want = rotate(&wide_x, &wide_v, &f64_of(&cos), &f64_of(&sin), None);
        let along =
            |x: &Tensor| keys.as_ref().map_or_else(|| x.shallow_clone(), |keys| x.index_select(0, &keys.tokens));
        let want = [want[0].shallow_clone(), along(&want[1]), along(&want[2])];
        let given = want.each_ref().map(|x| noise.scaled(&x.size(), 1.0, kind));
        let gradients = |parts: &[Tensor; 3], leaves: &[&Tensor]| {
            let losses: Vec<Tensor> = parts.iter().zip(&given).map(|(x, grad)| (x * grad).sum(Kind::Double)).collect();
            Tensor::run_backward(&[Tensor::stack(&losses, 0).sum(Kind::Double)], leaves, false, false)
        };
        for (got, want) in got.iter().zip(&want) {
            let terms = want.detach().ones_like() * 8.0;
            assert_rounded("rows", got, &want.detach(), &terms, 2.0);
        }
        let leaves = |x, v| if apart { vec![x, v] } else { vec![x] };
        let (got, want) = (gradients(&got, &leaves(&x, &v)), gradients(&want, &leaves(&wide_x, &wide_v)));
        for (got, want) in got.iter().zip(&want) {
            assert_rounded("gradient", got, want, &(want.ones_like() * 16.0), 2.0);
        }
    });
}

#[test]
fn column_sums_are_added_or_written() {
    cases("column_sums", &[Kind::Float], |noise, _| {
        let (rows, columns) = (1 + noise.width(&[127, 128, 129, 512], 300), noise.width(&[4, 16, 20, 200], 70));
        // Parts that begin anywhere.
        let skip = noise.below(2) * noise.below(4);
        let x = noise.normal(&[rows * columns + skip]).narrow(0, skip, rows * columns).view([rows, columns]);
        let (first, before) = (noise.one_in(2), noise.normal(&[columns]));
        let sum = if first { before.full_like(f64::NAN) } else { before.copy() };
        generic::add_column_sums(&sum, &x, first);
        let over_rows = |x: &Tensor| x.sum_dim_intlist([0i64].as_slice(), false, Kind::Double);
        let old = if first { f64_of(&before) * 0.0 } else { f64_of(&before) };
        let terms = over_rows(&f64_of(&x).abs()) + old.abs();
        assert_rounded("sums", &sum, &(over_rows(&f64_of(&x)) + old), &terms, 8.0);
        let again = if first { before.copy() } else { before };
        generic::add_column_sums(&again, &x, first);
        assert_eq!(again, sum, "the same bits in each run");
    });
}

#[test]
fn silu_mul_and_its_gradient_are_rounded_once() {
    cases("silu_mul", &KINDS, |noise, kind| {
        let (rows, width) = (1 + noise.below(4), noise.width(&[1, 7, 8, 256, 2048, 2056], 700));
        let x = noise.scaled(&[rows, 2 * width], 6.0, kind);
        let most = most_of(kind);
        for (at, extreme) in [-most, 1e4, -90.0, 0.0].into_iter().enumerate().take(width as usize) {
            let _ = x.select(1, at as i64).fill_(extreme);
        }
        // A gradient with strides of its own.
        let grad = noise.scaled(&[width, rows], 1.0, kind).tr();
        let of = |x: &Tensor, grad: &Tensor| {
            let x = x.detach().set_requires_grad(true);
            let y = generic::silu_mul(&x);
            let gradient = Tensor::run_backward(&[(&y * grad).sum(Kind::Double)], &[&x], false, false);
            [y.detach(), gradient[0].shallow_clone()]
        };
        let ([y, grad_x], [want_y, want_grad]) = (of(&x, &grad), of(&f64_of(&x), &f64_of(&grad)));
        assert_rounded("silu_mul", &y, &want_y, &want_y, 8.0);
        let (up, grad) = (f64_of(&x).narrow(1, width, width), f64_of(&grad));
        let gate = f64_of(&x).narrow(1, 0, width);
        // silu' has terms of both signs below -1.
        let slope = gate.sigmoid() * (gate.abs() * gate.neg().sigmoid() + 1.0);
        let terms = Tensor::cat(&[(&up * &grad) * slope, want_grad.narrow(1, width, width)], 1);
        assert_rounded("silu_mul_grad", &grad_x, &want_grad, &terms, 8.0);
    });
}

#[test]
fn head_statistics_and_gradient_are_exact_to_float32() {
    cases("head", &KINDS, |noise, kind| {
        let (rows, vocabulary) = (1 + noise.below(3), noise.width(&[1, 2, 9, 4096, 4099, 20_000], 3000));
        let temperature = [1.0, 0.7, 1.3][noise.below(3) as usize];
        let scale = [0.1, 3.0, 30.0][noise.below(3) as usize];
        let logits = noise.scaled(&[rows, vocabulary], scale, kind);
        let targets: Vec<i64> = (0..rows).map(|_| noise.below(vocabulary)).collect();
        // Impossible tokens, and scores that exceed all others. The last token stays, so that every row has a distribution.
        for extreme in [f64::NEG_INFINITY, -most_of(kind), most_of(kind)] {
            if noise.below(3) == 0 && vocabulary > 8 {
                let at = noise.below(vocabulary - 1);
                let _ = logits.narrow(1, at, 1 + noise.below(40).min(vocabulary - at - 2)).fill_(extreme);
            }
        }
        // A row begins anywhere.
        let buffer = Tensor::zeros([rows * vocabulary + 9], (kind, Device::Cpu));
        let place = buffer.narrow(0, noise.below(9), rows * vocabulary).view([rows, vocabulary]);
        place.shallow_clone().copy_(&logits);
        let targets = Tensor::from_slice(&targets);

        let z = f64_of(&logits) / temperature;
        let all = z.log_softmax(-1, Kind::Double);
        let p = all.exp();
        let zero = Tensor::zeros([], (Kind::Double, Device::Cpu));
        let possible = |x: &Tensor| x.where_self(&p.gt(0.0), &zero);
        let entropy = possible(&(-&p * &all)).sum_dim_intlist([1i64].as_slice(), true, Kind::Double);
        let pick = |x: &Tensor| x.gather(1, &targets.unsqueeze(1), false);
        let column = |x: &Tensor| x.unsqueeze(1);

        let head = HeadStatistics::new(&place, &targets, temperature).expect("emulated kernels");
        // Three numbers of the size of the largest logit are subtracted, and the sum over the vocabulary has a rounding of
        // its own.
        let largest = z.amax([1i64].as_slice(), true).abs() + 12.0;
        let finite = |x: Tensor| x.nan_to_num(0.0, 0.0, 0.0);
        let terms = finite(pick(&z)).abs() + &largest;
        assert_rounded("log-prob", &column(&head.logprobs), &pick(&all), &terms, 8.0);
        assert_rounded("entropy", &column(&head.entropy()), &entropy, &(&largest * 0.0 + 24.0), 8.0);

        let by_logprob = noise.scaled(&[rows], 1.0, Kind::Float);
        let by_entropy = (noise.below(2) == 0).then(|| noise.scaled(&[rows], 1.0, Kind::Float));
        let hot = Tensor::zeros_like(&p).scatter_value(1, &targets.unsqueeze(1), 1.0);
        let by = f64_of(&column(&by_logprob));
        let of_entropy = by_entropy.as_ref().map_or(zero.shallow_clone(), |by| f64_of(&column(by)));
        let want = (&by * (&hot - &p) - possible(&(&of_entropy * &p * (&all + &entropy)))) / temperature;
        // An error of the log-prob is one of p.
        let wrong = &largest + possible(&z).abs();
        let terms =
            (&by.abs() * &p + possible(&(&of_entropy.abs() * &p * (all.abs() + &entropy + 1.0)))) * wrong + want.abs();
        let mut gradient = place.shallow_clone();
        head.backward(&mut gradient, &by_logprob, by_entropy.as_ref());
        assert_rounded("gradient", &gradient, &want, &terms, 16.0);
        let outside = f64_of(&buffer).abs().sum(Kind::Double) - f64_of(&place).abs().sum(Kind::Double);
        assert!(outside.double_value(&[]).abs() < 1e-6 || outside.double_value(&[]).is_nan(), "written outside");
    });
}

/// `at::_fused_adamw_` in float64, with the settings that the kernel computes with in float32.
#[test]
fn an_adamw_step_is_rounded_once_and_writes_its_copy() {
    cases("adamw", &KINDS, |noise, kind| {
        let n = noise.width(&[1, 3, 4, 1024, 5000], 900);
        let options = AdamW {
            lr: [1e-6, 1e-3, 0.1][noise.below(3) as usize],
            beta1: 0.9,
            beta2: 0.999,
            weight_decay: [0.0, 0.01][noise.below(2) as usize],
            eps: 1e-8,
        };
        let (divisor, steps) = ([1.0, 3.7][noise.below(2) as usize], 1 + noise.below(2000) as u64);
        // Flat parameters that begin anywhere.
        let skip = noise.below(2);
        let mut float = |scale: f64| noise.scaled(&[n + skip], scale, Kind::Float).narrow(0, skip, n);
        let all = [float(0.05), float(1e-3), float(1e-3), float(1e-3).square()];
        let copy = Tensor::zeros([n], (kind, Device::Cpu));
        let step = |[param, grad, first, second]: [Tensor; 4], copy: Option<&Tensor>| {
            let copies = copy.map(|copy| [copy.shallow_clone()]);
            let state = AdamWState {
                params: &[param],
                grads: &[grad],
                exp_avgs: &[first],
                exp_avg_sqs: &[second],
                copies: copies.as_ref().map(|copies| copies.as_slice()),
                divisor,
                steps,
            };
            adamw(&state, &options).expect("a step");
        };
        let (exact, before) = (all.each_ref().map(f64_of), all.each_ref().map(Tensor::copy));
        step(exact.each_ref().map(Tensor::shallow_clone), None);
        step(all.each_ref().map(Tensor::shallow_clone), Some(&copy));
        let [param, grad, first, second] = &all;
        // The new first moment's terms may be of both signs.
        let moment =
            f64_of(&before[2]).abs() * options.beta1 + f64_of(&before[1]).abs() * ((1.0 - options.beta1) / divisor);
        let bias = |beta: f64| 1.0 - beta.powi(steps as i32);
        let over = exact[3].sqrt() / bias(options.beta2).sqrt() + options.eps;
        let change = &moment * (options.lr / bias(options.beta1)) / over;
        let decay = f64_of(&before[0]).abs() * (options.lr * options.weight_decay);
        assert_rounded("parameter", param, &exact[0], &(change + decay), 16.0);
        assert_rounded("first moment", first, &exact[2], &moment, 4.0);
        assert_rounded("second moment", second, &exact[3], &exact[3], 8.0);
        assert!(copy == param.to_kind(kind), "the copy is the parameter in its type");
        assert!(grad == &before[1], "gradients stay as they are");
    });
}

/// Each test above would pass with public operations too.
#[test]
fn the_emulator_has_every_kernel_and_all_pass_their_self_test() {
    super::emulator::put_in_place();
    for name in kernels::names() {
        assert!(kernels::has(&name, Device::Cpu), "{name}");
    }
    assert_eq!(kernels::self_test(Device::Cpu, |_| ()).expect("tested"), []);
}
