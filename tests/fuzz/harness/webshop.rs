//! The bodies of WebShop's fuzz targets; tests replay the kept inputs with them.

use std::fs;
use std::sync::LazyLock;

use nestor_plugin::{Environment, Expert, Instance, Observation, Snapshot, Start};
use nestor_webshop::catalogue::{index, load::Files};
use nestor_webshop::generate::{self, Size, Spec};
use nestor_webshop::session::parse;
use nestor_webshop::{Config, Play, WebShop};
use regex::Regex;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Reads a catalogue, and plays a few episodes in it. An input is the products, instructions, people's instructions, goals and
/// prices as files, with a zero byte between them; without goals or prices the catalogue's own count. An input that starts with
/// `#` describes products by lines instead ([`product`]), so that a mutation need not preserve JSON's quotes.
pub fn files(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config =
        Config { data: Some(folder.path().into()), raw_commands: true, max_steps: Some(15), ..Config::default() };
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("a file");
        path
    };
    if let [b'#', lines @ ..] = data {
        let (mut items, mut instructions, mut human) = (Vec::new(), Map::new(), Map::new());
        for line in String::from_utf8_lossy(lines).split('\n') {
            let [item, instruction, people] = product(line);
            let asin = item["asin"].as_str().unwrap_or_default().to_owned();
            items.push(item);
            instructions.insert(asin.clone(), instruction);
            human.insert(asin, people);
        }
        write("items_shuffle.json", json!(items).to_string().as_bytes());
        write("items_ins_v2.json", json!(instructions).to_string().as_bytes());
        write("items_human_ins.json", json!(human).to_string().as_bytes());
        config.human_goals = lines.len() % 4 == 0;
    } else {
        let mut parts = data.split(|&byte| byte == 0);
        for name in ["items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"] {
            write(name, parts.next().unwrap_or_default());
        }
        let mut file = |name| parts.next().filter(|part| !part.is_empty()).map(|part| write(name, part));
        (config.goals, config.prices) = (file("goals.json"), file("prices.json"));
    }
    match WebShop::open(config) {
        Ok(world) => play_some(&world, data),
        Err(error) => told(&error),
    }
}

/// A product from a line of fields with tabs between them: ASIN, title, description, features, price, path of categories, query,
/// options (`color=red,blue;size=l`), attributes, instruction, its attributes, a person's instruction. `|` parts lists.
fn product(line: &str) -> [Value; 3] {
    let fields: Vec<&str> = line.split('\t').collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    let list = |at: usize| field(at).split('|').filter(|it| !it.is_empty()).collect::<Vec<_>>();
    let mut options = Map::new();
    for option in field(7).split(';').filter(|it| !it.is_empty()) {
        let (name, values) = match option.split_once('=') {
            Some((name, values)) => (name, values.split(',').map(|value| json!({ "value": value })).collect()),
            None => (option, Value::Null),
        };
        options.insert(name.to_owned(), values);
    }
    let item = json!({
        "asin": field(0), "name": field(1), "full_description": field(2), "small_description": list(3), "pricing": field(4),
        "product_category": field(5), "query": field(6), "customization_options": options,
    });
    let instruction = json!({"attributes": list(8), "instruction": field(9), "instruction_attributes": list(10)});
    let person =
        json!([{"instruction": field(11), "instruction_attributes": list(10), "instruction_options": list(8)}]);
    [item, instruction, person]
}

/// Follows the expert in a few episodes, and then clicks anywhere.
fn play_some(world: &WebShop, data: &[u8]) {
    let mut dice = data.iter().fold(1_usize, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut env = world.spawn().expect("an instance");
    let tasks = world.tasks("train").expect("a split");
    for episode in 0..4 {
        let task = dice as u64 % tasks;
        let mut seen = match env.reset(world, Start { split: "train", task, seed: 0 }) {
            Ok(seen) => seen,
            Err(error) => return told(&error),
        };
        while !seen.terminated && !seen.truncated {
            consistent(&seen);
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let action = match env.next_action(world) {
                Ok(action) if episode % 2 == 0 => action,
                Ok(_) => seen.admissible[(dice >> 33) % seen.admissible.len()].clone(),
                Err(error) => return told(&error),
            };
            seen = match env.step(world, &action) {
                Ok(seen) => seen,
                Err(error) => return told(&error),
            };
        }
        consistent(&seen);
    }
}

/// Plays actions in a small generated shop. The first two bytes choose shop and task. The others are actions with a zero byte
/// between them; one of a single byte clicks what the page offers at that place.
pub fn actions(data: &[u8]) {
    static REGEX: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(.+)\[(.+)\]").expect("a regular expression"));
    static SHOPS: LazyLock<[WebShop; 3]> = LazyLock::new(|| {
        let shop = |size, raw_commands| {
            let generate = Some(Spec { products: 60, seed: 1, size });
            WebShop::open(Config { generate, raw_commands, max_steps: Some(40), ..Config::default() }).expect("a shop")
        };
        [shop(Size::Small, true), shop(Size::Real, true), shop(Size::Real, false)]
    });
    let [shop, task, rest @ ..] = data else { return };
    let world = &SHOPS[usize::from(*shop) % 3];
    let task = u64::from(*task) % world.tasks("train").expect("a split");
    let mut env = world.spawn().expect("an instance");
    let mut seen = env.reset(world, Start { split: "train", task, seed: 0 }).expect("a start");
    for part in rest.split(|&byte| byte == 0) {
        consistent(&seen);
        let text = String::from_utf8_lossy(part);
        assert_eq!(
            parse(&text),
            REGEX.captures(&text).map(|found| found.extract()).map(|(_, [a, b])| (a, b)),
            "{text:?}"
        );
        let action = match part {
            [place] => {
                env.response(world, &seen.admissible[usize::from(*place) % seen.admissible.len()]).expect("a response")
            }
            _ => text.into_owned(),
        };
        let next = env.step(world, &action).expect("an observation");
        if parse(&next.action).is_none() {
            assert_eq!(next.text, seen.text, "{action:?} is no action");
        }
        seen = next;
        if seen.terminated || seen.truncated {
            break;
        }
    }
    consistent(&seen);
    let state = env.save(world).expect("a state");
    let mut other: Play = world.spawn().expect("an instance");
    other.load(world, &state).expect("the same state");
    if seen.terminated || seen.truncated {
        return assert!(other.step(world, "search[x]").is_err());
    }
    let [a, b] = [&mut env, &mut other].map(|play| play.step(world, "search[a b]").expect("an observation"));
    assert!(a == b, "a loaded state plays differently");
}

/// Damages the files of an index: each five bytes are a kind, a place and a value. Nothing may panic.
pub fn index(data: &[u8]) {
    const NAMES: [&str; 2] = ["products.bin", "search.bin"];
    static BUILT: LazyLock<(TempDir, [Vec<u8>; 2])> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let spec = Spec { products: 40, seed: 2, size: Size::Real };
        generate::write(folder.path(), &spec, |_| ()).expect("a catalogue");
        let at = folder.path().join("nestor_index");
        let files = Files::find(folder.path(), false).expect("three files");
        index::build(&files, &at, &mut |_| ()).expect("an index");
        let bytes = NAMES.map(|name| fs::read(at.join(name)).expect("a file of the index"));
        (folder, bytes)
    });
    let (source, whole) = &*BUILT;
    let folder = tempfile::tempdir().expect("a folder");
    let mut files = whole.clone();
    let (edits, _) = data.as_chunks::<5>();
    for &[kind, a, b, c, value] in edits {
        let bytes = &mut files[usize::from(kind & 1)];
        let place = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
        let place = place % bytes.len().max(1);
        // Half of the edits count from the end, where the tables are.
        let place = if kind & 2 == 0 { place } else { bytes.len().saturating_sub(1 + place) };
        match bytes.get_mut(place) {
            Some(_) if kind == 255 => bytes.truncate(place),
            Some(byte) => *byte = value,
            None => {}
        }
    }
    let at = folder.path().join("index");
    fs::create_dir(&at).expect("a folder");
    // The checksums fit the damage, so that it comes to the code behind them.
    let about = fs::read(source.path().join("nestor_index/index.json")).expect("a file");
    let mut about: Value = serde_json::from_slice(&about).expect("JSON");
    for (name, bytes) in NAMES.iter().zip(&files) {
        fs::write(at.join(name), bytes).expect("a file");
        let sum = json!({"bytes": bytes.len(), "crc32": crc32fast::hash(bytes)});
        about[name.trim_end_matches(".bin")] = sum;
    }
    fs::write(at.join("index.json"), about.to_string()).expect("a file");
    let config = Config {
        data: Some(source.path().into()),
        index: Some(at),
        raw_commands: true,
        max_steps: Some(15),
        ..Config::default()
    };
    match WebShop::open(config) {
        Ok(world) => play_some(&world, data),
        Err(error) => told(&error),
    }
}

/// Text, things to click and score of an observation fit each other.
fn consistent(seen: &Observation) {
    let score = seen.metrics["task_score"];
    assert!((0.0..=1.0).contains(&score), "score {score}");
    assert_eq!(seen.reward, if score == 1.0 { 10.0 } else { 0.0 });
    assert_eq!(seen.info["task_score"], score);
    assert_eq!(seen.info["won"], score == 1.0);
    assert_eq!(seen.terminated, seen.info.contains_key("bought"));
    assert_eq!(seen.terminated, seen.admissible.is_empty());
    let Some(actions) = seen.info.get("available_actions") else { return };
    assert_eq!(seen.terminated, actions.is_null());
    let Some(clickables) = actions["clickables"].as_array() else { return };
    assert_eq!(actions["has_search_bar"], seen.text.starts_with("WebShop [SEP] "));
    let page = seen.text.to_lowercase();
    for text in clickables {
        let text = text.as_str().expect("a text").to_lowercase();
        assert!(page.contains(text.trim()), "{text:?} is not on the page: {page}");
    }
}

/// A message for the user, whatever the files have in them.
fn told(error: &anyhow::Error) {
    let text = format!("{error:#}");
    assert!(!text.is_empty());
}
