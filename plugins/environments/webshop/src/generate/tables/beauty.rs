//! Care of skin, hair and teeth.

use super::{BOTTLES, PLAIN};
use crate::generate::shop::{Department, Kind};

pub const BEAUTY: Department = Department {
    category: "beauty",
    kinds: &[
        Kind {
            path: "Beauty & Care › Skin Care › Face › Moisturizers",
            query: "facial moisturizer",
            noun: "Facial Moisturizer",
            dollars: (7, 68),
            attributes: "fragrance free, paraben free, dry skin, hyaluronic acid, oil free, cruelty free, anti aging, \
                sensitive skin, vitamin c, fine lines, dermatologist tested, non greasy",
            options: &[("Size", BOTTLES), ("Scent", "unscented, green tea, rose water, aloe & cucumber")],
        },
        Kind {
            path: "Beauty & Care › Hair Care › Wash › Shampoo",
            query: "moisturizing shampoo",
            noun: "Moisturizing Shampoo",
            dollars: (6, 45),
            attributes: "sulfate free, color safe, damaged hair, argan oil, tea tree, dry scalp, paraben free, \
                hair growth, natural ingredients, curly hair",
            options: &[("Size", BOTTLES), ("Scent", "coconut, citrus, lavender mint, honey, jasmine")],
        },
        Kind {
            path: "Beauty & Care › Hair Care › Treatments › Conditioner",
            query: "leave in conditioner",
            noun: "Leave-In Conditioner",
            dollars: (6, 40),
            attributes: "heat protection, curly hair, damaged hair, split ends, coconut oil, alcohol free, \
                cruelty free, long lasting, dry hair",
            options: &[("Size", BOTTLES)],
        },
        Kind {
            path: "Beauty & Care › Makeup › Lips › Balms",
            query: "tinted lip balm",
            noun: "Tinted Lip Balm",
            dollars: (4, 26),
            attributes: "long lasting, cruelty free, seed oil, shea butter, sun protection, high gloss, easy to apply, \
                dry lips, vitamin e",
            options: &[("Color", "01 nude pink, 02 coral, 03 plum, 04 peach, rosy berry, clear")],
        },
        Kind {
            path: "Beauty & Care › Nails › Color › Polish",
            query: "gel nail polish",
            noun: "Gel Nail Polish",
            dollars: (5, 32),
            attributes: "long lasting, quick drying, high shine, chip resistant, non toxic, easy to apply, odor free, \
                uv curing",
            options: &[("Color", PLAIN), ("Number of Items", "1, 6, 12")],
        },
        Kind {
            path: "Beauty & Care › Skin Care › Body › Lotions",
            query: "body lotion",
            noun: "Body Lotion",
            dollars: (6, 38),
            attributes: "shea butter, dry skin, fragrance free, cocoa butter, fast absorbing, non greasy, plant based, \
                sensitive skin, cruelty free, long lasting",
            options: &[("Scent", "vanilla, sandalwood, warm amber, almond, green tea"), ("Size", BOTTLES)],
        },
        Kind {
            path: "Beauty & Care › Oral Care › Brushes › Electric",
            query: "electric toothbrush",
            noun: "Electric Toothbrush",
            dollars: (15, 160),
            attributes: "teeth whitening, oral hygiene, soft bristles, usb charging, travel case, plaque removal, \
                sensitive teeth, two minute timer, long battery life",
            options: &[("Color", PLAIN), ("Style", "single, family set of 4, with 8 brush heads")],
        },
        Kind {
            path: "Beauty & Care › Makeup › Tools › Brushes",
            query: "makeup brush set",
            noun: "Makeup Brush Set",
            dollars: (7, 60),
            attributes: "synthetic hair, cruelty free, easy to clean, eye shadow, storage case, wooden handle, \
                soft bristles, travel size",
            options: &[
                ("Color", "black, pink, rose gold, champagne, marble"),
                ("Number of Items", "8, 12, 16 pieces, 24 pieces"),
            ],
        },
        Kind {
            path: "Beauty & Care › Shave › Beard › Oils",
            query: "beard oil",
            noun: "Beard Oil",
            dollars: (8, 42),
            attributes: "natural ingredients, hair growth, argan oil, jojoba oil, non greasy, alcohol free, gift box, \
                dry skin, long lasting",
            options: &[
                ("Scent", "cedar, bay rum, unscented, citrus & clove, tobacco"),
                ("Size", "1 fl oz, 2 fl oz (pack of 2)"),
            ],
        },
    ],
};
