//! Food and drink.

use super::PACKS;
use crate::generate::shop::{Department, Kind};

pub const GROCERY: Department = Department {
    category: "grocery",
    kinds: &[
        Kind {
            path: "Grocery & Food › Snacks › Bars › Granola",
            query: "granola bars",
            noun: "Granola Bars",
            dollars: (5, 48),
            attributes: "gluten free, individually wrapped, plant based, non gmo, low sugar, high protein, nut free, \
                dairy free, whole grain, kosher certified, high fiber",
            options: &[
                ("Flavor Name", "peanut butter, dark chocolate, coconut & almond, honey oat, mixed berry"),
                ("Size", PACKS),
            ],
        },
        Kind {
            path: "Grocery & Food › Beverages › Tea › Green",
            query: "green tea bags",
            noun: "Green Tea Bags",
            dollars: (4, 40),
            attributes: "caffeine free, usda organic, individually wrapped, sugar free, antioxidant rich, fair trade, \
                non gmo, plastic free, loose leaf",
            options: &[
                ("Flavor Name", "jasmine, lemon ginger, peppermint, plain, honey"),
                ("Size", "20 bags, 40 bags (pack of 6), 100 bags"),
            ],
        },
        Kind {
            path: "Grocery & Food › Beverages › Coffee › Ground",
            query: "ground coffee",
            noun: "Ground Coffee",
            dollars: (8, 65),
            attributes: "medium roast, fair trade, single origin, low acid, usda organic, small batch, rich flavor, \
                artificial flavors free, shade grown",
            options: &[("Flavor Name", "hazelnut, french vanilla, breakfast blend, espresso, decaf"), ("Size", PACKS)],
        },
        Kind {
            path: "Grocery & Food › Snacks › Fruit › Dried",
            query: "freeze dried fruit",
            noun: "Freeze Dried Fruit",
            dollars: (5, 55),
            attributes: "freeze dried, no added sugar, gluten free, resealable bag, fat free, non gmo, \
                natural ingredients, usda organic, ready to eat",
            options: &[("Flavor", "strawberry, mango, banana, apple cinnamon, raspberry"), ("Size", PACKS)],
        },
        Kind {
            path: "Grocery & Food › Supplements › Protein › Powders",
            query: "protein powder",
            noun: "Protein Powder",
            dollars: (16, 95),
            attributes: "high protein, low carb, keto friendly, lactose free, soy free, grass fed, easy to mix, \
                artificial colors free, sugar free, plant based",
            options: &[
                ("Flavor Name", "chocolate, vanilla, cookies & cream, salted caramel, unsweetened"),
                ("Size", "1 lb, 2 lb, 5 lb / 2.3 kg"),
            ],
        },
        Kind {
            path: "Grocery & Food › Pantry › Oils › Olive",
            query: "extra virgin olive oil",
            noun: "Extra Virgin Olive Oil",
            dollars: (9, 80),
            attributes: "cold pressed, first harvest, single origin, non gmo, keto friendly, glass bottle, \
                family farm, kosher certified, usda organic",
            options: &[("Size", "8.5 fl oz (pack of 1), 17 fl oz (pack of 2), 1 liter, 3 liter tin")],
        },
        Kind {
            path: "Grocery & Food › Pantry › Sauces › Pasta",
            query: "pasta sauce",
            noun: "Pasta Sauce",
            dollars: (4, 42),
            attributes: "no added sugar, low sodium, gluten free, slow cooked, dairy free, vegan friendly, glass jar, \
                non gmo, ready to serve",
            options: &[("Flavor Name", "tomato basil, roasted garlic, arrabbiata, four cheese"), ("Size", PACKS)],
        },
        Kind {
            path: "Grocery & Food › Sweets › Chocolate › Bars",
            query: "dark chocolate bars",
            noun: "Dark Chocolate Bars",
            dollars: (4, 46),
            attributes: "fair trade, dairy free, low sugar, gift box, soy free, non gmo, high cocoa, \
                individually wrapped, keto friendly, hand made",
            options: &[
                ("Flavor Name", "sea salt, orange peel, raspberry, mint crisp, toasted almond, 85% cocoa"),
                ("Size", PACKS),
            ],
        },
        Kind {
            path: "Grocery & Food › Snacks › Nuts › Mixes",
            query: "trail mix",
            noun: "Trail Mix",
            dollars: (6, 50),
            attributes: "resealable bag, high protein, gluten free, lightly salted, plant based, trans fat free, \
                individually wrapped, high fiber",
            options: &[("Flavor", "tropical, mountain, sweet & salty, nutty berry"), ("Size", PACKS)],
        },
        Kind {
            path: "Grocery & Food › Snacks › Crackers › Seed",
            query: "seed crackers",
            noun: "Seed Crackers",
            dollars: (4, 36),
            attributes: "gluten free, low carb, oven baked, plant based, nut free, non gmo, high fiber, grain free, \
                keto friendly",
            options: &[("Flavor", "thyme & salt, everything, black pepper, onion, plain"), ("Size", PACKS)],
        },
    ],
};
