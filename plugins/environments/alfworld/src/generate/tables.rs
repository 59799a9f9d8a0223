//! Tables: the objects that fit in receptacles, and the contents of rooms.
//!
//! [`things_in`], the property lists and the class lists are the tables of `alfworld/gen/constants.py` (PyPI package
//! `alfworld` 0.4.2, MIT License, Copyright (c) 2020 Mohit Shridhar and others), without the sliced objects: no task
//! here slices. The rooms' contents are ours. Every list is a text of names parted by single spaces.

use crate::task_type::TaskType;

/// Object classes that a problem declares, in its order.
pub const OBJECTS: &str = "AlarmClock Apple BaseballBat BasketBall Bathtub Blinds Book Boots Bowl Box Bread \
    ButterKnife CD Candle CellPhone Chair Cloth CreditCard Cup Curtains DeskLamp DishSponge Egg FloorLamp Footstool \
    Fork Glassbottle HandTowel HousePlant Kettle KeyChain Knife Ladle Laptop LaundryHamperLid Lettuce LightSwitch \
    Mirror Mug Newspaper Painting Pan PaperTowel PaperTowelRoll Pen Pencil PepperShaker Pillow Plate Plunger Poster \
    Pot Potato RemoteControl SaltShaker ScrubBrush ShowerDoor ShowerGlass Sink SoapBar SoapBottle Spatula Spoon \
    SprayBottle Statue StoveKnob TeddyBear Television TennisRacket TissueBox ToiletPaper ToiletPaperRoll Tomato \
    Towel Vase Watch WateringCan Window WineBottle";

/// Receptacle classes that a problem declares, in its order. Those that can be carried are objects.
pub const RECEPTACLES: &str = "ArmChair BathtubBasin Bed Cabinet Cart CoffeeMachine CoffeeTable CounterTop Desk \
    DiningTable Drawer Dresser Fridge GarbageCan HandTowelHolder LaundryHamper Microwave Ottoman PaintingHanger Safe \
    Shelf SideTable SinkBasin Sofa StoveBurner TVStand Toaster Toilet ToiletPaperHanger TowelHolder";

/// Objects that can contain other objects (`isReceptacleObject`).
pub const MOVABLE: &str = "Bowl Box Cup Mug Pan Plate Pot";
/// Receptacles that open. A box opens too in the package, but no game has one that is not an object.
pub const OPENABLE: &str = "Cabinet Drawer Fridge Microwave Safe";
/// Objects that a sink basin cleans.
pub const CLEANABLE: &str = "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan \
    Plate Pot Potato SoapBar Spatula Spoon Tomato";
/// Objects that a microwave heats.
pub const HEATABLE: &str = "Apple Bread Cup Egg Mug Plate Potato Tomato";
/// Objects that a fridge cools.
pub const COOLABLE: &str = "Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle";
/// Objects that can be turned on.
pub const TOGGLEABLE: &str = "DeskLamp FloorLamp";
/// Objects that a knife slices.
pub const SLICEABLE: &str = "Apple Bread Egg Lettuce Potato Tomato";
/// Receptacles for a desk lamp.
pub const LAMP_STANDS: &str = "Desk Dresser SideTable";

/// Returns true if `list` has this name.
pub fn has(list: &str, name: &str) -> bool {
    list.split(' ').any(|n| n == name)
}

/// Lists the object classes that fit in a receptacle of this class, movable receptacles included; sorted.
pub fn things_in(receptacle: &str) -> &'static str {
    match receptacle {
        "ArmChair" | "Ottoman" | "Sofa" => {
            "BasketBall Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl"
        }
        "BathtubBasin" => "Cloth DishSponge HandTowel SoapBar",
        "Bed" => "BaseballBat BasketBall Book CellPhone Laptop Newspaper Pillow TennisRacket",
        "Bowl" => {
            "Apple ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Egg Fork KeyChain Knife Ladle Lettuce \
             Mug PaperTowel Pen Pencil Potato RemoteControl Spatula Spoon Tomato Watch"
        }
        "Box" => {
            "AlarmClock Book CD Candle CellPhone Cloth CreditCard DishSponge Glassbottle KeyChain Mug PaperTowel Pen \
             Pencil RemoteControl Statue TissueBox Vase Watch"
        }
        "Cabinet" => {
            "Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan \
             PepperShaker Plate Plunger Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper \
             ToiletPaperRoll Vase WateringCan WineBottle"
        }
        "Cart" => {
            "Candle Cloth DishSponge HandTowel Mug PaperTowel Plunger SoapBar SoapBottle SprayBottle Statue TissueBox \
             ToiletPaper ToiletPaperRoll Vase"
        }
        "CoffeeMachine" => "Mug",
        "CoffeeTable" | "CounterTop" | "DiningTable" | "SideTable" => {
            "AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth \
             CreditCard Cup DishSponge Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug \
             Newspaper Pan PaperTowel Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar \
             SoapBottle Spatula Spoon SprayBottle Statue TennisRacket TissueBox ToiletPaper ToiletPaperRoll Tomato \
             Vase Watch WateringCan WineBottle"
        }
        "Cup" => "ButterKnife Fork Spoon",
        "Desk" => {
            "AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain Laptop \
             Mug Newspaper Pen Pencil Plate RemoteControl SoapBottle SprayBottle Statue TennisRacket TissueBox \
             ToiletPaper ToiletPaperRoll Vase Watch WateringCan WineBottle"
        }
        "Drawer" => {
            "Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife Ladle \
             Newspaper Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle \
             TissueBox ToiletPaper ToiletPaperRoll Watch WateringCan"
        }
        "Dresser" => {
            "AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain Laptop \
             Mug Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TennisRacket TissueBox ToiletPaper \
             ToiletPaperRoll Vase Watch WateringCan WineBottle"
        }
        "Fridge" => "Apple Bowl Bread Cup Egg Glassbottle Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
        "GarbageCan" => {
            "Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper PaperTowel Pen Pencil Potato SoapBar \
             SoapBottle SprayBottle TissueBox ToiletPaper ToiletPaperRoll Tomato WineBottle"
        }
        "HandTowelHolder" => "HandTowel",
        "LaundryHamper" => "Cloth",
        "Microwave" => "Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato",
        "Mug" => "ButterKnife Fork KeyChain Knife Pen Pencil Spoon Watch",
        "Pan" | "Pot" => "Apple ButterKnife DishSponge Egg Fork Knife Ladle Lettuce Potato Spatula Spoon Tomato",
        "Plate" => {
            "AlarmClock Apple Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Egg Fork Glassbottle \
             KeyChain Knife Ladle Lettuce Mug PaperTowel Pen Pencil Potato Spatula Spoon TissueBox Tomato Watch"
        }
        "Safe" => "CD CellPhone CreditCard KeyChain Statue Vase Watch",
        "Shelf" => {
            "AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel Kettle \
             KeyChain Mug Newspaper PaperTowel Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker SoapBar \
             SoapBottle SprayBottle Statue TissueBox ToiletPaper ToiletPaperRoll Vase Watch WateringCan WineBottle"
        }
        "SinkBasin" => {
            "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle Lettuce Mug \
             Pan Plate Pot Potato SoapBar Spatula Spoon Tomato"
        }
        "StoveBurner" => "Kettle Pan Pot",
        "TVStand" => "TissueBox",
        "Toilet" => {
            "Candle Cloth DishSponge HandTowel Newspaper PaperTowel SoapBar SoapBottle SprayBottle TissueBox \
             ToiletPaper ToiletPaperRoll"
        }
        "ToiletPaperHanger" => "ToiletPaper ToiletPaperRoll",
        "TowelHolder" => "Towel",
        _ => "",
    }
}

/// The contents of a kind of room.
pub struct Room {
    /// The first of its 30 scene numbers, as in ALFRED's folder names.
    pub first_scene: usize,
    /// Receptacles that every such room has.
    pub base: &'static str,
    /// Receptacles that every real-size room also has, and of which a small one has some.
    pub more: &'static str,
    /// Receptacles that fill up a real-size room.
    pub filling: &'static str,
    /// Objects that can be taken.
    pub things: &'static str,
    /// Objects that cannot be taken: scenery.
    pub scenery: &'static str,
    /// A desk lamp may be here.
    pub has_lamp: bool,
}

/// Has all three appliances.
const KITCHEN: Room = Room {
    first_scene: 1,
    base: "CounterTop CounterTop Fridge Microwave SinkBasin Cabinet Cabinet Drawer Drawer",
    more: "DiningTable GarbageCan StoveBurner CoffeeMachine Shelf Toaster",
    filling: "Cabinet Drawer StoveBurner Shelf",
    things: "Apple Bread ButterKnife Cup DishSponge Egg Fork Knife Lettuce Mug Pan Plate Pot Potato SaltShaker \
        Spatula Spoon Tomato SoapBottle Bowl PepperShaker Glassbottle WineBottle Kettle Ladle",
    scenery: "Window LightSwitch Curtains StoveKnob Faucet Sink Chair",
    has_lamp: false,
};

const LIVING_ROOM: Room = Room {
    first_scene: 201,
    base: "Sofa CoffeeTable SideTable ArmChair Drawer Drawer Shelf GarbageCan Cabinet",
    more: "DiningTable TVStand Dresser Desk Ottoman ArmChair Safe",
    filling: "Cabinet Drawer Shelf SideTable",
    things: "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl TissueBox Vase Statue Watch \
        WateringCan Bowl Plate Candle Pencil",
    scenery: "Window LightSwitch Curtains FloorLamp HousePlant Painting Television Blinds",
    has_lamp: true,
};

const BEDROOM: Room = Room {
    first_scene: 301,
    base: "Bed Desk SideTable Drawer Drawer Dresser Shelf GarbageCan Safe",
    more: "ArmChair LaundryHamper Cabinet Shelf",
    filling: "Cabinet Drawer Shelf",
    things: "AlarmClock Book CD CellPhone CreditCard KeyChain Laptop Mug Pen Pencil Pillow Bowl Watch Box Cloth \
        TissueBox RemoteControl Newspaper BaseballBat BasketBall TennisRacket",
    scenery: "Window LightSwitch Curtains Mirror Poster Blinds Chair LaundryHamperLid TeddyBear",
    has_lamp: true,
};

const BATHROOM: Room = Room {
    first_scene: 401,
    base: "CounterTop SinkBasin Toilet BathtubBasin Cabinet Cabinet Drawer ToiletPaperHanger TowelHolder",
    more: "HandTowelHolder GarbageCan Shelf Cart SideTable SinkBasin",
    filling: "Cabinet Drawer Shelf",
    things: "Candle Cloth DishSponge HandTowel PaperTowel Plunger SoapBar SoapBottle SprayBottle TissueBox \
        ToiletPaper ToiletPaperRoll Towel",
    scenery: "Window LightSwitch Mirror Faucet Sink Bathtub ShowerDoor ShowerGlass ScrubBrush",
    has_lamp: false,
};

/// Returns the rooms for a task (`GOALS_VALID` of the package).
pub fn rooms(task: TaskType) -> &'static [Room] {
    match task {
        TaskType::PickAndPlace | TaskType::PickTwo => &[KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM],
        TaskType::LookAtObjInLight => &[LIVING_ROOM, BEDROOM],
        TaskType::PickClean => &[KITCHEN, BATHROOM],
        TaskType::PickHeat | TaskType::PickCool => &[KITCHEN],
    }
}
