//! Weight gradients and attention by every library of products, compared with libtorch's own operations in float32 on the same
//! numbers. A process has one library, so each is tried in a process of its own.

use std::iter;
use std::process::Command;

use nestor_torch::fused;
use nestor_torch::packed::PackedSequence;
use tch::{Device, Kind, Tensor};

use crate::support::seed;

fn random(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind).set_requires_grad(true)
}

/// Checks the largest difference over the largest value.
fn assert_close(what: &str, got: &Tensor, want: &Tensor, bound: f64) {
    let off = ((got - want).abs().max() / want.abs().max()).double_value(&[]);
    assert!(off <= bound, "{what} is off by {off}"); // also where it is not a number
}

/// Odd numbers of rows, columns and tokens; few rows, many rows; more tokens than are arranged at once.
#[test]
fn weight_gradients() {
    seed(1);
    for (tokens, rows, columns) in [(1, 1, 1), (7, 3, 130), (33, 200, 65), (531, 64, 700), (4100, 70, 96)] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let (a, b) = (random(&[tokens, rows], kind).detach(), random(&[tokens, columns], kind).detach());
            // The rows of the sum are apart, and nothing is written between them.
            let all = random(&[rows, columns + 5], Kind::Float).detach();
            let want = all.copy();
            let product = a.to_kind(Kind::Float).tr().matmul(&b.to_kind(Kind::Float));
            let _ = want.narrow(1, 0, columns).g_add_(&product);
            fused::add_product(&all.narrow(1, 0, columns), &a, &b, false);
            // Products of bfloat16 are exact in float32, so both types differ by the order of the sum alone.
            assert_close(&format!("{kind:?} {tokens} x {rows} x {columns}"), &all, &want, 3e-6);
            let between = |x: &Tensor| x.narrow(1, columns, 5);
            assert!(between(&all).equal(&between(&want)), "{kind:?} {tokens} x {rows} x {columns}");
            // The first product overwrites anything.
            let first = Tensor::full([rows, columns], f64::NAN, (Kind::Float, Device::Cpu));
            fused::add_product(&first, &a, &b, true);
            assert_close(&format!("first {kind:?} {tokens} x {rows} x {columns}"), &first, &product, 3e-6);
        }
    }
}

/// Lengths and head sizes that fill no block, and one of several pieces; sequences of their own, and such that begin with tokens of
/// the ones before.
#[test]
fn attention() {
    seed(2);
    let cases = [([1, 77, 300], 80), ([33, 128, 1100], 64), ([2, 65, 31], 22)];
    for ((own, dim), shares) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let [first, second, _] = own;
        let prefixes = match shares {
            false => [vec![], vec![], vec![]],
            true => [vec![], iter::once(0..first).collect(), vec![0..first - first / 2, first + 3..first + second / 2]],
        };
        let sequences: Vec<_> =
            prefixes.into_iter().zip(own).map(|(prefix, own)| PackedSequence { prefix, own }).collect();
        for (kind, bound) in [(Kind::Float, 3e-6), (Kind::BFloat16, 1.6e-2)] {
            let (heads, kv_heads, tokens) = (4, 2, own.iter().sum());
            let inputs = [heads, kv_heads, kv_heads].map(|n| random(&[tokens, n, dim], kind));
            let [q, k, v] = &inputs;
            let got = fused::attend(q, k, v, &sequences);
            let mut start = 0;
            let parts: Vec<Tensor> = sequences
                .iter()
                .map(|sequence| {
                    let own = start..start + sequence.own;
                    start = own.end;
                    let seen: Vec<i64> = sequence.prefix.iter().cloned().flatten().chain(own.clone()).collect();
                    let part = |x: &Tensor, places: &[i64]| {
                        let sharing = heads / x.size()[1];
                        let x = x.to_kind(Kind::Float).index_select(0, &Tensor::from_slice(places));
                        x.repeat_interleave_self_int(sharing, 1, None).transpose(0, 1)
                    };
                    let queries = part(q, &own.collect::<Vec<_>>());
                    let scores = queries.matmul(&part(k, &seen).transpose(1, 2)) / (dim as f64).sqrt();
                    let hidden = Tensor::ones([sequence.own, sequence.length()], (Kind::Bool, Device::Cpu));
                    let hidden = hidden.triu(1 + sequence.length() - sequence.own);
                    let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
                    weights.matmul(&part(v, &seen)).transpose(0, 1)
                })
                .collect();
            let (want, case) = (Tensor::cat(&parts, 0), format!("{kind:?} {sequences:?}"));
            assert_close(&case, &got, &want, bound);
            let by = random(&[tokens, heads, dim], Kind::Float).detach();
            let gradients = |y: &Tensor| Tensor::run_backward(&[(y * &by).sum(Kind::Float)], &[q, k, v], true, false);
            for (name, (got, want)) in ["q", "k", "v"].iter().zip(gradients(&got).iter().zip(gradients(&want))) {
                assert_close(&format!("{case}: gradient of {name}"), got, &want, bound);
            }
        }
    }
}

#[test]
fn every_library() {
    let run = |library: &str, tests: &[&str]| {
        let program = std::env::current_exe().expect("a test has a path");
        let output = Command::new(program).args(tests).arg("--exact").env("NESTOR_PRODUCTS", library).output();
        let output = output.expect("a test can be started");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let forced = ["mkl", "onednn", "float32"]
        .map(|library| (library, run(library, &["products::weight_gradients", "products::attention"])));
    for (library, (passed, output)) in forced {
        // oneDNN takes bfloat16 from AVX512-BF16 on, and MKL exists on x86-64.
        assert!(!output.contains("0 passed; 0 failed"), "no test ran:\n{output}");
        let missing = library != "float32" && output.contains("does not work here");
        assert!(passed || missing, "{library}:\n{output}");
    }
    let (passed, output) = run("blis", &["products::attention"]);
    assert!(!passed && output.contains("NESTOR_PRODUCTS is blis"), "{output}");
}
