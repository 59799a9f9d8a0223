//! The body of the fuzz target; tests replay the kept inputs with it.

use nestor_alfworld::engine::{Game, GameFile};
use nestor_alfworld::next_command;

/// Separates domain, problem and grammar.
const BETWEEN: &str = "\n=====\n";

/// Reads a game as its file or (so that a mutation need not preserve JSON's quotes) as its three texts. Any input must
/// be refused or be playable.
pub fn game(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = if text.starts_with('{') {
        GameFile::parse(text).ok()
    } else {
        let mut texts = text.split(BETWEEN).map(str::to_owned);
        let mut next = || texts.next().unwrap_or_default();
        Some(GameFile { pddl_domain: next(), pddl_problem: next(), grammar: next(), ..GameFile::default() })
    };
    let Some(game) = file.and_then(|file| Game::new(&file).ok()) else { return };
    let Ok(mut play) = game.play() else { return };
    for step in 0..6 {
        let commands = play.commands();
        let any = data.iter().fold(step, |sum: usize, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let Some(command) = commands.get(any % commands.len().max(1)) else { return };
        let _ = next_command(&game, &play);
        if play.step(&game, command).is_err() || play.won(&game).is_err() {
            return;
        }
        // The answer to an impossible command must not depend on the command.
        assert_eq!(play.step(&game, "\u{0}").ok().as_deref(), Some("Nothing happens."));
    }
}
