//! The kernels of generation in the emulator of a block, against plain computations and against the CPU's sampler.
//!
//! `NESTOR_KERNEL_CASES` sets the cases of each operation (40), and `NESTOR_KERNEL_DRAWS` the draws (2,000).

use nestor_torch::decoding::{self, DrawColumns, TruncationColumns};
use nestor_torch::{PAGE, RawDraw, generic, kernels};
use tch::{Device, Kind, Tensor};

use super::emulator::put_in_place;
use super::random::{Random, setting};

const TYPES: [Kind; 3] = [Kind::Float, Kind::Half, Kind::BFloat16];

/// The largest relative error of one rounding; for float32 that of some hundred additions.
fn rounding(kind: Kind) -> f64 {
    match kind {
        Kind::Half => 2f64.powi(-11),
        Kind::BFloat16 => 2f64.powi(-8),
        _ => 1e-5,
    }
}

/// Panics where a result is further than one rounding from what it should be, in float64.
fn check(got: &Tensor, want: &Tensor, at: &str) {
    let (kind, want) = (got.kind(), want.to_kind(Kind::Double));
    let off = (got.to_kind(Kind::Double) - &want).abs();
    let allowed = want.abs() * rounding(kind) * 1.001 + 2e-5;
    let fits = off.le_tensor(&allowed).all().double_value(&[]) == 1.0;
    assert!(fits, "{at}: off by {:e}", (off - allowed).max().double_value(&[]));
}

fn case_settings(cases: &mut Random) -> (Kind, i64, i64) {
    let sharing = if cases.one_in(4) { 1 + cases.below(17) } else { 1 + cases.below(8) };
    (TYPES[cases.below(3) as usize], 1 + cases.below(3), sharing)
}

#[test]
fn attention_reads_the_pages_of_each_row_and_nothing_else() {
    put_in_place();
    let page = PAGE as i64;
    for case in 0..setting("NESTOR_KERNEL_CASES", 40) {
        let mut random = Random::new(case);
        let (kind, kv_heads, sharing) = case_settings(&mut random);
        let dim = [64, 128][random.below(2) as usize];
        let longest = if random.one_in(3) { 50 } else { 18 };
        let (rows, most) = (1 + random.below(4), 1 + random.below(longest));
        let edges = [0, 1, page - 1, page, page + 1, 63, 64, 65, 255, 256, 257, 511, 512, 513, most * page];
        let lengths: Vec<i64> = (0..rows)
            .map(|_| if random.one_in(2) { edges[random.below(15) as usize] } else { random.below(most * page + 1) })
            .map(|length| length.min(most * page))
            .collect();
        let at = format!("case {case}: {kind:?}, {sharing} x {kv_heads} heads of {dim}, lengths {lengths:?}");

        // Only seen tokens have numbers, and only seen pages are in the cache.
        let pages = 1 + rows * most;
        let order = random.permutation(rows * most);
        let table: Vec<i32> =
            (0..rows * most)
                .map(|i| {
                    if i % most * page < lengths[(i / most) as usize] {
                        order[i as usize] as i32 + 1
                    } else {
                        -1_000_000
                    }
                })
                .collect();
        let cache = Tensor::full([2, pages, page, kv_heads, dim], f64::NAN, (kind, Device::Cpu));
        let q = (random.normal(&[rows, kv_heads * sharing, dim]) * [1.0, 8.0][random.below(2) as usize]).to_kind(kind);
        let mut want = Vec::new();
        for (row, &length) in lengths.iter().enumerate() {
            let new = random.normal(&[2, length, kv_heads, dim]).to_kind(kind);
            for token in (0..length).step_by(PAGE) {
                let n = page.min(length - token);
                let own = i64::from(table[row * most as usize + (token / page) as usize]);
                cache.select(1, own).narrow(1, 0, n).copy_(&new.narrow(1, token, n));
            }
            let heads = new.to_kind(Kind::Double).repeat_interleave_self_int(sharing, 2, None).permute([0, 2, 1, 3]);
            let query = q.get(row as i64).to_kind(Kind::Double).unsqueeze(1);
            let scores = (query * heads.get(0)).sum_dim_intlist(-1, false, None) / (dim as f64).sqrt();
            let weights = scores.softmax(-1, Kind::Double).unsqueeze(-1);
            want.push((weights * heads.get(1)).sum_dim_intlist(1, false, None));
        }
        assert!(decoding::attends_pages(&cache), "{at}: no kernel");
        let table = Tensor::from_slice(&table).view([rows, most]);
        let lengths = Tensor::from_slice(&lengths).to_kind(Kind::Int);
        check(&generic::decode_attention(&q, &cache, &table, &lengths), &Tensor::stack(&want, 0), &at);
    }
}

#[test]
fn rotated_keys_and_values_reach_their_places() {
    put_in_place();
    let page = PAGE as i64;
    for case in 0..setting("NESTOR_KERNEL_CASES", 40) {
        let mut random = Random::new(case);
        let (kind, kv_heads, sharing) = case_settings(&mut random);
        let (heads, dim) = (kv_heads * sharing, 16 * (1 + random.below(8)));
        let (rows, pages) = (1 + random.below(20), 2 + random.below(5));
        let at = format!("case {case}: {kind:?}, {rows} rows, {heads} and {kv_heads} heads of {dim}");
        // Some rows are filling.
        let order = random.permutation((pages - 1) * page);
        let places: Vec<i64> = (0..rows.min((pages - 1) * page))
            .map(|row| if random.one_in(5) { random.below(page + 1) - 1 } else { page + order[row as usize] })
            .collect();
        let rows = places.len() as i64;
        let x = random.normal(&[rows, heads + 2 * kv_heads, dim]).to_kind(kind);
        let angles = random.normal(&[rows, 1, dim / 2]).repeat([1, 1, 2]);
        let tables = [angles.cos().to_kind(kind), angles.sin().to_kind(kind)];
        let start = random.normal(&[2, pages, page, kv_heads, dim]).to_kind(kind);

        let wide = |t: &Tensor| t.to_kind(Kind::Double);
        let rotated = |t: &Tensor| {
            let halves = t.chunk(2, -1);
            wide(t) * wide(&tables[0])
                + wide(&Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1)) * wide(&tables[1])
        };
        let parts =
            |t: &Tensor| [t.narrow(1, 0, heads), t.narrow(1, heads, kv_heads), t.narrow(1, heads + kv_heads, kv_heads)];
        let expected = |keys: Tensor, values: Tensor| {
            let want = wide(&start);
            for (row, &place) in places.iter().enumerate().filter(|(_, place)| **place >= page) {
                let to = want.select(1, place / page).select(1, place % page);
                to.get(0).copy_(&keys.get(row as i64));
                to.get(1).copy_(&values.get(row as i64));
            }
            want
        };
        let [q, k, v] = parts(&x);
        let (want_q, want) = (rotated(&q), expected(rotated(&k), wide(&v)));
        let plain = expected(wide(&k), wide(&v));
        let of_requests = |cache: &Tensor| cache.narrow(1, 1, pages - 1);
        let place = Tensor::from_slice(&places);

        let (own, cache) = (x.copy(), start.copy());
        decoding::write_into_cache([&k, &v], &cache, &place);
        assert_eq!(wide(&of_requests(&cache)), of_requests(&plain), "{at}: written");

        let cache = start.copy();
        let [q, k, v] = parts(&own);
        decoding::rotate_into_cache([&q, &k, &v], [&tables[0], &tables[1]], &cache, &place);
        check(&q, &want_q, &at);
        check(&of_requests(&cache), &of_requests(&want), &at);
        assert_eq!((k, v), (parts(&x)[1].shallow_clone(), parts(&x)[2].shallow_clone()), "{at}: changed");
    }
}

/// Logits of a row, near and far from each other, with ties, and tokens that are never drawn.
fn logits(random: &mut Random, vocabulary: i64) -> Tensor {
    let spread = 10f64.powf(random.uniform() * 5.0 - 2.0);
    let x = random.normal(&[vocabulary]) * spread;
    match random.below(8) {
        0 | 1 => x.round(),
        2 => x.masked_fill(&random.normal(&[vocabulary]).gt(0.5), f64::NEG_INFINITY),
        3 => x * 0.0,
        4 => {
            let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][random.below(3) as usize];
            let n = if bad == f64::NEG_INFINITY { vocabulary } else { 1 };
            let _ = x.narrow(0, random.below(vocabulary - n + 1), n).fill_(bad);
            x
        }
        _ => x,
    }
}

/// The part of the distribution that a pair of rows draws from.
fn truncation(random: &mut Random, vocabulary: i64) -> (i32, f32) {
    let tokens = [0, 1, 2, 20, random.below(vocabulary), vocabulary - 1, vocabulary, vocabulary + 7];
    let shares = [0.0, 1e-9, 0.5, 0.8, random.uniform() as f32, 0.999, 1.0 - f32::EPSILON, 1.0];
    let mut one = || random.below(8) as usize;
    match one() {
        0..=2 => (tokens[one()] as i32, 1.0),
        3..=5 => (0, shares[one()]),
        _ => (tokens[one()] as i32, shares[one()]),
    }
}

/// The two neighbours in float32 between which the CPU's token changes, at most at `draw`'s own uniform.
fn boundary(row: &Tensor, draw: RawDraw) -> [f32; 2] {
    let token = |uniform| nestor_torch::draw(row, &[RawDraw { uniform, ..draw }]).expect("drawn")[0].token;
    let (mut below, mut above) = (0f32, draw.uniform);
    let drawn = token(above);
    loop {
        let middle = (below + above) / 2.0;
        if middle <= below || middle >= above {
            return [below, above];
        }
        *(if token(middle) >= drawn { &mut above } else { &mut below }) = middle;
    }
}

#[test]
fn every_draw_is_the_token_of_the_cpus_sampler() {
    put_in_place();
    const ROWS: i64 = 16;
    let mut drawn = 0;
    for case in 0..(setting("NESTOR_KERNEL_DRAWS", 2_000) as i64 / ROWS) {
        let mut random = Random::new(case as u64);
        let kind = TYPES[random.below(3) as usize];
        let longest = if random.one_in(20) { 40_000 } else { 2_500 };
        let vocabulary = 1 + random.below(longest);
        let rows: Vec<Tensor> = (0..ROWS / 2).map(|_| logits(&mut random, vocabulary)).collect();
        // Pairs of rows with the same logits get uniforms at both sides of a boundary, where the order of sums decides.
        let both = Tensor::stack(&rows, 0).repeat_interleave_self_int(2, 0, None).to_kind(kind);
        let truncates = !random.one_in(3);
        let seen = if kind == Kind::Half { both.to_kind(Kind::Float) } else { both.shallow_clone() };
        let mut draws = Vec::new();
        for row in (0..ROWS).step_by(2) {
            let inverse_temperature = if random.one_in(2) { 1.0 } else { 1.0 / (0.05 + 2.0 * random.uniform()) as f32 };
            let (top_k, top_p) = if truncates { truncation(&mut random, vocabulary) } else { (0, 1.0) };
            let min_p = [0.0, 0.0, 0.0, 0.05, 0.5, 1.0][random.below(6) as usize] * f32::from(u8::from(truncates));
            let log_min_p = f32::ln(min_p);
            let uniform = random.uniform() as f32;
            let draw = RawDraw { inverse_temperature, uniform, greedy: 0, top_k, top_p, log_min_p };
            draws.extend(match random.below(4) {
                0 => [RawDraw { greedy: 1, ..draw }, RawDraw { uniform: [0.0, 1.0][random.below(2) as usize], ..draw }],
                1 => [draw, RawDraw { uniform: random.uniform() as f32, ..draw }],
                _ => boundary(&seen.narrow(0, row, 1), draw).map(|uniform| RawDraw { uniform, ..draw }),
            });
        }
        let want = nestor_torch::draw(&seen, &draws).expect("drawn");
        let column = |f: &dyn Fn(&RawDraw) -> f32| Tensor::from_slice(&draws.iter().map(f).collect::<Vec<_>>());
        let (top_k, top_p) = (column(&|d| d.top_k as f32).to_kind(Kind::Int), column(&|d| d.top_p));
        let log_min_p = column(&|d| d.log_min_p);
        let columns = DrawColumns {
            truncation: truncates.then_some(TruncationColumns { top_k: &top_k, top_p: &top_p, log_min_p: &log_min_p }),
            inverse_temperatures: &column(&|d| d.inverse_temperature),
            uniforms: &column(&|d| d.uniform),
            greedy: &column(&|d| d.greedy as f32).to_kind(Kind::Int),
        };
        assert!(decoding::samples(&both), "no kernel");
        let [tokens, logprobs] = decoding::sample(&both, &columns);
        let tokens = Vec::<i64>::try_from(tokens).expect("tokens");
        let logprobs = Vec::<f32>::try_from(logprobs).expect("log-probs");
        for (row, (want, draw)) in want.iter().zip(&draws).enumerate() {
            let at = format!("case {case}, row {row} of {vocabulary} {kind:?}, {draw:?}");
            assert_eq!(tokens[row], want.token, "{at}");
            let same = logprobs[row] == want.logprob || logprobs[row].is_nan() && want.logprob.is_nan();
            assert!(same, "{at}: log-prob {} and not {}", logprobs[row], want.logprob);
            drawn += 1;
        }
    }
    assert!(drawn > 0);
}

#[test]
fn no_kernel_is_left_out() {
    put_in_place();
    assert_eq!(kernels::self_test(Device::Cpu, |_| ()).expect("tested"), []);
}
