//! Replays the kept inputs of the fuzz target (`fuzz/seeds`).

#[path = "../fuzz/harness.rs"]
mod harness;

use std::path::Path;

#[test]
fn seeds_of_the_game_reader() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/game");
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).expect("the seeds") {
        let path = seed.expect("a seed").path();
        println!("{}", path.display()); // shown where the next line panics
        harness::game(&std::fs::read(path).expect("a seed"));
        count += 1;
    }
    assert!(count > 5, "{count}");
}

/// The seeds are changes of a game that plays; else they would be changes of nothing.
#[test]
fn the_whole_seed_is_a_game_that_the_expert_wins() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/game/whole.json");
    let file = nestor_alfworld::engine::GameFile::read(&path).expect("a file");
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
