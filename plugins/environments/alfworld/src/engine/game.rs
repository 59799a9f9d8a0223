//! One game: read from its file, then played.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use nestor_plugin::files::{self, SMALL};
use nestor_plugin::parse::strip;
use serde::Deserialize;

use super::facts::{Facts, Object};
use super::formula::{Atom, Formula, Work};
use super::names::names;
use super::query::Binding;
use super::text::Texts;
use super::{grammar, pddl};

/// Most conditions evaluated for one effect's `when`; real ones are a single fact.
const MOST_WORK: usize = 100_000;
/// Response to a command that is not possible.
const NOTHING: &str = "Nothing happens.";

/// The content of a `game.tw-pddl`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct GameFile {
    /// The PDDL domain.
    pub pddl_domain: String,
    /// The texts' grammar; it includes the task's sentence.
    pub grammar: String,
    /// The PDDL problem.
    pub pddl_problem: String,
    /// Commands that win, if recorded.
    #[serde(default)]
    pub walkthrough: Option<Vec<String>>,
    /// Someone won it; `None` if nobody tried.
    #[serde(default)]
    pub solvable: Option<bool>,
}

impl GameFile {
    /// # Errors
    /// A file that cannot be read, is not JSON, or lacks a part; named, with the line.
    pub fn read(path: &Path) -> Result<GameFile> {
        let about = || path.display().to_string();
        let bytes = files::read(path, SMALL).with_context(about)?;
        let text = String::from_utf8(bytes)
            .map_err(|e| anyhow::anyhow!("{}: not UTF-8 (byte {})", path.display(), e.utf8_error().valid_up_to()))?;
        GameFile::parse(&text).with_context(about)
    }

    pub fn parse(text: &str) -> Result<GameFile> {
        let file: GameFile =
            serde_json::from_str(text).context("not a game file (JSON with pddl_domain, grammar, pddl_problem)")?;
        for (key, value) in
            [("pddl_domain", &file.pddl_domain), ("grammar", &file.grammar), ("pddl_problem", &file.pddl_problem)]
        {
            ensure!(
                !value.trim().is_empty(),
                "`{key}` is empty: take the file as alfworld-download or the generator made it"
            );
        }
        Ok(file)
    }
}

/// A game that can be played any number of times.
#[derive(Debug)]
pub struct Game {
    /// Objects, actions, goal.
    pub rules: pddl::Rules,
    texts: Texts,
    start: Facts,
    /// The first text.
    pub intro: String,
}

impl Game {
    /// Makes a game from the content of its file.
    ///
    /// # Errors
    /// A fault in domain, problem or grammar; the message has the line.
    pub fn new(file: &GameFile) -> Result<Game> {
        let (rules, start) = pddl::parse(&file.pddl_domain, &file.pddl_problem)?;
        let source = grammar::parse(&file.grammar).context("grammar")?;
        let names = names(&rules.objects, &start.objects(&rules.arity));
        let texts = Texts::new(&source, &rules, names).context("grammar")?;
        let intro = texts.derive(&texts.intro, &Vec::new(), &start, &rules)?;
        Ok(Game { rules, texts, start, intro })
    }

    /// Returns the sentence of the task, as it occurs in the first text.
    pub fn task(&self) -> &str {
        const MARK: &str = "Your task is to: ";
        self.intro.split_once(MARK).map_or("", |(_, task)| task).trim()
    }

    /// Starts to play.
    pub fn play(&self) -> Result<Play> {
        let mut play = Play { facts: self.start.clone(), operators: Vec::new() };
        play.find_operators(self)?;
        ensure!(!play.operators.is_empty(), "no command is possible at the start");
        Ok(play)
    }
}

/// An action with objects for its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Number of the action.
    pub action: usize,
    pub arguments: Vec<Object>,
    /// The command that plays it.
    pub command: String,
}

/// A game being played.
#[derive(Debug, Clone)]
pub struct Play {
    /// The current facts.
    pub facts: Facts,
    /// The actions that are possible now.
    pub operators: Vec<Operator>,
}

impl Play {
    /// Returns the commands that have an effect now: each once, sorted.
    pub fn commands(&self) -> Vec<String> {
        let mut commands: Vec<String> = self.operators.iter().map(|o| o.command.clone()).collect();
        commands.sort_unstable();
        commands.dedup();
        commands
    }

    /// Plays a command and returns the response. A command that is not one of [`Play::commands`], apart from white
    /// space around it, changes nothing.
    pub fn step(&mut self, game: &Game, command: &str) -> Result<String> {
        let command = strip(command);
        let Some(at) = self.operators.iter().position(|o| o.command == command) else { return Ok(NOTHING.to_owned()) };
        let operator = self.operators.swap_remove(at);
        self.apply(game, &operator);
        let texts = &game.texts.actions[operator.action];
        let said = game.texts.derive(&texts.feedback, &binding(game, &operator), &self.facts, &game.rules)?;
        self.find_operators(game)?;
        Ok(said)
    }

    /// Returns true if the goal is reached.
    pub fn won(&self, game: &Game) -> Result<bool> {
        let goal = &game.rules.goal;
        let mut won = false;
        goal.plan.search(&self.facts, &mut vec![0; goal.slots], |_| {
            won = true;
            false
        })?;
        Ok(won)
    }

    /// Applies the effects. All see the state as it was; if a fact is made both true and false, true wins.
    fn apply(&mut self, game: &Game, operator: &Operator) {
        let action = &game.rules.actions[operator.action];
        let mut slots = vec![0; action.slots];
        slots[..operator.arguments.len()].copy_from_slice(&operator.arguments);
        let happens: Vec<_> = action
            .effects
            .iter()
            .filter(|e| {
                let holds = |when: &Formula| when.holds(&self.facts, &mut slots.clone(), &mut Work(MOST_WORK));
                e.when.as_ref().is_none_or(holds)
            })
            .map(|e| (e.holds, e.atom.predicate, e.atom.ground(&slots)))
            .collect();
        for order in [false, true] {
            for (holds, predicate, arguments) in happens.iter().filter(|(holds, ..)| *holds == order) {
                self.facts.set(*predicate, *arguments, *holds);
            }
        }
    }

    fn find_operators(&mut self, game: &Game) -> Result<()> {
        self.operators.clear();
        for (number, action) in game.rules.actions.iter().enumerate() {
            let first = self.operators.len();
            let mut slots = vec![0; action.slots];
            let count = action.parameters.len();
            let mut found: Vec<Vec<Object>> = Vec::new();
            let search = action.plan.search(&self.facts, &mut slots, |slots| {
                if !is_idle(action, slots) {
                    found.push(slots[..count].to_vec());
                }
                true
            });
            search.with_context(|| format!("action `{}`", action.name))?;
            found.sort_unstable();
            found.dedup();
            for arguments in found {
                self.operators.push(Operator { action: number, arguments, command: String::new() });
            }
            for at in first..self.operators.len() {
                let command = &game.texts.actions[number].command;
                let binding = binding(game, &self.operators[at]);
                let command = game.texts.derive(command, &binding, &self.facts, &game.rules)?;
                self.operators[at].command = command;
            }
        }
        Ok(())
    }
}

/// Returns true if every effect of an action is already required by its condition. Such actions (going to the present
/// location) are not offered.
fn is_idle(action: &pddl::Action, slots: &[Object]) -> bool {
    let demanded = |effect: &pddl::Effect| {
        let made = effect.atom.ground(slots);
        let same = |atom: &Atom| atom.predicate == effect.atom.predicate && atom.ground(slots) == made;
        // A fact made both true and false is made true.
        let overruled = !effect.holds && action.effects.iter().any(|e| e.holds && same(&e.atom));
        overruled || action.demands.iter().any(|(atom, holds)| *holds == effect.holds && same(atom))
    };
    action.effects.iter().all(demanded)
}

fn binding(game: &Game, operator: &Operator) -> Binding {
    let variables = &game.texts.actions[operator.action].variables;
    variables.iter().copied().zip(operator.arguments.iter().copied()).collect()
}
