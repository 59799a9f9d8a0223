//! Tests the generated games by their texts alone, and the tables against the installed Python package.

use super::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A problem parsed back from its text.
struct Read<'a> {
    /// Declared symbols, by kind.
    declared: BTreeMap<&'a str, Vec<&'a str>>,
    facts: Vec<Vec<&'a str>>,
    goal: String,
}

impl<'a> Read<'a> {
    fn new(game: &'a Generated) -> Read<'a> {
        let (objects, rest) = game.problem.split_once("(:init").unwrap();
        let (init, goal) = rest.split_once("(:goal").unwrap();
        let mut declared: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for line in objects.lines() {
            if let Some((symbol, kind)) = line.trim().split_once(" - ") {
                declared.entry(kind).or_default().push(symbol);
            }
        }
        let facts = init.lines().filter_map(|line| line.trim().strip_prefix('(')?.strip_suffix(')'));
        Read { declared, facts: facts.map(|fact| fact.split(' ').collect()).collect(), goal: words(goal) }
    }

    /// Returns the arguments of every fact of this predicate.
    fn all(&self, predicate: &str) -> impl Iterator<Item = &[&'a str]> {
        self.facts.iter().filter(move |fact| fact[0] == predicate).map(|fact| &fact[1..])
    }

    fn pairs(&self, predicate: &str) -> Vec<(&'a str, &'a str)> {
        self.all(predicate).map(|arguments| (arguments[0], arguments[1])).collect()
    }
}

/// Reduces every run of white space to one space, and puts one around parentheses.
fn words(text: &str) -> String {
    let text = text.replace('(', " ( ").replace(')', " ) ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn games(seeds: u64) -> impl Iterator<Item = (Size, Generated)> {
    let kinds = TaskType::ALL.into_iter().flat_map(|task| [(task, Size::Small), (task, Size::Real)]);
    kinds.flat_map(move |(task, size)| (0..seeds).map(move |seed| (size, generate(task, size, seed))))
}

fn package_folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.venv/alfworld");
    assert!(folder.exists(), "no {}: run scripts/setup.sh", folder.display());
    folder
}

#[test]
fn every_game_is_sound_can_be_won_and_is_not_won_yet() {
    for (size, game) in games(150) {
        let read = Read::new(&game);
        let context = format!("{} {}", game.name, game.trial);

        let symbols: Vec<&str> = read.declared.values().flatten().copied().collect();
        let known: HashSet<&str> = symbols.iter().copied().collect();
        assert_eq!(symbols.len(), known.len(), "a symbol is declared twice: {context}");
        for fact in &read.facts {
            assert!(fact[1..].iter().all(|symbol| known.contains(symbol)), "{fact:?}: {context}");
        }
        let (receptacles, things) = (read.all("receptacleType").count(), read.all("pickupable").count());
        match size {
            Size::Small => assert!((10..=12).contains(&receptacles) && (8..=10).contains(&things), "{context}"),
            Size::Real => assert!((27..=31).contains(&receptacles) && (40..=60).contains(&things), "{context}"),
        }

        // Every object is where it fits, or came along inside another object.
        let object_type: BTreeMap<_, _> = read.pairs("objectType").into_iter().collect();
        let receptacle_type: BTreeMap<_, _> = read.pairs("receptacleType").into_iter().collect();
        let fits: HashSet<_> = read.pairs("canContain").into_iter().collect();
        let inside: BTreeMap<_, _> = read.pairs("inReceptacleObject").into_iter().collect();
        let lies: BTreeSet<_> = read.pairs("inReceptacle").into_iter().collect();
        for &(object, receptacle) in &lies {
            let at_home = fits.contains(&(receptacle_type[receptacle], object_type[object]));
            let along = inside.get(object).is_some_and(|outer| lies.contains(&(*outer, receptacle)));
            assert!(at_home || along || object_type[object] == "DeskLampType", "{object} in {receptacle}: {context}");
        }

        // The goal agrees with the folder's name and traj_data.json.
        let parts: Vec<&str> = game.name.split('-').collect();
        let [task, object, "None", target, scene] = parts[..] else { panic!("{context}") };
        assert_eq!(task, game.task_type.name());
        assert!(scene.parse::<usize>().is_ok_and(|n| (1..=30).contains(&(n % 100)) && n < 500), "{context}");
        let look = game.task_type == TaskType::LookAtObjInLight;
        let params = &game.traj_data["pddl_params"];
        assert_eq!(game.traj_data["task_type"], task);
        assert_eq!(params["object_target"], object);
        assert_eq!(params[if look { "toggle_target" } else { "parent_target" }], target);

        let of = |class: &str| format!("{class}Type");
        let found: BTreeSet<_> = lies.iter().filter(|(o, _)| object_type[o] == of(object)).map(|(o, _)| *o).collect();
        let needed = if game.task_type == TaskType::PickTwo { 2 } else { 1 };
        assert!(found.len() >= needed, "{} objects: {context}", found.len());
        let takeable: HashSet<_> = read.all("pickupable").map(|o| o[0]).collect();
        assert!(found.iter().all(|o| takeable.contains(o)), "{context}");
        if look {
            assert!(lies.iter().any(|(o, _)| object_type[o] == "DeskLampType"), "no lamp: {context}");
        } else {
            assert!(fits.contains(&(of(target).as_str(), of(object).as_str())), "{context}");
            assert!(receptacle_type.values().any(|t| *t == of(target)), "no target: {context}");
            let done = lies.iter().any(|(o, r)| object_type[o] == of(object) && receptacle_type[r] == of(target));
            assert!(!done, "an object is there already: {context}");
        }
        let (appliance, able) = match game.task_type {
            TaskType::PickClean => ("SinkBasinType", "cleanable"),
            TaskType::PickHeat => ("MicrowaveType", "heatable"),
            TaskType::PickCool => ("FridgeType", "coolable"),
            _ => continue,
        };
        assert!(receptacle_type.values().any(|t| *t == appliance), "no appliance: {context}");
        let able: HashSet<_> = read.all(able).map(|o| o[0]).collect();
        assert!(found.iter().all(|o| able.contains(o)), "{context}");
    }
}

/// Without these, an engine could be wrong on the real data and right on ours.
#[test]
fn the_oddities_of_the_real_data_occur() {
    let (mut shared, mut twice, mut nested, mut scenery, mut opened, mut total) = (0, 0, 0, 0, 0, 0);
    for (_, game) in games(25) {
        let read = Read::new(&game);
        let locations: Vec<_> = read.pairs("receptacleAtLocation").into_iter().map(|(_, l)| l).collect();
        let places: Vec<_> = read.pairs("inReceptacle").into_iter().map(|(o, _)| o).collect();
        let (distinct, placed): (HashSet<_>, HashSet<_>) = (locations.iter().collect(), places.iter().collect());
        shared += usize::from(distinct.len() < locations.len());
        twice += usize::from(placed.len() < places.len());
        nested += usize::from(read.all("inReceptacleObject").count() > 0);
        scenery += usize::from(read.pairs("objectType").iter().any(|(o, _)| !placed.contains(o)));
        opened += usize::from(read.all("openable").count() > 0);
        total += 1;
    }
    for (what, count) in [("shared", shared), ("twice", twice), ("nested", nested)] {
        assert!(count > total / 4 && count < total, "{what}: {count} of {total} games");
    }
    assert_eq!((scenery, opened), (total, total));
}

/// The last number is the games' fingerprint: a change of it changes every recipe's data, so it must be on purpose.
#[test]
fn a_seed_is_one_game_for_good() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    for (_, game) in games(3) {
        let text = [&game.name, &game.trial, &game.sentence, &game.problem].map(String::as_str).concat();
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    let texts: HashSet<String> = games(20).map(|(_, game)| game.problem).collect();
    assert_eq!(texts.len(), 240, "two seeds gave one game");
    assert_eq!(hash, 0x1b98_de07_e774_3330, "{hash:#x}");
}

#[test]
fn the_goals_are_many() {
    for task in TaskType::ALL {
        let goal = |seed| generate(task, Size::Small, seed).name.rsplit_once('-').unwrap().0.to_owned();
        let goals: HashSet<String> = (0..100).map(goal).collect();
        assert!(goals.len() >= 20, "{}: {} goals", task.name(), goals.len());
    }
}

/// Returns the quoted names of a Python dictionary of sets, by key.
fn python_sets(text: &str, name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let (_, body) = text.split_once(&format!("\n{name} = {{")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut key = String::new();
    // The pieces are between quotes and outside them, in turn.
    let pieces: Vec<&str> = body.split('\'').collect();
    for pair in pieces[1..].chunks_exact(2) {
        if pair[1].starts_with(':') {
            key = pair[0].to_owned();
            sets.entry(key.clone()).or_default();
        } else if !pair[0].ends_with("Sliced") {
            sets.entry(key.clone()).or_default().insert(pair[0].to_owned());
        }
    }
    sets
}

#[test]
fn the_tables_are_the_packages() {
    let constants = fs::read_to_string(package_folder().join("gen/constants.py")).unwrap();
    let ours = |list: &str| list.split(' ').filter(|n| !n.is_empty()).map(str::to_owned).collect::<BTreeSet<String>>();
    let holds = python_sets(&constants, "VAL_RECEPTACLE_OBJECTS");
    assert_eq!(holds.len(), 34);
    for (receptacle, things) in &holds {
        // The file copies its `TableTop` to these three.
        let all: &[&str] = match receptacle.as_str() {
            "TableTop" => &["DiningTable", "CoffeeTable", "SideTable"],
            one => &[one],
        };
        for receptacle in all {
            assert_eq!(&ours(tables::things_in(receptacle)), things, "{receptacle}");
        }
    }
    let actions = python_sets(&constants, "VAL_ACTION_OBJECTS");
    assert_eq!(ours(tables::CLEANABLE), actions["Cleanable"]);
    assert_eq!(ours(tables::HEATABLE), actions["Heatable"]);
    assert_eq!(ours(tables::COOLABLE), actions["Coolable"]);
    assert_eq!(ours(tables::TOGGLEABLE), actions["Toggleable"]);
    assert_eq!(ours(tables::SLICEABLE), actions["Sliceable"]);
}

/// Returns one task's entry in `gen/goal_library.py`.
fn library_entry<'a>(library: &'a str, task: &str) -> (String, Vec<&'a str>) {
    let (_, entry) = library.split_once(&format!("gdict[\"{task}\"]")).unwrap();
    let pddl = entry.split("'''").nth(1).unwrap();
    let (_, templates) = entry.split_once("'templates': [").unwrap();
    let (templates, _) = templates.split_once(']').unwrap();
    let templates = templates.split('\'').skip(1).step_by(2).collect();
    (words(&pddl.replace('#', "-").replace("(:goal", "")), templates)
}

#[test]
fn goals_and_sentences_are_the_packages() {
    let library = fs::read_to_string(package_folder().join("gen/goal_library.py")).unwrap();
    let mut said = BTreeSet::new();
    for (_, game) in games(10) {
        let (formula, templates) = library_entry(&library, game.task_type.name());
        let parts: Vec<&str> = game.name.split('-').collect();
        let fill = |text: &str, object: &str, target: &str| {
            text.replace("{obj}", object).replace("{recep}", target).replace("{toggle}", target)
        };
        assert_eq!(Read::new(&game).goal, fill(&formula, parts[1], parts[3]));
        let (object, target) = (parts[1].to_lowercase(), parts[3].to_lowercase());
        let template = templates.iter().find(|t| fill(t, &object, &target) == game.sentence);
        said.insert(*template.unwrap_or_else(|| panic!("{}: {}", game.name, game.sentence)));
    }
    assert_eq!(said.len(), 12, "two sentences for each task: {said:?}");
}

#[test]
fn a_written_game_has_the_packages_texts_and_its_own_task() {
    let package = Package::read(&package_folder()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let game = generate(TaskType::PickHeat, Size::Small, 1);
    let path = game.write(folder.path(), &package, Some(vec!["look".to_owned()])).unwrap();
    assert_eq!(path, folder.path().join(&game.name).join("trial_T000001_small/game.tw-pddl"));

    let read = |path: &Path| serde_json::from_str::<Value>(&fs::read_to_string(path).unwrap()).unwrap();
    let file = read(&path);
    assert_eq!(file["pddl_domain"], package.domain);
    assert_eq!(file["pddl_problem"], game.problem);
    assert_eq!((&file["solvable"], &file["walkthrough"]), (&json!(true), &json!(["look"])));
    let grammar = file["grammar"].as_str().unwrap();
    assert!(grammar.contains(&format!("Your task is to: {}.", game.sentence)));
    assert!(!grammar.contains(package::TASK_PLACE));
    assert_eq!(read(&path.with_file_name("traj_data.json")), game.traj_data);
}

#[test]
fn the_error_of_a_missing_package_has_the_remedy() {
    let error = format!("{:#}", Package::read(Path::new("/nowhere")).unwrap_err());
    assert!(error.contains("/nowhere/data/alfred.pddl") && error.contains("alfworld==0.4.2"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}
