//! A scripted expert that knows the whole state: find the object, take it, clean, heat or cool it, go, open, put; or
//! carry it to the lamp and switch that on. It looks only at the state, so it can continue from anywhere.

use anyhow::{Context, Result, ensure};

use crate::engine::facts::{Arguments, Object};
use crate::engine::formula::{Atom, Formula, Term};
use crate::engine::{Game, Operator, Play};

/// Treatment of an object before it is put down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Treatment {
    /// Predicate that the treatment makes true.
    fact: &'static str,
    action: &'static str,
    /// Type of the receptacle that does it.
    appliance: &'static str,
}

const TREATMENTS: [Treatment; 3] = [
    Treatment { fact: "isclean", action: "cleanobject", appliance: "sinkbasintype" },
    Treatment { fact: "ishot", action: "heatobject", appliance: "microwavetype" },
    Treatment { fact: "iscool", action: "coolobject", appliance: "fridgetype" },
];

/// The goal in the expert's terms.
#[derive(Debug, PartialEq, Eq)]
struct Aim {
    /// Type of the object that is carried.
    object: Object,
    /// Number of objects to carry.
    count: usize,
    treatment: Option<Treatment>,
    /// Type of the receptacle to put them in …
    receptacle: Option<Object>,
    /// … or of the lamp to switch on beside the object.
    lamp: Option<Object>,
}

impl Aim {
    /// Derives the aim from the goal's formula.
    fn of(game: &Game) -> Result<Aim> {
        let mut atoms = Vec::new();
        collect(&game.rules.goal.formula, &mut atoms);
        let named = |name: &str| {
            let number = game.rules.predicates.get(name).copied();
            atoms.iter().copied().filter(move |a| Some(a.predicate) == number)
        };
        let kind_of = |predicate: &str, slot: Term| {
            let typed = named(predicate).find(|a| a.terms[0] == slot)?;
            match typed.terms[1] {
                Term::Object(kind) => Some(kind),
                Term::Slot(_) => None,
            }
        };
        let lamp = named("istoggled").next().map(|a| a.terms[0]);
        let put: Vec<&Atom> = named("inreceptacle").filter(|a| Some(a.terms[0]) != lamp).collect();
        let carried = put.first().map(|a| a.terms[0]).or_else(|| named("holds").next().map(|a| a.terms[1]));
        let carried = carried.context("the expert does not understand the goal: nothing is put or held")?;
        let receptacle = match (lamp, put.first()) {
            (None, Some(put)) => Some(kind_of("receptacletype", put.terms[1]).context("the goal names no receptacle")?),
            _ => None,
        };
        ensure!(
            lamp.is_some() || receptacle.is_some(),
            "the expert does not understand the goal: no place and no lamp"
        );
        Ok(Aim {
            object: kind_of("objecttype", carried).context("the goal names no type of object")?,
            count: put.len().max(1),
            treatment: TREATMENTS.into_iter().find(|t| named(t.fact).any(|a| a.terms[0] == carried)),
            receptacle,
            lamp: lamp.and_then(|lamp| kind_of("objecttype", lamp)),
        })
    }
}

/// Collects the facts that a goal requires.
fn collect<'a>(formula: &'a Formula, atoms: &mut Vec<&'a Atom>) {
    match formula {
        Formula::And(all) => all.iter().for_each(|f| collect(f, atoms)),
        Formula::Exists(_, _, body) => collect(body, atoms),
        Formula::Fact(atom) => atoms.push(atom),
        Formula::Or(_) | Formula::Not(_) | Formula::Same(..) => {}
    }
}

/// Returns the next command of a sequence that wins.
///
/// # Errors
/// A goal that is none of ALFWorld's six, or one that cannot be reached.
pub fn next_command(game: &Game, play: &Play) -> Result<String> {
    let aim = Aim::of(game)?;
    let scene = Scene { game, play };
    let operator =
        scene.next(&aim).context("the expert finds no way to win this game: what its goal needs is not there");
    Ok(operator?.command.clone())
}

/// The current state, under the names of ALFWorld's domain.
#[derive(Clone, Copy)]
struct Scene<'a> {
    game: &'a Game,
    play: &'a Play,
}

impl<'a> Scene<'a> {
    fn facts(self, predicate: &str) -> &'a [Arguments] {
        match self.game.rules.predicates.get(predicate) {
            Some(&number) => self.play.facts.relation(number, true).all(),
            None => &[],
        }
    }

    fn holds(self, predicate: &str, first: Object, second: Option<Object>) -> bool {
        self.facts(predicate).iter().any(|row| row[0] == first && second.is_none_or(|s| row[1] == s))
    }

    /// Returns the first possible operator of an action with these arguments, by the names of the domain's parameters.
    fn operator(self, action: &str, arguments: &[(&str, Object)]) -> Option<&'a Operator> {
        self.play.operators.iter().find(|operator| {
            let schema = &self.game.rules.actions[operator.action];
            let has = |(name, object): &(&str, Object)| {
                let at = schema.parameters.iter().position(|(n, _)| n == name);
                at.is_some_and(|at| operator.arguments[at] == *object)
            };
            schema.name == action && arguments.iter().all(has)
        })
    }

    fn held(self) -> Option<Object> {
        self.facts("holds").first().map(|row| row[1])
    }

    /// Returns true if the agent is at the receptacle.
    fn is_at(self, receptacle: Object) -> bool {
        let here = self.facts("atlocation").first().map(|row| row[1]);
        self.facts("receptacleatlocation").iter().any(|row| row[0] == receptacle && Some(row[1]) == here)
    }

    fn is_closed(self, receptacle: Object) -> bool {
        self.holds("openable", receptacle, None) && !self.holds("opened", receptacle, None)
    }

    /// Goes to the receptacle and opens it, one step at a time; there, plays `action` on the object.
    fn at(self, receptacle: Object, opened: bool, action: &str, object: Object) -> Option<&'a Operator> {
        if !self.is_at(receptacle) {
            return self.operator("gotolocation", &[("r", receptacle)]);
        }
        if opened && self.is_closed(receptacle) {
            return self.operator("openobject", &[("r", receptacle)]);
        }
        self.operator(action, &[("o", object), ("r", receptacle)])
    }

    fn receptacles(self, kind: Object) -> impl Iterator<Item = Object> + 'a {
        self.facts("receptacletype").iter().filter(move |row| row[1] == kind).map(|row| row[0])
    }

    fn is_treated(self, aim: &Aim, object: Object) -> bool {
        aim.treatment.is_none_or(|t| self.holds(t.fact, object, None))
    }

    /// Returns true if the object is treated and in the receptacle `target`.
    fn is_done(self, aim: &Aim, object: Object, target: Object) -> bool {
        self.holds("inreceptacle", object, Some(target)) && self.is_treated(aim, object)
    }

    fn next(self, aim: &Aim) -> Option<&'a Operator> {
        let wanted: Vec<Object> =
            self.facts("objecttype").iter().filter(|row| row[1] == aim.object).map(|row| row[0]).collect();
        // Two objects go into one receptacle: the one that has most of them already.
        let done = |target: Object| wanted.iter().filter(|&&o| self.is_done(aim, o, target)).count();
        let target = aim.receptacle.map(|kind| self.receptacles(kind).max_by_key(|&r| (done(r), std::cmp::Reverse(r))));
        match (target, self.held()) {
            (Some(None), _) => None,
            (_, Some(held)) if !wanted.contains(&held) => self.put_away(held),
            (Some(Some(target)), Some(held)) => match aim.treatment {
                Some(treatment) if !self.is_treated(aim, held) => self.treat(treatment, held),
                _ => self.at(target, true, "putobject", held),
            },
            (None, Some(_)) => self.switch_on(aim.lamp?),
            (target, None) => {
                let open = |o: &Object| target.flatten().is_none_or(|target| !self.is_done(aim, *o, target));
                self.fetch(&wanted.iter().copied().filter(open).collect::<Vec<_>>())
            }
        }
    }

    /// Takes one of the objects: one that is here, else the first.
    fn fetch(self, objects: &[Object]) -> Option<&'a Operator> {
        let takable = |row: &&Arguments| objects.contains(&row[0]) && self.holds("pickupable", row[0], None);
        let places = || self.facts("inreceptacle").iter().filter(takable);
        let place = places().find(|row| self.is_at(row[1])).or_else(|| places().next())?;
        self.at(place[1], true, "pickupobject", place[0])
    }

    fn treat(self, treatment: Treatment, object: Object) -> Option<&'a Operator> {
        let kind = self.game.rules.objects.iter().position(|name| name == treatment.appliance)?;
        let appliance = self.receptacles(kind as Object).next()?;
        self.at(appliance, false, treatment.action, object)
    }

    fn switch_on(self, lamp: Object) -> Option<&'a Operator> {
        let is_lamp = |row: &&Arguments| self.holds("objecttype", row[0], Some(lamp));
        let place = self.facts("inreceptacle").iter().find(is_lamp)?;
        self.at(place[1], false, "toggleobject", place[0])
    }

    /// Puts down an object that is in the way: here if that is possible, else at the first place that may hold it.
    fn put_away(self, object: Object) -> Option<&'a Operator> {
        if let Some(here) = self.operator("putobject", &[("o", object)]) {
            return Some(here);
        }
        let kinds = || self.facts("objecttype").iter().filter(|row| row[0] == object).map(|row| row[1]);
        let holds_it = |kind: Object| kinds().any(|object| self.holds("cancontain", kind, Some(object)));
        let place = self.facts("receptacletype").iter().find(|row| holds_it(row[1]))?;
        self.at(place[0], true, "putobject", object)
    }
}
