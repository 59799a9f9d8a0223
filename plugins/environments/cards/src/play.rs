//! Plays episodes: responses in, observations out.

use anyhow::{Context, Result};
use nestor_plugin::{Expert, Instance, Observation, Replay, Replayed, Snapshot, Start, parse};

use crate::Cards;
use crate::expert::{self, Plan};
use crate::game::Game;
use crate::picture;

fn observe(world: &Cards, game: &Game) -> Result<Observation> {
    let Cards { observation, size, .. } = *world;
    let shown = observation.show(game.text(), game.caption(), || picture::draw(game, size))?;
    let shown = if world.blank { shown.blanked()? } else { shown };
    let mut info = game.info();
    info.insert("won".into(), false.into());
    Ok(Observation {
        text: shown.text,
        images: shown.images,
        anchor: shown.anchor,
        task: game.task(),
        admissible: game.admissible(observation),
        valid: true,
        info,
        ..Observation::default()
    })
}

/// One instance.
#[derive(Default)]
pub struct Play {
    episode: Replayed<Episode>,
}

struct Episode {
    game: Game,
    plan: Plan,
}

impl Replay for Episode {
    type World = Cards;
    /// The place in the game's list of actions.
    type Action = usize;

    fn start(world: &Cards, split: &str, task: u64) -> Result<Episode> {
        Ok(Episode { game: world.game(split, task)?, plan: Plan::default() })
    }

    fn play(&mut self, world: &Cards, place: usize) -> Result<Observation> {
        let action = *self.game.actions().get(place).context("the game has no such action")?;
        let outcome = self.game.step(action);
        let mut seen = observe(world, &self.game)?;
        seen.action = action.into();
        seen.reward = outcome.reward;
        seen.terminated = outcome.terminated;
        seen.truncated = outcome.truncated;
        seen.info.insert("won".into(), outcome.won.into());
        Ok(seen)
    }
}

impl Instance for Play {
    type World = Cards;

    fn reset(&mut self, world: &Cards, start: Start<'_>) -> Result<Observation> {
        observe(world, &self.episode.start(world, start)?.game)
    }

    /// A response that names no action, or several, changes nothing.
    fn step(&mut self, world: &Cards, response: &str) -> Result<Observation> {
        let game = &self.episode.running()?.game;
        let read = if world.raw_commands { parse::raw_action } else { parse::json_action };
        match read(game.actions(), response) {
            Some(place) => self.episode.play(world, place),
            None => Ok(Observation { valid: false, ..observe(world, game)? }),
        }
    }
}

impl Expert for Play {
    fn next_action(&mut self, _world: &Cards) -> Result<String> {
        let Episode { game, plan } = self.episode.running()?;
        let action = match game {
            Game::Points(points) => plan.next_action(points),
            Game::Blackjack(blackjack) => expert::blackjack(blackjack),
            Game::NumberLine(line) => expert::numberline(line),
        };
        Ok(action.into())
    }

    fn response(&self, world: &Cards, action: &str) -> Result<String> {
        Ok(if world.raw_commands { action.into() } else { format!("{{\"action\": \"{action}\"}}") })
    }
}

impl Snapshot for Play {
    fn save(&self, _world: &Cards) -> Result<Vec<u8>> {
        self.episode.save()
    }

    fn load(&mut self, world: &Cards, state: &[u8]) -> Result<()> {
        self.episode.load(world, state)
    }
}
