//! Compares with recorded games of the Python engine (alfworld 0.4.2, textworld 1.7.0; tests/fixtures/alfworld). Each
//! file has a problem and the engine's answer to every command. Domain and grammar come from the installed package.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nestor_plugin::{Environment, Expert, Instance, Observation, Start};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::engine::{Game, GameFile};
use crate::games::Split;
use crate::generate::{Package, Size, generate};
use crate::task_type::TaskType;
use crate::{AlfWorld, Play, walkthrough};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn package() -> Package {
    Package::read(&root().join(Package::PATH)).unwrap()
}

fn open(config: Value) -> anyhow::Result<AlfWorld> {
    AlfWorld::open(nestor_plugin::parse_config(&config.to_string())?)
}

fn begin(world: &AlfWorld, split: &str, task: u64) -> (Play, Observation) {
    let mut play = world.spawn().unwrap();
    let first = play.reset(world, Start { split, task, seed: 0 }).unwrap();
    (play, first)
}

fn say(action: &str) -> String {
    format!("<think>so</think><action>{action}</action>")
}

/// Returns the recorded games, each with the game folder that it is written to.
fn recorded(dir: &Path) -> Vec<(Value, PathBuf)> {
    let package = package();
    let files = fs::read_dir(root().join("tests/fixtures/alfworld")).unwrap();
    let mut games = Vec::new();
    for file in files {
        let record: Value = serde_json::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
        let grammar = package.grammar.replace("UNKNOWN GOAL", record["sentence"].as_str().unwrap());
        let game = json!({
            "pddl_domain": package.domain, "grammar": grammar, "pddl_problem": record["problem"], "solvable": true,
        });
        let folder = dir.join(record["name"].as_str().unwrap()).join("trial_T0");
        write_game(&folder, &game, &record["task_type"]);
        games.push((record, folder.join("game.tw-pddl")));
    }
    assert_eq!(games.len(), 6);
    games
}

fn write_game(folder: &Path, game: &Value, task_type: &Value) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("game.tw-pddl"), game.to_string()).unwrap();
    fs::write(folder.join("traj_data.json"), json!({ "task_type": task_type }).to_string()).unwrap();
}

/// Plays recorded commands and compares every answer; returns the number of records.
fn replay(world: &AlfWorld, record: &Value, episode: &Value, response: impl Fn(&str) -> String) -> usize {
    let (mut play, mut seen) = begin(world, "train", 0);
    let (mut admissible, mut count) = (Vec::new(), 0);
    for step in episode["steps"].as_array().unwrap() {
        if let Some(command) = step[0].as_str() {
            seen = play.step(world, &response(command)).unwrap();
        }
        if let Some(numbers) = step[2].as_array() {
            let command = |n: &Value| record["commands"][n.as_u64().unwrap() as usize].as_str().unwrap();
            admissible = numbers.iter().map(command).collect();
        }
        let place = format!("{} {} record {count} after {}", record["name"], episode["policy"], step[0]);
        assert_eq!(seen.text, step[1], "{place}");
        assert_eq!(seen.admissible, admissible, "{place}");
        assert_eq!(seen.anchor, seen.text.as_bytes());
        let won = step[3].as_bool().unwrap();
        assert_eq!(
            (seen.terminated, seen.truncated, seen.reward),
            (won, false, if won { 10.0 } else { 0.0 }),
            "{place}"
        );
        assert_eq!((&seen.info["won"], &seen.info["task_type"]), (&json!(won), &record["task_type"]), "{place}");
        count += 1;
        if won {
            break;
        }
    }
    count
}

#[test]
fn replays_recorded_games() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = 0;
    for (record, path) in recorded(dir.path()) {
        let raw = open(json!({ "games": path, "raw_commands": true })).unwrap();
        let tagged = open(json!({ "games": path, "max_steps": 1000 })).unwrap();
        for episode in record["episodes"].as_array().unwrap() {
            records += replay(&raw, &record, episode, str::to_owned);
            // A tagged answer is read in lower case; recorded random commands may have capitals.
            if ["planner", "handcoded_expert"].contains(&episode["policy"].as_str().unwrap()) {
                replay(&tagged, &record, episode, say);
            }
        }
    }
    assert!(records > 1400, "{records}");
}

#[test]
fn other_wordings_are_read_from_the_file() {
    // The older data's wording.
    let mut package = package();
    for (new, old) in [("move {o} to {r}", "put {o} in/on {r}"), ("You arrive at {r.name}.", "You arrive at loc 12.")] {
        assert!(package.grammar.contains(new));
        package.grammar = package.grammar.replace(new, old);
    }
    let game = Game::new(&generate(TaskType::PickHeat, Size::Small, 3).content(&package)).unwrap();
    let commands = walkthrough(&game).unwrap();
    assert!(
        commands.last().unwrap().starts_with("put ") && commands.last().unwrap().contains(" in/on "),
        "{commands:?}"
    );
    let said = game.play().unwrap().step(&game, &commands[0]).unwrap();
    assert!(said.starts_with("You arrive at loc 12. "), "{said}");
}

#[test]
fn an_impossible_command_changes_nothing() {
    let world = open(json!({ "generate": { "size": "small", "package": root().join(Package::PATH) } })).unwrap();
    let (mut play, first) = begin(&world, "train", 0);
    let shelf = first.admissible[0].clone();
    for action in [
        "",
        "go",
        "GO TO SHELF 1",
        "go  to",
        "fly to the moon",
        &format!("{shelf}\0"),
        &format!("{shelf}\u{7f}"),
        "\u{1b}[2J",
        "\u{202e}kool",
        &"go to ".repeat(20_000),
        "{r.name}",
        "look\nlook",
    ] {
        let seen = play.step(&world, &format!("<think></think><action>{action}</action>")).unwrap();
        assert_eq!((seen.text.as_str(), seen.reward, seen.valid), ("Nothing happens.", 0.0, true));
        assert_eq!(seen.admissible, first.admissible);
    }
    // Without tags the end of the answer is the action, and not valid.
    let seen = play.step(&world, &format!("I shall {shelf}")).unwrap();
    assert!(!seen.valid && seen.action.len() <= 30 && seen.text == "Nothing happens.");
    // Blanks around a command are ignored.
    assert_ne!(play.step(&world, &say(&format!(" \u{1c}{shelf}\u{a0}\n"))).unwrap().text, "Nothing happens.");
}

#[test]
fn episodes_are_cut_after_fifty_steps_unless_commands_are_raw() {
    let package = root().join(Package::PATH);
    for (raw, limit, steps) in [(false, None, 50), (true, None, 120), (true, Some(7), 7), (false, Some(60), 60)] {
        let generate = json!({ "size": "small", "package": package });
        let world = open(json!({ "generate": generate, "raw_commands": raw, "max_steps": limit })).unwrap();
        let (mut play, _) = begin(&world, "train", 0);
        for step in 1..=120 {
            let seen = play.step(&world, &say("look")).unwrap();
            assert_eq!(seen.truncated, step == steps && (limit.is_some() || !raw), "{raw} {limit:?} {step}");
            if seen.truncated {
                assert!(play.step(&world, "look").is_err());
                break;
            }
        }
    }
}

#[test]
fn the_expert_wins_every_generated_game() {
    let package = package();
    let mut longest = 0;
    for task_type in TaskType::ALL {
        for size in [Size::Small, Size::Real] {
            for seed in 0..50 {
                let game = Game::new(&generate(task_type, size, 1000 + seed).content(&package)).unwrap();
                let commands = walkthrough(&game).unwrap_or_else(|e| panic!("{task_type:?} {size:?} {seed}: {e:#}"));
                longest = longest.max(commands.len());
            }
        }
    }
    assert!((8..=20).contains(&longest), "{longest}");
}

#[test]
fn the_expert_goes_on_from_anywhere() {
    let generate = json!({ "size": "small", "train": 120, "package": root().join(Package::PATH) });
    let world = open(json!({ "generate": generate, "max_steps": 200 })).unwrap();
    let mut dice = ChaCha8Rng::seed_from_u64(5);
    for task in 0..120 {
        let (mut play, mut seen) = begin(&world, "train", task);
        for step in 0..100 {
            if seen.terminated {
                break;
            }
            // Forty steps, most of them random, then the expert alone.
            let action = match (step < 40 && dice.next_u64() % 4 > 0, dice.next_u64() as usize % seen.admissible.len())
            {
                (true, any) => seen.admissible[any].clone(),
                (false, _) => play.next_action(&world).unwrap(),
            };
            let response = play.response(&world, &action).unwrap();
            seen = play.step(&world, &response).unwrap();
            assert!(seen.valid && seen.text != "Nothing happens.", "{action}");
        }
        assert!(seen.terminated, "task {task}: {}", seen.task);
    }
}

#[test]
fn generated_splits_deal_the_task_types_in_turn() {
    let package = root().join(Package::PATH);
    let generate = json!({ "size": "small", "train": 12, "eval": 9, "seed": 4, "package": package });
    let world =
        open(json!({ "generate": generate, "task_types": ["pick_two_obj_and_place", "pick_and_place_simple"] }));
    let world = world.unwrap();
    assert_eq!(Split::ALL.map(|s| world.tasks(s.name()).unwrap()), [12, 9, 9]);
    let mut types = BTreeMap::new();
    let mut intros = Vec::new();
    for split in Split::ALL {
        for task in 0..world.tasks(split.name()).unwrap() {
            let (_, first) = begin(&world, split.name(), task);
            *types.entry(first.info["task_type"].as_str().unwrap().to_owned()).or_insert(0) += 1;
            intros.push(first.info["game"].clone());
        }
    }
    assert_eq!(types.into_values().collect::<Vec<_>>(), [16, 14]);
    let count = intros.len();
    intros.sort_by_key(Value::to_string);
    intros.dedup();
    assert_eq!(intros.len(), count, "a game is in two places");
    assert_eq!(begin(&world, "train", 3).1, begin(&world, "train", 3).1);
}

/// Makes a data folder in the layout of alfworld-download: every reason to leave a game out occurs.
fn data_folder(dir: &Path) {
    let package = package();
    let put = |place: &str, task_type: TaskType, change: fn(&mut Value)| {
        let game = generate(task_type, Size::Small, place.len() as u64);
        let mut file = game.game_file(&package, None);
        change(&mut file);
        write_game(&dir.join(place), &file, &task_type.name().into());
    };
    put("json_2.1.1/train/pick_and_place_simple-B/trial_2", TaskType::PickAndPlace, |_| {});
    put("json_2.1.1/train/pick_and_place_simple-B/trial_1", TaskType::PickAndPlace, |_| {});
    put("json_2.1.1/train/look_at_obj_in_light-A/trial_9", TaskType::LookAtObjInLight, |_| {});
    put("json_2.1.1/train/pick_and_place_with_movable_recep-C/trial_1", TaskType::PickAndPlace, |_| {});
    put("json_2.1.1/train/pick_cool_then_place_in_recep-AppleSliced/trial_1", TaskType::PickCool, |_| {});
    put("json_2.1.1/train/pick_cool_then_place_in_recep-D/trial_1", TaskType::PickCool, |f| {
        f["solvable"] = json!(false)
    });
    put("json_2.1.1/train/pick_cool_then_place_in_recep-D/trial_2", TaskType::PickCool, |f| {
        f["solvable"] = json!(null)
    });
    put("json_2.1.1/train/pick_cool_then_place_in_recep-D/trial_3", TaskType::PickCool, |f| {
        f.as_object_mut().unwrap().remove("solvable");
    });
    // ALFRED has types that ALFWorld does not play.
    put("json_2.1.1/train/pick_clean_then_place_in_recep-F/trial_1", TaskType::PickClean, |_| {});
    fs::write(
        dir.join("json_2.1.1/train/pick_clean_then_place_in_recep-F/trial_1/traj_data.json"),
        json!({ "task_type": "pick_and_place_with_movable_recep" }).to_string(),
    )
    .unwrap();
    // The other archive, unpacked beside it: this game's two files are in two folders.
    put("json_2.1.1/valid_seen/pick_two_obj_and_place-E/trial_1", TaskType::PickTwo, |_| {});
    let other = dir.join("json_2.1.3_tw-pddl/valid_seen/pick_two_obj_and_place-E/trial_1");
    fs::create_dir_all(&other).unwrap();
    let here = dir.join("json_2.1.1/valid_seen/pick_two_obj_and_place-E/trial_1/game.tw-pddl");
    fs::rename(here, other.join("game.tw-pddl")).unwrap();
    fs::write(dir.join("json_2.1.1/train/README"), "not a game").unwrap();
}

#[test]
fn reads_the_data_folder_as_alfred_tw_env_does() {
    let dir = tempfile::tempdir().unwrap();
    data_folder(dir.path());
    let world = open(json!({ "games": dir.path() })).unwrap();
    let names = |world: &AlfWorld, split: &str| {
        let count = world.tasks(split).unwrap();
        let name = |task| begin(world, split, task).1.info["game"].as_str().unwrap().to_owned();
        (0..count).map(name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&world, "train"),
        ["look_at_obj_in_light-A/trial_9", "pick_and_place_simple-B/trial_1", "pick_and_place_simple-B/trial_2"]
    );
    assert_eq!(names(&world, "eval_in_distribution"), ["pick_two_obj_and_place-E/trial_1"]);
    let error = world.tasks("eval_out_of_distribution").unwrap_err().to_string();
    assert!(error.contains("has no games") && error.contains("valid_unseen"), "{error}");
    let error = world.tasks("eval").unwrap_err().to_string();
    assert!(error.contains("`eval` is unknown") && error.contains("eval_in_distribution"), "{error}");
    assert!(world.spawn().unwrap().reset(&world, Start { split: "train", task: 3, seed: 0 }).is_err());

    let light = json!({ "games": dir.path().join("json_2.1.1"), "task_types": ["look_at_obj_in_light"] });
    assert_eq!(names(&open(light).unwrap(), "train"), ["look_at_obj_in_light-A/trial_9"]);
}

#[test]
fn an_unplayable_game_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let package = package();
    let good = generate(TaskType::PickClean, Size::Small, 1).game_file(&package, None);
    let damaged = |key: &str, from: &str, to: &str| {
        let text = good[key].as_str().unwrap();
        assert!(text.contains(from), "{from}");
        let mut game = good.clone();
        game[key] = text.replacen(from, to, 1).into();
        game.to_string().into_bytes()
    };
    let without = |key: &str| {
        let mut game = good.clone();
        game.as_object_mut().unwrap().remove(key);
        game.to_string().into_bytes()
    };
    let mut unsolvable = good.clone();
    unsolvable["solvable"] = false.into();
    let mut empty = good.clone();
    empty["grammar"] = "\n".into();
    let empty = empty.to_string().into_bytes();
    let mut truncated = serde_json::to_vec_pretty(&good).unwrap();
    truncated.truncate(truncated.len() - 20);
    for (content, parts) in [
        (without("grammar"), vec!["game.tw-pddl", "missing field `grammar`"]),
        (empty, vec!["game.tw-pddl", "`grammar` is empty"]),
        (truncated, vec!["game.tw-pddl", "EOF", "line"]),
        (b"{\"pddl_domain\": \xff}".to_vec(), vec!["game.tw-pddl", "not UTF-8", "byte 16"]),
        (unsolvable.to_string().into_bytes(), vec!["game.tw-pddl", "unsolvable"]),
        (damaged("pddl_problem", "(:init", "(:init ("), vec!["pddl_problem", "line", "never closed"]),
        (damaged("pddl_problem", "(:init", "(:inti"), vec!["pddl_problem", "line", ":inti"]),
        (damaged("pddl_problem", "(atLocation agent1", "(atLocation nobody"), vec!["line", "`nobody` is not declared"]),
        (damaged("pddl_problem", "(define", "\u{e9}(define"), vec!["pddl_problem", "line 1", "ASCII"]),
        (damaged("pddl_domain", "(exists (", "(forall ("), vec!["pddl_domain", "line", "`forall`"]),
        (damaged("pddl_domain", "(atLocation ?a ?lStart)", "(atLocation ?b ?lStart)"), vec!["line", "`?b`"]),
        (damaged("pddl_domain", "(atLocation ?a ?lStart)", "(atLocation ?a)"), vec!["line", "`atlocation` with 1"]),
        (damaged("pddl_domain", "(:action look", "(:action stare"), vec!["grammar", "`stare`"]),
        (damaged("grammar", "action look {", "action look ["), vec!["grammar", "line", "`{`"]),
        (damaged("grammar", "\"rhs\": \"TODO\"", "\"rhs\" \"TODO\""), vec!["grammar", "line", "expected"]),
        (damaged("grammar", "#look.feedback#\\n", "#lock.feedback#\\n"), vec!["no rule `lock.feedback`"]),
        (
            damaged("grammar", "holdsany(a:agent)", "holdsany a:agent"),
            vec!["grammar", "inventory.feedback", "holdsany"],
        ),
    ] {
        let path = dir.path().join("game.tw-pddl");
        fs::write(&path, content).unwrap();
        let begin = |world: AlfWorld| world.spawn()?.reset(&world, Start { split: "train", task: 0, seed: 0 });
        let error = format!("{:#}", open(json!({ "games": path })).and_then(begin).unwrap_err());
        assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{parts:?}: {error}");
    }

    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let small = json!({ "size": "small", "package": root().join(Package::PATH) });
    for (config, parts) in [
        (json!({ "games": empty }), vec!["empty", "no game", "game.tw-pddl"]),
        (json!({ "games": dir.path().join("none") }), vec!["none", "No such file"]),
        (json!({ "games": empty, "generate": small }), vec!["exclude each other"]),
        (json!({ "generate": small, "task_types": ["pick_and_place"] }), vec!["task_types", "pick_and_place_simple"]),
        (json!({ "generate": small, "task_types": [] }), vec!["task_types is empty"]),
        (json!({ "generate": small, "max_steps": 0 }), vec!["max_steps"]),
        (json!({ "generate": { "size": "large" } }), vec!["large", "small"]),
        (json!({ "generate": { "size": "small", "package": empty } }), vec!["generate.package", "setup.sh"]),
        (json!({ "game": 1 }), vec!["did you mean `games`"]),
    ] {
        let error = format!("{:#}", open(config).err().unwrap());
        assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{parts:?}: {error}");
    }
}

#[test]
fn the_expert_reports_a_goal_out_of_reach() {
    let mut file = generate(TaskType::PickCool, Size::Small, 1).content(&package());
    file.pddl_problem = file.pddl_problem.replace("FridgeType)", "DresserType)");
    let error = format!("{:#}", walkthrough(&Game::new(&file).unwrap()).unwrap_err());
    assert!(error.contains("no way to win"), "{error}");
    let file = GameFile { pddl_problem: file.pddl_problem.replace("(isCool ?o)", "(isSliced ?o)"), ..file };
    assert!(walkthrough(&Game::new(&file).unwrap()).is_err());
}

#[test]
fn the_default_prompt_shows_the_observation_and_the_last_steps() {
    let world = open(json!({ "generate": { "size": "small", "package": root().join(Package::PATH) } })).unwrap();
    let render = |history: &[minijinja::Value], step: usize, follow_up: bool| {
        let values = minijinja::context! {
            observation => "You see a mug 1.", task => "put a mug in shelf.", admissible => ["go to bed 1", "help", "look"],
            history, step, steps_taken => step - 1, follow_up,
        };
        minijinja::Environment::new().render_str(&world.template(), values).unwrap()
    };
    let now = "The observation now:\nYou see a mug 1.\n\nYour possible actions are:\ngo to bed 1\nlook\n\nReason first";
    // The first observation contains the task.
    let first = render(&[], 1, false);
    assert!(first.contains(&format!("as you can.\n\nStep 1. {now}")) && first.contains("<action>"), "{first}");
    let past = |step| minijinja::context! { step, observation => "SEEN", action => "look" };
    let later = render(&[past(3), past(4)], 5, false);
    let steps = "Task: put a mug in shelf.\n\nSteps taken so far: 4. The latest observations and what you did then:\nStep 3:\nSEEN\n\
                 Action: look\nStep 4:\nSEEN\nAction: look\n\n";
    assert!(later.contains(&format!("{steps}Step 5. {now}")), "{later}");
    assert!(render(&[], 5, false).contains(&format!("Task: put a mug in shelf.\n\nStep 5. {now}")));
    let next = render(&[], 4, true);
    assert!(next.starts_with(&format!("Step 4. {now}")), "{next}");
}
