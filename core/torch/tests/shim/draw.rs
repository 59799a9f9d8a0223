//! The CPU's sampler with top-k, top-p and min-p against a plain computation with sorted tokens, in float64 and whole numbers.

use nestor_torch::{RawDraw, draw};
use tch::{Kind, Tensor};

use super::random::Random;

/// The rule of [`nestor_torch::draw`] for a row with top-k, top-p or min-p.
fn plain(logits: &[f32], draw: RawDraw) -> i64 {
    let x: Vec<f32> = logits.iter().map(|logit| logit * draw.inverse_temperature).collect();
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let unit = f64::from(2f32.powi(40));
    let mass: Vec<u128> = x.iter().map(|x| (f64::from(x - top).exp() * unit) as u128).collect();
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].partial_cmp(&x[a]).expect("numbers"));
    if draw.top_k > 0 {
        order.truncate(draw.top_k as usize);
    }
    if draw.top_p < 1.0 {
        let whole: u128 = order.iter().map(|&token| mass[token]).sum();
        let enough = ((f64::from(draw.top_p) * whole as f64) as u128).max(1);
        let mut before = 0;
        order.retain(|&token| {
            before += mass[token];
            before - mass[token] < enough
        });
    }
    order.retain(|&token| x[token] >= top + draw.log_min_p);
    let kept: u128 = order.iter().map(|&token| mass[token]).sum();
    let drawn = ((f64::from(draw.uniform) * kept as f64) as u128).min(kept - 1);
    order.sort_unstable();
    let mut sum = 0;
    let exceeds = |&&token: &&usize| {
        sum += mass[token];
        sum > drawn
    };
    *order.iter().find(exceeds).expect("all mass exceeds a part of it") as i64
}

#[test]
fn the_first_tokens_in_their_order_are_kept() {
    for case in 0..4_000 {
        let mut random = Random::new(case);
        let longest = if random.one_in(10) { 6_000 } else { 300 };
        let vocabulary = 1 + random.below(longest);
        let spread = 10f64.powf(random.uniform() * 4.0 - 2.0);
        let mut logits = random.normal(&[1, vocabulary]) * spread;
        match random.below(5) {
            0 => logits = logits.round(),
            1 => logits *= 0.0,
            2 => logits = logits.masked_fill(&random.normal(&[vocabulary]).gt(1.0), f64::NEG_INFINITY),
            _ => {}
        }
        if logits.isfinite().any().int64_value(&[]) == 0 {
            continue;
        }
        let kind = [Kind::Float, Kind::BFloat16][random.below(2) as usize];
        let logits = logits.to_kind(kind);
        let wide = Vec::<f32>::try_from(logits.to_kind(Kind::Float).view([-1])).expect("logits");
        let top_k = [0, 1, 5, 1 + random.below(vocabulary)][random.below(4) as usize] as i32;
        let top_p = [1.0, 0.0, 0.5, random.uniform() as f32][random.below(4) as usize];
        let min_p = [0.0, 0.0, random.uniform() as f32, 1.0][random.below(4) as usize];
        let log_min_p = f32::ln(min_p);
        let inverse_temperature = [1.0, 0.3 + random.uniform() as f32][random.below(2) as usize];
        let uniform = [0.0, 1.0, random.uniform() as f32][random.below(3) as usize];
        let one = RawDraw { inverse_temperature, uniform, greedy: 0, top_k, top_p, log_min_p };
        if (top_k == 0 || i64::from(top_k) == vocabulary) && top_p == 1.0 && min_p == 0.0 {
            continue;
        }
        let token = draw(&logits, &[one]).expect("drawn")[0].token;
        // The sampler's exponential is a float32's, so a token at an edge may be kept or passed by one side alone.
        let near = |x: f32| [x, x - 1e-6, x + 1e-6].map(|x| x.clamp(0.0, 1.0));
        let tokens = near(top_p).into_iter().flat_map(|top_p| {
            let edge = |uniform| plain(&wide, RawDraw { top_p, uniform, ..one });
            near(uniform).map(edge)
        });
        let tokens: Vec<i64> = tokens.collect();
        assert!(tokens.contains(&token), "case {case}: {token} and not {tokens:?} of {vocabulary}, {one:?}");
    }
}

#[test]
fn equal_logits_are_kept_in_the_order_of_their_tokens() {
    let logits = Tensor::from_slice(&[1f32, 3.0, 3.0, -0.0, 3.0, 0.0, 3.0]).unsqueeze(0);
    let drawn = |top_k, top_p| {
        let one = |uniform| RawDraw { top_k, top_p, uniform, ..RawDraw::default() };
        let tokens = (0..100).map(|i| draw(&logits, &[one(i as f32 / 100.0)]).expect("drawn")[0].token);
        let mut tokens: Vec<i64> = tokens.collect();
        tokens.dedup();
        tokens
    };
    assert_eq!(drawn(2, 1.0), [1, 2]);
    assert_eq!(drawn(4, 0.5), [1, 2]);
    assert_eq!(drawn(4, 0.51), [1, 2, 4]);
    assert_eq!(drawn(0, 0.0), [1]);
    // -0 and 0 are equal: the first of them comes first, though their bits differ.
    assert_eq!(drawn(6, 1.0), [0, 1, 2, 3, 4, 6]);
}
