//! A household and a goal as a PDDL problem, and the task in words.
//!
//! Goal formulas and sentences are those of `alfworld/gen/goal_library.py` (PyPI package `alfworld` 0.4.2, MIT License,
//! Copyright (c) 2020 Mohit Shridhar and others).

use super::Goal;
use super::dice::Dice;
use super::house::House;
use super::tables::{self, has, things_in};
use crate::task_type::TaskType;
use std::collections::BTreeSet;

/// Returns the task in words, in one of the two forms that the package has for each type.
pub fn sentence(goal: &Goal, dice: &mut Dice) -> String {
    let (object, target) = (goal.object.to_lowercase(), goal.target.to_lowercase());
    let sentences = match goal.task {
        TaskType::PickAndPlace => [format!("put a {object} in {target}"), format!("put some {object} on {target}")],
        TaskType::LookAtObjInLight => {
            [format!("look at {object} under the {target}"), format!("examine the {object} with the {target}")]
        }
        TaskType::PickClean => {
            [format!("put a clean {object} in {target}"), format!("clean some {object} and put it in {target}")]
        }
        TaskType::PickHeat => {
            [format!("put a hot {object} in {target}"), format!("heat some {object} and put it in {target}")]
        }
        TaskType::PickCool => {
            [format!("put a cool {object} in {target}"), format!("cool some {object} and put it in {target}")]
        }
        TaskType::PickTwo => {
            [format!("put two {object} in {target}"), format!("find two {object} and put them in {target}")]
        }
    };
    let [first, second] = sentences;
    if dice.chance(0.5) { first } else { second }
}

pub fn problem(name: &str, house: &House, goal: &Goal) -> String {
    let mut text = format!("(define (problem plan_{name})\n(:domain alfred)\n(:objects\nagent1 - agent\n");
    declare(&mut text, house);
    text += "        )\n(:init\n";
    for fact in facts(house) {
        text += "        (";
        text += &fact;
        text += ")\n";
    }
    text += "        )\n\n";
    text += &formula(goal);
    text
}

/// Writes the `:objects`: every class once as an object (ALFRED's own noise) and as a type, then the house's own.
fn declare(text: &mut String, house: &House) {
    let mut line = |name: &str, suffix: &str, kind: &str| {
        text.extend(["        ", name, suffix, " - ", kind, "\n"]);
    };
    for class in tables::OBJECTS.split(' ') {
        line(class, "", "object");
    }
    let classes: BTreeSet<&str> = tables::OBJECTS.split(' ').chain(house.objects.iter().map(|o| o.class)).collect();
    for class in classes {
        line(class, "Type", "otype");
    }
    for class in tables::RECEPTACLES.split(' ') {
        line(class, "Type", "rtype");
    }
    let objects: BTreeSet<&str> = house.objects.iter().map(|o| o.id.as_str()).collect();
    for id in objects {
        line(id, "", "object");
    }
    let receptacles: BTreeSet<&str> = house.receptacles.iter().map(|r| r.id.as_str()).collect();
    for id in receptacles {
        line(id, "", "receptacle");
    }
    let mut locations: BTreeSet<&str> = house.receptacles.iter().map(|r| r.location.as_str()).collect();
    locations.insert(&house.start);
    for id in locations {
        line(id, "", "location");
    }
}

/// Returns the facts of `:init`, in ALFRED's order, without parentheses.
fn facts(house: &House) -> Vec<String> {
    let House { receptacles, objects, .. } = house;
    let mut facts = Vec::new();
    facts.extend(receptacles.iter().map(|r| format!("receptacleType {} {}Type", r.id, r.class)));
    facts.extend(objects.iter().map(|o| format!("objectType {} {}Type", o.id, o.class)));

    let receptacle_classes: BTreeSet<&str> = receptacles.iter().map(|r| r.class).collect();
    let object_classes: BTreeSet<&str> = objects.iter().map(|o| o.class).collect();
    for receptacle in receptacle_classes {
        let things = things_in(receptacle).split(' ').filter(|&class| object_classes.contains(class));
        facts.extend(things.map(|class| format!("canContain {receptacle}Type {class}Type")));
    }

    facts.extend(objects.iter().filter(|o| o.pickupable).map(|o| format!("pickupable {}", o.id)));
    let of = |list, property: &'static str| {
        objects.iter().filter(move |o| has(list, o.class)).map(move |o| format!("{property} {}", o.id))
    };
    facts.extend(of(tables::MOVABLE, "isReceptacleObject"));
    facts.extend(receptacles.iter().filter(|r| has(tables::OPENABLE, r.class)).map(|r| format!("openable {}", r.id)));
    facts.push(format!("atLocation agent1 {}", house.start));
    facts.extend(of(tables::CLEANABLE, "cleanable"));
    facts.extend(of(tables::HEATABLE, "heatable"));
    facts.extend(of(tables::COOLABLE, "coolable"));
    facts.extend(of(tables::TOGGLEABLE, "toggleable"));
    facts.extend(of(tables::SLICEABLE, "sliceable"));

    for object in objects {
        facts.extend(object.receptacles.iter().map(|&r| format!("inReceptacle {} {}", object.id, receptacles[r].id)));
    }
    for object in objects {
        facts.extend(object.inside.map(|outer| format!("inReceptacleObject {} {}", object.id, objects[outer].id)));
    }
    facts.extend(receptacles.iter().map(|r| format!("receptacleAtLocation {} {}", r.id, r.location)));
    facts.extend(objects.iter().map(|o| format!("objectAtLocation {} {}", o.id, o.location)));
    facts
}

/// Returns the `:goal`, and the parenthesis that ends the problem. The order of the conditions is the package's.
fn formula(goal: &Goal) -> String {
    let Goal { task, object, target } = goal;
    let types = format!("(objectType ?o {object}Type) (receptacleType ?r {target}Type)");
    let condition = match task {
        TaskType::PickAndPlace => {
            format!("(exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) {types})))")
        }
        TaskType::PickClean => treated("cleanable", &types, "isClean"),
        TaskType::PickHeat => treated("heatable", &types, "isHot"),
        TaskType::PickCool => treated("coolable", &types, "isCool"),
        TaskType::LookAtObjInLight => format!(
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location)
                    (and (objectType ?ot {target}Type) (toggleable ?ot) (isToggled ?ot)
                        (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
                (exists (?o - object ?a - agent) (and (objectType ?o {object}Type) (holds ?a ?o)))"
        ),
        TaskType::PickTwo => format!(
            "(exists (?r - receptacle) (exists (?o1 - object)
                    (and (objectType ?o1 {object}Type) (receptacleType ?r {target}Type) (inReceptacle ?o1 ?r)
                        (exists (?o2 - object)
                            (and (not (= ?o1 ?o2))
                                (objectType ?o2 {object}Type) (receptacleType ?r {target}Type)
                                (inReceptacle ?o2 ?r))))))"
        ),
    };
    format!("        (:goal\n            (and\n                {condition}\n            )\n        )\n    )\n")
}

/// Returns the condition of an object that can be changed in some way, was, and is in the target.
fn treated(able: &str, types: &str, done: &str) -> String {
    format!(
        "(exists (?r - receptacle) (exists (?o - object)
                    (and ({able} ?o) {types} ({done} ?o) (inReceptacle ?o ?r))))"
    )
}
