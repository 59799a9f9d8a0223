//! Compares with the reference implementation (`tests/fixtures/advantage_cases.json` explains the origin of its
//! numbers), CPython's difflib, and a brute-force rewrite of the equations.

use nestor_plugin::recorded::{Columns, Recorded, RecordedRow, cases};
use nestor_plugin::{Estimator, Parts, parse_config};
use serde_json::{Value, json};

use super::Gigpo;
use super::permuted::Permuted;
use nestor_plugin::difflib::Text;

#[test]
fn all_reference_cases() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    let mut compared = 0;
    for case in file.scored() {
        for expected in case["gigpo"].as_array().expect("gigpo") {
            let params = &expected["params"];
            let similarity =
                if params["enable_similarity"] == true { &params["similarity_thresh"] } else { &Value::Null };
            let config = json!({
                "norm": if params["mode"] == "mean_std_norm" { "std" } else { "none" },
                "step_weight": params["step_advantage_w"],
                "gamma": case["case"]["gamma"],
                "similarity": similarity,
            });
            compared += cases::compare::<Gigpo>(&case["case"], &config, expected);
        }
    }
    // 362 rows under four settings each, and the worked example's 8 under seven.
    assert_eq!(compared, 4 * 362 + 7 * 8);
}

#[test]
fn equal_returns_give_zero_where_float32_does_not() {
    let file = cases::load(include_str!("../../../../tests/fixtures/advantage_cases.json"));
    for case in file.value["zero_variance_f32_quirk"]["cases"].as_array().expect("cases") {
        let row = |i: u64| RecordedRow {
            group: 0,
            traj: i.to_string(),
            anchor: "s".into(),
            reward: case["value"].as_f64().unwrap(),
            episode_reward: case["value"].as_f64(),
            valid: true,
            resp_len: 1,
            ..RecordedRow::default()
        };
        let rows = (0..case["n"].as_u64().unwrap()).map(row).collect();
        let columns = Recorded { rows, ..Recorded::default() }.columns().unwrap();
        for norm in ["std", "none"] {
            assert!(score(&columns, &json!({ "norm": norm })).iter().all(|&a| a == 0.0), "{case}");
        }
    }
}

#[test]
fn ratios_are_those_of_difflib() {
    let file: Value = serde_json::from_str(include_str!("../../../../tests/fixtures/similarity_cases.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let (a, b) = (Text::new(case["a"].as_str().unwrap()), Text::new(case["b"].as_str().unwrap()));
        assert_eq!(Some(a.ratio(&b)), case["ratio"].as_f64(), "{case}");
        assert_eq!(Some(b.ratio(&a)), case["ratio_swapped"].as_f64(), "{case}");
        // The cheap bounds must never refuse what the ratio accepts.
        assert!(a.ratio(&b) == 0.0 || a.similar(&b, a.ratio(&b)));
        assert!(!a.similar(&b, a.ratio(&b) + 1e-9));
    }
}

/// The bounds of [`Text::similar`] refuse no pair that its ratio accepts, with and without popular characters.
#[test]
fn similar_texts_are_those_of_the_ratio() {
    let mut random = Random(3);
    let mut counted = [0; 2];
    for round in 0..600 {
        let length = random.below(if round % 2 == 0 { 190 } else { 700 });
        let letters = 1 + random.below(60);
        // The product makes some letters frequent.
        let mut letter = || char::from(b'A' + (random.below(letters) * random.below(letters) / letters) as u8);
        let a: String = (0..length).map(|_| letter()).collect();
        let other: Vec<char> = (0..length).map(|_| letter()).collect();
        // The same text with its parts in another order and other letters here and there.
        let (left, right) = a.split_at(if round % 5 == 0 { length as usize / 3 } else { 0 });
        let apart = 3 + random.below(20) as usize;
        let replace = |(i, c): (usize, char)| if i % apart == 2 { other[i] } else { c };
        let b: String = (right.to_owned() + left).chars().enumerate().map(replace).collect();
        let (a, b) = (Text::new(&a), Text::new(&b));
        let ratio = a.ratio(&b);
        for threshold in [ratio, ratio + 1e-9, 0.5, 0.7, 0.9].into_iter().filter(|&it| it > 0.0) {
            assert_eq!(a.similar(&b, threshold), ratio >= threshold, "{ratio} {threshold}");
            counted[usize::from(ratio >= threshold)] += 1;
        }
    }
    assert!(counted.iter().all(|&count| count > 500), "{counted:?}");
}

/// Prints the time in which 10,000 search-like observations of 1,000 characters are grouped: in the groups of an iteration, and
/// in large ones. `cargo test --release -p nestor-gigpo -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn time_of_similar_observations() {
    let mut random = Random(1);
    let letters = b"eeeeeettttaaaaooooiiiinnnnsssshhhrrrddlluuccmmffwwyyggppbbvkjxqz";
    let mut letter = || char::from(letters[random.below(letters.len() as u64) as usize]);
    let words: Vec<String> = (0..20_000).map(|i| (0..2 + i % 8).map(|_| letter()).collect()).collect();
    let mut passage = || {
        let mut text = String::new();
        while text.len() < 310 {
            // As in a language, few words make most of a text.
            let place = 20_000f64.powf(random.below(1 << 20) as f64 / f64::from(1 << 20));
            text += &words[place as usize - 1];
            text += if random.below(12) == 0 { ". " } else { " " };
        }
        text
    };
    for (groups, rows, passages) in [(500, 20, 60), (500, 20, 8), (10, 1000, 8), (1, 10_000, 30_000)] {
        let mut all = Vec::new();
        for group in 0..groups {
            let pool: Vec<String> = (0..passages).map(|_| passage()).collect();
            for row in 0..rows {
                // With few passages some rows share one, two or three of them.
                let place = |n: usize| (3 * row + n + row * row / 7 * n) % passages;
                let texts: String = (0..3).map(|n| format!("Doc {}: {}\\n", n + 1, pool[place(n)])).collect();
                let anchor = format!("<information>{{\"result\": \"{texts}\"}}</information>");
                all.push(RecordedRow { group, traj: row.to_string(), anchor, resp_len: 1, ..RecordedRow::default() });
            }
        }
        let columns = Recorded { rows: all, ..Recorded::default() }.columns().unwrap();
        let start = std::time::Instant::now();
        score(&columns, &json!({ "similarity": 0.9 }));
        println!("{groups} groups of {rows} rows with {passages} passages: {:.2} s", start.elapsed().as_secs_f64());
    }
}

#[test]
fn brute_force_and_order() {
    for seed in 0..40 {
        let columns = random_batch(seed);
        for weighting in ["row", "episode"] {
            let config = json!({ "norm": "std", "weighting": weighting, "gamma": 0.9, "step_weight": 0.7 });
            let got = score(&columns, &config);
            let want = brute_force(&columns, weighting == "episode");
            for (row, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((f64::from(*g) - w).abs() < 1e-5 * (1.0 + w.abs()), "seed {seed} row {row}: {g}, not {w}");
            }
            let order = shuffled(columns.group.len(), seed);
            let moved = score(&columns.in_order(&order), &config);
            for (new, &old) in order.iter().enumerate() {
                assert!((moved[new] - got[old]).abs() < 1e-5 * (1.0 + got[old].abs()), "seed {seed}: order matters");
            }
        }
    }
}

#[test]
fn parts_make_up_the_advantage() {
    for seed in 0..10 {
        let columns = random_batch(seed);
        let config = json!({ "norm": "std", "gamma": 0.9, "episode_weight": 0.3, "step_weight": 0.7 });
        let rows = columns.view();
        let estimator = Gigpo::open(parse_config(&config.to_string()).unwrap()).unwrap();
        let parts = estimator.parts(&rows).unwrap();
        let [episode, step, _, state] = &parts[..] else { panic!("{} parts", parts.len()) };
        for (row, advantage) in score(&columns, &config).into_iter().enumerate() {
            assert_eq!((0.3 * episode[row] + 0.7 * step[row]) as f32, advantage);
            let anchors = rows.anchors.unwrap();
            for other in 0..rows.len() {
                let same = rows.group[other] == rows.group[row] && anchors.of(other) == anchors.of(row);
                assert_eq!(state[other] == state[row], same, "seed {seed}, rows {row} and {other}");
            }
        }
    }
}

#[test]
fn the_control_deals_the_same_advantages_in_another_order() {
    let config = json!({ "norm": "std" });
    let mut columns = random_batch(3);
    let tokens = columns.token_rewards.len();
    let mut dealt = |logprob: f32| {
        columns.logprobs = Some(vec![logprob; tokens]);
        (score(&columns, &config), cases::score::<Permuted>(&columns, &config))
    };
    let sorted = |mut values: Vec<f32>| {
        values.sort_by(f32::total_cmp);
        values
    };
    let (plain, first) = dealt(-1.0);
    let (_, second) = dealt(-1.5);
    assert!(first != plain && second != first);
    assert_eq!(dealt(-1.0).1, first);
    assert_eq!(sorted(first), sorted(plain.clone()));
    assert_eq!(sorted(second), sorted(plain));
}

#[test]
fn config_limits() {
    for (config, key) in [
        (r#"{"similarity": 1.0}"#, "similarity"),
        (r#"{"gamma": 1.5}"#, "gamma"),
        (r#"{"step_weigth": 1}"#, "step_weigth"),
    ] {
        let opened = parse_config(config).and_then(Gigpo::open);
        assert!(opened.err().expect("refused").to_string().contains(&format!("`{key}`")));
    }
}

/// Returns one advantage per row; every token must have it.
fn score(columns: &Columns, config: &Value) -> Vec<f32> {
    cases::score::<Gigpo>(columns, config)
}

/// Evaluates the equations of the header, each row by itself over all rows.
fn brute_force(c: &Columns, per_episode: bool) -> Vec<f64> {
    let rows = c.view();
    let n = c.group.len();
    let s: Vec<f64> = (0..n).map(|i| c.token_rewards[rows.tokens(i)].iter().sum()).collect();
    let source = |i: usize| usize::try_from(c.duplicate_of[i]).unwrap_or(i);
    let r = |i: usize| {
        let own = (0..n).filter(|&j| c.duplicate_of[j] < 0 && c.episode[j] == c.episode[source(i)]);
        let later = own.filter(|&j| c.step[j] >= c.step[source(i)]);
        let raw: f64 = later.map(|j| c.reward[j] * 0.9f64.powi((c.step[j] - c.step[source(i)]) as i32)).sum();
        raw - c.penalty[i]
    };
    let normed = |value: f64, all: &[f64], alone: f64| {
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let var = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (all.len() as f64 - 1.0);
        match all.len() {
            1 => alone,
            _ if var.sqrt() < 1e-12 => 0.0,
            _ => (value - mean) / (var.sqrt() + 1e-6),
        }
    };
    let of_row = |i: usize| {
        let group = || (0..n).filter(|&j| c.group[j] == c.group[i]);
        let counts = |j: &usize| !per_episode || (c.step[*j] == 0 && c.duplicate_of[*j] < 0);
        let scores: Vec<f64> = group().filter(counts).map(|j| s[j]).collect();
        let anchors = rows.anchors.unwrap();
        let same: Vec<f64> = group().filter(|&j| anchors.of(j) == anchors.of(i)).map(r).collect();
        normed(s[i], &scores, s[i]) + 0.7 * normed(r(i), &same, 0.0)
    };
    (0..n).map(of_row).collect()
}

/// Makes groups of episodes with few states, invalid responses, ties and copies.
fn random_batch(seed: u64) -> Columns {
    let mut random = Random(seed + 1);
    let mut rows: Vec<RecordedRow> = Vec::new();
    for group in 0..3 {
        for traj in 0..1 + random.below(5) {
            let steps = 1 + random.below(6);
            let rewards: Vec<f64> = (0..steps).map(|_| random.below(4) as f64 * 0.37).collect();
            for reward in &rewards {
                rows.push(RecordedRow {
                    group,
                    traj: traj.to_string(),
                    anchor: random.below(3).to_string(),
                    reward: *reward,
                    episode_reward: Some(rewards.iter().sum()),
                    valid: random.below(4) > 0,
                    resp_len: 1 + random.below(3) as u32,
                    ..RecordedRow::default()
                });
            }
        }
    }
    for _ in 0..random.below(4) {
        let source = random.below(rows.len() as u64) as usize;
        if rows[source].dup_of.is_none() {
            rows.push(RecordedRow { dup_of: Some(source), ..rows[source].clone() });
        }
    }
    Recorded { rows, penalty_coef: 0.1, ..Recorded::default() }.columns().unwrap()
}

fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed + 99);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
