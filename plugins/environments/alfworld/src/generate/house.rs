//! A random household in which a task can be done.

use super::dice::Dice;
use super::tables::{self, Room, has, things_in};
use super::{Goal, Size};
use crate::task_type::TaskType;
use std::collections::HashSet;

/// Chance that a receptacle shares the location of another one.
const SHARED_LOCATION: f64 = 0.18;
/// Chance that an object is in two receptacles at once.
const TWO_RECEPTACLES: f64 = 0.12;
/// Chance that a bowl, a box, a mug ... contains an object.
const FILLED: f64 = 0.4;
/// Chance of a desk lamp if the task needs none.
const SPARE_LAMP: f64 = 0.3;

/// A fixed receptacle.
pub struct Receptacle {
    pub class: &'static str,
    pub id: String,
    pub location: String,
}

/// Anything else.
pub struct Object {
    pub class: &'static str,
    pub id: String,
    pub location: String,
    /// The agent can take it.
    pub pickupable: bool,
    /// The receptacles it is in: one, or two as in some of ALFRED's scenes, or none for scenery.
    pub receptacles: Vec<usize>,
    /// The object (a movable receptacle) it is in.
    pub inside: Option<usize>,
}

/// A room with its contents. All ids are distinct and escaped for PDDL.
pub struct House {
    pub receptacles: Vec<Receptacle>,
    pub objects: Vec<Object>,
    /// The agent's first location; no receptacle is there.
    pub start: String,
    /// The receptacles' classes, each once, with the objects that fit in each.
    classes: Vec<(&'static str, Vec<&'static str>)>,
    ids: HashSet<String>,
}

impl House {
    /// Makes a room with receptacles and no objects yet.
    pub fn furnish(room: &Room, size: Size, dice: &mut Dice) -> House {
        let mut classes: Vec<&'static str> = room.base.split(' ').collect();
        let mut more: Vec<&'static str> = room.more.split(' ').collect();
        match size {
            Size::Small => {
                dice.shuffle(&mut more);
                classes.extend(&more[..dice.between(1..=3) as usize]);
            }
            Size::Real => {
                classes.append(&mut more);
                let filling: Vec<&'static str> = room.filling.split(' ').collect();
                let total = dice.between(27..=31) as usize;
                while classes.len() < total {
                    classes.push(dice.pick(&filling));
                }
            }
        }

        let start = format!("loc|{}|{}|{}|30", dice.between(-9..=9), dice.between(10..=19), dice.below(4));
        let mut house = House {
            receptacles: Vec::new(),
            objects: Vec::new(),
            start: escape(&start),
            classes: Vec::new(),
            ids: HashSet::new(),
        };
        for class in classes {
            if !house.classes.iter().any(|(c, _)| *c == class) {
                house.classes.push((class, things_in(class).split(' ').collect()));
            }
            // A basin is named after its fixture: `Sink|x|y|z|SinkBasin`.
            let id = match class.strip_suffix("Basin") {
                Some(whole) => house.id(whole, &format!("|{class}"), dice),
                None => house.id(class, "", dice),
            };
            let location = if !house.receptacles.is_empty() && dice.chance(SHARED_LOCATION) {
                house.receptacles[dice.below(house.receptacles.len())].location.clone()
            } else {
                house.location(dice)
            };
            house.receptacles.push(Receptacle { class, id, location });
        }
        house
    }

    /// Lists the receptacle classes that an object of this class fits in, each once.
    pub fn homes(&self, class: &str) -> Vec<&'static str> {
        self.classes.iter().filter(|(_, things)| things.contains(&class)).map(|(receptacle, _)| *receptacle).collect()
    }

    /// Adds the objects: enough of the goal's class, none of them in a target receptacle, and others.
    pub fn fill(&mut self, room: &Room, goal: &Goal, size: Size, dice: &mut Dice) {
        let (total, copies, scenery): (_, &[usize], _) = match size {
            Size::Small => (dice.between(8..=10), &[1, 1, 1, 2], 3),
            Size::Real => (dice.between(40..=60), &[1, 1, 2, 3], dice.between(4..=8)),
        };
        let needed = if goal.task == TaskType::PickTwo { 2 } else { 1 };
        let places = self.places(goal.object, goal);
        for _ in 0..needed + dice.below(2) {
            self.put(goal.object, &places, dice);
        }

        let mut others: Vec<_> = room.things.split(' ').filter(|&class| class != goal.object).collect();
        while self.objects.len() < total as usize {
            dice.shuffle(&mut others);
            for &class in &others {
                let places = self.places(class, goal);
                let room_left = total as usize - self.objects.len();
                let copies = if places.is_empty() { 0 } else { dice.pick(copies).min(room_left) };
                for _ in 0..copies {
                    self.put(class, &places, dice);
                }
            }
        }
        self.nest(goal, dice);

        if goal.task == TaskType::LookAtObjInLight || (room.has_lamp && dice.chance(SPARE_LAMP)) {
            let stands: Vec<usize> = self.receptacles_where(|class| has(tables::LAMP_STANDS, class));
            self.put("DeskLamp", &stands, dice);
        }
        let kinds: Vec<_> = room.scenery.split(' ').collect();
        for _ in 0..scenery {
            let class = dice.pick(&kinds);
            let location = self.receptacles[dice.below(self.receptacles.len())].location.clone();
            let id = self.id(class, "", dice);
            self.objects.push(Object { class, id, location, pickupable: false, receptacles: Vec::new(), inside: None });
        }
    }

    /// Lists the places where an object of this class may be at the start: wherever it fits, but without reaching the
    /// goal.
    fn places(&self, class: &str, goal: &Goal) -> Vec<usize> {
        let homes = self.homes(class);
        self.receptacles_where(|receptacle| homes.contains(&receptacle) && !goal.is_met_by(class, receptacle))
    }

    fn receptacles_where(&self, wanted: impl Fn(&'static str) -> bool) -> Vec<usize> {
        (0..self.receptacles.len()).filter(|&r| wanted(self.receptacles[r].class)).collect()
    }

    /// Adds an object in one of the places, or in two at once.
    fn put(&mut self, class: &'static str, places: &[usize], dice: &mut Dice) {
        let mut receptacles = vec![dice.pick(places)];
        let pickupable = class != "DeskLamp";
        if pickupable && dice.chance(TWO_RECEPTACLES) {
            let second = dice.pick(places);
            if second != receptacles[0] {
                receptacles.push(second);
            }
        }
        let location = self.receptacles[receptacles[0]].location.clone();
        let id = self.id(class, "", dice);
        self.objects.push(Object { class, id, location, pickupable, receptacles, inside: None });
    }

    /// Moves some objects into the movable receptacles. An object in a mug is also in the receptacle that the mug is
    /// in: ALFRED has both facts, and the agent takes it from there.
    fn nest(&mut self, goal: &Goal, dice: &mut Dice) {
        for outer in 0..self.objects.len() {
            let Object { class, ref location, ref receptacles, .. } = self.objects[outer];
            if !has(tables::MOVABLE, class) || !dice.chance(FILLED) {
                continue;
            }
            let (location, receptacle) = (location.clone(), receptacles[0]);
            let standing_in = self.receptacles[receptacle].class;
            let fits = |o: &Object| {
                o.inside.is_none()
                    && !has(tables::MOVABLE, o.class)
                    && has(things_in(class), o.class)
                    && !goal.is_met_by(o.class, standing_in)
            };
            let inner: Vec<usize> = (0..self.objects.len()).filter(|&o| fits(&self.objects[o])).collect();
            if !inner.is_empty() {
                let inner = dice.pick(&inner);
                let object = &mut self.objects[inner];
                (object.location, object.receptacles, object.inside) = (location, vec![receptacle], Some(outer));
            }
        }
    }

    /// Makes an id: the class, three coordinates in metres, and an ending.
    fn id(&mut self, class: &str, ending: &str, dice: &mut Dice) -> String {
        loop {
            let mut id = class.to_owned();
            for range in [-390..=390, 5..=200, -390..=390] {
                let centimetres: i32 = dice.between(range);
                let sign = if centimetres < 0 { '-' } else { '+' };
                id += &format!("|{sign}{:02}.{:02}", centimetres.abs() / 100, centimetres.abs() % 100);
            }
            let id = escape(&(id + ending));
            if self.ids.insert(id.clone()) {
                return id;
            }
        }
    }

    /// Makes a location: x and z in steps of 25 cm, a quarter turn, and the camera's tilt in degrees.
    fn location(&mut self, dice: &mut Dice) -> String {
        loop {
            let (x, z, turn) = (dice.between(-9..=9), dice.between(-9..=9), dice.below(4));
            let location = escape(&format!("loc|{x}|{z}|{turn}|{}", dice.pick(&[-30, 0, 30, 45, 60])));
            if self.ids.insert(location.clone()) {
                return location;
            }
        }
    }
}

/// Escapes an id of ALFRED as a PDDL symbol.
fn escape(id: &str) -> String {
    let mut escaped = String::with_capacity(4 * id.len());
    for c in id.chars() {
        match c {
            '-' => escaped += "_minus_",
            '+' => escaped += "_plus_",
            '|' => escaped += "_bar_",
            '.' => escaped += "_dot_",
            ',' => escaped += "_comma_",
            other => escaped.push(other),
        }
    }
    escaped
}
