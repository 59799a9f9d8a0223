//! A shop like the real one, in which a search leaves several products to choose from.

use super::{beauty, electronics, fashion, garden, grocery};
use crate::generate::shop::{Habits, Sentences, Shop};

pub static SHOP: Shop = Shop {
    departments: &[&fashion::FASHION, &beauty::BEAUTY, &grocery::GROCERY, &electronics::ELECTRONICS, &garden::GARDEN],
    brands: (
        "Vel, Taz, Orin, Quil, Brev, Nemo, Sul, Fen, Kava, Dor, Mira, Lund, Zeph, Pell, Hesk, Ivo, Rook, Jura, Cald, \
         Wex, Bram, Tiv, Osk, Gala, Yar, Eld, Piko, Tarn, Umbr, Skel",
        "mora, wick, dale, fort, ista, ley, nova, berg, quist, tree, worth, zo, land, vex, ello, mark, brook, tide, \
         stad, lin, haven, ova, ridge, ton",
    ),
    sentences: Sentences {
        titles: &[
            "{brand} {attribute} {noun}{more}{tail}",
            "{brand} {noun} with {attributes}{tail}",
            "{noun} by {brand}, {attributes}{tail}",
            "{brand} {noun} - {attributes}{tail}",
            "{attribute} {noun}{more}, {brand}{tail}",
        ],
        tails: &[
            "",
            "",
            "",
            ", Gift Idea",
            ", New Model",
            " for Everyday Use",
            " (Upgraded)",
            ", Great for Home and Travel",
            " | 2nd Generation",
            ", Gifts for Friends & Family",
        ],
        descriptions: &[
            "{brand} makes this {noun} for people who ask for {attributes}.",
            "Looking for {query}? This one by {brand} offers {attributes}.",
            "The {noun} of {brand}: {attributes}.",
            "We at {brand} test every {noun} for a month. It comes with {attributes}.",
        ],
        remarks: &[
            "Ideal for daily use.",
            "Please check the size before you order, and allow a small difference in measurement.",
            "A fine present for birthdays & holidays.",
            "Colors on your screen may differ a little from the product.",
            "Package includes: 1 x {noun}.",
            "Questions? Our team answers within 24 hours.",
        ],
        bullets: &[
            "{attribute}: made for {query}",
            "【{attribute}】 You feel the difference from the first day.",
            "{attribute} - one of the reasons to choose {brand}",
            "With {attribute}, tested by our team",
            "{attribute}; please read the label for details",
        ],
        promises: &[
            "Satisfaction guaranteed, contact {brand} support",
            "Ships in a plain box that is easy to recycle",
            "Designed by a small team, with love for detail",
            "A practical gift for family, friends & colleagues",
        ],
        instructions: &[
            "Find me {query} with {attributes}",
            "Find me {attributes} {query}",
            "Show me {query}, {attributes}",
            "I need {attributes} {query}",
        ],
        people: &[
            "i am looking for {query} that offer {attributes}{options}.",
            "i need {attributes} {query}{options}",
            "can you find {query} for me? it should have {attributes}{options}.",
            "i'd like to buy {query} with {attributes}, please{options}.",
            "looking for {attributes} {query}{options}",
            "my sister wants {query}, {attributes}{options}. thanks.",
        ],
    },
    habits: Habits {
        attributes: 3..=6,
        in_title: 1..=3,
        asked: &[1, 2, 2, 3],
        values: 1..=5,
        price_step: 1,
        price_range: 0.14,
        no_price: 0.16,
        capitals: true,
        near_duplicate: 0.06,
        no_options: 0.12,
        option_left_out: 0.15,
        option_null: 0.04,
        no_description: 0.03,
        one_bullet: 0.08,
        instruction: 0.9,
        human: 0.4,
    },
};
