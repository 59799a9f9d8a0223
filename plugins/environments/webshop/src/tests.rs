use std::fs;

use nestor_plugin::{Expert, Instance, Observation, Start};
use serde_json::{Value, json};

use super::generate::{self, Size, Spec};
use super::goal::Options;
use super::play::REWARD;
use super::*;

fn open(config: Value) -> Result<WebShop> {
    WebShop::open(nestor_plugin::parse_config(&config.to_string())?)
}

/// The shop of the fixtures with its goals and prices, and further keys.
fn shop(more: Value) -> WebShop {
    let fixtures = fixtures::unpack();
    let at = |name: &str| fixtures.path().join(name);
    let mut config = json!({"data": at("data"), "goals": at("goals.json"), "prices": at("prices.json")});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    open(config).unwrap()
}

fn start(split: &str, task: u64) -> Start<'_> {
    Start { split, task, seed: 0 }
}

#[test]
fn recorded_traces_step_by_step() {
    for (file, trace) in fixtures::traces::<Value>(&fixtures::unpack()) {
        let world = shop(json!({"goal": trace["goal_index"], "raw_commands": true}));
        let mut play = world.spawn().unwrap();
        let mut last = Observation::default();
        for step in trace["steps"].as_array().unwrap() {
            last = match step["action"].as_str() {
                None => play.reset(&world, start("eval", 0)).unwrap(),
                Some(action) => play.step(&world, action).unwrap(),
            };
            let place = format!("{file}, {}", step["action"]);
            assert_eq!(step["observation"], last.text, "{place}");
            assert_eq!(step["available_actions"], last.info["available_actions"], "{place}");
            assert_eq!(step["done"], last.terminated, "{place}");
            assert!((step["reward"].as_f64().unwrap() - last.metrics["task_score"]).abs() < 1e-6, "{place}");
        }
        for (name, part) in trace["reward_info"].as_object().into_iter().flatten() {
            let same = match part.as_f64() {
                Some(number) => (number - last.info[name].as_f64().unwrap()).abs() < 1e-6,
                None => *part == last.info[name],
            };
            assert!(same, "{file}: {name} is {}, not {part}", last.info[name]);
        }
        if last.terminated {
            assert_eq!((&trace["asin"], &trace["options"]), (&last.info["bought"], &last.info["options"]));
        }
    }
}

#[test]
fn the_expert_buys_what_each_goal_asks_for() {
    let world = shop(json!({"held_out": 0}));
    let mut play = world.spawn().unwrap();
    let goals = world.tasks("train").unwrap();
    let mut won = 0;
    for task in 0..goals {
        let mut seen = play.reset(&world, start("train", task)).unwrap();
        while !seen.terminated && !seen.truncated {
            let action = play.next_action(&world).unwrap();
            let response = play.response(&world, &action).unwrap();
            seen = play.step(&world, &response).unwrap();
            assert!(seen.valid && seen.action == action);
        }
        won += u64::from(seen.reward == REWARD);
    }
    assert!(won * 100 >= goals * 95, "{won} of {goals}");
}

#[test]
fn own_goals_and_prices_do_not_depend_on_the_order_of_the_files() {
    let (fixtures, folder) = (fixtures::unpack(), tempfile::tempdir().unwrap());
    let recorded = fixtures.path().join("data");
    for name in ["items_ins_v2.json", "items_human_ins.json"] {
        fs::copy(recorded.join(name), folder.path().join(name)).unwrap();
    }
    let mut items: Value = fixtures::read(recorded.join("items_shuffle.json"));
    items.as_array_mut().unwrap().reverse();
    fs::write(folder.path().join("items_shuffle.json"), items.to_string()).unwrap();
    for human in [false, true] {
        let worlds =
            [recorded.as_path(), folder.path()].map(|data| open(json!({"data": data, "human_goals": human})).unwrap());
        let goals = worlds.each_ref().map(|world| {
            (0..world.tasks("eval").unwrap()).map(|task| world.choose("eval", task).unwrap().1).collect::<Vec<_>>()
        });
        assert_eq!(goals[0], goals[1]);
        assert!(!goals[0].is_empty());
    }
}

/// The text of a goal and its range of prices, as the original's exported goals have them.
#[test]
fn own_synthetic_goals_have_the_form_of_exported_ones() {
    let listed: Value = fixtures::read(fixtures::unpack().path().join("goals.json"));
    let world = shop(json!({}));
    let own = Goals::Own { human: false };
    assert_eq!(own.len(&world.catalogue), listed.as_array().unwrap().len() as u64);
    let form = |goal: &Goal| {
        let text = goal.instruction_text.split(", and price lower").next().unwrap().to_owned();
        (text, goal.asin.clone(), goal.attributes.clone(), goal.goal_options.clone(), goal.query.clone())
    };
    let mut ours: Vec<_> = (0..own.len(&world.catalogue)).map(|n| own.get(&world.catalogue, n).unwrap()).collect();
    let mut theirs: Vec<Goal> = serde_json::from_value(listed).unwrap();
    for goals in [&mut ours, &mut theirs] {
        goals.sort_by_key(|goal| (goal.asin.clone(), goal.instruction_text.clone()));
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = (ours.iter().map(form).collect(), theirs.iter().map(form).collect());
    assert_eq!(ours, theirs);
}

#[test]
fn an_index_plays_as_the_files_do_and_is_refused_when_it_is_stale_or_cut() {
    let folder = fixtures::unpack();
    let data = &folder.path().join("data");
    let config = || json!({"data": data, "raw_commands": true});
    let files = Files::find(data, false).unwrap();
    let episode = |world: &WebShop| {
        let mut play = world.spawn().unwrap();
        let first = play.reset(world, start("train", 3)).unwrap();
        let found = play.step(world, "search[red shoes]").unwrap();
        let click = found.admissible.last().unwrap().clone();
        [first, found, play.step(world, &click).unwrap(), play.step(world, "click[buy now]").unwrap()]
    };
    let in_memory = episode(&open(config()).unwrap());
    let at = index::beside(data, &files);
    index::build(&files, &at, &mut |_| ()).unwrap();
    assert!(episode(&open(config()).unwrap()) == in_memory);

    let refusal = || format!("{:#}", open(config()).err().expect("the index is refused"));
    for name in ["products.bin", "search.bin", "index.json"] {
        let whole = fs::read(at.join(name)).unwrap();
        let mut altered = whole.clone();
        altered[whole.len() / 2] ^= 0x80;
        for damaged in [&altered[..], &[], &whole[..1], &whole[..whole.len() / 2], &whole[..whole.len() - 1]] {
            fs::write(at.join(name), damaged).unwrap();
            assert!(refusal().contains("make the index again with `nestor-webshop index`: "), "{}", refusal());
        }
        fs::write(at.join(name), whole).unwrap();
    }
    let about = fs::read_to_string(at.join("index.json")).unwrap();
    fs::write(at.join("index.json"), about.replace("\"version\": 2", "\"version\": 1")).unwrap();
    assert!(refusal().contains("`nestor-webshop index`: the index has version 1, this program 2"), "{}", refusal());
    fs::write(at.join("index.json"), about).unwrap();
    let items = fs::read_to_string(&files.items).unwrap();
    fs::write(&files.items, items.replace("Kitto", "Other")).unwrap();
    assert!(refusal().contains("not the one that the index was made of"), "{}", refusal());
    // A copy with the same bytes belongs to the index.
    fs::write(&files.items, items).unwrap();
    open(config()).unwrap();
}

/// The rest of a command that was killed, and several commands and runs at once.
#[test]
fn an_index_is_made_by_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { products: 300, seed: 1, size: Size::Small };
    generate::write(folder.path(), &spec, |_| ()).unwrap();
    let files = Files::find(folder.path(), false).unwrap();
    let at = index::beside(folder.path(), &files);
    let partial = at.with_file_name("nestor_index.partial");
    for rest in [&at, &partial] {
        fs::create_dir(rest).unwrap();
        fs::write(rest.join("products.bin"), "half").unwrap();
    }
    let refused = format!("{:#}", index::open(&at, &files).err().unwrap());
    assert!(refused.contains("make the index again with `nestor-webshop index`: it has no index.json"), "{refused}");
    let built = index::build(&files, &at, &mut |_| ()).unwrap();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (files, at) = (&files, &at);
            scope.spawn(move || match number % 2 {
                0 => assert!(index::build(files, at, &mut |_| ()).unwrap() == built),
                _ => (0..20).for_each(|_| assert!(index::open(at, files).unwrap().store.products() == 300)),
            });
        }
    });
    assert!(!partial.exists());
}

/// `json.load` of Python reads these numbers, and the original tests `if product["customization_options"]`.
#[test]
fn products_are_read_as_python_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("items_human_ins.json", "{}");
    let ask = r#"{"attributes": ["a"], "instruction": "find", "instruction_attributes": ["a"]}"#;
    write("items_ins_v2.json", &format!(r#"{{"B000000001": {ask}}}"#));
    for more in [
        r#""rating": NaN"#,
        r#""rating": [NaN, Infinity, -Infinity, -1.5]"#,
        r#""rating": {"NaN": "NaN \\\" Infinity"}, "rank": NaN"#,
        r#""customization_options": """#,
        r#""customization_options": null"#,
        r#""customization_options": []"#,
        r#""customization_options": 0"#,
        r#""customization_options": false"#,
        r#""customization_options": {"size": null}"#,
        r#""full_description": null, "small_description": [], "pricing": """#,
    ] {
        write("items_shuffle.json", &format!(r#"[{{"asin": "B000000001", "name": "A NaN \"N", {more}}}]"#));
        let opened = open(json!({"data": folder.path()}));
        assert!(opened.is_ok(), "{more}: {:#}", opened.err().unwrap());
    }
}

#[test]
fn bad_input_has_one_clear_message() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let item = |more: &str| format!(r#"[{{"asin": "B000000001", "name": "A", "customization_options": {{}}{more}}}]"#);
    let instruction =
        r#"{"B000000001": {"attributes": ["a"], "instruction": "find", "instruction_attributes": ["a"]}}"#;
    write("items_human_ins.json", "{}");
    let refusal = |config: Value| format!("{:#}", open(config).err().expect("refused"));
    let data = json!({"data": folder.path()});
    assert!(refusal(data.clone()).contains("no items_shuffle_1000.json or items_shuffle.json"));
    write("items_shuffle.json", &item(""));
    assert!(refusal(data.clone()).contains("items_ins_v2.json: the file is missing"));
    write("items_ins_v2.json", instruction);
    let cases = [
        (
            "[{\"asin\": \"B000000001\"}, {\"asin\": 3}]",
            "items_shuffle.json: product 1, field `asin`: invalid type: integer `3`, expected a string at line 1",
        ),
        ("[{\"asin\": \"B000000001\"}", "EOF while parsing a list at line 1 column 23"),
        ("{}", "expected a list of products"),
        ("[]", "items_shuffle.json: the catalogue is empty"),
        (&item(r#", "pricing": "cheap""#), "product 0 (\"B000000001\"): the price \"cheap\" is no"),
        (&item(r#", "full_description": NaN"#), "product 0, field `full_description`: invalid type"),
        (&item(r#", "small_description": {"a": 1}"#), "product 0, field `small_description`: "),
        (&item(r#", "rating": Nan"#), "expected"),
    ];
    let wrong = item("").replace(r#""customization_options": {}"#, r#""customization_options": [3]"#);
    let options = "product 0, field `customization_options`: [3] in place of an object of options";
    for (items, message) in cases.into_iter().chain([(wrong.as_str(), options)]) {
        write("items_shuffle.json", items);
        assert!(refusal(data.clone()).contains(message), "{}", refusal(data));
    }
    write("items_shuffle.json", &item(""));
    write("items_ins_v2.json", "{}");
    assert!(refusal(data.clone()).contains("there are no goals"));
    write("items_ins_v2.json", instruction);
    let goals = |goals: &str| {
        write("goals.json", goals);
        refusal(json!({"data": folder.path(), "goals": folder.path().join("goals.json")}))
    };
    let goal = |asin: &str, attributes: &str| {
        format!(
            r#"[{{"asin": "{asin}", "query": "", "name": "", "product_category": "", "instruction_text": "x",
                "attributes": {attributes}, "price_upper": 10, "goal_options": {{}}}}]"#
        )
    };
    assert!(goals(&goal("B999", "[\"a\"]")).contains("goals.json: goal 0: the catalogue has no product `B999`"));
    assert!(goals(&goal("B000000001", "[]")).contains("goal 0: the goal has no attributes"));
    assert!(goals("[{]").contains("goals.json: key must be a string at line 1 column 3"));
    write("prices.json", "{}");
    let prices = refusal(json!({"data": folder.path(), "prices": folder.path().join("prices.json")}));
    assert!(prices.contains("prices.json: product B000000001 has no price"), "{prices}");
    assert!(refusal(json!({"data": folder.path(), "goal": 1})).contains("goal 1: there are 1 goals"));
    assert!(refusal(json!({"data": folder.path(), "held_out": 1})).contains("leave some to train on"));
}

/// Odd actions change nothing, or are answered as the engine would.
#[test]
fn odd_actions_are_no_action() {
    let world = shop(json!({"raw_commands": true}));
    let mut play = world.spawn().unwrap();
    let first = play.reset(&world, start("train", 0)).unwrap();
    let long = format!("click[{}]", "x".repeat(100_000));
    for action in ["", "buy", "click[]", "click[search]", "search[", "\u{0}", "\u{1b}[2J", "click[\u{202e}]", &long] {
        let seen = play.step(&world, action).unwrap();
        assert_eq!(seen.text, first.text, "{action:?}");
    }
    let found = play.step(&world, &format!("search[{}]", "red shoes ".repeat(10_000))).unwrap();
    assert!(found.text.contains("Page 1"));
}

#[test]
fn the_policy_reads_the_page_without_the_instruction() {
    let world = shop(json!({}));
    let mut play = world.spawn().unwrap();
    let first = play.reset(&world, start("train", 0)).unwrap();
    assert_eq!((first.text.as_str(), first.anchor.as_slice()), ("'Search'", b"'Search'".as_slice()));
    assert_eq!(first.admissible, ["search[<your query>]", "click[search]"]);
    let found = play.step(&world, "<think></think><action>Search[Dress]</action>").unwrap();
    assert!(found.text.starts_with("'Back to Search' [SEP] 'Page 1 (Total results: "), "{}", found.text);
    assert_eq!((found.action.as_str(), found.valid), ("search[dress]", true));
    assert!(!found.text.contains(&first.task));
    let odd = play.step(&world, "no tags in this long answer").unwrap();
    assert_eq!((odd.action.as_str(), odd.valid, odd.anchor), (" in this long answer", false, found.anchor));
}

/// Plays the first 1,000 goals of a generated shop, and returns each with its last observation.
fn play_1000(policy: impl Fn(&WebShop, &mut Play, &Observation, u64) -> String) -> Vec<(Goal, Observation)> {
    let world =
        open(json!({"generate": {"products": 1000}, "held_out": 1000, "max_steps": 15, "raw_commands": true})).unwrap();
    let mut play = world.spawn().unwrap();
    let episode = |task| {
        let mut seen = play.reset(&world, start("eval", task)).unwrap();
        for step in 0.. {
            if seen.terminated || seen.truncated {
                break;
            }
            let action = policy(&world, &mut play, &seen, draw::hash("a test's policy", &[&format!("{task}/{step}")]));
            seen = play.step(&world, &action).unwrap();
        }
        (world.choose("eval", task).unwrap().1, seen)
    };
    (0..1000).map(episode).collect()
}

fn mean_score(episodes: &[(Goal, Observation)]) -> f64 {
    episodes.iter().map(|(_, seen)| seen.metrics["task_score"]).sum::<f64>() / episodes.len() as f64
}

/// A value is taken for the first colour inside it (`tan` in `standard`), which the goal's words do not resemble.
#[test]
fn the_expert_loses_few_generated_goals_and_only_those_with_a_colour_in_an_option() {
    let episodes = play_1000(|world, play, _, _| play.next_action(world).unwrap());
    let lost: Vec<_> = episodes.iter().filter(|(_, seen)| seen.reward != REWARD).collect();
    println!("{} of 1,000 goals lost, mean score {:.3}", lost.len(), mean_score(&episodes));
    assert!(lost.len() <= 50, "{}", lost.len());
    for (goal, seen) in lost {
        let Options::Named(wanted) = &goal.goal_options else { panic!("a synthetic goal names its options") };
        let coloured: Vec<_> = wanted.iter().filter(|(_, value)| reward::normalize_color(value) != value).collect();
        println!("{coloured:?}");
        let right =
            [("bought", json!(goal.asin)), ("r_type", json!(1.0)), ("r_att", json!(1.0)), ("r_price", json!(true))];
        let right = right.iter().all(|(name, value)| seen.info[*name] == *value);
        assert!(right && !coloured.is_empty(), "{}: {:?}", goal.instruction_text, seen.info);
    }
}

#[test]
fn doing_nothing_and_buying_at_random_score_next_to_nothing() {
    assert_eq!(mean_score(&play_1000(|_, _, _, _| String::new())), 0.0);
    let episodes = play_1000(|world, _, seen, dice| match seen.admissible[0].as_str() {
        "search[<your query>]" => format!("search[{}]", world.choose("train", dice % 1000).unwrap().1.query),
        _ => seen.admissible[(dice % seen.admissible.len() as u64) as usize].clone(),
    });
    let bought = episodes.iter().filter(|(_, seen)| seen.terminated).count();
    assert!(bought > 400 && mean_score(&episodes) < 0.1, "{bought} bought, mean score {}", mean_score(&episodes));
}
