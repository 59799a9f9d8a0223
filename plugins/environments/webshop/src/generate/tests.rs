use std::collections::{BTreeSet, HashSet};
use std::fs;

use super::tables::list;
use super::{Generated, Generator, MOST_PRODUCTS, Size, Spec, asin, write};
use crate::files::{Bullets, HumanInstructions, Instructions, Item, OptionValue};

const SIZES: [Size; 2] = [Size::Small, Size::Real];

fn products(products: u64, seed: u64, size: Size) -> Vec<Generated> {
    Generator::new(Spec { products, seed, size }).unwrap().products().collect()
}

fn text(product: &Generated) -> String {
    let Generated { item, brand, instruction, human } = product;
    serde_json::to_string(&(item, brand, instruction, human)).unwrap()
}

#[test]
fn a_catalogue_begins_like_every_larger_one_of_its_seed_and_size() {
    for size in SIZES {
        let [little, large, other] = [(30, 5), (60, 5), (30, 6)].map(|(n, seed)| products(n, seed, size));
        assert!(little.iter().zip(&large).all(|(a, b)| text(a) == text(b)), "{size:?}");
        let words = |it: &Generated| text(it).replace(&it.item.asin, "");
        assert!(little.iter().zip(&other).all(|(a, b)| a.item.asin != b.item.asin), "{size:?}");
        assert!(little.iter().zip(&other).all(|(a, b)| words(a) != words(b)), "{size:?}");
    }
}

#[test]
fn asins_are_unique_and_in_no_order() {
    let asins: Vec<String> = (0..100_000).map(|n| asin::asin(7, n)).collect();
    assert_eq!(asins.iter().collect::<HashSet<_>>().len(), asins.len());
    assert!(asins.iter().all(|it| it.len() == 10 && it.starts_with("B0")));
    let rising = asins.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((45_000..55_000).contains(&rising), "{rising}");

    let short: HashSet<String> = (0..3_000).map(|n| asin::short(7, n)).collect();
    assert_eq!(short.len(), 3_000);
    assert!(short.iter().all(|it| it.len() <= 8));
}

#[test]
fn the_files_read_back_as_the_products() {
    let spec = Spec { products: 500, seed: 3, size: Size::Real };
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    write(folder.path(), &spec, |done| last = done).unwrap();
    assert_eq!(last, spec.products);

    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let items: Vec<Item> = serde_json::from_slice(&read("items_shuffle.json")).unwrap();
    let instructions: Instructions = serde_json::from_slice(&read("items_ins_v2.json")).unwrap();
    let human: HumanInstructions = serde_json::from_slice(&read("items_human_ins.json")).unwrap();
    assert_eq!((items.len(), instructions.len()), (500, 500));
    for (item, made) in items.into_iter().zip(products(500, 3, Size::Real)) {
        let (instruction, human) = (instructions[&item.asin].clone(), human.get(&item.asin).cloned());
        let read = Generated { item, brand: made.brand.clone(), instruction, human: human.unwrap_or_default() };
        assert_eq!(text(&read), text(&made));
    }

    let refused = write(folder.path(), &spec, |_| ()).unwrap_err().to_string();
    assert!(refused.contains("items_shuffle.json exists"), "{refused}");
}

#[test]
fn the_original_loader_accepts_every_product() {
    for size in SIZES {
        for Generated { item, instruction, human, .. } in products(3_000, 1, size) {
            let all = format!("{item:?} {instruction:?} {human:?}");
            let left_open = all.split('{').skip(1).any(|it| it.starts_with(|c: char| c.is_ascii_lowercase()));
            assert!(!left_open, "a template is not filled: {all}");
            for price in item.pricing.iter().flat_map(|it| it.split('$').skip(1)) {
                let price: f64 = price.replace(',', "").parse().unwrap();
                assert!((1.0..10_000.0).contains(&price), "{all}");
            }
            assert!(item.pricing.is_none_or(|it| it.is_empty() || it.starts_with('$')), "{all}");
            assert!(item.full_description.is_some() && item.product_category.is_some_and(|it| it.contains(" › ")));
            match item.small_description.unwrap() {
                Bullets::One(text) => assert!(!text.is_empty(), "{all}"),
                Bullets::Many(texts) => assert!(!texts.is_empty(), "{all}"),
            }
            let attributes = instruction.attributes.unwrap();
            assert_eq!(instruction.instruction.is_some(), instruction.instruction_attributes.is_some());
            let asked =
                instruction.instruction_attributes.iter().chain(human.iter().map(|it| &it.instruction_attributes));
            for asked in asked {
                assert!(!asked.is_empty() && asked.iter().all(|it| attributes.contains(it)), "{all}");
            }
        }
    }
}

/// The shop finds a value to click by its text alone, so two options must not share one, nor be named like a button.
#[test]
fn every_value_can_be_clicked() {
    let buttons = ["back to search", "< prev", "next >", "description", "features", "reviews", "buy now", "search"];
    for (_, kind) in SIZES.into_iter().flat_map(|size| size.shop().kinds()) {
        let mut seen: HashSet<&str> = buttons.into();
        for value in kind.options.iter().flat_map(|(_, values)| list(values)) {
            assert!(seen.insert(value) && !value.contains(['[', ']']), "{}: {value}", kind.query);
            assert_eq!((value.trim(), value.to_lowercase().as_str()), (value, value), "{}", kind.query);
        }
        let attributes: BTreeSet<_> = list(kind.attributes).collect();
        assert_eq!(attributes.len(), list(kind.attributes).count(), "{}", kind.query);
        assert!(attributes.iter().all(|it| !it.trim().is_empty() && it.trim() == *it), "{}", kind.query);
    }
}

#[test]
fn a_large_shop_has_the_oddities_of_the_real_one() {
    let all = products(4_000, 2, Size::Real);
    let share = |of: &dyn Fn(&Generated) -> bool| all.iter().filter(|it| of(it)).count() as f64 / all.len() as f64;
    let pricing = |it: &Generated| it.item.pricing.clone().unwrap_or_default();
    let options = |it: &Generated| it.item.customization_options.clone().unwrap_or_default();
    let values = |it: &Generated| -> Vec<OptionValue> {
        options(it)
            .values()
            .filter(|it| !it.is_null())
            .flat_map(|it| serde_json::from_value::<Vec<_>>(it.clone()).unwrap())
            .collect()
    };
    let shares = [
        ("synthetic instructions", share(&|it| it.instruction.instruction.is_some()), 0.87, 0.93),
        ("human instructions", share(&|it| !it.human.is_empty()), 0.36, 0.44),
        ("no price", share(&|it| pricing(it).is_empty()), 0.1, 0.2),
        ("ranges", share(&|it| pricing(it).matches('$').count() == 2), 0.07, 0.2),
        ("prices in thousands", share(&|it| pricing(it).contains(',')), 0.002, 0.04),
        ("no options", share(&|it| options(it).is_empty()), 0.08, 0.2),
        ("null options", share(&|it| options(it).values().any(|it| it.is_null())), 0.02, 0.15),
        ("three options", share(&|it| options(it).len() == 3), 0.02, 0.15),
        ("slashes", share(&|it| values(it).iter().any(|it| it.value.contains('/'))), 0.1, 0.5),
        ("one bullet", share(&|it| matches!(it.item.small_description, Some(Bullets::One(_)))), 0.05, 0.11),
    ];
    for (name, share, low, high) in shares {
        assert!((low..high).contains(&share), "{name}: {share}");
    }
    let cores: HashSet<_> = all.iter().map(|it| (&it.item.query, &it.brand, &it.instruction.attributes)).collect();
    let repeated = all.len() - cores.len();
    assert!((all.len() / 50..all.len() / 10).contains(&repeated), "near-duplicates: {repeated}");
}

#[test]
fn a_small_shop_needs_few_words() {
    let mut words = BTreeSet::new();
    let mut longest = 0;
    for Generated { item, instruction, human, .. } in products(5_000, 0, Size::Small) {
        let options = item.customization_options.unwrap_or_default();
        assert!(options.len() <= 2);
        let mut texts =
            vec![item.name.unwrap(), item.full_description.unwrap(), instruction.instruction.unwrap_or_default()];
        texts.extend(human.into_iter().map(|it| it.instruction));
        if let Some(Bullets::Many(bullets)) = item.small_description {
            texts.extend(bullets);
        }
        for (name, values) in options {
            let values: Vec<OptionValue> = serde_json::from_value(values).unwrap();
            assert!((2..=3).contains(&values.len()));
            texts.extend(values.into_iter().map(|it| it.value));
            texts.push(name.to_lowercase());
        }
        longest = texts.iter().map(|it| it.split(' ').count()).max().unwrap().max(longest);
        words.extend(texts.iter().flat_map(|it| it.split([' ', ','])).map(str::to_owned));
    }
    assert!(words.len() <= 150, "{} words: {words:?}", words.len());
    assert!(longest <= 10, "{longest} words in a text");
}

#[test]
fn impossible_sizes_are_refused() {
    for count in [0, MOST_PRODUCTS + 1] {
        let refused = Generator::new(Spec { products: count, seed: 0, size: Size::Real }).err().unwrap().to_string();
        assert!(refused.contains("ask for 1 to 2000000"), "{refused}");
    }
}
