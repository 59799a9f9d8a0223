//! A little shop of short texts and few words, for a small network that learns to read on the way.

use crate::generate::shop::{Department, Habits, Kind, Sentences, Shop};

/// Colours of the little shop.
const COLORS: &str = "red, blue, green, black, white";
/// Sizes of the little shop.
const SIZES: &str = "small, medium, large";

const FASHION: Department = Department {
    category: "fashion",
    kinds: &[
        Kind {
            path: "Fashion › Clothing › Tops › Shirts",
            query: "shirt",
            noun: "shirt",
            dollars: (5, 45),
            attributes: "long sleeve, slim fit, pure silk, button front, deep pocket, fast dry",
            options: &[("Color", COLORS), ("Size", SIZES)],
        },
        Kind {
            path: "Fashion › Footwear › Sport › Shoes",
            query: "shoes",
            noun: "shoes",
            dollars: (5, 45),
            attributes: "rubber sole, wide toe, wool lining, high heel, lace closure, arch support",
            options: &[("Color", COLORS), ("Size", SIZES)],
        },
    ],
};

const GARDEN: Department = Department {
    category: "garden",
    kinds: &[
        Kind {
            path: "Home › Lighting › Table › Lamps",
            query: "lamp",
            noun: "lamp",
            dollars: (5, 45),
            attributes: "touch switch, warm glow, glass base, linen shade, low power, night mode",
            options: &[("Color", COLORS)],
        },
        Kind {
            path: "Home › Furniture › Seats › Chairs",
            query: "chair",
            noun: "chair",
            dollars: (5, 45),
            attributes: "steel legs, soft seat, wood frame, padded arms, swivel wheels, tall back",
            options: &[("Color", COLORS)],
        },
    ],
};

const GROCERY: Department = Department {
    category: "grocery",
    kinds: &[
        Kind {
            path: "Grocery › Drinks › Hot › Tea",
            query: "tea",
            noun: "tea",
            dollars: (5, 45),
            attributes: "caffeine free, whole leaf, fair trade, strong taste, tin box, cold brew",
            options: &[("Flavor", "lemon, honey, mint"), ("Pack", "one, two, four")],
        },
        Kind {
            path: "Grocery › Snacks › Baked › Cookies",
            query: "cookies",
            noun: "cookies",
            dollars: (5, 45),
            attributes: "gluten free, nut free, real butter, oat grain, hand made, thin crisp",
            options: &[("Flavor", "lemon, honey, cocoa")],
        },
    ],
};

const BEAUTY: Department = Department {
    category: "beauty",
    kinds: &[Kind {
        path: "Beauty › Bath › Bars › Soap",
        query: "soap",
        noun: "soap",
        dollars: (5, 45),
        attributes: "gentle skin, plant oil, rich foam, sea salt, baby safe, vegan recipe",
        options: &[("Scent", "rose, pine, lavender"), ("Pack", "one, two, four")],
    }],
};

const ELECTRONICS: Department = Department {
    category: "electronics",
    kinds: &[Kind {
        path: "Electronics › Parts › Wires › Cables",
        query: "cable",
        noun: "cable",
        dollars: (5, 45),
        attributes: "gold plug, quick charge, flat wire, metal shell, usb port, video signal",
        options: &[("Color", COLORS)],
    }],
};

pub static SHOP: Shop = Shop {
    departments: &[&FASHION, &GARDEN, &GROCERY, &BEAUTY, &ELECTRONICS],
    brands: ("kitto, zuma, bravo, lumo, tavi, nero", ""),
    sentences: Sentences {
        titles: &["{brand} {attributes} {noun}"],
        tails: &[""],
        descriptions: &["{noun} by {brand}"],
        remarks: &[""],
        bullets: &["{attribute}"],
        promises: &["by {brand}"],
        instructions: &["find {attributes} {query}"],
        people: &["i want {attributes} {query}{options}"],
    },
    habits: Habits {
        attributes: 2..=2,
        in_title: 2..=2,
        asked: &[1, 2, 2],
        values: 2..=3,
        price_step: 1000,
        price_range: 0.0,
        no_price: 0.0,
        capitals: false,
        near_duplicate: 0.05,
        no_options: 0.1,
        option_left_out: 0.1,
        option_null: 0.0,
        no_description: 0.0,
        one_bullet: 0.0,
        instruction: 0.9,
        human: 0.4,
    },
};
