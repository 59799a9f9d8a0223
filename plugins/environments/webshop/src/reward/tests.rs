//! Compares with thefuzz 0.22.1 and with purchases recorded from the original engine (`crate::fixtures`). The test
//! tests/python/test_webshop_reward.py compares the reward with its transcription in Python.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::*;
use crate::files::{Bullets, Instructions, Item};
use crate::fixtures::{read, traces, unpack};
use crate::goal::Options;
use crate::product::Card;

#[test]
fn token_set_ratio_equals_thefuzz() {
    #[derive(Deserialize)]
    struct More {
        cases: Vec<(String, String, u8)>,
    }
    let fixtures = unpack();
    let recorded: Vec<(String, String, u8)> = read(fixtures.path().join("token_set_ratio.json"));
    let more: More = read(fixtures.path().join("token_set_ratio_more.json"));
    for (a, b, expected) in recorded.iter().chain(&more.cases) {
        assert_eq!(token_set_ratio(a, b), *expected, "{a:?} and {b:?}");
    }
}

/// A product with the fields that the reward reads.
fn product<'a>(item: &'a Item, attributes: &'a [String]) -> Product<'a> {
    Product {
        card: Card { asin: &item.asin, title: item.name.as_deref().unwrap(), price_tag: "" },
        description: item.full_description.as_deref().unwrap(),
        bullets: match item.small_description.as_ref().unwrap() {
            Bullets::One(text) => vec![text],
            Bullets::Many(texts) => texts.iter().map(String::as_str).collect(),
        },
        category: "",
        query: item.query.as_deref().unwrap(),
        product_category: item.product_category.as_deref().unwrap(),
        options: Vec::new(),
        attributes: attributes.iter().map(String::as_str).collect(),
        instruction: None,
        instruction_attributes: Vec::new(),
        price_range: (0.0, 0.0),
        human: Vec::new(),
        nouns: None,
    }
}

#[test]
fn recorded_purchases_get_the_recorded_reward() {
    #[derive(Deserialize)]
    struct Trace {
        goal: Goal,
        asin: Option<String>,
        options: Map<String, Value>,
        reward_info: Option<Map<String, Value>>,
        steps: Vec<Value>,
    }
    let fixtures = unpack();
    let folder = fixtures.path();
    let items: Vec<Item> = read(folder.join("data/items_shuffle.json"));
    let instructions: Instructions = read(folder.join("data/items_ins_v2.json"));
    let prices: BTreeMap<String, f64> = read(folder.join("prices.json"));
    let mut purchases = 0;
    for (name, trace) in traces::<Trace>(&fixtures) {
        let (Some(asin), Some(recorded)) = (trace.asin, trace.reward_info) else { continue };
        purchases += 1;
        let item = items.iter().find(|item| item.asin == asin).unwrap();
        let product = product(item, instructions[&asin].attributes.as_ref().unwrap());
        let options: Vec<_> =
            trace.options.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string())).collect();
        let purchase = Purchase { product: &product, price: prices[&asin], options: &options };
        let score = score(&purchase, &trace.goal, None);
        assert_eq!(score.parts(), recorded, "{name}");
        assert_eq!(Value::from(score.score), trace.steps.last().unwrap()["reward"], "{name}");
    }
    assert!(purchases > 0, "no trace buys");
}

#[test]
fn named_options_are_compared_as_python_prints_them() {
    let named = |name: &str, value: &str| Options::Named(vec![(name.to_string(), value.to_string())]);
    let hit = |chosen: &str, wanted: &Options| options::hits(&[(String::new(), chosen.to_string())], wanted) == 1;
    // A chosen value and a person's option become the first colour that they hold, here `light` and `dark`. A named option does
    // so only if the colour is the whole value.
    assert!(hit("light red", &named("color", "light")));
    assert!(!hit("dark red", &named("color", "navy red")));
    assert!(hit("dark red", &Options::Values(vec!["dark green".to_string()])));
    // The name takes part, so the value of another option can hit it.
    assert!(hit("size", &named("size", "xl")));
    // A line's end prints as a letter, and so does a character without a shape.
    assert!(!hit("two packs", &named("size", "two\npacks")));
    assert!(hit("two npacks", &named("size", "two\npacks")));
    assert!(hit("x1b u200b", &named("size", "\u{1b}\u{200b}")));
}

#[test]
fn titles_have_nouns_by_rule_unless_they_are_given() {
    assert_eq!(nouns(None, "Men's NEW Lamp, 2-Pack with Lamp"), ["men", "lamp", "pack", "lamp"]);
    assert_eq!(nouns(Some(&["lamp"]), "Chair"), ["lamp"]);
}

#[test]
fn lines_that_cannot_be_scored_are_refused() {
    let item = Item {
        asin: "B01".to_string(),
        name: Some("Lamp".to_string()),
        full_description: Some(String::new()),
        small_description: Some(Bullets::One(String::new())),
        product_category: Some(String::new()),
        query: Some("lamp".to_string()),
        ..Item::default()
    };
    let run = |line: String| {
        let mut out = Vec::new();
        let find = |asin: &str| Ok((asin == "B01").then(|| (10.0, product(&item, &[]))));
        score_lines(line.as_bytes(), &mut out, find).map(|()| serde_json::from_slice::<Value>(&out).unwrap())
    };
    let goal = json!({
        "asin": "B01", "query": "lamp", "name": "Lamp", "product_category": "", "instruction_text": "", "attributes": ["lam"],
        "price_upper": 20.0, "goal_options": [],
    });
    let line = |change: Value| {
        let mut line = json!({"goal": goal, "asin": "B01", "options": {}});
        for (name, value) in change.as_object().unwrap() {
            *line.pointer_mut(name).unwrap() = value.clone();
        }
        format!("{line}\n")
    };
    assert_eq!(run(line(json!({}))).unwrap()["score"], 1.0);
    for (change, said) in [
        (json!({"/asin": "B02"}), "no product B02"),
        (json!({"/goal/asin": "B03"}), "no product B03"),
        (json!({"/goal/attributes": []}), "no attribute"),
        (json!({"/goal/price_upper": 0}), "price_upper is 0"),
        (json!({"/options": {"color": 7}}), "line 1 of the choices"),
    ] {
        let error = format!("{:#}", run(line(change)).unwrap_err());
        assert!(error.contains("line 1") && error.contains(said), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any texts: the ratio is the same in both directions, and the parts of a reward stay between 0 and 1.
    #[test]
    fn any_text_has_a_score(texts in prop::collection::vec("\\PC{0,12}|[\\x00-\\xff ]{0,12}|.{0,200}|(red |new ){0,9}", 8)) {
        let ratio = token_set_ratio(&texts[0], &texts[1]);
        prop_assert!(ratio <= 100);
        prop_assert_eq!(ratio, token_set_ratio(&texts[1], &texts[0]));

        let item = Item {
            asin: texts[0].clone(),
            name: Some(texts[1].clone()),
            full_description: Some(texts[2].clone()),
            small_description: Some(Bullets::Many(texts[3..5].to_vec())),
            query: Some(texts[5].clone()),
            product_category: Some(texts[6].clone()),
            ..Item::default()
        };
        let pairs: Vec<_> = texts.iter().cloned().zip(texts.iter().rev().cloned()).collect();
        for goal_options in [Options::Values(texts[2..4].to_vec()), Options::Named(pairs.clone())] {
            let goal = Goal {
                category: String::new(),
                asin: texts[0].clone(),
                query: texts[5].clone(),
                name: texts[7].clone(),
                product_category: texts[0].clone(),
                instruction_text: String::new(),
                attributes: texts[4..].to_vec(),
                price_upper: 10.0,
                goal_options,
            };
            let purchase = Purchase { product: &product(&item, &texts), price: 10.0, options: &pairs };
            for (name, value) in score(&purchase, &goal, None).parts() {
                prop_assert!(value.is_boolean() || (0.0..=1.0).contains(&value.as_f64().unwrap()), "{} {}", name, value);
            }
        }
    }
}
