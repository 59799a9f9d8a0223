//! Replays the seeds of the fuzz target for game files (`tests/fuzz`).

#[path = "../../../../tests/fuzz/harness/game.rs"]
mod harness;
#[path = "../../../../tests/fuzz/harness/seeds.rs"]
mod seeds;

use std::path::Path;

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

#[test]
fn seeds_of_the_game_reader() {
    let seeds = seeds::seeds(workspace(), "game");
    assert!(seeds.len() > 5, "{}", seeds.len());
    for (name, bytes) in seeds {
        println!("{name}"); // shown where the next line panics
        harness::game(&bytes);
    }
}

/// The seeds are changes of a game that plays; else they would be changes of nothing.
#[test]
fn the_whole_seed_is_a_game_that_the_expert_wins() {
    let seeds = seeds::seeds(workspace(), "game");
    let (_, whole) = seeds.iter().find(|(name, _)| name == "whole.json").expect("the whole game");
    let text = std::str::from_utf8(whole).expect("a text");
    let file = nestor_alfworld::engine::GameFile::parse(text).expect("a file");
    let game = nestor_alfworld::engine::Game::new(&file).expect("a game");
    let commands = nestor_alfworld::walkthrough(&game).expect("a way to win");
    assert_eq!(commands, ["take ball 2 from box 2", "go to box 1", "open box 1", "put ball 2 to box 1"]);
    let mut play = game.play().expect("a start");
    assert_eq!(game.intro, "Hello.\n\nYou face the box 2.\n\nYour task is to: put a ball away.");
    let said = |play: &mut nestor_alfworld::engine::Play, command| play.step(&game, command).expect("an answer");
    assert_eq!(said(&mut play, commands[0].as_str()), "You take ball 2. Gone.");
    assert_eq!(said(&mut play, "go to box 1"), "You go to box 1. It is shut.");
    assert_eq!(said(&mut play, "look"), "You face the box 1, and sinkbasin 1.");
}
